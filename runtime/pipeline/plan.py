"""What one pipeline rank receives and sends around each action of its schedule, worked out once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autopar.costmodel.spec.schedule import Action, ActionKind, Schedule

_BACKWARDS = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)


@dataclass(frozen=True, slots=True)
class Message:
    """Hidden states for the forward of a micro-batch on virtual stage ``stage``, or the gradient for its backward."""

    forward: bool
    microbatch: int
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action, the message it needs, and the message it makes; ``source`` and ``target`` are pipeline ranks.

    ``is_last``: its micro-batch is the last one whose backward makes gradients of this stage's weights.
    """

    action: Action
    needs: Message | None
    source: int
    makes: Message | None
    target: int
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """The steps of one pipeline rank, and the order in which messages leave each rank for it.

    A receiver must ask for messages in the order they are sent: NCCL matches them by order alone.
    """

    rank: int
    steps: tuple[Step, ...]
    incoming: Mapping[int, tuple[Message, ...]]


def rank_plan(schedule: Schedule, rank: int) -> RankPlan:
    """The plan of pipeline rank ``rank`` for a step of training."""
    return _plan(schedule, schedule.actions, rank)


def forward_plan(schedule: Schedule, rank: int, num_microbatches: int) -> RankPlan:
    """The plan for an evaluation: on each rank all micro-batches through one virtual stage, then the next.

    They go down the first copy of the model's stages, where there is a second one (DualPipe).
    """
    actions = tuple(
        tuple(
            Action(ActionKind.FORWARD, microbatch, stage)
            for stage in schedule.rank_stages(holder)
            if stage < schedule.num_model_stages
            for microbatch in range(num_microbatches)
        )
        for holder in range(schedule.pipeline_parallel_size)
    )
    return _plan(schedule, actions, rank)


def _plan(schedule: Schedule, actions: Iterable[Iterable[Action]], rank: int) -> RankPlan:
    incoming: dict[int, list[Message]] = defaultdict(list)
    mine: tuple[Action, ...] = ()
    for holder, its in enumerate(actions):
        its_actions = tuple(its)
        if holder == rank:
            mine = its_actions
            continue
        for action in its_actions:
            message = _made(schedule, action)
            if message is not None and schedule.stage_rank[message.stage] == rank:
                incoming[holder].append(message)
    weights = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)
    last = {action.stage: action.microbatch for action in mine if action.kind in weights}
    steps = tuple(_step(schedule, action, is_last=last.get(action.stage) == action.microbatch) for action in mine)
    return RankPlan(rank=rank, steps=steps, incoming={source: tuple(messages) for source, messages in incoming.items()})


def _step(schedule: Schedule, action: Action, *, is_last: bool) -> Step:
    needs, made = _needed(schedule, action), _made(schedule, action)
    source = _maker(schedule, needs) if needs is not None else -1
    target = schedule.stage_rank[made.stage] if made is not None else -1
    return Step(action=action, needs=needs, source=source, makes=made, target=target, is_last=is_last)


def _needed(schedule: Schedule, action: Action) -> Message | None:
    if action.kind is ActionKind.FORWARD and schedule.upstream(action.stage) is not None:
        return Message(True, action.microbatch, action.stage)
    if action.kind in _BACKWARDS and schedule.downstream(action.stage) is not None:
        return Message(False, action.microbatch, action.stage)
    return None


def _made(schedule: Schedule, action: Action) -> Message | None:
    after: int | None = None
    if action.kind is ActionKind.FORWARD:
        after = schedule.downstream(action.stage)
    elif action.kind in _BACKWARDS:
        after = schedule.upstream(action.stage)
    return None if after is None else Message(action.kind is ActionKind.FORWARD, action.microbatch, after)


def _maker(schedule: Schedule, message: Message) -> int:
    before = schedule.upstream(message.stage) if message.forward else schedule.downstream(message.stage)
    assert before is not None
    return schedule.stage_rank[before]
