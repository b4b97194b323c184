"""Error bars from the residuals of measured runs: split conformal prediction, by regime.

With the n residuals r = log(measured / predicted) of a regime sorted, the interval at level 1 - a of a prediction p is
[p exp(r_k), p exp(r_{n+1-k})], k = floor((n + 1) a / 2): each tail with the finite-sample correction, so that a new row
of the same kind lies inside with probability 1 - a at least, whatever the distribution (Vovk et al., Algorithmic Learning in a Random
World; Lei et al. 2018). Asymmetric, since a model that leaves something out errs to one side. The step times of two strategies of one
problem err together: the intervals say nothing of their order, for which see :func:`resolvable_gap`. Wrong for a run unlike any
that was published; on families left out whole fewer rows are covered (``benchmarks/calibration/residuals.py`` prints how many).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .columns import Floats
from .device_rates import LOW_PRECISION
from .problem import Problem
from .spec.estimate import Interval
from .spec.hardware import Origin
from .spec.residuals import FIELDS, Regime, ResidualGroup, words

COVERAGE = 0.9
FEWEST = 20
"""Residuals that a regime has to have; below, it is widened by the last of its properties."""
WRONG_ORDER = 0.1
NARROWEST_KERNEL = 1e-3
LOGISTIC = math.sqrt(3) / math.pi
"""Scale of the logistic distribution of unit deviation."""
_FAR = 500.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Residuals to judge a prediction by, sorted, and which they are."""

    values: Floats
    basis: str


def regime_of(problem: Problem) -> Regime:
    """The regime whose errors ``problem`` shares."""
    return Regime(
        device_measured=problem.hardware.origin.get("gemm_efficiency") is Origin.MEASURED,
        mixture_of_experts=problem.model.moe is not None,
        low_precision=problem.training.precision.linear in LOW_PRECISION,
        many_nodes=problem.cluster.num_nodes > 1,
    )


def sample(groups: Sequence[ResidualGroup], regime: Regime) -> Sample | None:
    """The residuals of ``regime``, or of the narrowest wider one that has 20; None where there are not as many in all."""
    for count in range(len(FIELDS), -1, -1):
        fields = FIELDS[:count]
        found = [value for group in groups if group.regime.shares(regime, fields) for value in group.values]
        if len(found) >= FEWEST:
            return Sample(values=np.sort(found), basis=f"{len(found)} measured runs: {words(regime, fields)}")
    return None


def profile_sample(problem: Problem) -> Sample | None:
    """The rows that the problem's constants were calibrated on, where there are 20 and they are of its device and framework."""
    given = problem.calibration
    if given is None or len(given.residuals) < FEWEST:
        return None
    if problem.hardware.device not in given.devices or problem.framework.id not in given.frameworks:
        return None
    return Sample(values=np.sort(given.residuals), basis=f"{len(given.residuals)} rows of the profile, left out of its fit")


def bounds(residuals: Floats, coverage: float = COVERAGE) -> tuple[float, float]:
    """The residuals between which a new one lies with probability ``coverage`` at least.

    Args:
        residuals: sorted. Where there are too few for a tail of (1 - coverage) / 2, its bound is the outermost of them, which
            covers less than asked: 9 residuals cover 80 %.
        coverage: between 0 and 1.
    """
    count = len(residuals)
    # rounded first: 21 x 0.05 / 0.05 must not fall below its whole number
    place = max(1, math.floor(round((count + 1) * (1 - coverage) / 2, 9)))
    return float(residuals[place - 1]), float(residuals[count - place])


def step_time_interval(seconds: float, found: Sample, coverage: float = COVERAGE) -> Interval:
    """The interval of a predicted step time; it holds the prediction, even where all residuals are on one side."""
    low, high = bounds(found.values, coverage)
    return Interval(low=seconds * min(math.exp(low), 1.0), high=seconds * max(math.exp(high), 1.0), coverage=coverage, basis=found.basis)


def fit_probability(predicted_bytes: float, capacity_bytes: float, residuals: Floats) -> float:
    """Probability that a prediction of memory, with the errors of measured runs, is within the capacity.

    The share of residuals r with predicted x exp(r) <= capacity, each smoothed by a logistic kernel of Silverman's width 1.06 s n^-0.2: a
    step function would call 19 of 20 certain and jump at each run. Tails beyond the worst run are the kernel's, not measured.
    """
    if predicted_bytes <= 0:
        return 1.0
    room = math.log(capacity_bytes / predicted_bytes)
    width = max(1.06 * float(np.std(residuals)) * len(residuals) ** -0.2, NARROWEST_KERNEL)
    distance = np.clip((room - residuals) / (LOGISTIC * width), -_FAR, _FAR)
    return float(np.mean(1 / (1 + np.exp(-distance))))


def resolvable_gap(gaps: Floats, wrong: Floats, weights: Floats, *, limit: float = WRONG_ORDER) -> float:
    """The relative gap of two predictions from which on their order is wrong no more than one time in ten.

    The share of wrong orders is taken to fall with the gap (isotonic regression, pool adjacent violators).

    Args:
        gaps: larger over smaller predicted time of a pair of comparable runs, minus 1.
        wrong: 1 where measurement has the pair the other way round, else 0.
        weights: of the pairs, so that a set of n runs does not count for its n^2 pairs.
        limit: share of wrong orders that is put up with.
    """
    order = np.argsort(gaps, kind="stable")
    share = _falling(wrong[order], weights[order])
    good = np.flatnonzero(share <= limit)
    if not len(good):
        return float(gaps[order[-1]])
    return float(gaps[order[good[0]]])


def _falling(values: Floats, weights: Floats) -> Floats:
    """The non-increasing sequence closest to ``values``."""
    blocks: list[list[float]] = []  # mean, weight, length
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-1][0] > blocks[-2][0]:
            mean, total, length = blocks.pop()
            before = blocks[-1]
            blocks[-1] = [(before[0] * before[1] + mean * total) / (before[1] + total), before[1] + total, before[2] + length]
    return np.repeat([block[0] for block in blocks], [int(block[2]) for block in blocks])
