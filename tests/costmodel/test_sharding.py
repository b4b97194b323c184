"""Sharding: nothing of a model gets lost between its ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autopar.costmodel.sharding import LocalParameters
from autopar.costmodel.spec.model import LatentAttention, MixtureOfExperts, ModelSpec, Norm, PositionEmbedding
from autopar.costmodel.spec.strategy import Strategy

from .problems import DENSE, EXPERTS, LATENT, MODELS, problem, sharded

POWERS = st.sampled_from([1, 2, 4, 8])


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """A model of any kind whose sizes tensor parallelism of 8 divides."""
    groups, share = draw(st.sampled_from([8, 16])), draw(st.sampled_from([1, 2, 4]))
    heads, hidden = groups * share, 128 * draw(st.integers(1, 40))
    experts = MixtureOfExperts(
        num_experts=draw(st.sampled_from([8, 16])),
        experts_per_token=2,
        ffn_hidden_size=64 * draw(st.integers(1, 20)),
        shared_expert_ffn_hidden_size=draw(st.sampled_from([0, 512])),
        first_dense_layers=draw(st.integers(0, 2)),
        router_bias=draw(st.booleans()),
        expert_bias=draw(st.booleans()),
        shared_expert_gate=draw(st.booleans()),
    )
    latent = LatentAttention(
        query_lora_rank=draw(st.sampled_from([0, 256])), kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64
    )
    return ModelSpec(
        name="drawn",
        num_layers=draw(st.integers(2, 12)),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=64,
        ffn_hidden_size=64 * draw(st.integers(1, 40)),
        vocab_size=1024 * draw(st.integers(1, 100)),
        max_position_embeddings=2048,
        gated_mlp=draw(st.booleans()),
        norm=draw(st.sampled_from(Norm)),
        position_embedding=draw(st.sampled_from(PositionEmbedding)),
        tied_embeddings=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        attention_output_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        qk_norm_per_head=draw(st.booleans()),
        attention_sinks=draw(st.booleans()),
        latent_attention=draw(st.sampled_from([None, latent])),
        moe=draw(st.sampled_from([None, experts])),
    )


def replicated(model: ModelSpec, *, moe: bool) -> int:
    """Parameters of a layer that every tensor-parallel rank holds whole."""
    norms = model.norms_per_layer * model.norm_parameters
    if (mla := model.latent_attention) is not None:
        down = model.hidden_size * (mla.query_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim)
        attention = down + mla.query_lora_rank + mla.kv_lora_rank
    else:
        per_head = 2 * model.head_dim if model.qk_norm and model.qk_norm_per_head else 0
        attention = per_head + model.hidden_size * model.attention_output_bias
    if not moe or model.moe is None:
        return norms + attention + model.hidden_size * model.mlp_bias
    gate = model.hidden_size * model.moe.shared_expert_gate
    return norms + attention + model.hidden_size * model.moe.num_experts + model.moe.num_experts * model.moe.router_bias + gate


@given(model=models(), tp=POWERS, ep=POWERS, pp=st.sampled_from([1, 2]))
def test_ranks_hold_the_model_between_them(model: ModelSpec, tp: int, ep: int, pp: int) -> None:
    asked = problem(model, gpus=64, vocab_padding_multiple=0)
    strategy = Strategy(
        tensor_parallel_size=tp, expert_parallel_size=ep if model.moe else 1, pipeline_parallel_size=pp, data_parallel_size=64 // tp // pp
    )
    inputs, shard = sharded(asked, strategy)
    local = LocalParameters.of(inputs, shard)

    def whole(of_rank: np.ndarray, kept_whole: float, ranks: int) -> float:
        return (float(np.ravel(of_rank)[0]) - kept_whole) * ranks + kept_whole

    dense = whole(local.dense_layer, replicated(model, moe=False), tp)
    assert dense == model.layer_parameters(moe=False)
    if model.moe is not None:
        shared = whole(local.moe_layer_shared, replicated(model, moe=True), tp)
        experts = float(local.moe_layer_expert[0]) * strategy.expert_parallel_size
        assert shared + experts == model.layer_parameters(moe=True)
    table = model.vocab_size * model.hidden_size
    embedding = whole(local.embedding, model.embedding_parameters - table, tp)
    head = whole(local.head, model.norm_parameters, tp)
    again = table if model.tied_embeddings and pp > 1 else 0
    layers = model.num_dense_layers * dense + (model.num_moe_layers * (shared + experts) if model.moe else 0)
    assert embedding + layers + head - again == model.num_parameters


@given(ep=POWERS, etp=st.sampled_from([1, 2, 4]))
def test_expert_tensor_parallelism_splits_what_expert_parallelism_leaves(ep: int, etp: int) -> None:
    inputs, shard = sharded(problem(EXPERTS, gpus=64), Strategy(expert_parallel_size=ep, expert_tensor_parallel_size=etp))
    local = LocalParameters.of(inputs, shard)
    assert float(local.moe_layer_expert[0]) * ep * etp == 8 * EXPERTS.expert_parameters


def test_prediction_modules_are_held_by_the_last_stage() -> None:
    without, with_one = (LocalParameters.of(*sharded(problem(replace(LATENT, mtp_layers=n)), Strategy())) for n in (0, 1))
    more = float(with_one.head[0] - without.head[0]) + float(with_one.moe_layer_shared[0] + with_one.moe_layer_expert[0])
    assert more == LATENT.mtp_parameters


@given(name=st.sampled_from(sorted(MODELS)), tp=POWERS, cp=st.sampled_from([1, 2, 4]), micro=st.integers(1, 4))
def test_every_token_is_somebodys(name: str, tp: int, cp: int, micro: int) -> None:
    asked = problem(MODELS[name], gpus=64)
    _, shard = sharded(asked, Strategy(tensor_parallel_size=tp, sequence_parallel=tp > 1, context_parallel_size=cp, micro_batch_size=micro))
    tokens = asked.training.sequence_length * micro
    assert float(shard.tokens[0]) * cp == tokens
    assert float(shard.norm_tokens[0]) * cp * tp == tokens
    assert float(shard.num_microbatches[0]) * micro == asked.training.global_batch_size


@given(tp=POWERS, ep=POWERS, etp=st.sampled_from([1, 2, 4, 8]))
def test_every_copy_of_a_token_is_computed_once(tp: int, ep: int, etp: int) -> None:
    assume(etp <= tp)
    asked = problem(EXPERTS, gpus=64)
    strategy = Strategy(tensor_parallel_size=tp, expert_parallel_size=ep, expert_tensor_parallel_size=etp, data_parallel_size=64 // tp)
    _, shard = sharded(asked, strategy)
    ranks_with_rows_of_their_own = 64 / etp
    copies = 2 * asked.training.sequence_length * (64 // tp)
    assert float(shard.expert_rows[0]) * ranks_with_rows_of_their_own == pytest.approx(copies)


@pytest.mark.parametrize(("multiple", "tp", "vocab"), [(128, 1, 50_304), (128, 8, 51_200), (0, 8, 50_257), (64, 2, 50_304)])
def test_the_vocabulary_is_padded_as_the_framework_does(multiple: int, tp: int, vocab: int) -> None:
    model = replace(DENSE, vocab_size=50_257)
    _, shard = sharded(problem(model, gpus=8, vocab_padding_multiple=multiple), Strategy(tensor_parallel_size=tp))
    assert float(shard.vocab[0]) == vocab


def test_few_key_value_heads_are_held_by_several_ranks() -> None:
    _, shard = sharded(problem(replace(DENSE, num_key_value_heads=2)), *(Strategy(tensor_parallel_size=tp) for tp in (1, 2, 8)))
    assert shard.local_kv_heads.tolist() == [2, 1, 1]
    assert shard.local_heads.tolist() == [16, 8, 2]
