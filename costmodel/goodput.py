"""Failures, checkpoints and what they leave of a job's time.

Failures of a job on n nodes come as a Poisson process of mean time M = (mean time of a node) / n between them. Work goes in
segments of tau seconds, each closed by a checkpoint of delta seconds; a failure costs a restart of R seconds, which can fail itself,
and all work since the last checkpoint. The wall time that a segment takes is in expectation

    E(tau) = exp(R / M) M (exp((tau + delta) / M) - 1)

(Daly's complete cost function, for one segment), and the useful fraction is tau / E(tau). Daly's estimate of the interval that
makes it largest:

    tau = sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9) - delta   for delta < 2 M, else tau = M

J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22, 2006.
Wrong where failures come in bursts or age (both were seen; a node that failed fails again sooner), where checkpoints are written
while training goes on (give the seconds they hold it up), and where a job runs no longer than a few intervals.
"""

from __future__ import annotations

import math

DAY_SECONDS = 86_400.0
SPARE_COVERAGE = 0.99
_OVERFLOW = 700.0


def job_mtbf_seconds(mtbf_node_seconds: float, num_nodes: int) -> float:
    """Mean time between failures of a job on ``num_nodes`` nodes that fail independently: any one stops it."""
    return mtbf_node_seconds / num_nodes


def expected_segment_seconds(work: float, checkpoint: float, restart: float, mtbf: float) -> float:
    """Expected wall time of ``work`` seconds of training and the checkpoint after it, failures included; infinite beyond floats."""
    exponent = (work + checkpoint) / mtbf
    if exponent > _OVERFLOW or restart / mtbf > _OVERFLOW:
        return math.inf
    return math.exp(restart / mtbf) * mtbf * math.expm1(exponent)


def useful_fraction(work: float, checkpoint: float, restart: float, mtbf: float) -> float:
    """Share of the wall time that is kept work, with a checkpoint after every ``work`` seconds."""
    return work / expected_segment_seconds(work, checkpoint, restart, mtbf)


def daly_interval_seconds(checkpoint: float, mtbf: float) -> float:
    """Daly's estimate of the best work between two checkpoints, seconds. Restarts do not move it.

    Of the best useful fraction that E(tau) has it loses 1e-5 at most where a checkpoint takes less than half the mean time between
    failures, and 0.2 % where it takes twice that time (against the exact optimum, which has no closed form without Lambert's W).
    """
    if checkpoint >= 2 * mtbf:
        return mtbf
    ratio = checkpoint / (2 * mtbf)
    return math.sqrt(2 * checkpoint * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint


def steps_between_checkpoints(step: float, checkpoint: float, restart: float, mtbf: float) -> int:
    """The better of the two whole numbers of steps around Daly's interval, at least 1."""
    exact = daly_interval_seconds(checkpoint, mtbf) / step
    fewer = max(1, math.floor(exact))
    return max((fewer, fewer + 1), key=lambda steps: useful_fraction(steps * step, checkpoint, restart, mtbf))


def expected_step_seconds(step: float, checkpoint: float, restart: float, mtbf: float) -> float:
    """Wall time a kept step takes with the best whole number of steps between checkpoints.

    Rises with the step time: for any fixed number of steps E(tau) does, and so does the least over them. The order of strategies on
    one number of nodes is therefore that of their step times.
    """
    steps = steps_between_checkpoints(step, checkpoint, restart, mtbf)
    return expected_segment_seconds(steps * step, checkpoint, restart, mtbf) / steps


def spare_nodes(num_nodes: int, mtbf_node: float, repair: float, *, coverage: float = SPARE_COVERAGE) -> int:
    """Fewest spares that are enough at any moment with probability ``coverage``.

    The nodes in repair at a moment are Poisson of mean num_nodes x repair / mtbf_node (Palm's theorem, whatever the distribution of
    repair times); the spares have to be as many.
    """
    mean = num_nodes * repair / mtbf_node
    if mean > _OVERFLOW:  # its normal approximation: the terms of the sum underflow
        return math.ceil(mean + 2.326347874040841 * math.sqrt(mean))
    term = total = math.exp(-mean)
    count = 0
    while total < coverage:
        count += 1
        term *= mean / count
        total += term
    return count
