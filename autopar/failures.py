"""What failures leave of a plan, and the plan after losing a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autopar.costmodel import goodput as formulas
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.memory import least_state_bytes
from autopar.costmodel.reshard import node_load_bytes, resharding
from autopar.costmodel.spec.errors import NoPlanError
from autopar.costmodel.spec.goodput import AfterLoss, Goodput, Reliability
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.spec.units import format_seconds
from autopar.io.quantities import format_duration
from autopar.request import resized

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.search import Constraints, Stages

LEAST_USEFUL = 0.01
"""A smaller useful fraction is no progress."""
MAX_ODD = 15
WORTH_PLANNING = 0.75
"""Of the GPUs that are there: fewer would have to be used that much better to be faster."""


def goodput_of(problem: Problem, strategy: Strategy, step_seconds: float, reliability: Reliability, constraints: Constraints) -> Goodput:
    """Goodput of a plan, and what is left to run after a node is lost.

    Raises:
        NoPlanError: failures come so often that the job makes no progress.
    """
    nodes = problem.cluster.num_nodes
    mtbf = formulas.job_mtbf_seconds(reliability.mtbf_node_seconds, nodes)
    checkpoint, restart = reliability.checkpoint_seconds, reliability.restart_seconds
    steps = formulas.steps_between_checkpoints(step_seconds, checkpoint, restart, mtbf)
    segment = formulas.expected_segment_seconds(steps * step_seconds, checkpoint, restart, mtbf)
    useful = steps * step_seconds / segment
    if useful < LEAST_USEFUL:
        raise NoPlanError(no_progress_text(mtbf, nodes, step_seconds, reliability))
    after, refused = _after_loss(problem, strategy, step_seconds, constraints)
    return Goodput(
        reliability=reliability,
        num_nodes=nodes,
        job_mtbf_seconds=mtbf,
        failures_per_day=formulas.DAY_SECONDS / mtbf,
        checkpoint_interval_seconds=formulas.daly_interval_seconds(checkpoint, mtbf),
        steps_between_checkpoints=steps,
        useful_fraction=useful,
        checkpoint_fraction=checkpoint / segment,
        failure_fraction=max(0.0, 1 - useful - checkpoint / segment),
        expected_step_seconds=segment / steps,
        spare_nodes=formulas.spare_nodes(nodes, reliability.mtbf_node_seconds, reliability.repair_seconds),
        spare_coverage=formulas.SPARE_COVERAGE,
        checkpoint_bytes=float(least_state_bytes(Inputs.of(problem))),
        spare_load_bytes=node_load_bytes(problem, strategy),
        after_loss=after,
        after_loss_refused=refused,
    )


def no_progress_text(mtbf: float, nodes: int, step_seconds: float, reliability: Reliability) -> str:
    """Why a job gets nowhere, with the times that clash."""
    return (
        f"no progress: {nodes:,} nodes that fail every {format_duration(reliability.mtbf_node_seconds)} stop the job every"
        f" {format_duration(mtbf)}, and a step ({format_seconds(step_seconds)}), a checkpoint"
        f" ({format_duration(reliability.checkpoint_seconds)}) and a restart ({format_duration(reliability.restart_seconds)})"
        " hardly fit between two failures; faster checkpoints and restarts are needed, or fewer nodes"
    )


def expected_step_seconds(problem: Problem, step_seconds: float, reliability: Reliability | None) -> float:
    """Wall time that a kept step takes; the step time itself where nothing fails."""
    if reliability is None:
        return step_seconds
    mtbf = formulas.job_mtbf_seconds(reliability.mtbf_node_seconds, problem.cluster.num_nodes)
    return formulas.expected_step_seconds(step_seconds, reliability.checkpoint_seconds, reliability.restart_seconds, mtbf)


def _after_loss(problem: Problem, strategy: Strategy, step_seconds: float, constraints: Constraints) -> tuple[AfterLoss | None, str]:
    """The fastest plan on what is left of the cluster; or why there is none."""
    cluster = problem.cluster
    left = (cluster.num_nodes - 1) * cluster.gpus_per_node
    if left < 1:
        return None, "the job has one node: without a spare it waits for the repair"
    found, looked_at = best_within(problem, left, strategy, constraints)
    if found is None:
        return None, f"no strategy fits on {', '.join(f'{gpus:,}' for gpus in looked_at) or left} GPUs within the constraints"
    smaller, best, seconds = found
    return AfterLoss(
        num_gpus=best.world_size,
        idle_gpus=left - best.world_size,
        strategy=best,
        step_time_seconds=seconds,
        slowdown=seconds / step_seconds,
        resharding=resharding((problem, strategy), (smaller, best)),
        looked_at=looked_at,
    ), ""


def best_within(
    problem: Problem, gpus: int, strategy: Strategy, constraints: Constraints, stages: Stages | None = None
) -> tuple[tuple[Problem, Strategy, float] | None, tuple[int, ...]]:
    """The fastest plan on at most ``gpus`` GPUs and its step time, among :func:`sizes_within`; and the sizes that were planned for.

    Fewer GPUs can be faster than all of them: 31 nodes divide neither a batch of 1,536 nor 96 layers.
    """
    from autopar.search import Stages, search

    found, looked_at = [], []
    for size in sizes_within(gpus, problem.cluster.gpus_per_node, strategy, problem.training.global_batch_size):
        smaller = problem if size == problem.cluster.num_gpus else resized(problem, size)
        if smaller is None:
            continue
        looked_at.append(size)
        ranked = search(smaller, constraints, top=1, stages=stages or Stages.EVEN).ranked
        found += [(smaller, ranked[0].strategy, ranked[0].step_time_seconds)] if ranked else []
    return min(found, key=lambda each: each[2], default=None), tuple(looked_at)


def sizes_within(gpus: int, per_node: int, strategy: Strategy, batch: int) -> tuple[int, ...]:
    """Numbers of GPUs worth planning for on ``gpus`` GPUs, largest first, in whole nodes.

    All of them; what the same shape fills with as many replicas as divide the batch; and for each odd number up to 15 its largest
    multiple by a power of two, where that is most of the GPUs: the odd factor fits a pipeline, the rest the heads and the batch.
    """
    shape = strategy.world_size // strategy.data_parallel_size
    replicas = (count for count in range(gpus // shape, 0, -1) if batch % (count * strategy.micro_batch_size) == 0)
    nodes = gpus // per_node
    doubled = {odd << (nodes // odd).bit_length() - 1 for odd in range(1, MAX_ODD + 1, 2) if odd <= nodes}
    sizes = {gpus, next(replicas, 0) * shape, *(count * per_node for count in doubled if count >= WORTH_PLANNING * nodes)}
    return tuple(sorted((size for size in sizes if size == gpus or (size and size % per_node == 0)), reverse=True))
