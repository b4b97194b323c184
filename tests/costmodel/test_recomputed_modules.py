"""Selective recomputation by module: held against Megatron-Core's report on its expert models, and against itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.catalog.models import model
from autopar.costmodel import memory
from autopar.costmodel.columns import MODULES, StrategyColumns
from autopar.costmodel.estimate import Estimate, estimate
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, RecomputeModule, Strategy
from autopar.request import build_problem

from .problems import DENSE, EXPERTS, LATENT, MODELS, problem, sharded

M = RecomputeModule
GB = 1e9


def naming(*modules: RecomputeModule, **fields: int) -> Strategy:
    return Strategy(recompute=Recompute.SELECTIVE, recompute_modules=modules, **fields)  # type: ignore[arg-type]


def kept(name: str, *modules: RecomputeModule, moe: bool) -> float:
    inputs, shard = sharded(problem(MODELS[name], gpus=8), naming(*modules))
    found = memory.layer_activations(inputs, shard, moe=moe)
    return float((found.selective if modules else found.kept)[0])


@cache
def deepseek(*modules: RecomputeModule) -> Estimate:
    asked, _ = build_problem(
        replace(model("deepseek-v3"), mtp_layers=0),
        cluster="nvl72-gb200",
        gpus=256,
        global_batch_size=2048,
        sequence_length=4096,
        framework="megatron-bridge-26",
        precision="mxfp8",
    )
    strategy = Strategy(
        pipeline_parallel_size=4,
        virtual_pipeline_stages=4,
        pipeline_schedule=PipelineSchedule.INTERLEAVED,
        expert_parallel_size=64,
        data_parallel_size=64,
        recompute=Recompute.SELECTIVE if modules else Recompute.NONE,
        recompute_modules=modules,
    )
    return estimate(asked, strategy)


def test_deepseek_v3_frees_what_megatron_core_reports() -> None:
    # arXiv 2603.07685, memory table of DeepSeek-V3 on 256 GPUs (PP4 VPP4 EP64): GB of activations on the fullest rank, and freed
    whole = deepseek()
    stage = 2
    assert whole.stages[stage].memory.activations / GB == pytest.approx(131.0, rel=0.03)
    reported = {M.MLA_UP_PROJ: 30.4, M.LAYERNORM: 8.2, M.MOE_ACT: 3.8}
    for module, freed in reported.items():
        named = deepseek(module)
        left = named.stages[stage].memory.activations
        assert (whole.stages[stage].memory.activations - left) / GB == pytest.approx(freed, rel=0.07), module
        assert 1 < named.step_time_seconds / whole.step_time_seconds < 1.05
    everything = deepseek(*reported)
    assert everything.step_time_seconds > max(deepseek(module).step_time_seconds for module in reported)


@given(
    name=st.sampled_from(sorted(MODELS)),
    modules=st.lists(st.sampled_from(list(M)), unique=True, min_size=1),
    more=st.sampled_from(list(M)),
    moe=st.booleans(),
)
def test_another_module_never_keeps_more(name: str, modules: list[RecomputeModule], more: RecomputeModule, moe: bool) -> None:
    moe = moe and MODELS[name].moe is not None
    assert 0 < kept(name, *modules, more, moe=moe) <= kept(name, *modules, moe=moe) <= kept(name, moe=moe)


@settings(max_examples=20)
@given(name=st.sampled_from(sorted(MODELS)), modules=st.lists(st.sampled_from(list(M)), unique=True, min_size=1))
def test_work_is_repeated_for_what_is_freed(name: str, modules: list[RecomputeModule]) -> None:
    asked = problem(MODELS[name], gpus=8, batch=8)
    fewer = estimate(asked, naming(*modules[:-1], data_parallel_size=8) if modules[1:] else Strategy(data_parallel_size=8))
    more = estimate(asked, naming(*modules, data_parallel_size=8))
    assert more.step_time_seconds >= fewer.step_time_seconds


def test_modules_a_layer_has_not_change_nothing() -> None:
    absent = {"dense": (M.MOE, M.MOE_ACT, M.SHARED_EXPERTS, M.MLA_UP_PROJ, M.LAYERNORM), "experts": (M.SHARED_EXPERTS, M.MLA_UP_PROJ)}
    for name, modules in absent.items():
        moe = MODELS[name].moe is not None
        for module in modules:
            assert kept(name, module, moe=moe) == kept(name, moe=moe), module
    assert kept("latent", M.MLP, moe=True) == kept("latent", moe=True)


def test_a_whole_feed_forward_frees_its_parts_once() -> None:
    parts = kept("latent", M.MOE, M.MOE_ACT, M.SHARED_EXPERTS, moe=True)
    assert parts == kept("latent", M.MOE, moe=True)
    # the router's input, which is the norm's output, stays
    inputs, shard = sharded(problem(LATENT, gpus=8), Strategy())
    attention, _ = memory.attention_activations(inputs, shard)
    ends = memory.block_ends(inputs, shard, memory.expert_input_bytes(inputs))
    assert parts == pytest.approx(float((attention + ends)[0]))


def test_unfused_scores_are_the_core_s() -> None:
    inputs, shard = sharded(problem(DENSE, gpus=8, framework="megatron-2022"), naming(M.CORE_ATTN))
    found = memory.layer_activations(inputs, shard, moe=False)
    _, scores = memory.attention_activations(inputs, shard)
    assert float(scores[0]) > 0
    assert float(found.selective[0]) == float((found.kept - scores)[0])


def test_no_name_leaves_the_choice_to_the_framework() -> None:
    asked = problem(EXPERTS, gpus=8, framework="torchtitan")
    inputs, shard = sharded(asked, Strategy(recompute=Recompute.SELECTIVE), naming(M.MOE_ACT))
    found = memory.layer_activations(inputs, shard, moe=True)
    assert float(found.selective[0]) == pytest.approx(float(found.kept[0]) * asked.framework.selective_kept)
    assert float(found.selective[1]) > float(found.selective[0])


@given(rows=st.lists(st.lists(st.sampled_from(list(M)), unique=True), min_size=1, max_size=5))
def test_columns_give_the_modules_back(rows: list[list[RecomputeModule]]) -> None:
    columns = StrategyColumns.of([naming(*modules) for modules in rows])
    for row, modules in enumerate(rows):
        assert columns.strategy(row).recompute_modules == tuple(module for module in MODULES if module in modules)
