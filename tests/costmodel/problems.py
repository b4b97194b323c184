"""Small models of every kind, problems about them, and strategies that are feasible for them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.problem import Problem
from autopar.costmodel.sharding import Shard
from autopar.costmodel.spec.model import LatentAttention, MixtureOfExperts, ModelSpec, Norm, PositionEmbedding
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.request import build_problem
from autopar.search.feasibility import RULES

DENSE = ModelSpec(
    name="dense", num_layers=8, hidden_size=2048, num_attention_heads=16, num_key_value_heads=16, head_dim=128, ffn_hidden_size=8192,
    vocab_size=32_768, max_position_embeddings=8192, gated_mlp=True,
)  # fmt: skip
GROUPED = replace(DENSE, name="grouped", num_key_value_heads=4, tied_embeddings=True)
GPT = replace(
    DENSE, name="gpt", gated_mlp=False, norm=Norm.LAYER_NORM, position_embedding=PositionEmbedding.LEARNED, qkv_bias=True,
    attention_output_bias=True, mlp_bias=True,
)  # fmt: skip
EXPERTS = replace(GROUPED, name="experts", moe=MixtureOfExperts(num_experts=8, experts_per_token=2, ffn_hidden_size=4096))
LATENT = replace(
    DENSE,
    name="latent",
    latent_attention=LatentAttention(query_lora_rank=512, kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64),
    moe=MixtureOfExperts(
        num_experts=16, experts_per_token=4, ffn_hidden_size=512, shared_expert_ffn_hidden_size=512, first_dense_layers=2, router_bias=True
    ),
    mtp_layers=1,
)
MODELS: dict[str, ModelSpec] = {model.name: model for model in (DENSE, GROUPED, GPT, EXPERTS, LATENT)}


def problem(
    model: ModelSpec = DENSE, *, gpus: int = 16, batch: int = 32, length: int = 4096, framework: str = "megatron-core", **changes: Any
) -> Problem:
    """A question about ``model`` on H100s; ``changes`` are fields of the framework's profile, or ``precision`` and ``gpu``."""
    asked = {name: changes.pop(name) for name in ("precision", "gpu") if name in changes}
    found, _ = build_problem(model, gpus=gpus, global_batch_size=batch, sequence_length=length, framework=framework, **asked)
    return replace(found, framework=replace(found.framework, **changes))


def sharded(asked: Problem, *strategies: Strategy) -> tuple[Inputs, Shard]:
    """The inputs of a problem and the local sizes of strategies."""
    inputs = Inputs.of(asked)
    return inputs, Shard.of(inputs, StrategyColumns.of(strategies))


@cache
def feasible(name: str, framework: str = "megatron-core") -> tuple[Problem, tuple[Strategy, ...]]:
    """A problem about one of ``MODELS`` that accepts every schedule and ZeRO stage, and its feasible strategies over all axes."""
    everything = (0, 1, 2, 3)
    asked = problem(
        MODELS[name], framework=framework, schedules=tuple(PipelineSchedule), zero_stages=everything, zero_stages_with_pipeline=everything
    )
    grid = _grid(asked)
    columns = StrategyColumns.of(grid)
    accepted = np.logical_and.reduce([rule.mask(asked, columns) for rule in RULES])
    return asked, tuple(strategy for strategy, runs in zip(grid, accepted.tolist(), strict=True) if runs)


def _grid(asked: Problem) -> list[Strategy]:
    experts = (1, 2, 8) if asked.model.moe else (1,)
    grid = itertools.product(
        (1, 2, 4), (1, 2, 4), (1, 2), (1, 2), experts, (0, 1, 2, 3), (1, 2), PipelineSchedule,
        ((Recompute.NONE, 0), (Recompute.SELECTIVE, 0), (Recompute.FULL, 0), (Recompute.FULL, 1)),
    )  # fmt: skip
    return [
        Strategy(
            tensor_parallel_size=tp,
            sequence_parallel=tp > 1,
            pipeline_parallel_size=pp,
            virtual_pipeline_stages=vpp,
            pipeline_schedule=schedule,
            context_parallel_size=cp,
            expert_parallel_size=ep,
            data_parallel_size=asked.cluster.num_gpus // (tp * pp * cp),
            micro_batch_size=micro,
            zero_stage=zero,
            recompute=recompute,
            num_recompute_layers=layers,
        )
        for tp, pp, vpp, cp, ep, zero, micro, schedule, (recompute, layers) in grid
        if tp * pp * cp <= asked.cluster.num_gpus
    ]
