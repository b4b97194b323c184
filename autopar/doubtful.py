"""The unmeasured shapes whose measurement could change which strategy is best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autopar.costmodel.estimate import estimate, shapes_asked
from autopar.costmodel.measured import Coverage, Use
from autopar.costmodel.spec.errors import AutoparError
from autopar.costmodel.spec.measured import Kind

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.strategy import Strategy

MAX_SHAPES = 10
SMALLEST_GAP = 1e-3
"""Of the step: strategies closer than this are taken to be so far apart, or every shape would decide between them."""

LARGER_THAN_ACTIVATIONS = 8
"""Exchanges so many times an activation's bytes are gradients and parameters."""

Key = tuple[object, str, str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """One shape that was not measured.

    ``swing`` is the change of the difference between two strategies that one standard deviation of this shape's time makes, over
    that difference: at 1 and above its measurement can change their order.
    """

    kernel: str
    """``gemm nt bf16``."""
    shape: tuple[float, ...]
    coverage: Coverage
    deviation: float
    """Standard deviation of its time, as a share."""
    seconds_a_step: float
    """What it takes of the step of the strategy asked about, all its calls together."""
    swing: float
    against: str
    """The strategy whose order with the one asked about it bears on most."""


def doubtful_shapes(problem: Problem, strategy: Strategy, others: Iterable[Strategy]) -> tuple[Doubt, ...]:
    """Shapes of ``strategy`` and ``others`` without a measurement, those that could change the order first; at most ten.

    A kernel's calls are counted as its layers times its micro-batches, on the rank that paces the step; a head once a micro-batch.
    """
    mine = _seconds_by_shape(problem, strategy)
    now = estimate(problem, strategy).step_time_seconds
    best: dict[Key, Doubt] = {}
    for other in others:
        if other == strategy:
            continue
        try:
            theirs, then = _seconds_by_shape(problem, other), estimate(problem, other).step_time_seconds
        except AutoparError:
            continue
        gap = max(abs(then - now), SMALLEST_GAP * now)
        for key in mine.keys() | theirs.keys():
            use = (mine.get(key) or theirs[key])[0]
            seconds = mine[key][1] if key in mine else 0.0
            difference = abs(seconds - (theirs[key][1] if key in theirs else 0.0))
            doubt = Doubt(
                kernel=f"{use.kind.value} {use.variant} {use.dtype}".strip(),
                shape=use.shape,
                coverage=use.coverage,
                deviation=use.deviation,
                seconds_a_step=seconds,
                swing=use.deviation * difference / gap,
                against=other.describe(),
            )
            if use.coverage is not Coverage.MEASURED and (key not in best or doubt.swing > best[key].swing):
                best[key] = doubt
    ranked = sorted((doubt for doubt in best.values() if doubt.swing > 0), key=lambda doubt: -doubt.swing)
    return tuple(ranked[:MAX_SHAPES])


def _seconds_by_shape(problem: Problem, strategy: Strategy) -> Mapping[Key, tuple[Use, float]]:
    """Every shape that the strategy asks for, with the seconds of a step that its calls take."""
    alone = strategy.pipeline_parallel_size == 1 and strategy.context_parallel_size == 1
    return {
        use.key: (use, use.seconds * _calls(problem, strategy, use))
        for use in shapes_asked(problem, strategy)
        if not (alone and use.variant == "send_recv")
    }


def _calls(problem: Problem, strategy: Strategy, use: Use) -> int:
    """How often a step calls ``use``, told by its size: the head, and exchanges far larger than activations, stand outside layers."""
    training = problem.training
    count = strategy.num_microbatches(training.global_batch_size)
    layers = -(-problem.model.num_layers // strategy.pipeline_parallel_size)
    if use.kind is Kind.COLLECTIVE:
        tokens = strategy.micro_batch_size * training.sequence_length / strategy.context_parallel_size
        activations = tokens * problem.model.hidden_size * training.precision.activation_bytes
        return 1 if use.shape[0] > LARGER_THAN_ACTIVATIONS * activations else count * layers
    return count if _is_head(problem, strategy, use) else count * layers


def _is_head(problem: Problem, strategy: Strategy, use: Use) -> bool:
    """Whether the dimension that holds the vocabulary in a head's products (n, k or m by layout) or loss is as large as it."""
    if use.kind not in (Kind.GEMM, Kind.OPERATOR):
        return False
    place = {"nt": 1, "nn": 2, "tn": 0}.get(use.variant, 1)
    return use.shape[place] >= 0.9 * problem.model.vocab_size / strategy.tensor_parallel_size
