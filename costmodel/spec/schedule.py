"""A pipeline schedule as data: what every pipeline rank does, in order.

The cost model simulates a :class:`Schedule` and the runtime executes the same object. The text form is
one line a rank, one token an action: ``F3.1`` is the forward of micro-batch 3 on virtual stage 1, ``B``
the whole backward, ``I`` and ``W`` its input and weight parts; ``F3.1+B0.5`` run at the same time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from . import schedule_orders
from .errors import Fault, InvalidInputError, raise_if
from .schedule_action import Action, ActionKind
from .strategy import PipelineSchedule

__all__ = [
    "Action",
    "ActionKind",
    "Schedule",
    "build_schedule",
    "dump_schedule",
    "parse_schedule",
    "schedule_faults",
    "stage_holders",
    "stage_ranks",
    "validate_schedule",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The actions of every pipeline rank, and which rank holds which virtual stage.

    ``stage_rank[stage]`` is the rank of a virtual stage. For every kind but DualPipe there are
    ``pipeline_parallel_size x virtual_pipeline_stages`` of them, numbered in model order. DualPipe runs
    two pipelines over the same ranks: stages ``0..p-1`` carry the first half of the micro-batches from
    rank 0 up, stages ``p..2p-1`` (the same model stages again) the second half from rank p-1 down.
    """

    kind: PipelineSchedule
    pipeline_parallel_size: int
    virtual_pipeline_stages: int
    num_microbatches: int
    stage_rank: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]

    @property
    def num_stages(self) -> int:
        """Virtual stages, DualPipe's two directions counted apart."""
        return len(self.stage_rank)

    @property
    def num_model_stages(self) -> int:
        """Pieces the model is cut into; durations and bytes are given for each of them."""
        return self.pipeline_parallel_size * self.virtual_pipeline_stages

    @property
    def splits_backward(self) -> bool:
        """Whether some backward is run as its input and weight parts."""
        return any(action.kind is ActionKind.BACKWARD_INPUT for actions in self.actions for action in actions)

    def model_stage(self, stage: int) -> int:
        """The piece of the model that virtual stage ``stage`` runs."""
        return stage % self.num_model_stages

    def upstream(self, stage: int) -> int | None:
        """The virtual stage whose forward feeds ``stage``; None for a first stage."""
        return stage - 1 if self.model_stage(stage) else None

    def downstream(self, stage: int) -> int | None:
        """The virtual stage whose backward feeds ``stage``; None for a last stage."""
        return stage + 1 if self.model_stage(stage + 1) else None

    def stage_microbatches(self, stage: int) -> range:
        """The micro-batches that pass through virtual stage ``stage``."""
        share = self.num_microbatches // (self.num_stages // self.num_model_stages)
        first = share * (stage // self.num_model_stages)
        return range(first, first + share)

    def rank_stages(self, rank: int) -> tuple[int, ...]:
        """The virtual stages that ``rank`` holds."""
        return tuple(stage for stage, holder in enumerate(self.stage_rank) if holder == rank)


def stage_ranks(kind: PipelineSchedule, pipeline_parallel_size: int, virtual_pipeline_stages: int) -> tuple[int, ...]:
    """Rank of each virtual stage: a V for ZBV and DualPipe (down the ranks and back), a loop for the rest."""
    ranks = tuple(range(pipeline_parallel_size))
    if kind is PipelineSchedule.DUALPIPE or (kind is PipelineSchedule.ZERO_BUBBLE and virtual_pipeline_stages == 2):
        return ranks + ranks[::-1]
    return ranks * virtual_pipeline_stages


def stage_holders(kind: PipelineSchedule, pipeline_parallel_size: int, virtual_pipeline_stages: int) -> tuple[int, ...]:
    """Which of the model's stages share their ranks: equal numbers for equal ranks, one entry a model stage.

    DualPipe puts each stage on two ranks, which hold the mirrored stage too: the pair counts as one holder.
    """
    p = pipeline_parallel_size
    if kind is PipelineSchedule.DUALPIPE:
        return tuple(min(stage, p - 1 - stage) for stage in range(p))
    return stage_ranks(kind, p, virtual_pipeline_stages)


def schedule_faults(
    kind: PipelineSchedule,
    pipeline_parallel_size: int,
    virtual_pipeline_stages: int,
    num_microbatches: int,
    microbatch_group_size: int | None = None,
) -> list[Fault]:
    """What keeps a schedule of these sizes from existing; empty where it can be built.

    ``microbatch_group_size``: micro-batches a rank runs on one chunk before the next one (interleaved
    only; None: one per pipeline rank). The last group may be smaller but must still fill the pipeline.
    """
    p, v, m = pipeline_parallel_size, virtual_pipeline_stages, num_microbatches
    sizes = (("pipeline_parallel_size", p), ("virtual_pipeline_stages", v), ("num_microbatches", m))
    faults = [Fault(field=name, given=str(size), required="an integer of at least 1") for name, size in sizes if size < 1]
    if faults:
        return faults
    if microbatch_group_size is not None and kind is not PipelineSchedule.INTERLEAVED:
        faults.append(
            Fault(
                field="microbatch_group_size", given=str(microbatch_group_size), required="for interleaved_1f1b alone", fix="leave it out"
            )
        )
    if kind is PipelineSchedule.INTERLEAVED:
        return faults + _interleaved_faults(p, v, m, microbatch_group_size)
    most = 2 if kind is PipelineSchedule.ZERO_BUBBLE else 1
    if v > most:
        required = f"{kind.value} takes {'1 (ZB-H1) or 2 (ZBV)' if most == 2 else 'one virtual stage a rank'}"
        faults.append(Fault(field="virtual_pipeline_stages", given=str(v), required=required, fix=f"nearest valid: {most}"))
    if kind is PipelineSchedule.DUALPIPE:
        faults += _dualpipe_faults(p, m)
    return faults


def _interleaved_faults(p: int, v: int, m: int, group: int | None) -> list[Fault]:
    faults = []
    if v < 2:
        required = "interleaved_1f1b needs at least 2 virtual stages a rank"
        faults.append(Fault(field="virtual_pipeline_stages", given=str(v), required=required, fix="use 2, or pipeline_schedule=1f1b"))
    if group is not None and group < p:
        required = f"at least pipeline_parallel_size={p}, so that a group fills the pipeline"
        return [*faults, Fault(field="microbatch_group_size", given=str(group), required=required, fix=f"nearest valid: {p}")]
    size = p if group is None else group
    if m % size and (group is None or m % size < p):
        below, above = m // size * size, (m // size + 1) * size if group is None else m // size * size + p
        nearest = ", ".join(str(count) for count in (below, above) if count)
        required = f"a multiple of pipeline_parallel_size={p}" if group is None else f"a multiple of {size}, or {p} and more over one"
        faults.append(Fault(field="num_microbatches", given=str(m), required=required, fix=f"nearest valid: {nearest}"))
    return faults


def _dualpipe_faults(p: int, m: int) -> list[Fault]:
    faults = []
    if p % 2:
        required = "dualpipe pairs the ranks from both ends and needs an even number"
        nearest = ", ".join(str(size) for size in (p - 1, p + 1) if size)
        faults.append(Fault(field="pipeline_parallel_size", given=str(p), required=required, fix=f"nearest valid: {nearest}"))
    if m % 2 or m < 2 * p:
        required = f"dualpipe needs an even number of at least twice pipeline_parallel_size={p}"
        faults.append(Fault(field="num_microbatches", given=str(m), required=required, fix=f"nearest valid: {max(2 * p, m + m % 2)}"))
    return faults


@lru_cache(maxsize=64)
def build_schedule(
    kind: PipelineSchedule,
    pipeline_parallel_size: int,
    virtual_pipeline_stages: int,
    num_microbatches: int,
    microbatch_group_size: int | None = None,
) -> Schedule:
    """The schedule of ``kind`` for p ranks, v virtual stages a rank and m micro-batches.

    gpipe: all forwards, then all backwards in the same order (Huang 2019). 1f1b: p-r-1 warm-up forwards,
    then one forward and one backward in turn (Narayanan 2019, 2021). interleaved_1f1b, zero_bubble and
    dualpipe: see :mod:`~autopar.costmodel.spec.schedule_orders`. Raises :class:`InvalidInputError` for sizes that the
    schedule does not exist for (:func:`schedule_faults`).
    """
    p, v, m = pipeline_parallel_size, virtual_pipeline_stages, num_microbatches
    raise_if(schedule_faults(kind, p, v, m, microbatch_group_size))
    ranks: Iterable[Iterable[Action]]
    match kind:
        case PipelineSchedule.GPIPE:
            ranks = [schedule_orders.gpipe(rank, m) for rank in range(p)]
        case PipelineSchedule.ONE_F_ONE_B:
            ranks = [schedule_orders.one_f_one_b(p, rank, m) for rank in range(p)]
        case PipelineSchedule.INTERLEAVED:
            ranks = [schedule_orders.interleaved(p, v, rank, m, microbatch_group_size or p) for rank in range(p)]
        case PipelineSchedule.ZERO_BUBBLE if v == 1:
            ranks = [schedule_orders.zb_h1(p, rank, m) for rank in range(p)]
        case PipelineSchedule.ZERO_BUBBLE:
            ranks = [schedule_orders.zbv(p, rank, m) for rank in range(p)]
        case PipelineSchedule.DUALPIPE:
            ranks = [schedule_orders.dualpipe(p, rank, m) for rank in range(p)]
    return Schedule(
        kind=kind,
        pipeline_parallel_size=p,
        virtual_pipeline_stages=v,
        num_microbatches=m,
        stage_rank=stage_ranks(kind, p, v),
        actions=tuple(tuple(actions) for actions in ranks),
    )


def validate_schedule(schedule: Schedule) -> None:
    """Raise :class:`InvalidInputError` unless the schedule can run to its end and does all the work once.

    Every micro-batch has one forward and one backward (whole, or input and weight parts) on every stage
    of its path, on the rank that holds the stage, in an order that no rank waits on forever.
    """
    faults = [*_misplaced(schedule), *_miscounted(schedule)]
    raise_if(faults or _blocked(schedule))


def _misplaced(schedule: Schedule) -> Iterator[Fault]:
    for rank, actions in enumerate(schedule.actions):
        for action in actions:
            if not 0 <= action.stage < schedule.num_stages:
                yield Fault(field=f"rank {rank}", given=str(action), required=f"a stage of 0 to {schedule.num_stages - 1}")
            elif schedule.stage_rank[action.stage] != rank:
                yield Fault(field=f"rank {rank}", given=str(action), required=f"rank {schedule.stage_rank[action.stage]} holds the stage")
            elif action.microbatch not in schedule.stage_microbatches(action.stage):
                yield Fault(field=f"rank {rank}", given=str(action), required="a micro-batch that passes through the stage")


def _miscounted(schedule: Schedule) -> Iterator[Fault]:
    done: dict[tuple[int, int], str] = {}
    for actions in schedule.actions:
        for action in actions:
            key = (action.stage, action.microbatch)
            done[key] = done.get(key, "") + action.kind.value
    for stage in range(schedule.num_stages):
        for microbatch in schedule.stage_microbatches(stage):
            order = done.get((stage, microbatch), "")
            if order not in ("FB", "FIW"):
                required = "one forward, then one backward, whole (B) or as input (I) and weight (W) parts"
                yield Fault(field=f"micro-batch {microbatch} of stage {stage}", given=order or "nothing", required=required)


def _blocked(schedule: Schedule) -> list[Fault]:
    """The first action of each rank that waits forever."""
    done: set[tuple[bool, int, int]] = set()
    waiting = [deque(actions) for actions in schedule.actions]
    progress = True
    while progress:
        progress = False
        for queue in waiting:
            while queue and _is_ready(schedule, queue[0], done):
                action = queue.popleft()
                if action.kind is not ActionKind.BACKWARD_WEIGHT:
                    done.add((action.kind is ActionKind.FORWARD, action.stage, action.microbatch))
                progress = True
    required = "an order in which what it waits for can run first"
    return [Fault(field=f"rank {rank}", given=str(queue[0]), required=required) for rank, queue in enumerate(waiting) if queue]


def _is_ready(schedule: Schedule, action: Action, done: set[tuple[bool, int, int]]) -> bool:
    if action.kind is ActionKind.BACKWARD_WEIGHT:
        return True
    forward = action.kind is ActionKind.FORWARD
    before = schedule.upstream(action.stage) if forward else schedule.downstream(action.stage)
    return before is None or (forward, before, action.microbatch) in done


_HEADER = re.compile(r"schedule (\S+) p=(\d+) v=(\d+) m=(\d+)")
_TOKEN = re.compile(r"([FBIW])(\d+)\.(\d+)")


def dump_schedule(schedule: Schedule) -> str:
    """The text form; :func:`parse_schedule` reads it back to an equal schedule."""
    p, v, m = schedule.pipeline_parallel_size, schedule.virtual_pipeline_stages, schedule.num_microbatches
    lines = [f"schedule {schedule.kind.value} p={p} v={v} m={m}"]
    for rank, actions in enumerate(schedule.actions):
        words = "".join(f"{action}{'+' if action.overlaps_next else ' '}" for action in actions)
        lines.append(f"rank {rank}: {words}".rstrip())
    return "\n".join(lines) + "\n"


def parse_schedule(text: str) -> Schedule:
    """Read the text form, and check that the schedule can run (:func:`validate_schedule`)."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    header = _HEADER.fullmatch(lines[0]) if lines else None
    if header is None or header[1] not in list(PipelineSchedule):
        kinds = ", ".join(PipelineSchedule)
        required = f"`schedule KIND p=RANKS v=CHUNKS m=MICROBATCHES`, KIND one of {kinds}"
        raise InvalidInputError(Fault(field="line 1", given=repr(lines[0]) if lines else "nothing", required=required))
    kind, (p, v, m) = PipelineSchedule(header[1]), (int(size) for size in header.groups()[1:])
    ranks = stage_ranks(kind, p, v)
    faults: list[Fault] = []
    actions = tuple(_parse_rank(rank, line, faults) for rank, line in enumerate(lines[1:]))
    if len(actions) != p:
        faults.append(Fault(field="ranks", given=str(len(actions)), required=f"one line for each of the {p} ranks"))
    raise_if(faults)
    schedule = Schedule(
        kind=kind, pipeline_parallel_size=p, virtual_pipeline_stages=v, num_microbatches=m, stage_rank=ranks, actions=actions
    )
    validate_schedule(schedule)
    return schedule


def _parse_rank(rank: int, line: str, faults: list[Fault]) -> tuple[Action, ...]:
    label, _, words = line.partition(":")
    if label != f"rank {rank}":
        faults.append(Fault(field=f"line {rank + 2}", given=repr(label), required=f"`rank {rank}: ` and its actions"))
    actions = []
    for word in words.split():
        tokens = word.split("+")
        for position, token in enumerate(tokens):
            match = _TOKEN.fullmatch(token)
            if match is None:
                required = "F, B, I or W, the micro-batch, a dot and the stage"
                faults.append(Fault(field=f"rank {rank}", given=repr(token), required=required, fix="for example F3.1"))
            else:
                actions.append(Action(ActionKind(match[1]), int(match[2]), int(match[3]), position < len(tokens) - 1))
    return tuple(actions)
