"""What the functions of :mod:`autopar.api` are asked, from keywords to value types: all faults of a question at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from autopar.costmodel.spec.errors import Fault, InvalidInputError, NoPlanError, raise_if
from autopar.request import DEFAULT_DEVICE, build_problem, gather, is_file, resolve_cluster

if TYPE_CHECKING:
    from autopar.aims import Aims, Failures, Prices
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.calibration import Calibration
    from autopar.costmodel.spec.cluster import ClusterSpec
    from autopar.costmodel.spec.measured import MeasuredProfile
    from autopar.costmodel.spec.model import ModelSpec
    from autopar.io.switch_tree import SwitchTree
    from autopar.search import Constraints, Progress, Stages, Watch
    from autopar.sizing import Missed, Task


class Inputs(TypedDict, total=False):
    """What ``plan``, ``estimate`` and ``explain`` take besides the model; see :func:`autopar.request.build_problem`."""

    cluster: str | Path | ClusterSpec | None
    gpus: int | None
    gpu: str | None
    global_batch_size: int | None
    sequence_length: int | None
    precision: str | None
    framework: str
    memory_reserve: str | int | None
    profile: str | Path | Calibration | MeasuredProfile | None
    allow_other_device: bool
    topology: str | Path | SwitchTree | None
    hosts: str | Path | Sequence[str] | None


class Question(Inputs, total=False):
    """The inputs, and what ``plan`` and ``pareto`` may be told of money and failures; see :func:`autopar.aims.read_aims`."""

    price: Prices | None
    """Of a GPU-hour: ``2.5``, ``"2.5 USD"`` or ``{"h100-sxm5-80gb": 2.5}``."""
    mtbf_node: str | float | None
    """Mean time between failures of one node: ``"4000h"``, or seconds."""
    checkpoint_seconds: str | float | None
    restart_seconds: str | float | None
    repair_time: str | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question as it was understood."""

    problem: Problem
    assumptions: tuple[str, ...]
    constraints: Constraints
    texts: tuple[str, ...]
    aims: Aims


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How far a search goes, and for how long."""

    stages: Stages
    watch: Watch


def effort_of(stages: str, time_limit: str | float | None = None, progress: Callable[[Progress], None] | None = None) -> Effort:
    """Raises:
    InvalidInputError: stages that there are not, or no time at all.
    """
    from autopar.io.quantities import parse_duration
    from autopar.search import Stages, Watch

    faults: list[Fault] = []
    if stages not in list(Stages):
        faults.append(Fault(field="stages", given=repr(stages), required=f"one of {', '.join(Stages)}"))
    seconds = None if time_limit is None else gather(faults, lambda: parse_duration(time_limit, field="time_limit", bare=True))
    raise_if(faults)
    return Effort(stages=Stages(stages), watch=Watch(time_limit_seconds=seconds, report=progress))


def refuse_uneven_memory(effort: Effort, of_memory: str) -> None:
    """Raises InvalidInputError where least memory is asked of stages that are placed one by one: that is done for the fastest alone."""
    if effort.stages != "even":
        required = f"{of_memory} is found over even stages alone"
        fix = "leave --stages out; or ask for time, and bound the memory with --memory-reserve"
        raise InvalidInputError(Fault(field="stages", given=effort.stages.value, required=required, fix=fix))


def refuse_unfinished(effort: Effort, *, interrupted: bool) -> None:
    """What a search that was ended before it found anything raises: nobody knows whether something fits."""
    if interrupted:
        raise KeyboardInterrupt("before a strategy that fits was found")
    if effort.watch.stopped is not None:
        limit = f"{effort.watch.time_limit_seconds:g} s"
        raise NoPlanError(f"the time limit of {limit} ended the search before a strategy that fits was found")


Bounds = tuple[
    "Mapping[str, object] | Iterable[str]", "Mapping[str, int] | Iterable[str]", "Mapping[str, int] | Iterable[str]", "Iterable[str]"
]


def posed(model: str | Path | ModelSpec, bounds: Bounds, objective: str, given: Question) -> Asked:
    """The question, or all its faults at once."""
    from autopar.aims import read_aims

    inputs, failures = split(given, "plan")
    faults: list[Fault] = []
    question = gather(faults, lambda: build_problem(model, **inputs))
    limits = gather(faults, lambda: read_constraints(*bounds))
    aims = gather(faults, lambda: read_aims(objective, given.get("price"), failures, own=_names(question and question[0].cluster)))
    raise_if(faults)
    assert question is not None, "gather keeps a fault where it returns nothing"
    assert limits is not None, "gather keeps a fault where it returns nothing"
    assert aims is not None, "gather keeps a fault where it returns nothing"
    (problem, assumptions), (constraints, texts) = question, limits
    return Asked(problem=problem, assumptions=(*assumptions, *aims.assumptions), constraints=constraints, texts=texts, aims=aims)


def _names(cluster: ClusterSpec | None) -> tuple[str, ...]:
    return () if cluster is None else (cluster.id, cluster.device.id)


def split(given: Question, function: str) -> tuple[Inputs, Failures]:
    """The keywords of a call apart: what the problem is made of, and how often nodes fail."""
    from autopar.aims import FAILURE_NAMES

    inputs = cast("Inputs", {name: value for name, value in given.items() if name in Inputs.__annotations__})
    failures = cast("Failures", {name: value for name, value in given.items() if name in FAILURE_NAMES})
    unknown = sorted(set(given) - set(inputs) - set(failures) - {"price"})
    if unknown:
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown[0]!r}")
    return inputs, failures


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeQuestion:
    """The question of :func:`size` as it was understood."""

    model: str
    task: Task
    problems: tuple[tuple[Problem, int], ...]
    """With the most GPUs to look at."""
    unusable: tuple[Missed, ...]
    """Clusters that the question cannot be put to: a precision they do not have."""
    texts: tuple[str, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What :func:`size` is asked for, as given."""

    tokens: str | float
    deadline: str | float
    max_gpus: int | None
    stages: str


def size_question(model: str | Path | ModelSpec, bounds: Bounds, wanted: Wanted, given: Question) -> SizeQuestion:
    """All faults at once; of several clusters those that fit the question stay, and the others are named."""
    from autopar.aims import read_aims
    from autopar.io.quantities import parse_duration, parse_tokens
    from autopar.sizing import MAX_GPUS, Missed, Task

    inputs, failures = split(given, "size")
    faults: list[Fault] = []
    max_gpus = wanted.max_gpus
    count = gather(faults, lambda: parse_tokens(wanted.tokens))
    seconds = gather(faults, lambda: parse_duration(wanted.deadline, field="--deadline"))
    effort = gather(faults, lambda: effort_of(wanted.stages))
    limits = gather(faults, lambda: read_constraints(*bounds))
    named = gather([], lambda: resolve_cluster(inputs.get("cluster"), None, None, []))
    aims = gather(faults, lambda: read_aims("step-time", given.get("price"), failures, own=_names(named)))
    if inputs.get("gpus") is not None:
        faults.append(Fault(field="gpus", given=str(inputs["gpus"]), required="is what is asked for", fix="max_gpus bounds it"))
    for name in ("topology", "hosts"):
        if inputs.get(name) is not None:
            fix = "a cluster file with a [fabric] table has a network of several levels at every size"
            faults.append(Fault(field=name, given=str(given[name]), required="is of one size, and the size is what is asked for", fix=fix))
    if max_gpus is not None and not 1 <= max_gpus <= MAX_GPUS:
        faults.append(Fault(field="max_gpus", given=str(max_gpus), required=f"a whole number from 1 to {MAX_GPUS:,}"))
    inputs = cast("Inputs", {name: value for name, value in inputs.items() if name not in ("topology", "hosts")})
    clusters = gather(faults, lambda: _clusters_asked(inputs, aims)) or []
    put = _put(model, inputs, clusters, aims, faults)
    raise_if(faults)
    assert count is not None, "gather keeps a fault where it returns nothing"
    assert seconds is not None, "gather keeps a fault where it returns nothing"
    assert limits is not None, "gather keeps a fault where it returns nothing"
    assert aims is not None, "gather keeps a fault where it returns nothing"
    assert effort is not None, "gather keeps a fault where it returns nothing"
    task = Task(tokens=count, deadline_seconds=seconds, max_gpus=MAX_GPUS, constraints=limits[0], aims=aims, stages=effort.stages)
    return SizeQuestion(
        model=put.problems[0][0].model.name,
        task=task,
        problems=tuple((problem, max_gpus or limit) for problem, limit in put.problems),
        unusable=tuple(Missed(cluster=name, device=name, reasons=reasons, fastest=None) for name, reasons in put.refused),
        texts=limits[1],
        assumptions=tuple(dict.fromkeys((*put.notes, *aims.assumptions))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Put:
    """The question put to each cluster: the problem with the most GPUs to look at, or the reasons why it cannot be."""

    problems: list[tuple[Problem, int]]
    refused: list[tuple[str, tuple[str, ...]]]
    notes: list[str]


def _put(model: str | Path | ModelSpec, inputs: Inputs, clusters: list[Inputs], aims: Aims | None, faults: list[Fault]) -> _Put:
    """Adds to ``faults`` what no cluster can be asked, and prices that are missing."""
    from autopar.sizing import MAX_GPUS

    put, wrong = _Put(problems=[], refused=[], notes=[]), []
    for cluster in clusters:
        own: list[Fault] = []
        found = gather(own, lambda cluster=cluster: build_problem(model, **{**inputs, **cluster}))  # type: ignore[misc]
        if found is None:
            put.refused.append((str(cluster.get("cluster") or cluster.get("gpu") or ""), tuple(map(str, own))))
            wrong += own
            continue
        problem, notes = found
        put.problems.append((problem, MAX_GPUS if "gpus" in cluster else problem.cluster.num_gpus))
        put.notes.extend(note for note in notes if not note.startswith(("GPUs:", "nodes:")))
        if aims is not None and aims.prices:
            gather(faults, lambda problem=problem: aims.needs_price(problem.cluster))  # type: ignore[misc]
    if not put.problems:
        faults += dict.fromkeys(wrong)
    return put


def _clusters_asked(inputs: Inputs, aims: Aims | None) -> list[Inputs]:
    """The clusters to look at, each as one node of it; a cluster that says its own size keeps it."""
    from autopar.catalog import hardware

    named, given = inputs.get("cluster"), inputs.get("gpu")
    if named is not None and given is not None:
        return [{"gpus": 1}]  # refused where the problem is built
    if named is not None:
        is_catalogs = isinstance(named, str) and not is_file(named, hardware.cluster_names())
        return [{"gpus": hardware.cluster(str(named), 1).gpus_per_node}] if is_catalogs else [{}]
    priced = [name for name in (aims.prices if aims else ()) if name]
    asked: list[Inputs] = []
    for name in [str(given)] if given is not None else priced or [DEFAULT_DEVICE]:
        if name in hardware.cluster_names():
            asked.append({"cluster": name, "gpus": hardware.cluster(name, 1).gpus_per_node})
        else:
            home = hardware.device(name).default_cluster
            asked.append({"gpu": name, "gpus": hardware.cluster(home, 1).gpus_per_node})
    return asked


def constraints_of(texts: Iterable[str]) -> Constraints:
    """The constraints of a plan file back from the words it keeps them in: ``tp=8``, ``max tp=8``, ``forbid cp``."""
    words: dict[str, list[str]] = {"fix": [], "max": [], "min": [], "forbid": []}
    for text in texts:
        kind, _, rest = text.rpartition(" ")
        words[kind or "fix"].append(rest)
    return read_constraints(words["fix"], words["max"], words["min"], words["forbid"])[0]


def read_constraints(
    fix: Mapping[str, object] | Iterable[str],
    maximum: Mapping[str, int] | Iterable[str],
    minimum: Mapping[str, int] | Iterable[str],
    forbid: Iterable[str],
) -> tuple[Constraints, tuple[str, ...]]:
    from autopar.io.flags import constraint_texts, parse_assignments, parse_limits, parse_names
    from autopar.search import Constraints

    faults: list[Fault] = []
    fixed = gather(faults, lambda: parse_assignments(_texts(fix), flag="--fix")) or {}
    highest = gather(faults, lambda: parse_limits(_texts(maximum), flag="--max")) or {}
    lowest = gather(faults, lambda: parse_limits(_texts(minimum), flag="--min")) or {}
    forbidden = gather(faults, lambda: parse_names(_texts(forbid), flag="--forbid")) or ()
    raise_if(faults)
    constraints = Constraints(fixed=fixed, maximum=highest, minimum=lowest, forbidden=frozenset(forbidden))
    return constraints, constraint_texts(fixed, highest, lowest, forbidden)


def _texts(values: Mapping[str, object] | Iterable[str]) -> list[str]:
    if isinstance(values, Mapping):
        return [f"{name}={getattr(value, 'value', value)}" for name, value in values.items()]
    return [values] if isinstance(values, str) else list(values)
