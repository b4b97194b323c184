"""Bytes: held against Korthikanti 2022, Rajbhandari 2020 and layers measured on an H200."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.accuracy.runs import read_runs
from autopar.accuracy.score import score
from autopar.costmodel import memory
from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.memory import LayerActivations
from autopar.costmodel.sharding import LocalParameters
from autopar.costmodel.spec.model import ModelSpec, Norm, PositionEmbedding
from autopar.costmodel.spec.strategy import ContextParallelKind, Strategy

from .problems import DENSE, EXPERTS, GPT, GROUPED, LATENT, problem, sharded

MEASURED = Path(__file__).resolve().parents[2] / "benchmarks" / "data" / "h200" / "layer.csv"
MIB = 2**20
RANDOM_STATE_BYTES = 1024
"""Fused attention keeps its seed and offset, two blocks of the allocator's smallest size."""


def activations(model: ModelSpec, strategy: Strategy, *, moe: bool = False, length: int = 2048, **changes: object) -> LayerActivations:
    return memory.layer_activations(*sharded(problem(model, length=length, gpus=8, **changes), strategy), moe=moe)  # type: ignore[arg-type]


# -- Korthikanti 2022, section 4 -----------------------------------------------------------------------------------------


@given(
    heads=st.sampled_from([8, 16, 32]),
    length=st.sampled_from([512, 1024, 2048, 4096]),
    micro=st.integers(1, 4),
    tp=st.sampled_from([1, 2, 4, 8]),
    sequence_parallel=st.booleans(),
)
def test_table_2_of_korthikanti(heads: int, length: int, micro: int, tp: int, sequence_parallel: bool) -> None:
    model = replace(GPT, num_attention_heads=heads, num_key_value_heads=heads, hidden_size=heads * 128, ffn_hidden_size=heads * 512)
    strategy = Strategy(tensor_parallel_size=tp, sequence_parallel=sequence_parallel, micro_batch_size=micro)
    found = activations(model, strategy, length=length, framework="megatron-2022")
    s, b, h, a = length, micro, model.hidden_size, heads
    outside = 1 / tp if sequence_parallel else 1.0
    statistics = 16 * s * b * outside  # mean and deviation of two norms, fp32: table 2 leaves them out
    scores = 5 * a * s**2 * b / tp
    assert float(found.kept[0]) == s * b * h * (10 * outside + 24 / tp) + scores + statistics
    assert float(found.selective[0]) == s * b * h * (10 * outside + 24 / tp) + statistics
    assert float(found.checkpoint[0]) == 2 * s * b * h * outside


def test_gpt_175b_of_korthikanti() -> None:
    # section 5: a 175B layer's scores are 80 a s / h of the rest; table 2's formula gives 34 + 5 a s / h
    model = replace(GPT, num_attention_heads=96, num_key_value_heads=96, hidden_size=12_288, ffn_hidden_size=49_152)
    found = activations(model, Strategy(), framework="megatron-2022")
    assert float((found.kept - found.selective)[0] / found.selective[0]) == pytest.approx(5 * 96 * 2048 / 12_288 / 34, rel=1e-4)


# -- measured layers -----------------------------------------------------------------------------------------------------


def measured_rows() -> list[dict[str, str]]:
    with MEASURED.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predicted(row: dict[str, str]) -> tuple[float, float]:
    """Bytes a layer keeps, and its half (the script ran two layers) of the rotary tables."""
    size = {name: int(row[name]) for name in ("hidden", "heads", "kv_heads", "ffn", "tp", "seq", "micro_batch", "recompute")}
    llama = row["style"] == "llama"
    model = ModelSpec(
        name=row["style"],
        num_layers=2,
        hidden_size=size["hidden"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["kv_heads"],
        head_dim=size["hidden"] // size["heads"],
        ffn_hidden_size=size["ffn"],
        vocab_size=1024,
        max_position_embeddings=size["seq"],
        gated_mlp=llama,
        norm=Norm.RMS_NORM if llama else Norm.LAYER_NORM,
        position_embedding=PositionEmbedding.ROTARY if llama else PositionEmbedding.NONE,
    )
    asked = problem(model, gpus=8, gpu="h200-sxm-141gb", length=size["seq"], precision="pure-bf16", framework="pytorch-eager")
    inputs, shard = sharded(asked, Strategy(tensor_parallel_size=size["tp"], micro_batch_size=size["micro_batch"]))
    found = memory.layer_activations(inputs, shard, moe=False)
    if size["recompute"]:
        return float(found.checkpoint[0]), 0.0
    return float(found.kept[0]) + RANDOM_STATE_BYTES, float(memory.rotary_tables(inputs, shard)[0]) / 2


@pytest.mark.parametrize("row", measured_rows(), ids=lambda row: "-".join([*list(row.values())[:9], row["recompute"]]))
def test_activations_of_an_h200_layer(row: dict[str, str]) -> None:
    layer, tables = predicted(row)
    left = float(row["act_bytes_per_layer"]) - layer - tables
    if row["style"] == "gpt":
        assert left == 0
    # the allocator leaves the last MiB of a block with the tensor before it, which small tensors of odd sizes feel
    assert 0 <= left < 1.6 * MIB
    assert left < (0.0125 if layer < 128 * MIB else 0.01) * layer


def test_most_measured_layers_are_reproduced_to_the_byte() -> None:
    left = [float(row["act_bytes_per_layer"]) - sum(predicted(row)) for row in measured_rows()]
    assert len(left) > 80
    assert sum(bytes_left == 0 for bytes_left in left) > 0.9 * len(left)


def test_peak_memory_of_whole_steps_on_an_h200() -> None:
    found = score(*read_runs(MEASURED.parents[2] / "accuracy" / "h200_steps.csv"))
    errors = [prediction.memory_error for prediction in found.predictions if prediction.memory_error is not None]
    assert len(errors) >= 14
    assert np.abs(errors).mean() < 0.03
    assert np.abs(errors).max() < 0.06


# -- states --------------------------------------------------------------------------------------------------------------


@given(ranks=st.integers(1, 64))
@pytest.mark.parametrize(("stage", "whole", "split"), [(0, 16, 0), (1, 4, 12), (2, 2, 14), (3, 0, 16)])
def test_figure_1_of_rajbhandari(stage: int, whole: float, split: float, ranks: int) -> None:
    asked = problem(DENSE, gradient_bytes=0, sharded_gradient_bytes=0)
    precision = replace(asked.training.precision, gradient_bytes=2, sharded_gradient_bytes=0)
    inputs = Inputs.of(replace(asked, training=replace(asked.training, precision=precision)))
    states = memory.state_bytes(inputs, StrategyColumns.of([Strategy(zero_stage=stage)]), np.array([1e6]), np.array([float(ranks)]))
    assert float(states.total[0]) == pytest.approx(1e6 * (whole + split / ranks))


@given(ranks=st.integers(1, 64), group=st.integers(1, 64), stage=st.sampled_from([1, 2, 3]))
def test_states_spread_over_no_more_than_the_shard_group(ranks: int, group: int, stage: int) -> None:
    inputs = Inputs.of(problem(DENSE))
    strategies = StrategyColumns.of([Strategy(zero_stage=stage, shard_group_size=size) for size in (group, 0)])
    grouped, whole = memory.state_bytes(inputs, strategies, np.array([1e6]), np.array([float(ranks)])).optimizer_states
    assert grouped == pytest.approx(8e6 / min(ranks, group))
    assert grouped >= whole


@pytest.mark.parametrize(("precision", "a_parameter"), [("bf16", 18), ("fp16", 20), ("amp-bf16", 18), ("pure-bf16", 8), ("fp32", 16)])
def test_states_a_parameter_by_precision(precision: str, a_parameter: float) -> None:
    inputs = Inputs.of(problem(DENSE, precision=precision))
    states = memory.state_bytes(inputs, StrategyColumns.of([Strategy(zero_stage=0)]), np.array([1.0]), np.array([8.0]))
    assert float(states.total[0]) == a_parameter


@pytest.mark.parametrize(("precision", "copies"), [("fp8", 2), ("bf16", 0), ("amp-bf16", 0)])
def test_low_precision_copies_are_of_linear_layers(precision: str, copies: float) -> None:
    without, beside = (Inputs.of(problem(DENSE, precision=precision, low_precision_copies=each)) for each in (0.0, 2.0))
    strategies = StrategyColumns.of([Strategy(zero_stage=1)])
    one, two = (
        float(memory.state_bytes(inputs, strategies, np.array([10.0]), np.array([8.0]), copied=np.array([7.0])).parameters[0])
        for inputs in (without, beside)
    )
    assert two - one == 7 * copies


@pytest.mark.parametrize(("stage", "a_parameter"), [(0, 18), (1, 18), (2, 18), (3, 16)])
def test_a_framework_that_shards_the_master_alone_keeps_no_share_beside_it(stage: int, a_parameter: float) -> None:
    inputs = Inputs.of(problem(DENSE, sharded_master_alone=True))
    states = memory.state_bytes(inputs, StrategyColumns.of([Strategy(zero_stage=stage)]), np.array([1.0]), np.array([1.0]))
    assert float(states.total[0]) == a_parameter


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("precision", ["bf16", "pure-bf16", "fp32"])
def test_nothing_keeps_less_than_the_least(alone: bool, precision: str) -> None:
    inputs = Inputs.of(problem(DENSE, precision=precision, sharded_master_alone=alone))
    parameters = np.asarray(inputs.model.num_parameters, dtype=np.float64)
    found = memory.state_bytes(inputs, StrategyColumns.of([Strategy(zero_stage=3)]), parameters, np.array([1.0]))
    assert float((found.total - found.gradients)[0]) == pytest.approx(float(memory.least_state_bytes(inputs)))


def test_parameters_kept_whole_are_reduced_from_a_copy_of_one_layer_s_gradients() -> None:
    stages = [Strategy(zero_stage=stage, data_parallel_size=8) for stage in (0, 1, 2)]
    inputs, shard = sharded(problem(DENSE, gpus=8, sharded_master_alone=True), *stages)
    found = memory.gathered_bytes(inputs, StrategyColumns.of(stages), LocalParameters.of(inputs, shard))
    layer = DENSE.layer_parameters(moe=False) * float(inputs.training.gradient_reduce_bytes)
    assert found.tolist() == [0, layer, layer]


def test_zero_3_holds_two_gathered_layers() -> None:
    inputs, shard = sharded(problem(DENSE), Strategy(zero_stage=3), Strategy(zero_stage=2))
    local = LocalParameters.of(inputs, shard)
    gathered = memory.gathered_bytes(inputs, StrategyColumns.of([Strategy(zero_stage=3), Strategy(zero_stage=2)]), local)
    layer, table = DENSE.layer_parameters(moe=False), DENSE.vocab_size * DENSE.hidden_size
    training = inputs.training
    largest = max(2 * layer, table + DENSE.hidden_size + layer)
    assert gathered.tolist() == [largest * float(training.parameter_gather_bytes) + layer * float(training.gradient_reduce_bytes), 0]


# -- laws ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [DENSE, GPT, EXPERTS], ids=lambda model: model.name)
@pytest.mark.parametrize("framework", ["megatron-core", "megatron-2022", "pytorch-eager", "torchtitan"])
def test_recomputing_more_keeps_less(model: ModelSpec, framework: str) -> None:
    found = activations(model, Strategy(), moe=model.moe is not None, framework=framework)
    assert float(found.checkpoint[0]) < float(found.selective[0]) <= float(found.kept[0])


@given(tp=st.sampled_from([1, 2, 4]), sequence_parallel=st.booleans())
@pytest.mark.parametrize("model", [DENSE, GPT, EXPERTS], ids=lambda model: model.name)
def test_more_tensor_parallelism_keeps_less(model: ModelSpec, tp: int, sequence_parallel: bool) -> None:
    few, many = (Strategy(tensor_parallel_size=size, sequence_parallel=sequence_parallel) for size in (tp, 2 * tp))
    for moe in {False, model.moe is not None}:
        assert float(activations(model, many, moe=moe).kept[0]) < float(activations(model, few, moe=moe).kept[0])


def test_fp8_keeps_less_and_a_longer_sequence_more() -> None:
    plain, low = (float(activations(DENSE, Strategy(), precision=name).kept[0]) for name in ("bf16", "fp8"))
    assert 0.5 * plain < low < plain
    assert float(activations(DENSE, Strategy(), length=4096).kept[0]) == 2 * plain


def test_fp8_keeps_quantised_inputs_beside_what_others_read() -> None:
    # latent attention: the norm's output for either down projection, its own output once more; an expert's norm as the router reads it
    tokens = 4096
    output = LATENT.num_attention_heads * 64
    plain, low, asked_again = (
        sharded(problem(LATENT, gpus=8, precision=precision, low_precision_inputs=kept), Strategy())
        for precision, kept in (("bf16", True), ("fp8", True), ("fp8", False))
    )
    attention, quantised, as_it_came = (float(memory.attention_activations(*case)[0][0]) for case in (plain, low, asked_again))
    assert as_it_came == attention
    assert quantised - attention == tokens * output
    assert float(memory.expert_input_bytes(plain[0])) == 2
    assert float(memory.expert_input_bytes(low[0])) == 3


@given(tp=st.sampled_from([1, 2, 4, 8]), kept=st.sampled_from([0, 1]))
def test_gradients_pass_at_the_full_width_of_the_tensor_parallel_region(tp: int, kept: int) -> None:
    asked = problem(DENSE, gpus=8, gathered_inputs_kept=kept)
    inputs, shard = sharded(asked, Strategy(tensor_parallel_size=tp, sequence_parallel=tp > 1))
    whole = 4096 * 2048 * 2
    assert float(memory.passing_gradients(inputs, shard)[0]) == pytest.approx(whole * (2 + (1 - kept) * (1 - 1 / tp)))


@given(cp=st.sampled_from([2, 4, 8]), tp=st.sampled_from([1, 2]))
def test_context_parallel_attention_gathers_keys_and_values_of_all_ranks(cp: int, tp: int) -> None:
    def gathered(kind: ContextParallelKind, *, repeated: bool = False) -> float:
        strategy = Strategy(context_parallel_size=cp, context_parallel_kind=kind, tensor_parallel_size=tp)
        asked = problem(GROUPED, gpus=16, context_heads_repeated=repeated)
        return float(memory.attention_working_set(*sharded(asked, strategy))[0])

    head = 4096 * 128 * 2
    keys, queries = 4 / tp, 16 / tp
    assert gathered(ContextParallelKind.ALL_GATHER) == head * 2 * keys
    assert gathered(ContextParallelKind.RING) == head * (2 * keys + queries)
    assert gathered(ContextParallelKind.RING, repeated=True) == head * 2 * queries
    assert gathered(ContextParallelKind.ULYSSES) == 0


def test_a_split_vocabulary_has_a_loss_of_its_own() -> None:
    asked = problem(DENSE, logits_bytes=6, split_logits_bytes=10, gathered_inputs_kept=1, vocab_padding_multiple=0)
    inputs, shard = sharded(asked, Strategy(), Strategy(tensor_parallel_size=8, sequence_parallel=True))
    logits, one = 4096 * 32_768, 2 * 4096 * 2048
    assert memory.logits_bytes(inputs, shard).tolist() == [logits * 6 + 2 * one, logits / 8 * 10 + 2 * one / 8 + one * 7 / 8]


def test_logits_are_kept_at_the_head_alone() -> None:
    inputs, shard = sharded(problem(DENSE, logits_bytes=10, vocab_padding_multiple=0), Strategy(), Strategy(tensor_parallel_size=8))
    ends = 2 * 2 * 4096 * 2048
    assert (memory.logits_bytes(inputs, shard) - ends).tolist() == [4096 * 32_768 * 10, 4096 * 32_768 * 10 / 8]
