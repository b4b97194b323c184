"""Rules of the pipeline, its schedule, the batch, sharded states and recomputation.

Sources as in :mod:`autopar.search.rules_layout`; what a schedule itself needs is
:func:`autopar.costmodel.spec.schedule.schedule_faults`, which the schedule's builder enforces.
"""

from __future__ import annotations

import numpy as np

from autopar.costmodel.columns import MODULES, Bools, StrategyColumns
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.framework import RecomputeCount
from autopar.costmodel.spec.schedule import schedule_faults
from autopar.costmodel.spec.strategy import EMPTY_ENDS, PipelineSchedule, Recompute, Strategy, balanced_layers, split_text

from .rule import Rule, accepted_values, divisors, everything, nearest

# -- what the framework has ---------------------------------------------------------------------------------------------


def _has_pipeline(problem: Problem, columns: StrategyColumns) -> Bools:
    """The framework has a pipeline, or there is a single stage."""
    return np.asarray((columns.pipeline_parallel_size == 1) | problem.framework.pipeline_parallel)


def _explain_has_pipeline(problem: Problem, strategy: Strategy) -> Fault:
    size = strategy.pipeline_parallel_size
    required = f"{problem.framework.name} has no pipeline parallelism"
    return Fault(field="pipeline_parallel_size", given=str(size), required=required, fix=nearest(size, [1]))


def _experts_under_pipeline(problem: Problem, columns: StrategyColumns) -> Bools:
    """The framework's pipeline takes layers of experts, or there are none of them, or no pipeline."""
    accepted = problem.model.moe is None or problem.framework.experts_under_pipeline
    return np.asarray((columns.pipeline_parallel_size == 1) | accepted)


def _explain_experts_under_pipeline(problem: Problem, strategy: Strategy) -> Fault:
    size = strategy.pipeline_parallel_size
    required = f"the pipeline of {problem.framework.name} takes no layers of experts, and {problem.model.name} has them"
    return Fault(field="pipeline_parallel_size", given=str(size), required=required, fix=nearest(size, [1]))


# -- stages -------------------------------------------------------------------------------------------------------------


def _stages(problem: Problem, columns: StrategyColumns) -> Bools:
    """Every virtual stage holds at least one layer; where the framework allows it, the embedding and the head may stand alone."""
    return columns.pipeline_parallel_size * columns.virtual_pipeline_stages <= most_stages(problem)


def _explain_stages(problem: Problem, strategy: Strategy) -> Fault:
    layers, stages, most = problem.model.num_layers, strategy.num_virtual_stages, most_stages(problem)
    if strategy.pipeline_parallel_size <= most:
        fix = f"virtual_pipeline_stages={most // strategy.pipeline_parallel_size}"
    else:
        fix = f"pipeline_parallel_size={layers}"
    product = f"{strategy.pipeline_parallel_size} x {strategy.virtual_pipeline_stages} = {stages}"
    ends = f" (the embedding and the head may have a stage each: {most} at most)" if most > layers else ""
    required = f"{product} virtual stages need as many layers, and {problem.model.name} has {layers}{ends}"
    return Fault(field="pipeline_parallel_size", given=str(strategy.pipeline_parallel_size), required=required, fix=fix)


def _stages_alike(problem: Problem, columns: StrategyColumns) -> Bools:
    """A framework that places layers itself has stages that divide them."""
    stages = columns.pipeline_parallel_size * columns.virtual_pipeline_stages
    return np.asarray(problem.framework.places_layers | (problem.model.num_layers % stages == 0))


def _explain_stages_alike(problem: Problem, strategy: Strategy) -> Fault:
    size, layers = strategy.pipeline_parallel_size, problem.model.num_layers
    required = f"{problem.framework.name} splits layers by itself, evenly where stages divide num_layers={layers}"
    valid = [ranks for ranks in divisors(layers) if layers % (ranks * strategy.virtual_pipeline_stages) == 0]
    return Fault(field="pipeline_parallel_size", given=str(size), required=required, fix=nearest(size, valid))


def _layer_split(problem: Problem, columns: StrategyColumns) -> Bools:
    """An explicit split has one entry a virtual stage, none of them empty but the ends where they may be, and loses or adds no layer."""
    accepted = everything(columns)
    stages = columns.pipeline_parallel_size * columns.virtual_pipeline_stages
    ends = int(problem.framework.empty_end_stages)
    for row, split in enumerate(columns.pipeline_layers):
        if split:
            held = min(split[ends : len(split) - ends], default=1) >= 1 and min(split) >= 0
            whole = len(split) == stages[row] and sum(split) == problem.model.num_layers
            accepted[row] = problem.framework.places_layers and whole and held
    return accepted


def most_stages(problem: Problem) -> int:
    """Virtual stages that the model's layers fill, with the ends alone where the framework lets them be."""
    return problem.model.num_layers + EMPTY_ENDS * problem.framework.empty_end_stages


def _explain_layer_split(problem: Problem, strategy: Strategy) -> Fault:
    split, stages, layers = strategy.pipeline_layers, strategy.num_virtual_stages, problem.model.num_layers
    if not problem.framework.places_layers:
        required = f"{problem.framework.name} splits layers by itself"
        return Fault(field="pipeline_layers", given=split_text(split), required=required, fix="leave it out")
    required = f"must be {stages} entries of at least 1 that sum to num_layers={layers}; these are {len(split)} and sum to {sum(split)}"
    fix = f"for example {split_text(balanced_layers(layers, stages))}" if stages <= most_stages(problem) else ""
    return Fault(field="pipeline_layers", given=split_text(split), required=required, fix=fix)


# -- schedule -----------------------------------------------------------------------------------------------------------


def _schedule_supported(problem: Problem, columns: StrategyColumns) -> Bools:
    """The framework has the schedule; a single stage needs none and is written 1f1b."""
    single = columns.pipeline_parallel_size == 1
    plain = columns.is_schedule(PipelineSchedule.ONE_F_ONE_B)
    return np.where(single, plain, columns.is_schedule(*problem.framework.schedules))


def _explain_schedule_supported(problem: Problem, strategy: Strategy) -> Fault:
    kinds = problem.framework.schedules
    if strategy.pipeline_parallel_size == 1:
        required, fix = "pipeline_parallel_size=1 has nothing to schedule", "pipeline_schedule=1f1b, or pipeline_parallel_size=2"
    elif kinds:
        required, fix = f"{problem.framework.name} does not have it", f"it has {', '.join(kinds)}"
    else:
        required, fix = f"{problem.framework.name} has no pipeline", "pipeline_parallel_size=1"
    return Fault(field="pipeline_schedule", given=strategy.pipeline_schedule.value, required=required, fix=fix)


def _virtual_stages(problem: Problem, columns: StrategyColumns) -> Bools:
    """Only an interleaved pipeline has several virtual stages a rank (and must); zero-bubble takes those that the framework has."""
    chunks = columns.virtual_pipeline_stages
    interleaved, zero_bubble = columns.is_schedule(PipelineSchedule.INTERLEAVED), columns.is_schedule(PipelineSchedule.ZERO_BUBBLE)
    plain = np.where(zero_bubble, np.isin(chunks, problem.framework.zero_bubble_virtual_stages), chunks == 1)
    return np.where(interleaved, (chunks >= 2) & (columns.pipeline_parallel_size > 1), plain)


def _explain_virtual_stages(problem: Problem, strategy: Strategy) -> Fault:
    kind, chunks, ranks = strategy.pipeline_schedule, strategy.virtual_pipeline_stages, strategy.pipeline_parallel_size
    if kind is PipelineSchedule.INTERLEAVED and ranks == 1:
        fix = "pipeline_schedule=1f1b with virtual_pipeline_stages=1"
        return Fault(field="pipeline_parallel_size", given="1", required="interleaving needs at least 2 pipeline ranks", fix=fix)
    allowed = problem.framework.zero_bubble_virtual_stages
    if kind is PipelineSchedule.ZERO_BUBBLE and chunks <= 2:
        required = f"{problem.framework.name} has zero_bubble with {' or '.join(map(str, allowed))} a rank"
        return Fault(field="virtual_pipeline_stages", given=str(chunks), required=required, fix=nearest(chunks, allowed))
    return next(fault for fault in schedule_faults(kind, ranks, chunks, 4 * ranks) if fault.field == "virtual_pipeline_stages")


def _schedule_ranks(_: Problem, columns: StrategyColumns) -> Bools:
    """DualPipe pairs the pipeline ranks from both ends."""
    return np.asarray(~columns.is_schedule(PipelineSchedule.DUALPIPE) | (columns.pipeline_parallel_size % 2 == 0))


def _explain_schedule_ranks(_: Problem, strategy: Strategy) -> Fault:
    ranks = strategy.pipeline_parallel_size
    faults = schedule_faults(strategy.pipeline_schedule, ranks, 1, 4 * ranks)
    return next(fault for fault in faults if fault.field == "pipeline_parallel_size")


def _schedule_microbatches(problem: Problem, columns: StrategyColumns) -> Bools:
    """Interleaved: micro-batches in whole groups of one a pipeline rank. DualPipe: an even number, two a rank at least."""
    ranks = columns.pipeline_parallel_size
    count = problem.training.global_batch_size // (columns.data_parallel_size * columns.micro_batch_size)
    interleaved, dual = columns.is_schedule(PipelineSchedule.INTERLEAVED), columns.is_schedule(PipelineSchedule.DUALPIPE)
    return np.asarray((~interleaved | (count % ranks == 0)) & (~dual | ((count % 2 == 0) & (count >= 2 * ranks))))


def _explain_schedule_microbatches(problem: Problem, strategy: Strategy) -> Fault:
    ranks, count = strategy.pipeline_parallel_size, strategy.num_microbatches(problem.training.global_batch_size)
    if strategy.pipeline_schedule is PipelineSchedule.INTERLEAVED:
        required, step = f"interleaved_1f1b needs a multiple of pipeline_parallel_size={ranks}", ranks
    else:
        required, step = f"dualpipe needs an even number of at least twice pipeline_parallel_size={ranks}", 2
    share = problem.training.global_batch_size // strategy.data_parallel_size
    sizes = accepted_values(problem, strategy, "micro_batch_size", divisors(share, limit=1024), [_schedule_microbatches])
    batch = strategy.data_parallel_size * strategy.micro_batch_size
    least = 2 * ranks if strategy.pipeline_schedule is PipelineSchedule.DUALPIPE else ranks
    larger = max(least, (count // step + 1) * step) * batch
    fix = nearest(strategy.micro_batch_size, sizes).replace("nearest valid:", "micro_batch_size")
    fix = f"{fix}, or global_batch_size={larger}" if fix else f"global_batch_size={larger}"
    return Fault(field="num_microbatches", given=str(count), required=required, fix=fix)


# -- batch --------------------------------------------------------------------------------------------------------------


def _data_batch(problem: Problem, columns: StrategyColumns) -> Bools:
    """The data-parallel ranks share the global batch equally."""
    return np.asarray(problem.training.global_batch_size % np.maximum(columns.data_parallel_size, 1) == 0)


def _explain_data_batch(problem: Problem, strategy: Strategy) -> Fault:
    batch, size = problem.training.global_batch_size, strategy.data_parallel_size
    lower = batch // size * size
    near = f"{lower} or {lower + size}" if lower else str(size)
    return Fault(
        field="data_parallel_size", given=str(size), required=f"must divide global_batch_size={batch}", fix=f"global_batch_size={near}"
    )


def _micro_batch(problem: Problem, columns: StrategyColumns) -> Bools:
    """Each data-parallel rank's sequences make a whole number of micro-batches."""
    batch, size = problem.training.global_batch_size, columns.data_parallel_size
    return np.asarray((batch % (columns.micro_batch_size * size) == 0) | (batch % size != 0))


def _explain_micro_batch(problem: Problem, strategy: Strategy) -> Fault:
    share = problem.training.global_batch_size // strategy.data_parallel_size
    size = strategy.micro_batch_size
    required = f"must divide the {share} sequences of a data-parallel rank (global_batch_size / data_parallel_size)"
    return Fault(field="micro_batch_size", given=str(size), required=required, fix=nearest(size, divisors(share)))


# -- sharded states and recomputation -----------------------------------------------------------------------------------


def _zero_stage(problem: Problem, columns: StrategyColumns) -> Bools:
    """The framework shards states this way, and does so under a pipeline where there is one."""
    alone = np.isin(columns.zero_stage, problem.framework.zero_stages)
    piped = np.isin(columns.zero_stage, problem.framework.zero_stages_with_pipeline)
    return np.where(columns.pipeline_parallel_size > 1, piped, alone)


def _explain_zero_stage(problem: Problem, strategy: Strategy) -> Fault:
    framework, piped = problem.framework, strategy.pipeline_parallel_size > 1
    allowed = sorted(framework.zero_stages_with_pipeline if piped else framework.zero_stages)
    where = f" with pipeline_parallel_size={strategy.pipeline_parallel_size}" if piped else " without a pipeline"
    where = where if framework.zero_stages != framework.zero_stages_with_pipeline else ""
    required = f"{framework.name} takes {', '.join(map(str, allowed)) or 'none'}{where}"
    return Fault(field="zero_stage", given=str(strategy.zero_stage), required=required, fix=nearest(strategy.zero_stage, allowed))


def _shard_group(_: Problem, columns: StrategyColumns) -> Bools:
    """A smaller sharding group divides the data- and context-parallel ranks, and something is sharded over it."""
    size, ranks = columns.shard_group_size, columns.data_parallel_size * columns.context_parallel_size
    return np.asarray((size == 0) | ((ranks % np.maximum(size, 1) == 0) & (columns.zero_stage > 0)))


def _explain_shard_group(_: Problem, strategy: Strategy) -> Fault:
    ranks = strategy.data_parallel_size * strategy.context_parallel_size
    size = strategy.shard_group_size
    if strategy.zero_stage == 0:
        return Fault(
            field="shard_group_size", given=str(size), required="zero_stage=0 shards nothing", fix="shard_group_size=0, or zero_stage=1"
        )
    required = f"must divide data x context parallel sizes = {ranks}"
    return Fault(field="shard_group_size", given=str(size), required=required, fix=nearest(size, divisors(ranks)))


def layers_per_rank(problem: Problem, pipeline_parallel_size: int) -> int:
    """Layers of the fullest pipeline rank."""
    return -(-problem.model.num_layers // pipeline_parallel_size)


def _recomputed_layers(problem: Problem, columns: StrategyColumns) -> Bools:
    """Only full recomputation counts layers, at most those of a pipeline rank, and in numbers that the framework has."""
    most, count = -(-problem.model.num_layers // columns.pipeline_parallel_size), columns.num_recompute_layers
    by_stage = problem.framework.recompute_count is RecomputeCount.VIRTUAL_STAGES
    has = (count % columns.virtual_pipeline_stages == 0) if by_stage else problem.framework.recompute_count is RecomputeCount.ANY
    return np.asarray((count == 0) | (columns.is_recompute(Recompute.FULL) & ((count == most) | ((count < most) & has))))


def _explain_recomputed_layers(problem: Problem, strategy: Strategy) -> Fault:
    given = str(strategy.num_recompute_layers)
    if strategy.recompute is not Recompute.FULL:
        required = f"counts layers of recompute=full, and recompute is {strategy.recompute.value}"
        return Fault(field="num_recompute_layers", given=given, required=required, fix="num_recompute_layers=0, or recompute=full")
    most, chunks = layers_per_rank(problem, strategy.pipeline_parallel_size), strategy.virtual_pipeline_stages
    if strategy.num_recompute_layers < most:
        if problem.framework.recompute_count is RecomputeCount.ALL:
            required = f"{problem.framework.name} recomputes all layers or none"
            return Fault(field="num_recompute_layers", given=given, required=required, fix="num_recompute_layers=0, which is all of them")
        required = f"{problem.framework.name} counts layers of each virtual stage, of which a rank has {chunks}"
        above = min(-(-strategy.num_recompute_layers // chunks) * chunks, most)
        return Fault(field="num_recompute_layers", given=given, required=required, fix=f"nearest valid: {above}")
    return Fault(field="num_recompute_layers", given=given, required=f"a pipeline rank holds {most} layers", fix=f"nearest valid: {most}")


def _recomputed_modules(problem: Problem, columns: StrategyColumns) -> Bools:
    """Modules are named with recompute=selective, and are among those that the framework can be told to repeat."""
    taken = sum(1 << MODULES.index(module) for module in problem.framework.recompute_modules)
    named = columns.recompute_modules
    return np.asarray((named == 0) | (columns.is_recompute(Recompute.SELECTIVE) & (named & ~taken == 0)))


def _explain_recomputed_modules(problem: Problem, strategy: Strategy) -> Fault:
    given = "+".join(strategy.recompute_modules)
    if strategy.recompute is not Recompute.SELECTIVE:
        required = f"names what recompute=selective repeats, and recompute is {strategy.recompute.value}"
        return Fault(field="recompute_modules", given=given, required=required, fix="leave it out, or recompute=selective")
    taken = problem.framework.recompute_modules
    if not taken:
        required = f"{problem.framework.name} chooses itself what selective recomputation repeats"
        return Fault(field="recompute_modules", given=given, required=required, fix="leave it out")
    required = f"{problem.framework.name} repeats {', '.join(taken)}"
    return Fault(field="recompute_modules", given=given, required=required)


def _stage_recompute(problem: Problem, columns: StrategyColumns) -> Bools:
    """Recomputation counted stage by stage goes with recompute=full, one count a virtual stage, none above its layers."""
    accepted = everything(columns)
    for row in np.flatnonzero(columns.recompute_split).tolist():
        accepted[row] = not _stage_recompute_faults(problem, columns.strategy(row))
    return accepted


def _stage_recompute_faults(problem: Problem, strategy: Strategy) -> list[tuple[str, str]]:
    """What is required of ``stage_recompute_layers`` and is not so, with the change that mends it."""
    counts, stages = strategy.stage_recompute_layers, strategy.num_virtual_stages
    if not problem.framework.recompute_by_stage:
        return [(f"{problem.framework.name} recomputes as many layers on every stage", "leave it out and set num_recompute_layers")]
    if strategy.recompute is not Recompute.FULL:
        return [(f"counts layers of recompute=full, and recompute is {strategy.recompute.value}", "recompute=full")]
    if strategy.num_recompute_layers:
        return [(f"stands in the place of num_recompute_layers, which is {strategy.num_recompute_layers}", "num_recompute_layers=0")]
    if len(counts) != stages:
        return [(f"must be {stages} entries, one a virtual stage; these are {len(counts)}", "")]
    if problem.model.num_layers % stages and not strategy.pipeline_layers:
        return [("goes with an explicit pipeline_layers where the layers do not divide", "give pipeline_layers")]
    layers = strategy.pipeline_layers or (problem.model.num_layers // stages,) * stages
    most = [min(count, held) for count, held in zip(counts, layers, strict=False)]
    if list(counts) != most or min(counts) < 0:
        return [(f"no entry may exceed the layers of its stage, {split_text(layers)}", f"for example {split_text(most)}")]
    return []


def _explain_stage_recompute(problem: Problem, strategy: Strategy) -> Fault:
    ((required, fix),) = _stage_recompute_faults(problem, strategy)
    return Fault(field="stage_recompute_layers", given=split_text(strategy.stage_recompute_layers), required=required, fix=fix)


PIPELINE_RULES: tuple[Rule, ...] = tuple(
    Rule(name=name, reads=frozenset(reads.split()), mask=mask, explain=explain)
    for name, reads, mask, explain in (
        ("pipeline_parallel", "pipeline_parallel_size", _has_pipeline, _explain_has_pipeline),
        ("experts_under_pipeline", "pipeline_parallel_size", _experts_under_pipeline, _explain_experts_under_pipeline),
        ("global_batch_divides", "data_parallel_size", _data_batch, _explain_data_batch),
        ("layer_in_every_stage", "pipeline_parallel_size virtual_pipeline_stages", _stages, _explain_stages),
        ("stages_divide_layers", "pipeline_parallel_size virtual_pipeline_stages", _stages_alike, _explain_stages_alike),
        ("pipeline_layers", "pipeline_parallel_size virtual_pipeline_stages", _layer_split, _explain_layer_split),
        ("schedule_supported", "pipeline_parallel_size pipeline_schedule", _schedule_supported, _explain_schedule_supported),
        (
            "virtual_stages",
            "pipeline_parallel_size virtual_pipeline_stages pipeline_schedule",
            _virtual_stages,
            _explain_virtual_stages,
        ),
        ("schedule_ranks", "pipeline_parallel_size pipeline_schedule", _schedule_ranks, _explain_schedule_ranks),
        ("micro_batch_divides", "data_parallel_size micro_batch_size", _micro_batch, _explain_micro_batch),
        (
            "schedule_microbatches",
            "pipeline_parallel_size pipeline_schedule data_parallel_size micro_batch_size",
            _schedule_microbatches,
            _explain_schedule_microbatches,
        ),
        ("zero_stage", "pipeline_parallel_size zero_stage", _zero_stage, _explain_zero_stage),
        ("shard_group", "data_parallel_size context_parallel_size zero_stage shard_group_size", _shard_group, _explain_shard_group),
        (
            "recomputed_layers",
            "pipeline_parallel_size virtual_pipeline_stages recompute num_recompute_layers",
            _recomputed_layers,
            _explain_recomputed_layers,
        ),
        ("recomputed_modules", "recompute", _recomputed_modules, _explain_recomputed_modules),
        (
            "recomputed_stages",
            "pipeline_parallel_size virtual_pipeline_stages recompute num_recompute_layers",
            _stage_recompute,
            _explain_stage_recompute,
        ),
    )
)
