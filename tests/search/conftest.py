"""Small problems on which a brute-force loop is quick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.model import MixtureOfExperts, ModelSpec
from autopar.costmodel.spec.strategy import PipelineSchedule
from autopar.request import build_problem

DENSE = ModelSpec(
    name="small",
    num_layers=6,
    hidden_size=2048,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=128,
    ffn_hidden_size=8192,
    vocab_size=32_000,
    max_position_embeddings=16_384,
    gated_mlp=True,
)
HEAVY_HEAD = replace(DENSE, name="small-heavy-head", num_layers=6, vocab_size=128_000)
"""Output matrix and loss weigh about four layers."""
EXPERTS = replace(DENSE, name="small-experts", num_layers=4, moe=MixtureOfExperts(num_experts=8, experts_per_token=2, ffn_hidden_size=4096))

MakeProblem = Callable[..., Problem]


@pytest.fixture(scope="session")
def make_problem() -> MakeProblem:
    """A problem on ``gpus`` GPUs; ``memory_bytes`` and framework fields may be overridden, and the size of a ``node``."""

    def make(
        model: ModelSpec | str = DENSE, *, gpus: int = 8, batch: int = 16, length: int = 2048, memory: float | None = None, **framework: Any
    ) -> Problem:
        name = framework.pop("framework", "megatron-core")
        precision, gpu, node = framework.pop("precision", None), framework.pop("gpu", None), framework.pop("node", 0)
        asked = {"global_batch_size": batch, "sequence_length": length, "framework": name, "precision": precision}
        problem, _ = build_problem(model, gpus=max(gpus, 16) if node else gpus, gpu=gpu, **asked)
        cluster = problem.cluster
        if node:
            inner = replace(cluster.tiers[0], domain_size=node)
            cluster = replace(cluster, num_gpus=gpus, gpus_per_node=node, tiers=(inner, *cluster.tiers[1:]))
        if memory is not None:
            cluster = replace(cluster, device=replace(cluster.device, memory_bytes=int(memory)))
        return replace(problem, cluster=cluster, framework=replace(problem.framework, **framework))

    return make


@pytest.fixture(scope="session")
def every_schedule() -> tuple[PipelineSchedule, ...]:
    return tuple(PipelineSchedule)


@pytest.fixture(scope="session")
def dense() -> ModelSpec:
    return DENSE


@pytest.fixture(scope="session")
def heavy_head() -> ModelSpec:
    return HEAVY_HEAD


@pytest.fixture(scope="session")
def experts() -> ModelSpec:
    return EXPERTS
