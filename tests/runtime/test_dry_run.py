"""One rank built without hardware, held against the cost model's memory and against the real engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from autopar.catalog.models import model as catalog_model
from autopar.costmodel.estimate import estimate
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.model import MixtureOfExperts, ModelSpec
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, Recompute, Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.request import build_problem
from autopar.runtime.dry_run import DryBatch, RankParts, build_rank
from autopar.runtime.engine import EngineOptions, build_engine
from autopar.runtime.reference_gpt import ReferenceGPT, ReferenceGPTConfig
from autopar.torch_models import build_model

from .processes import run_ranks

SEQUENCE = 512


def rank_of(spec: ModelSpec, strategy: Strategy, rank: int = 0, *, activations: bool = True) -> RankParts:
    batch = DryBatch(global_batch_size=batch_of(strategy), sequence_length=SEQUENCE)
    return build_rank(
        lambda: build_model(spec, sequence_length=SEQUENCE).module,
        strategy,
        batch,
        PRECISIONS["bf16"],
        rank=rank,
        count_activations=activations,
    )


def batch_of(strategy: Strategy) -> int:
    return 2 * strategy.pipeline_parallel_size * strategy.data_parallel_size * strategy.micro_batch_size


def planned(spec: ModelSpec, strategy: Strategy) -> list[tuple[int, float, float]]:
    """Parameters, bytes of states and of activations of each pipeline rank, as the cost model has them."""
    problem, _ = build_problem(
        spec,
        gpus=strategy.world_size,
        gpu="h100",
        framework="autopar",
        precision="bf16",
        global_batch_size=batch_of(strategy),
        sequence_length=SEQUENCE,
    )
    stages = estimate(problem, strategy).stages
    return [
        (
            stage.num_parameters,
            stage.memory.parameters + stage.memory.master_weights + stage.memory.gradients + stage.memory.optimizer_states,
            stage.memory.activations,
        )
        for stage in stages
    ]


GPT = replace(
    catalog_model("gpt3-6.7b"), hidden_size=512, num_attention_heads=8, num_key_value_heads=8, head_dim=64, ffn_hidden_size=2048,
    num_layers=4, vocab_size=1024, max_position_embeddings=SEQUENCE,
)  # fmt: skip
LLAMA = replace(
    catalog_model("llama3-8b"), hidden_size=512, num_attention_heads=8, num_key_value_heads=4, head_dim=64, ffn_hidden_size=1536,
    num_layers=4, vocab_size=1024, max_position_embeddings=SEQUENCE,
)  # fmt: skip
CONTEXT = Strategy(context_parallel_size=2, context_parallel_kind=ContextParallelKind.ALL_GATHER)
EXPERTS = replace(LLAMA, name="experts", moe=MixtureOfExperts(num_experts=8, experts_per_token=2, ffn_hidden_size=768))


def one_layer(spec: ModelSpec, strategy: Strategy) -> tuple[float, float]:
    """Activation bytes of one layer, built and planned: embedding, head and loss drop out of the difference."""
    less, more = replace(spec, num_layers=1), replace(spec, num_layers=2)
    built = (rank_of(more, strategy).activation_bytes or 0) - (rank_of(less, strategy).activation_bytes or 0)
    return built, planned(more, strategy)[0][2] - planned(less, strategy)[0][2]


def states_bytes(parts: RankParts) -> int:
    return parts.sharded_parameter_bytes + parts.compute_parameter_bytes + parts.gradient_bytes + parts.optimizer_state_bytes


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(),
        Strategy(data_parallel_size=4, zero_stage=1),
        Strategy(tensor_parallel_size=4, sequence_parallel=True, data_parallel_size=2),
        Strategy(tensor_parallel_size=2, pipeline_parallel_size=2, data_parallel_size=16),
        Strategy(pipeline_parallel_size=2, virtual_pipeline_stages=2, pipeline_schedule=PipelineSchedule.INTERLEAVED, zero_stage=0),
        replace(CONTEXT, tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=2),
    ],
    ids=Strategy.describe,
)
def test_states_are_those_the_planner_counts(strategy: Strategy) -> None:
    stride = strategy.world_size // strategy.pipeline_parallel_size
    for stage, (parameters, states, _) in enumerate(planned(GPT, strategy)):
        parts = rank_of(GPT, strategy, rank=stage * stride, activations=False)
        assert parts.num_parameters == parameters
        assert states_bytes(parts) == pytest.approx(states, rel=1e-3)


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(data_parallel_size=8, expert_parallel_size=4, zero_stage=1),
        Strategy(data_parallel_size=256, expert_parallel_size=8, pipeline_parallel_size=4, zero_stage=0),
        Strategy(tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=4, expert_parallel_size=4),
        Strategy(tensor_parallel_size=4, sequence_parallel=True, expert_parallel_size=2, pipeline_parallel_size=2),
    ],
    ids=Strategy.describe,
)
def test_states_of_spread_experts_are_those_the_planner_counts(strategy: Strategy) -> None:
    pytest.importorskip("transformers")
    stride = strategy.world_size // strategy.pipeline_parallel_size
    for stage, (parameters, states, _) in enumerate(planned(EXPERTS, strategy)):
        parts = rank_of(EXPERTS, strategy, rank=stage * stride + 1, activations=False)
        assert parts.num_parameters == parameters
        assert states_bytes(parts) == pytest.approx(states, rel=1e-3)
        assert parts.coordinates["ep"] == 1


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(),
        Strategy(tensor_parallel_size=4),
        Strategy(tensor_parallel_size=4, sequence_parallel=True),
        Strategy(recompute=Recompute.FULL),
    ],
    ids=Strategy.describe,
)
def test_activations_of_a_layer_are_those_the_planner_counts(strategy: Strategy) -> None:
    built, expected = one_layer(GPT, strategy)
    assert built == pytest.approx(expected, rel=0.01)


def test_activations_of_hugging_face_layers_are_near() -> None:
    pytest.importorskip("transformers")
    for strategy in (Strategy(), Strategy(tensor_parallel_size=4, sequence_parallel=True)):
        built, expected = one_layer(LLAMA, strategy)
        assert built == pytest.approx(expected, rel=0.06)


def test_activations_of_split_sequences() -> None:
    built, expected = one_layer(GPT, CONTEXT)
    assert built == pytest.approx(expected, rel=0.01)
    assert rank_of(GPT, CONTEXT, rank=1, activations=False).coordinates["cp"] == 1


def test_activations_of_experts_are_below_what_the_planner_counts() -> None:
    """It counts each routed row as permuted, sent, put out and returned; built ones keep two of these for backward."""
    pytest.importorskip("transformers")
    spread = Strategy(data_parallel_size=8, expert_parallel_size=4, zero_stage=1)
    whole = Strategy(data_parallel_size=8, zero_stage=1)
    split = Strategy(tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=4, expert_parallel_size=8)
    for strategy in (whole, spread, split):
        built, expected = one_layer(EXPERTS, strategy)
        assert 0.85 * expected < built < 0.9 * expected


def test_micro_batches_in_flight_follow_the_schedule() -> None:
    strategy = Strategy(pipeline_parallel_size=4)
    kept = [rank_of(GPT, strategy, rank=rank).activation_bytes or 0 for rank in range(3)]
    # 1F1B: rank r holds 4 - r micro-batches; the first has the embedding's output besides
    assert kept[1] / 3 == pytest.approx(kept[2] / 2, rel=1e-6)
    assert kept[0] / 4 > kept[1] / 3


def test_a_rank_of_a_thousand() -> None:
    strategy = Strategy(tensor_parallel_size=8, sequence_parallel=True, pipeline_parallel_size=2, data_parallel_size=64)
    parts = rank_of(GPT, strategy, rank=1023)
    assert parts.coordinates == {"pp": 1, "dp_replicate": 0, "dp_shard": 63, "tp": 7}
    assert parts.layers == ((2, 4),)
    assert parts.activation_bytes is not None


def test_all_faults_of_a_plan_are_told() -> None:
    with pytest.raises(InvalidInputError, match="ranks 0 to 0"):
        rank_of(GPT, Strategy(), rank=1)
    with pytest.raises(InvalidInputError) as raised:
        rank_of(GPT, Strategy(tensor_parallel_size=3, context_parallel_size=2))
    assert {"context_parallel_kind", "tensor_parallel_size"} <= {fault.field for fault in raised.value.faults}
    assert not torch.distributed.is_initialized()


CONFIG = ReferenceGPTConfig(num_layers=4)
REAL = Strategy(tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=2, zero_stage=1)


def built_bytes(rank: int) -> tuple[int, int]:
    """Parameter and optimizer bytes of a real engine after a step."""
    del rank
    torch.manual_seed(0)
    engine = build_engine(
        ReferenceGPT(CONFIG), REAL, optimizer=torch.optim.AdamW, global_batch_size=8, options=EngineOptions(precision=PRECISIONS["fp32"])
    )
    engine.train_step(torch.zeros((8, 32), dtype=torch.int64))
    parameters = [p for part in engine.model_parts for p in part.parameters()]
    states = [v for s in engine.optimizer.state.values() for v in s.values() if v.dim()]
    return sum(p.to_local().nbytes for p in parameters), sum(v.to_local().nbytes for v in states)


def test_a_dry_rank_holds_what_the_real_one_holds() -> None:
    def dry() -> torch.nn.Module:
        with torch.device("meta"):
            return ReferenceGPT(CONFIG)

    for rank, (parameters, states) in enumerate(run_ranks(4, built_bytes)):
        parts = build_rank(
            dry, REAL, DryBatch(global_batch_size=8, sequence_length=32), PRECISIONS["fp32"], rank=rank, count_activations=False
        )
        assert parts.sharded_parameter_bytes == parameters
        assert parts.optimizer_state_bytes == states
