"""Rules against plain restatements of them, one strategy at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autopar.catalog.hardware import device
from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.framework import RecomputeCount
from autopar.costmodel.spec.schedule import schedule_faults
from autopar.costmodel.spec.strategy import (
    ContextParallelKind,
    PipelineSchedule,
    RankOrder,
    Recompute,
    RecomputeModule,
    Strategy,
    balanced_layers,
)
from autopar.search import feasibility

SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16])
STRATEGIES = st.builds(
    Strategy,
    tensor_parallel_size=SIZES,
    sequence_parallel=st.booleans(),
    pipeline_parallel_size=SIZES,
    virtual_pipeline_stages=st.sampled_from([1, 2, 3]),
    pipeline_schedule=st.sampled_from(list(PipelineSchedule)),
    context_parallel_size=SIZES,
    context_parallel_kind=st.sampled_from(list(ContextParallelKind)),
    expert_parallel_size=SIZES,
    expert_tensor_parallel_size=SIZES,
    data_parallel_size=SIZES,
    micro_batch_size=SIZES,
    zero_stage=st.integers(0, 3),
    shard_group_size=st.sampled_from([0, 1, 2, 3, 8]),
    recompute=st.sampled_from(list(Recompute)),
    recompute_modules=st.sampled_from([(), (), (RecomputeModule.MLP,), (RecomputeModule.MOE_ACT, RecomputeModule.LAYERNORM)]),
    num_recompute_layers=st.sampled_from([0, 0, 1, 2, 5]),
    pipeline_layers=st.sampled_from([(), (), (3, 3), (2, 2, 2), (6,), (5, 1), (6, 0), (0, 3, 0, 3), (2, 2)]),
    rank_order=st.sampled_from(list(RankOrder)),
    stage_recompute_layers=st.sampled_from([(), (), (), (3, 3), (3, 1), (0, 2, 2), (6,), (4, 1), (2, 2)]),
)
PROBLEMS = (
    "titan",
    "dense",
    "experts",
    "eager",
    "low-precision",
    "data-parallel",
    "ulysses",
)
Oracle = Callable[[Problem, Strategy], bool]


@pytest.fixture(scope="session")
def problems(make_problem: Any, dense: Any, experts: Any) -> dict[str, Problem]:
    return {
        "dense": make_problem(dense),
        "experts": make_problem(experts, length=16_384, batch=48, schedules=tuple(PipelineSchedule)),
        "eager": make_problem(
            dense,
            kv_heads_may_replicate=False,
            sequence_parallel=False,
            vocab_padding_multiple=0,
            zero_stages=(0, 1, 2, 3),
            zero_stages_with_pipeline=(0,),
            expert_tensor_parallel=False,
            schedules=(),
        ),
        "low-precision": make_problem(dense, precision="fp8", batch=12, length=96, schedules=tuple(PipelineSchedule)),
        "data-parallel": make_problem(experts, framework="fsdp"),
        "titan": make_problem(dense, framework="torchtitan"),
        "ulysses": make_problem(experts, framework="deepspeed"),
    }


def _ulysses(problem: Problem, s: Strategy) -> bool:
    queries = problem.model.num_attention_heads // s.tensor_parallel_size
    keys = max(1, problem.model.num_key_value_heads // s.tensor_parallel_size)
    size = s.context_parallel_size
    repeats = problem.framework.ulysses_repeats_kv_heads and size % keys == 0
    spread = queries >= 1 and queries % size == 0 and (keys % size == 0 or repeats)
    return spread and problem.training.sequence_length % size == 0


def _context(problem: Problem, s: Strategy) -> bool:
    if s.context_parallel_size == 1:
        return True
    if s.context_parallel_kind is ContextParallelKind.ULYSSES:
        return _ulysses(problem, s)
    return problem.training.sequence_length % (2 * s.context_parallel_size) == 0


def _virtual(problem: Problem, s: Strategy) -> bool:
    if s.pipeline_schedule is PipelineSchedule.INTERLEAVED:
        return s.pipeline_parallel_size > 1 and s.virtual_pipeline_stages > 1
    zero_bubble = s.pipeline_schedule is PipelineSchedule.ZERO_BUBBLE
    return s.virtual_pipeline_stages in (problem.framework.zero_bubble_virtual_stages if zero_bubble else (1,))


def _microbatches(problem: Problem, s: Strategy) -> bool:
    count, p = s.num_microbatches(problem.training.global_batch_size), s.pipeline_parallel_size
    if s.pipeline_schedule is PipelineSchedule.INTERLEAVED:
        return count % p == 0
    return s.pipeline_schedule is not PipelineSchedule.DUALPIPE or (count % 2 == 0 and count >= 2 * p)


def _aligned(problem: Problem, s: Strategy) -> bool:
    if problem.training.precision.name != "fp8":
        return True
    widths = (problem.model.ffn_hidden_size, problem.model.num_attention_heads * problem.model.head_dim)
    pieces = s.context_parallel_size * (s.tensor_parallel_size if s.sequence_parallel else 1)
    rows = problem.training.sequence_length * s.micro_batch_size
    return all(w % (16 * s.tensor_parallel_size) == 0 for w in widths) and rows % (8 * pieces) == 0


def _same_stages(problem: Problem, s: Strategy) -> bool:
    """Megatron makes the stages of both grids by strides, and asks that they are the same."""
    if problem.model.moe is None or s.rank_order is RankOrder.TP_CP_DP_PP:
        return True
    dense = s.tensor_parallel_size * s.context_parallel_size
    experts = s.expert_tensor_parallel_size * s.expert_parallel_size
    return all(rank // dense % s.pipeline_parallel_size == rank // experts % s.pipeline_parallel_size for rank in range(dense + experts))


ORACLES: dict[str, Oracle] = {
    "world_size": lambda p, s: s.world_size == p.cluster.num_gpus,
    "tensor_parallel": lambda p, s: p.framework.tensor_parallel or s.tensor_parallel_size == 1,
    "pipeline_parallel": lambda p, s: p.framework.pipeline_parallel or s.pipeline_parallel_size == 1,
    "context_parallel": lambda p, s: s.context_parallel_size == 1 or s.context_parallel_kind in p.framework.context_parallel_kinds,
    "expert_parallel": lambda p, s: p.framework.expert_parallel or s.expert_parallel_size == 1,
    "experts_under_pipeline": lambda p, s: p.framework.experts_under_pipeline or p.model.moe is None or s.pipeline_parallel_size == 1,
    "heads_divide_tp": lambda p, s: p.model.num_attention_heads % s.tensor_parallel_size == 0,
    "kv_heads_divide_tp": lambda p, s: (
        p.model.num_key_value_heads % s.tensor_parallel_size == 0
        or (p.framework.kv_heads_may_replicate and s.tensor_parallel_size % p.model.num_key_value_heads == 0)
    ),
    "widths_divide_tp": lambda p, s: p.model.num_dense_layers == 0 or p.model.ffn_hidden_size % s.tensor_parallel_size == 0,
    "vocabulary_divides_tp": lambda p, s: p.framework.vocab_padding_multiple > 0 or p.model.vocab_size % s.tensor_parallel_size == 0,
    "sequence_parallel": lambda p, s: not s.sequence_parallel or (s.tensor_parallel_size > 1 and p.framework.sequence_parallel),
    "sequence_split": lambda p, s: (
        not s.sequence_parallel or p.training.sequence_length % (s.context_parallel_size * s.tensor_parallel_size) == 0
    ),
    "context_split": _context,
    "experts_need_sequence_parallel": lambda p, s: p.model.moe is None or s.tensor_parallel_size == 1 or s.sequence_parallel,
    "global_batch_divides": lambda p, s: p.training.global_batch_size % s.data_parallel_size == 0,
    "layer_in_every_stage": lambda p, s: s.num_virtual_stages - 2 * p.framework.empty_end_stages <= p.model.num_layers,
    "pipeline_layers": lambda p, s: (
        s.pipeline_layers == ()
        or (
            p.framework.places_layers
            and len(s.pipeline_layers) == s.num_virtual_stages
            and sum(s.pipeline_layers) == p.model.num_layers
            and 0 not in (s.pipeline_layers[1:-1] if p.framework.empty_end_stages else s.pipeline_layers)
        )
    ),
    "stages_divide_layers": lambda p, s: p.framework.places_layers or p.model.num_layers % s.num_virtual_stages == 0,
    "recomputed_modules": lambda p, s: (
        not s.recompute_modules or (s.recompute is Recompute.SELECTIVE and set(s.recompute_modules) <= set(p.framework.recompute_modules))
    ),
    "recomputed_stages": lambda p, s: (
        s.stage_recompute_layers == ()
        or (
            p.framework.recompute_by_stage
            and s.recompute is Recompute.FULL
            and not s.num_recompute_layers
            and len(s.stage_recompute_layers) == s.num_virtual_stages
            and (s.pipeline_layers != () or p.model.num_layers % s.num_virtual_stages == 0)
            and all(
                0 <= again <= held
                for again, held in zip(
                    s.stage_recompute_layers,
                    s.pipeline_layers or (p.model.num_layers // s.num_virtual_stages,) * s.num_virtual_stages,
                    strict=False,
                )
            )
        )
    ),
    "schedule_supported": lambda p, s: (
        s.pipeline_schedule is PipelineSchedule.ONE_F_ONE_B
        if s.pipeline_parallel_size == 1
        else s.pipeline_schedule in p.framework.schedules
    ),
    "virtual_stages": _virtual,
    "schedule_ranks": lambda _, s: s.pipeline_schedule is not PipelineSchedule.DUALPIPE or s.pipeline_parallel_size % 2 == 0,
    "experts_divide_ep": lambda p, s: p.model.moe.num_experts % s.expert_parallel_size == 0 if p.model.moe else s.expert_parallel_size == 1,
    "expert_tensor_parallel": lambda p, s: (
        p.model.moe.ffn_hidden_size % s.expert_tensor_parallel_size == 0
        if p.model.moe and p.framework.expert_tensor_parallel
        else s.expert_tensor_parallel_size == 1
    ),
    "expert_grid": lambda _, s: (
        (s.tensor_parallel_size * s.context_parallel_size * s.data_parallel_size) % (s.expert_parallel_size * s.expert_tensor_parallel_size)
        == 0
    ),
    "micro_batch_divides": lambda p, s: (
        p.training.global_batch_size % s.data_parallel_size != 0
        or p.training.global_batch_size // s.data_parallel_size % s.micro_batch_size == 0
    ),
    "schedule_microbatches": _microbatches,
    "low_precision_alignment": _aligned,
    "zero_stage": lambda p, s: (
        s.zero_stage in (p.framework.zero_stages if s.pipeline_parallel_size == 1 else p.framework.zero_stages_with_pipeline)
    ),
    "shard_group": lambda _, s: (
        s.shard_group_size == 0 or (s.zero_stage > 0 and s.data_parallel_size * s.context_parallel_size % s.shard_group_size == 0)
    ),
    "rank_order": lambda p, s: s.rank_order in p.framework.rank_orders,
    "rank_order_experts": _same_stages,
    "recomputed_layers": lambda p, s: (
        s.num_recompute_layers == 0
        or (
            s.recompute is Recompute.FULL
            and s.num_recompute_layers <= (held := -(-p.model.num_layers // s.pipeline_parallel_size))
            and (
                s.num_recompute_layers == held
                or p.framework.recompute_count is RecomputeCount.ANY
                or (
                    p.framework.recompute_count is RecomputeCount.VIRTUAL_STAGES and s.num_recompute_layers % s.virtual_pipeline_stages == 0
                )
            )
        )
    ),
}


def test_every_rule_is_restated() -> None:
    assert set(ORACLES) == {rule.name for rule in feasibility.RULES}
    assert all(rule.summary for rule in feasibility.RULES)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(STRATEGIES, min_size=1, max_size=8), name=st.sampled_from(PROBLEMS))
def test_mask_and_fault_agree_with_the_restatement(problems: dict[str, Problem], rows: list[Strategy], name: str) -> None:
    problem, columns = problems[name], StrategyColumns.of(rows)
    for rule in feasibility.RULES:
        wanted = [ORACLES[rule.name](problem, row) for row in rows]
        assert rule.mask(problem, columns).tolist() == wanted, rule.name
        for row, accepted in zip(rows, wanted, strict=True):
            fault = rule.fault(problem, row)
            assert (fault is None) == accepted
            assert fault is None or (fault.required and str(fault.given))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=STRATEGIES, name=st.sampled_from(PROBLEMS))
def test_nearest_valid_values_are_valid(problems: dict[str, Problem], row: Strategy, name: str) -> None:
    problem = problems[name]
    for rule in feasibility.RULES:
        fault = rule.fault(problem, row)
        if fault is None or fault.field not in Strategy.__slots__:
            continue
        offered = re.match(r"nearest valid: ([\d, ]+)$", fault.fix)
        for text in offered[1].split(", ") if offered else ():
            mended = replace(row, **{fault.field: int(text)})
            assert rule.fault(problem, mended) is None, (rule.name, fault)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=STRATEGIES)
def test_schedule_rules_are_those_of_the_builder(problems: dict[str, Problem], row: Strategy) -> None:
    problem = problems["experts"]
    count = row.num_microbatches(problem.training.global_batch_size)
    if row.pipeline_parallel_size == 1 or count == 0:
        return
    rules = [rule for rule in feasibility.RULES if rule.name in ("virtual_stages", "schedule_ranks", "schedule_microbatches")]
    built = schedule_faults(row.pipeline_schedule, row.pipeline_parallel_size, row.virtual_pipeline_stages, count)
    assert any(rule.fault(problem, row) for rule in rules) == bool(built)


def _one(problem: Problem, strategy: Strategy, field: str) -> str:
    (fault,) = [fault for fault in feasibility.faults(problem, strategy) if fault.field == field]
    return str(fault)


def test_twelve_heads_on_eight_ranks(make_problem: Any, dense: Any) -> None:
    model = replace(dense, num_attention_heads=12, num_key_value_heads=12)
    text = _one(make_problem(model), Strategy(tensor_parallel_size=8, sequence_parallel=True), "tensor_parallel_size")
    assert "tensor_parallel_size=8" in text
    assert "num_attention_heads=12" in text
    assert "nearest valid: 4" in text


def test_key_value_heads_below_tensor_parallel(make_problem: Any, dense: Any) -> None:
    strategy = Strategy(tensor_parallel_size=8, sequence_parallel=True)
    assert feasibility.faults(make_problem(dense), strategy) == ()
    text = _one(make_problem(dense, kv_heads_may_replicate=False), strategy, "tensor_parallel_size")
    assert "num_key_value_heads=4" in text
    assert "nearest valid: 4" in text


def test_seven_gpus(make_problem: Any, dense: Any) -> None:
    text = _one(make_problem(dense, gpus=7), Strategy(tensor_parallel_size=2, data_parallel_size=3), "num_gpus")
    assert "num_gpus=7" in text
    assert "6 or 8" in text


def test_thirty_layers_on_four_stages_lose_none(make_problem: Any, dense: Any) -> None:
    problem = make_problem(replace(dense, num_layers=30), gpus=4)
    uneven = Strategy(pipeline_parallel_size=4, pipeline_layers=balanced_layers(30, 4))
    assert feasibility.faults(problem, uneven) == ()
    text = _one(problem, replace(uneven, pipeline_layers=(7, 7, 7, 7)), "pipeline_layers")
    assert "sum to 28" in text
    assert "for example 7,8*2,7" in text


def test_the_embedding_and_the_head_may_stand_alone_where_the_framework_counts_them(make_problem: Any, dense: Any) -> None:
    """Llama-3 405B's published layout: 126 layers on 16 x 8 stages."""
    problem = make_problem(replace(dense, num_layers=14), gpus=4, empty_end_stages=True)
    assert balanced_layers(14, 16) == (0, *(1,) * 14, 0)
    assert balanced_layers(15, 16) == (*(1,) * 15, 0)
    interleaved = Strategy(pipeline_parallel_size=4, virtual_pipeline_stages=4, pipeline_schedule=PipelineSchedule.INTERLEAVED)
    assert feasibility.faults(problem, replace(interleaved, pipeline_layers=balanced_layers(14, 16))) == ()
    assert feasibility.faults(problem, interleaved) == ()
    assert "as many layers" in _one(
        make_problem(replace(dense, num_layers=14), gpus=4, empty_end_stages=False), interleaved, "pipeline_parallel_size"
    )
    hole = (1, 0, *(1,) * 13, 0)
    assert _one(problem, replace(interleaved, pipeline_layers=hole), "pipeline_layers")
    deeper = replace(interleaved, virtual_pipeline_stages=5)
    assert "16 at most" in _one(problem, deeper, "pipeline_parallel_size")


def test_recomputation_by_stage_says_what_is_wrong(make_problem: Any, dense: Any) -> None:
    staged = Strategy(
        pipeline_parallel_size=2, data_parallel_size=4, pipeline_layers=(4, 2), recompute=Recompute.FULL, stage_recompute_layers=(4, 1)
    )
    assert feasibility.faults(make_problem(dense, recompute_by_stage=True), staged) == ()
    assert "on every stage" in _one(make_problem(dense), staged, "stage_recompute_layers")
    able = make_problem(dense, recompute_by_stage=True)
    for change, text in (
        ({"recompute": Recompute.NONE}, "recompute=full"),
        ({"stage_recompute_layers": (4, 3)}, "for example 4,2"),
        ({"stage_recompute_layers": (4,)}, "must be 2 entries"),
        ({"num_recompute_layers": 1}, "num_recompute_layers=0"),
    ):
        assert text in _one(able, replace(staged, **change), "stage_recompute_layers")


def test_all_faults_at_once(make_problem: Any, dense: Any) -> None:
    wrong = Strategy(tensor_parallel_size=3, pipeline_parallel_size=9, zero_stage=3, micro_batch_size=5, num_recompute_layers=2)
    fields = {fault.field for fault in feasibility.faults(make_problem(dense), wrong)}
    assert {"num_gpus", "tensor_parallel_size", "pipeline_parallel_size", "zero_stage", "micro_batch_size"} <= fields
    assert "num_recompute_layers" in fields


def test_memory_says_by_how_much() -> None:
    assert feasibility.memory_fault(2.0**30, 2.0**30) is None
    fault = feasibility.memory_fault(3 * 2.0**30, 2 * 2.0**30)
    assert fault is not None
    assert "1" in fault.required.split(",")[1]


PARALLEL = {
    "tensor_parallel_size": Strategy(tensor_parallel_size=2),
    "pipeline_parallel_size": Strategy(pipeline_parallel_size=2),
    "context_parallel_size": Strategy(context_parallel_size=2),
    "expert_parallel_size": Strategy(expert_parallel_size=2),
}


@pytest.mark.parametrize(
    ("framework", "absent"),
    [
        ("megatron-core", ""),
        ("torchtitan", ""),
        ("hai-llm", "context_parallel_size"),
        ("internevo", "context_parallel_size"),
        ("megatron-2021", "context_parallel_size expert_parallel_size"),
        ("megatron-deepspeed", "context_parallel_size pipeline_parallel_size"),
        ("deepspeed", "pipeline_parallel_size"),
        ("transformers", "pipeline_parallel_size context_parallel_size expert_parallel_size"),
        ("fsdp", "tensor_parallel_size pipeline_parallel_size context_parallel_size expert_parallel_size"),
        ("pytorch-eager", "tensor_parallel_size pipeline_parallel_size context_parallel_size expert_parallel_size"),
    ],
)
def test_what_a_framework_does_not_have_is_refused_by_its_name(make_problem: Any, experts: Any, framework: str, absent: str) -> None:
    problem = make_problem(experts, framework=framework)
    refused = {
        field
        for field, strategy in PARALLEL.items()
        for fault in feasibility.faults(problem, strategy)
        if fault.field == field and problem.framework.name in fault.required and fault.fix == "nearest valid: 1"
    }
    assert refused == set(absent.split())


def test_a_kind_of_context_parallelism_that_the_framework_lacks(make_problem: Any, dense: Any) -> None:
    ring = Strategy(context_parallel_size=2, data_parallel_size=4)
    problem = make_problem(dense, framework="deepspeed")
    text = _one(problem, ring, "context_parallel_kind")
    assert "context_parallel_kind=ulysses" in text
    assert feasibility.faults(problem, replace(ring, context_parallel_kind=ContextParallelKind.ULYSSES)) == ()


def test_ulysses_beyond_the_key_value_heads(make_problem: Any, dense: Any) -> None:
    strategy = Strategy(context_parallel_size=8, context_parallel_kind=ContextParallelKind.ULYSSES)
    text = _one(make_problem(dense, length=8192), strategy, "context_parallel_size")
    assert "its 4 key-value heads" in text
    assert "nearest valid: 4" in text
    assert feasibility.faults(make_problem(dense, length=8192, framework="deepspeed"), strategy) == ()


def test_selective_recomputation_is_tried_where_flash_attention_is_absent(make_problem: Any, dense: Any) -> None:
    (saves,) = [p.mask for p in feasibility.PREFERENCES if p.name == "selective_recompute_saves_memory"]
    columns = StrategyColumns.of([Strategy(recompute=Recompute.SELECTIVE)])
    hopper = make_problem(dense)
    volta = replace(hopper, cluster=replace(hopper.cluster, device=device("v100-sxm2-32gb")))
    assert [bool(saves(problem, columns)[0]) for problem in (hopper, volta)] == [False, True]


def test_many_are_accepted_as_one_by_one(make_problem: Any, dense: Any) -> None:
    strategies = [
        *PARALLEL.values(),
        *(Strategy(data_parallel_size=8, zero_stage=stage, micro_batch_size=size) for stage in (1, 3) for size in (1, 3)),
    ]
    counts = []
    for framework in ("megatron-core", "megatron-2021", "deepspeed", "fsdp"):
        problem = make_problem(dense, framework=framework)
        one_by_one = [strategy for strategy in strategies if not feasibility.faults(problem, strategy)]
        assert feasibility.runnable(problem, strategies) == one_by_one
        counts.append(len(one_by_one))
    assert 0 < sum(counts) < len(counts) * len(strategies)
    assert feasibility.runnable(problem, []) == []
