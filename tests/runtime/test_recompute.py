"""What recomputation keeps of a forward, and that it changes nothing else."""

from __future__ import annotations

import copy
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.runtime.recompute import apply_recompute

from .models import batches
from .oracle import Trained, assert_same, small_gpt, train_alone, train_parallel
from .processes import run_ranks

LENGTH, HEADS = 16, 4


def plain() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), nullcontext()


def eager_llama() -> nn.Module:
    """Attention as separate operations."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=2
    )
    model: nn.Module = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager")
    return model.train()


def kept(model: nn.Module) -> list[tuple[int, ...]]:
    """Shapes of the tensors that a forward keeps for its backward."""
    shapes: list[tuple[int, ...]] = []

    def note(tensor: Tensor) -> Tensor:
        shapes.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(torch.zeros(2, LENGTH, dtype=torch.int64))
    return shapes


def scores(shapes: list[tuple[int, ...]]) -> int:
    """How many of them are scores of all heads and both samples."""
    return sum(shape[-2:] == (LENGTH, LENGTH) and math.prod(shape[:-2]) == 2 * HEADS for shape in shapes)


def test_selective_keeps_no_attention_scores_and_everything_else() -> None:
    model = eager_llama()
    before = kept(model)
    assert scores(before) >= 2
    done = apply_recompute({0: list(model.model.layers)}, Strategy(recompute=Recompute.SELECTIVE), plain)
    after = kept(model)
    assert len(done) == 2
    assert scores(after) == 0
    assert len(after) > len(before) / 2


def test_selective_leaves_other_models_of_the_family_as_they_are() -> None:
    model, other = eager_llama(), eager_llama()
    apply_recompute({0: list(model.model.layers)}, Strategy(recompute=Recompute.SELECTIVE), plain)
    assert scores(kept(other)) >= 2


def test_selective_has_nothing_to_do_where_attention_is_fused() -> None:
    model = small_gpt()
    assert apply_recompute({0: list(model.blocks)}, Strategy(recompute=Recompute.SELECTIVE), plain) == set()


@pytest.mark.parametrize(("asked", "recomputed"), [(0, 4), (1, 1), (3, 3), (9, 4)])
def test_full_keeps_the_input_of_so_many_blocks(asked: int, recomputed: int) -> None:
    model = small_gpt()
    whole = len(kept(copy.deepcopy(model)))
    done = apply_recompute({0: list(model.blocks)}, Strategy(recompute=Recompute.FULL, num_recompute_layers=asked), plain)
    assert done == set(model.blocks[:recomputed])
    left = len(kept(model))
    assert left < whole
    per_block = len(kept(copy.deepcopy(small_gpt(num_layers=2)))) - len(kept(copy.deepcopy(small_gpt(num_layers=1))))
    assert whole - left >= recomputed * (per_block - 3)


def test_each_stage_recomputes_as_many_blocks_as_it_is_told() -> None:
    model = small_gpt()
    first, second = list(model.blocks[:1]), list(model.blocks[1:4])
    strategy = Strategy(
        pipeline_parallel_size=2,
        virtual_pipeline_stages=2,
        pipeline_schedule=PipelineSchedule.INTERLEAVED,
        pipeline_layers=(1, 1, 3, 1),
        recompute=Recompute.FULL,
        stage_recompute_layers=(0, 1, 2, 0),
    )
    assert apply_recompute({2: second, 0: first}, strategy, plain) == set(second[:2])


def test_selective_trains_as_one_process_does() -> None:
    steps = list(batches(2, size=4))
    plans = [
        Strategy(data_parallel_size=2, micro_batch_size=1, zero_stage=3, recompute=Recompute.SELECTIVE),
        Strategy(pipeline_parallel_size=2, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE, recompute=Recompute.SELECTIVE),
        Strategy(tensor_parallel_size=2, sequence_parallel=True, recompute=Recompute.SELECTIVE),
    ]

    def train(_: int) -> list[Trained]:
        return [train_parallel(eager_llama(), strategy, steps) for strategy in plans]

    alone = train_alone(eager_llama(), steps)
    results = run_ranks(2, train)
    for position in range(len(plans)):
        assert_same([result[position] for result in results], alone)
