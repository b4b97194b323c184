"""Which models' sequences the runtime does not split, and with which words."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.strategy import ContextParallelKind, Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.runtime.context import sequence_faults
from autopar.runtime.engine import build_engine
from autopar.runtime.reference_gpt import ReferenceGPT, ReferenceGPTConfig
from autopar.runtime.structure import read_structure
from autopar.runtime.support import training_faults
from tests.runtime.models import tiny
from tests.runtime.oracle import FP32, adamw
from tests.runtime.processes import run_ranks

CONTEXT = Strategy(context_parallel_size=2, context_parallel_kind=ContextParallelKind.ALL_GATHER)


def with_dropout() -> nn.Module:
    return ReferenceGPT(ReferenceGPTConfig(dropout=0.1))


def eager() -> nn.Module:
    model = tiny("llama")
    model.config._attn_implementation = "eager"
    return model


def attention_dropout() -> nn.Module:
    model = tiny("llama")
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.1
    return model


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: tiny("gated-decoder"), "the attention of GatedDecoder is of no known family; use context_parallel_size=1"),
        (with_dropout, "drops out, which this runtime does not do in split sequences; set its dropout to 0"),
        (attention_dropout, "model.layers.0.self_attn drops out"),
        (eager, "not in 'eager'; load it with attn_implementation='sdpa'"),
    ],
)
def test_models_whose_sequences_are_not_split(build: type[nn.Module], said: str) -> None:
    model = build()
    (fault,) = training_faults(model, read_structure(model), CONTEXT, global_batch_size=2, precision=PRECISIONS["fp32"])
    assert said in str(fault)


def test_a_window_shorter_than_the_sequence_is_refused() -> None:
    model = tiny("mistral")
    assert sequence_faults(8, CONTEXT, model) == []
    (fault,) = sequence_faults(16, CONTEXT, model)
    assert str(fault).startswith("sliding_window=8: a sliding window that is shorter than the sequence")


def test_parts_split_over_the_tensor_parallel_ranks_too() -> None:
    strategy = Strategy(
        context_parallel_size=2, context_parallel_kind=ContextParallelKind.ALL_GATHER, tensor_parallel_size=2, sequence_parallel=True
    )
    (fault,) = sequence_faults(12, strategy, nn.Identity())
    assert "a multiple of 8" in fault.required
    assert fault.fix == "pad to 16"


def test_a_users_loss_of_whole_sequences_is_refused() -> None:
    def loss(output: Tensor, _: object) -> Tensor:
        return output.sum()

    def build(_: int) -> str:
        with pytest.raises(InvalidInputError) as caught:
            build_engine(tiny("llama"), CONTEXT, optimizer=adamw, global_batch_size=2, loss_fn=loss, options=FP32)
        return str(caught.value)

    assert all("loss_fn=a function: a function of whole sequences" in text for text in run_ranks(2, build))
