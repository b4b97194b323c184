"""Plans side by side: what differs, where the time and the memory moved, and what a token costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from autopar.costmodel.spec.errors import Fault, InvalidInputError
from autopar.costmodel.spec.estimate import Estimate, StageMemory, TimeBreakdown
from autopar.costmodel.spec.strategy import Strategy, split_text
from autopar.costmodel.spec.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem

COMPARISON_SCHEMA_VERSION = "1.0"
MILLION = 1e6
MOST_PLANS = 26
"""Plans go by a letter where there is no room for a name."""
REPEATED = 0.005
"""A stored estimate that is off by less is not worth a note."""

SHORT = {
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "virtual_pipeline_stages": "vpp",
    "context_parallel_size": "cp",
    "expert_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "data_parallel_size": "dp",
    "micro_batch_size": "mbs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What :func:`compare` takes for each plan."""

    name: str
    problem: Problem
    strategy: Strategy
    estimate: Estimate
    stored_step_time_seconds: float | None = None
    """Of a plan file: the step time it says."""
    autopar_version: str = ""
    pools: str = ""
    """Of a mixed cluster: who carries it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What the user says of money and of the length of the training run."""

    per_gpu_hour: tuple[float, ...] = ()
    """One for all plans, or one for each; none: no costs are told."""
    tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """What a plan takes to train on the tokens asked about, at its step time and without a pause."""

    days: float
    gpu_hours: float
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPlan:
    """One plan's figures."""

    name: str
    label: str
    """``A``, ``B``, …"""
    model: str
    num_gpus: int
    device: str
    cluster: str
    framework: str
    precision: str
    global_batch_size: int
    sequence_length: int
    strategy: Strategy
    estimate: Estimate
    tokens_per_second: float
    slower_than_first: float
    """Relative: 0.02 takes 2 % more time for a token than the first plan; negative: less."""
    gpu_hours_per_million_tokens: float
    price_per_gpu_hour: float | None
    cost_per_million_tokens: float | None
    budget: TokenBudget | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field that is not the same in all plans, with each plan's value as text."""

    field: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """One term of each plan, and how much more of it than the first plan each has."""

    term: str
    values: tuple[float, ...]
    changes: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``time`` is in seconds of ``time_per``; ``memory`` in bytes of each plan's fullest pipeline rank.

    The changes of a plan's terms add up to the change of the whole.
    """

    plans: tuple[ComparedPlan, ...]
    time_per: str
    """``step`` where all plans train as many tokens a step, else ``million tokens``."""
    differences: tuple[Difference, ...]
    time: tuple[Movement, ...]
    memory: tuple[Movement, ...]
    notes: tuple[str, ...]
    """What is not comparable, and what else to know."""
    tokens: float | None
    fastest: int
    """Position of the plan with the least time a token among those that fit, or of all where none does."""
    schema_version: str = COMPARISON_SCHEMA_VERSION

    def slower_than(self, share: float) -> tuple[ComparedPlan, ...]:
        """The plans that take over ``share`` more time for a token than the first, or that do not fit."""
        return tuple(plan for plan in self.plans[1:] if plan.slower_than_first > share or not plan.estimate.fits)


def compare(candidates: Sequence[Candidate], prices: Prices = Prices()) -> Comparison:
    """Put plans side by side; the first is the one that the others are measured against.

    Raises:
        InvalidInputError: fewer than two plans, more than 26, or prices that are neither one nor one a plan.
    """
    _refuse(candidates, prices)
    plans = tuple(_compared(index, each, candidates[0], prices) for index, each in enumerate(candidates))
    same_step = len({_tokens_per_step(each) for each in candidates}) == 1
    scales = [1.0 if same_step else MILLION / _tokens_per_step(each) for each in candidates]
    times = [each.estimate.time for each in candidates]
    fullest = [max(each.estimate.stages, key=lambda stage: stage.peak_memory_bytes).memory for each in candidates]
    fitting = [index for index, plan in enumerate(plans) if plan.estimate.fits] or list(range(len(plans)))
    return Comparison(
        plans=plans,
        time_per="step" if same_step else "million tokens",
        differences=differences(candidates),
        time=_movements(
            {f.name: [getattr(time, f.name) * scale for time, scale in zip(times, scales, strict=True)] for f in fields(TimeBreakdown)}
        ),
        memory=_movements({f.name: [getattr(memory, f.name) for memory in fullest] for f in fields(StageMemory)}),
        notes=(*_incomparable(candidates), *_remarks(candidates, plans)),
        tokens=prices.tokens,
        fastest=max(fitting, key=lambda index: plans[index].tokens_per_second),
    )


def _refuse(candidates: Sequence[Candidate], prices: Prices) -> None:
    count = len(candidates)
    if not 2 <= count <= MOST_PLANS:
        required = f"2 to {MOST_PLANS} plans are put side by side"
        fix = "name another plan file, or strategies after --strategies" if count < 2 else f"leave {count - MOST_PLANS} out"
        raise InvalidInputError(Fault(field="plans", given=str(count), required=required, fix=fix))
    if len(prices.per_gpu_hour) not in (0, 1, count):
        required = f"one price for all plans, or one for each of the {count}"
        raise InvalidInputError(Fault(field="--price", given=f"{len(prices.per_gpu_hour)} prices", required=required))


def _compared(index: int, candidate: Candidate, first: Candidate, prices: Prices) -> ComparedPlan:
    problem, estimate = candidate.problem, candidate.estimate
    gpus = problem.cluster.num_gpus
    per_second = _tokens_per_second(candidate)
    gpu_hours = gpus / per_second / 3600
    price = prices.per_gpu_hour[index % len(prices.per_gpu_hour)] if prices.per_gpu_hour else None
    budget = None
    if prices.tokens is not None:
        hours = gpu_hours * prices.tokens
        budget = TokenBudget(days=hours / gpus / 24, gpu_hours=hours, cost=None if price is None else hours * price)
    return ComparedPlan(
        name=candidate.name,
        label=chr(ord("A") + index),
        model=problem.model.name,
        num_gpus=gpus,
        device=problem.cluster.device.name,
        cluster=problem.cluster.id,
        framework=problem.framework.id,
        precision=problem.training.precision.name,
        global_batch_size=problem.training.global_batch_size,
        sequence_length=problem.training.sequence_length,
        strategy=candidate.strategy,
        estimate=estimate,
        tokens_per_second=per_second,
        slower_than_first=_tokens_per_second(first) / per_second - 1,
        gpu_hours_per_million_tokens=gpu_hours * MILLION,
        price_per_gpu_hour=price,
        cost_per_million_tokens=None if price is None else gpu_hours * MILLION * price,
        budget=budget,
    )


def _tokens_per_step(candidate: Candidate) -> int:
    return candidate.problem.training.tokens_per_step


def _tokens_per_second(candidate: Candidate) -> float:
    return _tokens_per_step(candidate) / candidate.estimate.step_time_seconds


def _movements(terms: Mapping[str, Sequence[float]]) -> tuple[Movement, ...]:
    """Terms that some plan has, given the values in each, the one that moved most first."""
    found = [
        Movement(term=term, values=tuple(values), changes=tuple(each - values[0] for each in values))
        for term, values in terms.items()
        if any(values)
    ]
    return tuple(sorted(found, key=lambda one: (-max(map(abs, one.changes)), -max(one.values))))


def differences(candidates: Sequence[Candidate]) -> tuple[Difference, ...]:
    """What is not the same in all plans: the question's parts first, then the strategy's fields."""
    named: dict[str, Callable[[Candidate], str]] = {
        "model": lambda each: each.problem.model.name,
        "cluster": lambda each: each.problem.cluster.id,
        "device": lambda each: each.problem.cluster.device.name,
        "gpus": lambda each: f"{each.problem.cluster.num_gpus:,}",
        "framework": lambda each: each.problem.framework.id,
        "precision": lambda each: each.problem.training.precision.name,
        "global batch": lambda each: f"{each.problem.training.global_batch_size:,}",
        "sequence length": lambda each: f"{each.problem.training.sequence_length:,}",
        "memory reserve": _reserve,
        "profile": lambda each: f"{len(each.problem.calibration.constants)} constants" if each.problem.calibration else "catalog",
    }
    named["pools"] = lambda each: each.pools or "one kind of GPU"
    for field in fields(Strategy):
        named[SHORT.get(field.name, field.name).replace("_", " ")] = lambda each, name=field.name: _field(each.strategy, name)  # type: ignore[misc]
    rows = [Difference(field=name, values=tuple(map(value, candidates))) for name, value in named.items()]
    return tuple(row for row in rows if len(set(row.values)) > 1)


def _reserve(candidate: Candidate) -> str:
    asked = candidate.problem.memory_reserve_bytes
    return "the framework's" if asked is None else format_bytes(asked)


def _field(strategy: Strategy, name: str) -> str:
    value = getattr(strategy, name)
    if name == "recompute_modules":
        return "+".join(value) or "the framework's"
    if isinstance(value, tuple):
        return split_text(value) if value else "even"
    if name == "num_recompute_layers":
        return str(value) if value else "all"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(getattr(value, "value", value))


def _incomparable(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """What keeps the figures of the plans from meaning the same."""

    def distinct(value: Callable[[Candidate], object]) -> list[str]:
        return list(dict.fromkeys(str(value(each)) for each in candidates))

    notes = []
    if len({each.problem.model for each in candidates}) > 1:
        names = distinct(lambda each: each.problem.model.name)
        which = ", ".join(names) if len(names) > 1 else f"several variants of {names[0]}"
        notes.append(f"different models ({which}): a token of one is not the work of another; MFU is comparable, time a token is not")
    if len(devices := distinct(lambda each: each.problem.cluster.device.name)) > 1:
        notes.append(f"different GPUs ({', '.join(devices)}): MFU is a share of each one's own peak, and GPU-hours are not worth the same")
    if len(counts := distinct(lambda each: f"{each.problem.cluster.num_gpus:,}")) > 1:
        notes.append(f"different numbers of GPUs ({', '.join(counts)}): GPU-hours a token say what each gets out of one")
    if len(batches := distinct(_tokens_per_step)) > 1:
        shown = ", ".join(format_count(int(tokens)) for tokens in batches)
        notes.append(f"different batches ({shown} tokens a step): time is told for a million tokens; convergence may differ")
    if len(lengths := distinct(lambda each: f"{each.problem.training.sequence_length:,}")) > 1:
        notes.append(f"different sequence lengths ({', '.join(lengths)} tokens): attention costs more a token in a longer one")
    return tuple(notes)


def _remarks(candidates: Sequence[Candidate], plans: Sequence[ComparedPlan]) -> tuple[str, ...]:
    """Estimates that changed since a plan file was written, plans that do not fit, and differences too small to rely on."""
    notes = []
    for candidate, plan in zip(candidates, plans, strict=True):
        stored = candidate.stored_step_time_seconds
        if stored is not None and abs(plan.estimate.step_time_seconds / stored - 1) > REPEATED:
            now, then = format_seconds(plan.estimate.step_time_seconds), format_seconds(stored)
            notes.append(f"{plan.label}: the file says {then} a step (autopar {candidate.autopar_version}); this release says {now}")
        if not plan.estimate.fits:
            over = plan.estimate.peak_memory_bytes - plan.estimate.memory_capacity_bytes
            notes.append(f"{plan.label} does not fit: {format_bytes(over)} too much on a GPU")
    residuals = candidates[0].problem.residuals
    one_question = len({(each.problem.model, each.problem.cluster.id, each.problem.cluster.num_gpus) for each in candidates}) == 1
    close = [plan for plan in plans[1:] if residuals is not None and 0 < abs(plan.slower_than_first) < residuals.resolvable_gap]
    if one_question and residuals is not None and close:
        names = ", ".join(plan.label for plan in close)
        notes.append(
            f"{names} and A differ by less than {residuals.resolvable_gap:.1%}: of measured pairs so close the model has more than one in"
            " ten the wrong way round"
        )
    return tuple(notes)
