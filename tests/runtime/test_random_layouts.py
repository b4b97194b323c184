"""Initial weights and dropout of an engine, under many layouts, against one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autopar.costmodel.spec.strategy import PipelineSchedule, RankOrder, Recompute, Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.runtime.build import EngineOptions
from autopar.runtime.engine import Engine, build_engine
from autopar.runtime.loss import build_loss
from autopar.runtime.random.dropout import LayoutFreeDropout
from autopar.runtime.random.initialise import InitialWeights
from autopar.runtime.reference_gpt import ReferenceGPT, ReferenceGPTConfig
from autopar.runtime.tensor.fused import fused_layouts

from .models import LENGTH, VOCAB, batches, tiny
from .processes import run_ranks

SEED = 11
STEPS = 2
ROWS = 4
TOLERANCE = 1e-5
OPTIONS = EngineOptions(precision=PRECISIONS["fp32"], seed=SEED)

PAIRS = (
    Strategy(tensor_parallel_size=2),
    Strategy(tensor_parallel_size=2, sequence_parallel=True, micro_batch_size=2, recompute=Recompute.FULL),
    Strategy(data_parallel_size=2, zero_stage=0),
    Strategy(data_parallel_size=2, zero_stage=3, recompute=Recompute.FULL),
    Strategy(pipeline_parallel_size=2),
    Strategy(pipeline_parallel_size=2, pipeline_schedule=PipelineSchedule.GPIPE, recompute=Recompute.FULL),
)
FOURS = (
    Strategy(tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=2),
    Strategy(tensor_parallel_size=2, data_parallel_size=2, zero_stage=2),
    Strategy(pipeline_parallel_size=2, data_parallel_size=2, zero_stage=1, recompute=Recompute.FULL),
    Strategy(pipeline_parallel_size=2, data_parallel_size=2, zero_stage=1, rank_order=RankOrder.TP_CP_PP_DP),
)
EXPERT_PAIRS = (
    Strategy(data_parallel_size=2, expert_parallel_size=2, micro_batch_size=2),
    Strategy(tensor_parallel_size=2, sequence_parallel=True, expert_parallel_size=2, recompute=Recompute.FULL),
    Strategy(tensor_parallel_size=2, sequence_parallel=True, expert_tensor_parallel_size=2),
)
EXPERT_FOURS = (
    Strategy(data_parallel_size=4, expert_parallel_size=2, zero_stage=3),
    Strategy(tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=2, expert_parallel_size=4),
    Strategy(pipeline_parallel_size=2, data_parallel_size=2, expert_parallel_size=2, zero_stage=1),
)


def _gpt2(attention: str) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=LENGTH, bos_token_id=1, eos_token_id=2, attn_implementation=attention
    )
    return transformers.GPT2LMHeadModel(config)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "reference-gpt": lambda: ReferenceGPT(ReferenceGPTConfig(vocab_size=VOCAB, num_layers=2, dropout=0.1, tied_embeddings=True)),
    "experts": lambda: ReferenceGPT(ReferenceGPTConfig(vocab_size=VOCAB, num_layers=2, dropout=0.1, num_experts=4)),
    "gpt2": lambda: _gpt2("sdpa"),
    "gpt2-eager": lambda: _gpt2("eager"),
}


def _on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return (MODELS[name] if name in MODELS else lambda: tiny(name))().train()


def _alone(name: str) -> nn.Module:
    model = _on_meta(name)
    InitialWeights.read(model, seed=SEED).give_to([model], device=torch.device("cpu"))
    return model


def _engine(name: str, strategy: Strategy) -> Engine:
    return build_engine(
        _on_meta(name), strategy, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.3), global_batch_size=ROWS, options=OPTIONS
    )


def _whole(engine: Engine, of: Callable[[nn.Parameter], Tensor | None]) -> dict[str, Tensor]:
    """A tensor of every parameter on this rank, gathered, by the parameter's name."""
    found = {}
    for part in engine.model_parts:
        fused = fused_layouts(part)
        for name, parameter in part.named_parameters():
            tensor = of(parameter)
            assert tensor is not None, name
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
            found[name] = fused[name].to_user(whole) if name in fused else whole
    return found


def _differing(_: int, name: str, strategies: Sequence[Strategy], expected: dict[str, Tensor]) -> list[str]:
    """Parameters and buffers that are not the single process's bit for bit, by layout."""
    wrong = []
    for strategy in strategies:
        engine = _engine(name, strategy)
        found = _whole(engine, lambda parameter: parameter)
        found |= {label: buffer for part in engine.model_parts for label, buffer in part.named_buffers()}
        wrong += [f"{strategy.describe()}: {label}" for label, tensor in found.items() if not torch.equal(tensor, expected[label])]
    return wrong


@pytest.mark.parametrize(
    ("name", "ranks", "strategies"),
    [
        ("reference-gpt", 2, PAIRS),
        ("reference-gpt", 4, FOURS),
        ("gpt2", 4, FOURS),
        ("llama-biases", 4, FOURS),
        ("phi3", 4, FOURS[:1]),
        ("experts", 2, EXPERT_PAIRS),
        ("mixtral", 4, EXPERT_FOURS),
    ],
)
def test_initial_weights_are_one_processs_bit_for_bit(name: str, ranks: int, strategies: Sequence[Strategy]) -> None:
    model = _alone(name)
    expected = {label: tensor.detach() for label, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]}
    assert [wrong for each in run_ranks(ranks, _differing, name, strategies, expected) for wrong in each] == []


Steps = list[tuple[float, dict[str, Tensor]]]


def _train_alone(name: str) -> Steps:
    model = _alone(name)
    dropout = LayoutFreeDropout([model], seed=SEED)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    loss_of, steps = build_loss(model), Steps()
    for step, batch in enumerate(batches(STEPS, size=ROWS)):
        total = loss_of.count(batch)
        with dropout.forward(step=step, first_sample=0, num_samples=ROWS, sequence_length=LENGTH):
            loss = loss_of.share(model(**loss_of.inputs(batch, total)), batch, total)
        optimizer.zero_grad()
        loss.backward()
        steps.append((loss.item(), {label: p.grad.clone() for label, p in model.named_parameters(remove_duplicate=False)}))
        optimizer.step()
    return steps


def _worst(_: int, name: str, strategies: Sequence[Strategy], expected: Steps) -> dict[str, float]:
    """The largest relative difference of loss and gradients under each layout."""
    worst = {}
    for strategy in strategies:
        engine = _engine(name, strategy)
        differences = []
        for batch, (loss, gradients) in zip(batches(STEPS, size=ROWS), expected, strict=True):
            differences.append(abs(engine.train_step(batch) - loss) / loss)
            for label, gradient in _whole(engine, lambda parameter: parameter.grad).items():
                scale = max(gradients[label].abs().max().item(), 1e-4 * max(each.abs().max().item() for each in gradients.values()))
                differences.append((gradient - gradients[label]).abs().max().item() / scale)
        worst[strategy.describe()] = max(differences)
    return worst


@pytest.mark.parametrize(
    ("name", "ranks", "strategies"),
    [
        ("reference-gpt", 2, PAIRS),
        ("reference-gpt", 4, FOURS),
        ("gpt2", 2, PAIRS),
        ("gpt2", 4, FOURS[:1]),
        ("gpt2-eager", 2, PAIRS[:2]),
        ("experts", 2, EXPERT_PAIRS),
        ("experts", 4, EXPERT_FOURS[2:]),
    ],
)
def test_training_with_dropout_is_one_processs(name: str, ranks: int, strategies: Sequence[Strategy]) -> None:
    expected = _train_alone(name)
    for worst in run_ranks(ranks, _worst, name, strategies, expected):
        assert {layout: value for layout, value in worst.items() if not value < TOLERANCE} == {}


def test_dropout_changes_the_loss_and_is_off_in_evaluation() -> None:
    def losses(rank: int) -> list[float]:
        del rank
        (batch,) = batches(1, size=ROWS)
        engine = _engine("gpt2", Strategy(data_parallel_size=2))
        evaluated = [engine.eval_step(batch), engine.eval_step(batch)]
        return [*evaluated, engine.train_step(batch)]

    (first, second, trained), other = run_ranks(2, losses)
    assert other == [first, second, trained]
    assert first == second
    assert abs(trained - first) > 1e-4 * first
