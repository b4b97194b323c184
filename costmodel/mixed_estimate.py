"""The estimate of one strategy over pools of unlike devices, with every term named."""

from __future__ import annotations

from dataclasses import replace

from .estimate import breakdown_of, memory_probability, memory_warnings, recomputation_factor, reference_flops, stage_estimate
from .flops import step_model_flops
from .inputs import Inputs
from .mixed import Machine, MixedCosts
from .pools import MixedProblem, Pool
from .spec.errors import Fault, InvalidInputError
from .spec.estimate import Estimate, StageEstimate
from .spec.mixed import MixedStrategy

NO_RUNS = "no measured run of a mixed cluster is known: the step time has no error bar"


def mixed_estimate(problem: MixedProblem, mixed: MixedStrategy) -> Estimate:
    """Time and memory of ``mixed``, which must be feasible (:func:`autopar.search.mixed_rules.mixed_faults` says why not).

    Per-GPU figures are over the GPUs in use; MFU is against the rates of those. Times by term are of the rank that paces the step, a
    stage's rows say whose GPUs it has, and the peak is that of the GPU with the largest share of its memory taken.

    Raises:
        InvalidInputError: a lane names a pool that there is not.
    """
    _refuse_unknown(problem, mixed)
    costs = Machine.of(problem).costs(mixed, simulate=True)
    pacing = costs.lanes[costs.pacing]
    priced = replace(pacing, held=replace(pacing.held, optimizer_seconds=costs.optimizer_seconds[None]), overhead=costs.overhead)
    inputs, step = priced.inputs, costs.step_seconds
    breakdown = breakdown_of(inputs, priced)
    stages = tuple(_stages(mixed, costs))
    fullest = max(stages, key=lambda stage: stage.peak_memory_bytes / (stage.memory_capacity_bytes or 1.0))
    used = [(pool, count) for pool in problem.pools if (count := mixed.ranks_of(pool.name))]
    gpus = sum(count for _, count in used)
    training = problem.question.training
    flops = float(step_model_flops(Inputs.of(problem.question))) / step / gpus
    rated = sum(count * reference_flops(pool.problem) for pool, count in used) / gpus
    probability = _probability(problem, stages)
    return Estimate(
        fits=costs.fits,
        step_time_seconds=step,
        step_time_interval=None,
        tokens_per_second_per_gpu=training.tokens_per_step / step / gpus,
        model_flops_per_second_per_gpu=flops,
        mfu=flops / rated,
        hfu=flops * recomputation_factor(inputs, priced) / rated,
        bubble_fraction=breakdown.pipeline_bubble / step,
        peak_memory_bytes=fullest.peak_memory_bytes,
        memory_capacity_bytes=fullest.memory_capacity_bytes or 0.0,
        fit_probability=probability,
        time=breakdown,
        stages=stages,
        warnings=(NO_RUNS, *_warnings(problem, mixed), *memory_warnings(probability)),
        provenance=_provenance(problem, [pool for pool, _ in used]),
    )


def _refuse_unknown(problem: MixedProblem, mixed: MixedStrategy) -> None:
    known = [pool.name for pool in problem.pools]
    for name in mixed.pools:
        if name not in known:
            raise InvalidInputError(Fault(field="lanes.pools", given=name, required=f"one of the pools {', '.join(known)}"))


def _stages(mixed: MixedStrategy, costs: MixedCosts) -> list[StageEstimate]:
    """A row for each rank of each lane."""
    found = []
    for lane, capacity, asked in zip(costs.lanes, costs.capacity_bytes, mixed.lanes, strict=True):
        for rank, (name, room) in enumerate(zip(asked.pools, capacity, strict=True)):
            found.append(replace(stage_estimate(lane, rank), pool=name, memory_capacity_bytes=room))
    return found


def _probability(problem: MixedProblem, stages: tuple[StageEstimate, ...]) -> float | None:
    """That every GPU holds its part: the least of the pools', whose errors are one and the same model's."""
    found = []
    for pool in problem.pools:
        own = [stage for stage in stages if stage.pool == pool.name]
        if own:
            peak = max(stage.peak_memory_bytes for stage in own)
            found.append(memory_probability(pool.problem, peak, own[0].memory_capacity_bytes or 0.0))
    known = [each for each in found if each is not None]
    return min(known) if len(known) == len(found) else None


def _warnings(problem: MixedProblem, mixed: MixedStrategy) -> list[str]:
    notes = [
        f"{pool.name}: {pool.num_gpus - used} of {pool.num_gpus} GPUs are left out"
        for pool in problem.pools
        if (used := mixed.ranks_of(pool.name)) < pool.num_gpus
    ]
    count, ranks = min(lane.num_microbatches for lane in mixed.lanes), mixed.strategy.pipeline_parallel_size
    if ranks > 1 and count < ranks:
        notes.append(f"{count} micro-batches do not fill {ranks} pipeline stages")
    return notes


def _provenance(problem: MixedProblem, used: list[Pool]) -> dict[str, str]:
    """Where each pool's constants come from, and those of the network between."""
    table = {"schedule": "simulated", "framework": f"{problem.question.framework.id}: {problem.question.framework.source}"}
    for pool in used:
        hardware = pool.problem.hardware
        origins = sorted({str(origin) for origin in hardware.origin.values()}) or ["analytic"]
        table[f"{pool.name} kernels"] = f"{hardware.device}: {', '.join(origins)}"
        for link in pool.problem.links:
            table[f"{pool.name} link {link.tier}"] = f"{link.origin}: {link.source}"
    profile = problem.between.profile
    table["link between pools"] = f"{problem.between.tier.bandwidth / 1e9:g} GB/s a GPU; {profile.origin}: {profile.source}"
    return table
