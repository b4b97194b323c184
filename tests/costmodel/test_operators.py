"""Operators: what a layer multiplies and moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel import operators
from autopar.costmodel.flops import step_model_flops
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.operators import Gemm
from autopar.costmodel.sharding import Shard
from autopar.costmodel.spec.model import ModelSpec, Norm, PositionEmbedding
from autopar.costmodel.spec.strategy import ContextParallelKind, Strategy

from .problems import DENSE, EXPERTS, GPT, GROUPED, LATENT, MODELS, problem, sharded

PLAIN = {"expert_imbalance": 1.0, "vocab_padding_multiple": 0}


def flops(gemms: tuple[Gemm, ...]) -> float:
    return float(sum(np.ravel(gemm.flops)[0] for gemm in gemms))


def layer_gemms(inputs: Inputs, shard: Shard, *, moe: bool) -> tuple[Gemm, ...]:
    model = inputs.model
    if not moe:
        return operators.attention_projections(inputs, shard) + operators.feed_forward(inputs, shard, model.ffn)
    routed = operators.expert_feed_forward(inputs, shard) + operators.feed_forward(inputs, shard, model.shared_ffn)
    return operators.attention_projections(inputs, shard) + routed


@pytest.mark.parametrize("model", [DENSE, GROUPED, GPT, EXPERTS, replace(LATENT, mtp_layers=0)], ids=lambda model: model.name)
def test_three_times_the_products_are_the_model_flops(model: ModelSpec) -> None:
    # vectors aside, which model FLOPs count as if they were matrices
    bare = replace(
        model,
        norm=Norm.NON_PARAMETRIC,
        qkv_bias=False,
        attention_output_bias=False,
        mlp_bias=False,
        position_embedding=PositionEmbedding.NONE,
    )
    asked = problem(bare, batch=8, **PLAIN)
    inputs, shard = sharded(asked, Strategy(micro_batch_size=2))
    dense, moe = (flops(layer_gemms(inputs, shard, moe=kind)) for kind in (False, bare.moe is not None))
    products = bare.num_dense_layers * dense + bare.num_moe_layers * moe + flops((operators.head(inputs, shard),))
    shape = operators.attention(inputs, shard)
    scores = float(np.ravel(shape.batch * shape.heads * shape.queries * shape.keys * shape.computed_fraction)[0])
    core = 2 * scores * float(shape.qk_head_dim + shape.v_head_dim) * bare.num_layers
    microbatches = float(shard.num_microbatches[0])
    latent_norms = 2 * 3 * sum((512, 256)) * bare.num_layers * asked.training.tokens_per_step if bare.latent_attention else 0
    router_bias = 2 * 3 * 16 * bare.num_moe_layers * asked.training.tokens_per_step if bare.latent_attention else 0
    assert 3 * (products + core) * microbatches + latent_norms + router_bias == pytest.approx(float(step_model_flops(inputs)), rel=1e-12)


@given(name=st.sampled_from(sorted(MODELS)), tp=st.sampled_from([1, 2, 4]), cp=st.sampled_from([1, 2]), sequence_parallel=st.booleans())
def test_tensor_parallel_ranks_multiply_the_layer_between_them(name: str, tp: int, cp: int, sequence_parallel: bool) -> None:
    asked = problem(MODELS[name], **PLAIN)
    split = Strategy(tensor_parallel_size=tp, sequence_parallel=sequence_parallel, context_parallel_size=cp)
    whole, part = (layer_gemms(*sharded(asked, strategy), moe=False) for strategy in (Strategy(), split))
    for one, mine in zip(whole, part, strict=True):
        # down projections of latent attention: whole on every rank unless sequence parallelism splits their tokens
        replicated = (float(np.ravel(one.n)[0]), float(np.ravel(one.k)[0])) == (float(np.ravel(mine.n)[0]), float(np.ravel(mine.k)[0]))
        ranks = cp if replicated and not sequence_parallel else cp * tp
        assert float(np.ravel(mine.flops)[0]) * ranks == pytest.approx(float(np.ravel(one.flops)[0]))


@given(ep=st.sampled_from([1, 2, 8]))
def test_experts_multiply_the_same_rows_wherever_they_live(ep: int) -> None:
    asked = problem(EXPERTS, **PLAIN)
    one, spread = (operators.expert_feed_forward(*sharded(asked, Strategy(expert_parallel_size=n))) for n in (1, ep))
    assert flops(spread) == pytest.approx(flops(one))
    assert float(spread[1].count[0]) == 8 / ep


@given(kind=st.sampled_from(ContextParallelKind), cp=st.sampled_from([1, 2, 4]), tp=st.sampled_from([1, 2]))
def test_context_parallel_ranks_compute_the_scores_between_them(kind: ContextParallelKind, cp: int, tp: int) -> None:
    asked = problem(DENSE)
    split = Strategy(context_parallel_size=cp, context_parallel_kind=kind, tensor_parallel_size=tp)

    def scores(strategy: Strategy) -> float:
        shape = operators.attention(*sharded(asked, strategy))
        return float((shape.batch * shape.heads * shape.queries * shape.keys)[0])

    assert scores(split) * cp * tp == scores(Strategy())


@pytest.mark.parametrize(
    ("window", "layers", "share"), [(0, 0, 0.5), (4096, 8, 0.5), (1024, 8, 0.25 - 1 / 32), (1024, 4, 0.359375), (9999, 8, 0.5)]
)
def test_a_sliding_window_computes_its_band(window: int, layers: int, share: float) -> None:
    model = replace(DENSE, sliding_window=window, num_sliding_layers=layers)
    shape = operators.attention(*sharded(problem(model, length=4096), Strategy()))
    assert float(shape.computed_fraction) == pytest.approx(share)


def test_traffic_of_a_plain_layer_by_hand() -> None:
    asked = problem(replace(GPT, position_embedding=PositionEmbedding.NONE), framework="megatron-core", dropout=False)
    inputs, shard = sharded(asked, Strategy())
    tokens, h = 4096, 2048
    attention, mlp = operators.attention_traffic(inputs, shard), operators.feed_forward_traffic(inputs, shard, inputs.model.ffn)
    # norm (read, write), residual (read two, write one); backwards 3 and 2; the activation reads and writes 4 h, then 3 of them
    assert float(attention.forward[0]) == 2 * tokens * h * 5
    assert float(attention.backward[0]) == 2 * tokens * h * 5
    assert float(mlp.forward[0]) == 2 * tokens * (5 * h + 2 * 4 * h)
    assert float(mlp.backward[0]) == 2 * tokens * (5 * h + 3 * 4 * h)


def test_only_unfused_attention_moves_scores_through_its_softmax() -> None:
    plain = {"dropout": False, "score_passes": 1.0, "elementwise_forward_passes": 1.0, "elementwise_backward_passes": 1.0}
    fused, unfused = (
        operators.attention_traffic(*sharded(problem(DENSE, fused_attention=flag, **plain), Strategy())) for flag in (True, False)
    )
    scores = 2 * 16 * 4096**2
    assert float(unfused.forward[0] - fused.forward[0]) == pytest.approx(2 * scores)
    assert float(unfused.backward[0] - fused.backward[0]) == pytest.approx(3 * scores)
