"""The estimate of one strategy: the arrays of :mod:`step` for one row, with the schedule simulated and every term named."""

from __future__ import annotations

from collections import Counter

import numpy as np

from .columns import Floats, StrategyColumns
from .constants import concerns
from .flops import attention_flops_per_token, forward_flops_per_token, step_model_flops
from .inputs import Inputs, attention_is_fused
from .intervals import fit_probability, profile_sample, regime_of, sample, step_time_interval
from .layer import PassTimes
from .measured import Coverage, Use, Uses
from .problem import Problem
from .spec.calibration import Calibration
from .spec.estimate import Estimate, Interval, StageEstimate, StageMemory, TimeBreakdown
from .spec.measured import Kind
from .spec.strategy import ContextParallelKind, Strategy
from .spec.training import ComputeType
from .step import StageCosts, stage_groups

_COMMUNICATION = {
    "exposed_tensor_communication": "tensor",
    "exposed_context_communication": "context",
    "exposed_expert_communication": "expert",
}

UNSURE = (0.05, 0.95)
"""Between these probabilities of fitting an estimate warns: above, it fits surely."""


def estimate(problem: Problem, strategy: Strategy) -> Estimate:
    """Time and memory of ``strategy``, which must be feasible (:func:`autopar.search.feasibility.faults` says why not).

    The step time is exact for the schedule: where no closed form is, its actions are simulated.
    """
    uses = Uses()
    inputs = Inputs.of(problem, uses if problem.measured is not None else None)
    (costs,) = stage_groups(inputs, StrategyColumns.of([strategy]), simulate=True)
    step_time = float(costs.step_seconds[0])
    breakdown = breakdown_of(inputs, costs)
    stages = tuple(stage_estimate(costs, rank) for rank in range(costs.shape.pipeline_parallel_size))
    peak = max(stage.peak_memory_bytes for stage in stages)
    gpus = problem.cluster.num_gpus
    flops = float(step_model_flops(inputs)) / step_time / gpus
    hardware_flops = flops * recomputation_factor(inputs, costs)
    rated = reference_flops(problem)
    capacity = float(problem.cluster.device.memory_bytes)
    tokens = problem.training.tokens_per_step
    probability = memory_probability(problem, peak, capacity)
    return Estimate(
        fits=peak <= capacity,
        step_time_seconds=step_time,
        step_time_interval=_interval(problem, step_time),
        tokens_per_second_per_gpu=tokens / step_time / gpus,
        model_flops_per_second_per_gpu=flops,
        mfu=flops / rated,
        hfu=hardware_flops / rated,
        bubble_fraction=breakdown.pipeline_bubble / step_time,
        peak_memory_bytes=peak,
        memory_capacity_bytes=capacity,
        fit_probability=probability,
        time=breakdown,
        stages=stages,
        warnings=_warnings(problem, strategy) + memory_warnings(probability) + _coverage_warnings(uses),
        provenance=_provenance(problem) | _coverage(problem, uses),
    )


def shapes_asked(problem: Problem, strategy: Strategy) -> tuple[Use, ...]:
    """Every kernel and collective that the estimate of ``strategy`` asks for, each shape once, as the model times it."""
    uses = Uses()
    for _ in stage_groups(Inputs.of(problem, uses), StrategyColumns.of([strategy])):
        pass
    return tuple(uses.found.values())


def _coverage(problem: Problem, uses: Uses) -> dict[str, str]:
    """How many shapes of each kind the profile holds, interpolates between, or does not reach."""
    measured = problem.measured
    if measured is None or measured.profile is None:
        return {}
    machine = measured.profile.machine
    table = {"profile": f"{measured.profile.num_points} times of {machine.device_name or measured.profile.device}, {machine.date}"}
    for kind in Kind:
        mine = Counter(use.coverage for use in uses.found.values() if use.kind is kind)
        if mine:
            table[f"measured {kind.value}"] = ", ".join(f"{mine[each]} {each.value}" for each in Coverage if mine[each])
    return table


def _coverage_warnings(uses: Uses) -> tuple[str, ...]:
    outside = sum(use.coverage is Coverage.OUTSIDE for use in uses.found.values())
    if not outside:
        return ()
    return (f"{outside} of {len(uses.found)} shapes are outside the measured range: the curve is scaled to the nearest measured one",)


def _interval(problem: Problem, seconds: float) -> Interval | None:
    """The error bar of the step time: of the profile's own rows where they are enough, else of public runs of its regime."""
    found = profile_sample(problem)
    if found is None and problem.residuals is not None:
        found = sample(problem.residuals.step_time, regime_of(problem))
    return None if found is None else step_time_interval(seconds, found)


def memory_probability(problem: Problem, peak: float, capacity: float) -> float | None:
    if problem.residuals is None:
        return None
    found = sample(problem.residuals.memory, regime_of(problem))
    return None if found is None else fit_probability(peak, capacity, found.values)


def memory_warnings(probability: float | None) -> tuple[str, ...]:
    """Said where the errors of measured runs leave it open whether the strategy fits."""
    if probability is None or not UNSURE[0] < probability < UNSURE[1]:
        return ()
    return (f"memory: with the errors seen on measured runs it fits with probability {probability:.0%}",)


def reference_flops(problem: Problem) -> float:
    """The rate MFU is counted against: the dense peak of the linear layers' type."""
    peaks = problem.cluster.device.peak_flops
    return float(peaks[problem.training.precision.linear])


def recomputation_factor(inputs: Inputs, costs: StageCosts) -> float:
    """Hardware over model FLOPs: what is recomputed, over the three forwards of every step.

    Full recomputation repeats all but the head; selective the attention core and the framework's share of the rest.
    """
    total = float(forward_flops_per_token(inputs))
    head = min(float(2 * inputs.model.vocab * inputs.model.hidden) / total, 1.0)
    core = min(float(attention_flops_per_token(inputs)) / total, 1.0)
    share, kept = float(inputs.framework.selective_recomputed), float(inputs.framework.selective_by_operator)
    layers = costs.shape.dense_layers + costs.shape.moe_layers
    full, selective = float(np.sum(costs.times.recomputed[0] * layers) / np.sum(layers)), float(costs.times.selective[0, 0])
    return 1 + (full * (1 - head) + selective * ((1 - kept) * core + share * (1 - head - core))) / 3


def breakdown_of(inputs: Inputs, costs: StageCosts) -> TimeBreakdown:
    """Seconds by term on the rank that works longest; its idle time is the bubble."""
    layer, shape, times = costs.layer, costs.shape, costs.times
    count = float(costs.num_microbatches[0]) / shape.directions
    busy = shape.on_ranks(times.forward + times.backward + times.weight)[0] * count
    rank = int(np.argmax(busy))
    mine = shape.on_rank[rank] > 0
    counts = np.stack([np.atleast_2d(each)[0, mine] for each in shape.layer_counts(inputs)])
    shares = np.broadcast_to(times.recomputed[0], (shape.num_stages,))[mine]
    selective = float(times.selective[0, 0])

    def passes(name: str, shares: Floats | float = 1.0) -> PassTimes:
        dense, moe = (counts * shares).sum(axis=1)
        of_dense: PassTimes = getattr(layer.dense, name)
        of_moe: PassTimes = getattr(layer.moe, name)
        return of_dense.scaled(float(dense)) + of_moe.scaled(float(moe))

    forward, backward = passes("forward"), passes("backward")
    both = forward + backward
    again = passes("forward", shares)
    repeated = float(again.total[0] - again.sharded[0]) + selective * float(passes("selective").total[0])
    ends = float((times.end_forward + times.end_backward)[0, mine].sum())
    transfers = float(times.transfers[0, mine].sum())
    optimizer = costs.held.optimizer_seconds
    tail_rank = int(np.argmax(costs.data_seconds[0] + optimizer[0]))
    terms = {field: count * float(getattr(both, name)[0]) for field, name in _COMMUNICATION.items()}
    return TimeBreakdown(
        matrix_multiplication=count * float(both.matrix[0]),
        attention=count * float(both.attention[0]),
        elementwise=count * float(both.elementwise[0]),
        embedding_and_loss=count * ends,
        recompute=count * repeated,
        host_launch=count * float(both.host[0]),
        gradient_accumulation=count * float(both.accumulation[0]),
        exposed_pipeline_communication=count * transfers,
        exposed_data_communication=float(costs.data_seconds[0, tail_rank]) + count * float(both.sharded[0]),
        optimizer=float(optimizer[0, tail_rank]),
        pipeline_bubble=float(costs.makespan[0]) - float(busy[rank]),
        overhead=float(costs.overhead[0]),
        **terms,
    )


def stage_estimate(costs: StageCosts, rank: int) -> StageEstimate:
    """What pipeline rank ``rank`` holds and takes."""
    shape, times, held, at_peak = costs.shape, costs.times, costs.held, costs.memory
    counts = shape.dense_layers + shape.moe_layers
    ends = np.cumsum(counts)
    mine = np.flatnonzero(shape.on_rank[rank] > 0)
    memory = StageMemory(
        parameters=float(at_peak.states.parameters[0, rank]),
        gradients=float(at_peak.states.gradients[0, rank]),
        master_weights=float(at_peak.states.master_weights[0, rank]),
        optimizer_states=float(at_peak.states.optimizer_states[0, rank]),
        activations=float(at_peak.activations[0, rank]),
        logits_and_loss=float(at_peak.logits[0, rank]),
        communication_buffers=float(at_peak.buffers[0, rank]),
        framework_reserve=float(at_peak.reserve[0, rank]),
    )
    return StageEstimate(
        pipeline_rank=rank,
        layers=tuple((int(ends[stage] - counts[stage]), int(ends[stage])) for stage in mine),
        num_layers=int(counts[mine].sum()),
        holds_embedding=0 in mine,
        holds_head=len(counts) - 1 in mine,
        num_parameters=round(float(held.parameters[0, rank])),
        forward_seconds=float(times.forward[0, mine].sum()),
        backward_seconds=float((times.backward + times.weight)[0, mine].sum()),
        microbatches_in_flight=float(at_peak.in_flight[0, rank]) / len(mine),
        memory=memory,
        peak_memory_bytes=float(at_peak.total[0, rank]),
    )


def _warnings(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """What makes this estimate less sure than others, or the plan slower than it looks."""
    notes = []
    domain = problem.cluster.fast_domain_size
    if strategy.tensor_parallel_size > domain:
        notes.append(
            f"tensor_parallel_size={strategy.tensor_parallel_size} crosses the {domain}-GPU {problem.cluster.fast_tier.name} domain:"
            " every layer's reductions go over the network"
        )
    count = strategy.num_microbatches(problem.training.global_batch_size)
    if strategy.pipeline_parallel_size > 1 and count < strategy.pipeline_parallel_size:
        notes.append(f"{count} micro-batches do not fill {strategy.pipeline_parallel_size} pipeline stages")
    if strategy.context_parallel_size > 1 and strategy.context_parallel_kind is not ContextParallelKind.RING:
        notes.append(f"context_parallel_kind={strategy.context_parallel_kind.value} is estimated without a measured run of its kind")
    if problem.training.precision.linear in (ComputeType.MXFP8, ComputeType.FP4):
        notes.append(f"{problem.training.precision.name} is scaled from FP8 measurements")
    if problem.framework.fused_attention and not attention_is_fused(problem):
        notes.append(f"{problem.cluster.device.name} is older than flash attention (Ampere and later): estimated with unfused attention")
    return tuple(notes)


def _provenance(problem: Problem) -> dict[str, str]:
    """Where each part's constants come from."""
    hardware = problem.hardware
    origins = sorted({str(origin) for origin in hardware.origin.values()}) or ["analytic"]
    table = {
        "device": f"{problem.cluster.device.id}: rated figures of the catalog",
        "kernels": f"{hardware.device}: {', '.join(origins)}",
        "framework": f"{problem.framework.id}: {problem.framework.source}",
        "attention": "fused" if attention_is_fused(problem) else "unfused",
        "schedule": "simulated",
    }
    for link in problem.links:
        table[f"link {link.tier}"] = f"{link.origin}: {link.source}"
    if problem.calibration is not None and problem.calibration.constants:
        table["calibration"] = _calibration_text(problem, problem.calibration)
    return table


def _calibration_text(problem: Problem, calibration: Calibration) -> str:
    """``calibrated on 12 rows: gemm_efficiency of h100-sxm5-80gb 0.72 -> 0.68``."""
    moved = (
        f"{constant.field} of {constant.name} {constant.catalog_value:.3g} -> {constant.value:.3g}"
        for constant in calibration.constants
        if concerns(problem, constant)
    )
    return f"calibrated on {calibration.rows} rows: {', '.join(moved)}"
