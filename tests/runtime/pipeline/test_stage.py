"""Cutting a model into stages: whose parameters are where, and what passes between them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.schedule import build_schedule
from autopar.costmodel.spec.strategy import PipelineSchedule, Strategy
from autopar.runtime.pipeline.stage import PipelineStage, cut_stages, layers_of_stages, split_faults, stage_spans
from autopar.runtime.reference_gpt import ReferenceGPT, ReferenceGPTConfig
from autopar.runtime.structure import ModelStructure, read_structure
from tests.runtime.models import FAMILIES, batches, tiny

IDS = next(iter(batches(1)))["input_ids"]


def cut(model: nn.Module, layers: tuple[int, ...], structure: ModelStructure | None = None) -> list[PipelineStage]:
    """The stages of a pipeline of ``len(layers)`` ranks, all in this process."""
    schedule = build_schedule(PipelineSchedule.ONE_F_ONE_B, len(layers), 1, len(layers))
    found = structure or read_structure(model)
    stages = [cut_stages(copy.deepcopy(model), found, stage_spans(schedule, layers, rank))[0] for rank in range(len(layers))]
    for stage in stages:
        stage.arm()
    return stages


def run(stages: list[PipelineStage], kwargs: dict[str, Any]) -> Any:
    passed: Any = None
    for stage in stages:
        passed = stage(passed, (), kwargs)
    return getattr(passed, "logits", passed)


@pytest.mark.parametrize("name", FAMILIES)
def test_stages_one_after_the_other_are_the_model(name: str) -> None:
    model = tiny(name).eval()
    with torch.no_grad():
        whole = model(IDS)
        for layers in ((1, 1), (0, 2), (2, 0)):
            torch.testing.assert_close(run(cut(model, layers), {"input_ids": IDS}), getattr(whole, "logits", whole))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_is_on_one_stage_under_its_own_name(name: str) -> None:
    model = tiny(name)
    parts = [dict(stage.model.named_parameters()) for stage in cut(model, (1, 1))]
    names = dict(model.named_parameters(remove_duplicate=False))
    assert parts[0].keys() | parts[1].keys() == names.keys()
    assert not parts[0].keys() & parts[1].keys()
    for part in parts:
        for parameter_name, parameter in part.items():
            assert torch.equal(parameter, names[parameter_name])


class TupleBlock(nn.Module):
    """Returns its states in a tuple, as many older models' blocks do, and is told its index."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden_states: Tensor, scale: float) -> tuple[Tensor, None]:
        return hidden_states + scale * self.linear(hidden_states), None


class TupleModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(TupleBlock() for _ in range(4))
        self.head = nn.Linear(8, 16)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embedding(input_ids) * 2.0
        for index, block in enumerate(self.blocks[: len(self.blocks)]):
            hidden = block(hidden_states=hidden, scale=0.5 + index)[0]
        logits: Tensor = self.head(hidden)
        return logits


class SequentialModel(TupleModel):
    """Its blocks are an nn.Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))  # type: ignore[assignment]

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.embedding(input_ids)))
        return logits


class IndexedModel(TupleModel):
    """Reaches its blocks by their number."""

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embedding(input_ids)
        for index in range(len(self.blocks)):
            hidden = self.blocks[index](hidden, 1.0)[0]
        logits: Tensor = self.head(hidden)
        return logits


@pytest.mark.parametrize("kind", [TupleModel, SequentialModel, IndexedModel])
def test_models_may_reach_their_blocks_in_any_way(kind: type[TupleModel]) -> None:
    """Blocks keep the index of the whole model, as keyword arguments that depend on it do."""
    model = kind()
    ids = torch.randint(16, (2, 5))
    structure = read_structure(ReferenceGPT(ReferenceGPTConfig()))
    structure = ModelStructure(
        family="generic", blocks="blocks", num_blocks=4, prefix=("embedding",), suffix=("head",), layout=structure.layout
    )
    for layers in ((2, 2), (1, 2, 1), (0, 4), (4, 0), (1, 3, 0)):
        torch.testing.assert_close(run(cut(model, layers, structure), {"input_ids": ids}), model(ids))


def test_chunks_of_one_rank_share_nothing_but_the_values() -> None:
    """A V puts embedding and head on one rank: tied, they become two parameters there."""
    model = ReferenceGPT(ReferenceGPTConfig(num_layers=4, tied_embeddings=True))
    schedule = build_schedule(PipelineSchedule.ZERO_BUBBLE, 2, 2, 4)
    first, last = cut_stages(model, read_structure(model), stage_spans(schedule, (1, 1, 1, 1), 0))
    embedding, head = first.model.get_parameter("tokens.weight"), last.model.get_parameter("head.weight")
    assert embedding is not head
    assert torch.equal(embedding, head)
    assert last.model is model
    assert not {id(p) for p in first.parameters()} & {id(p) for p in last.parameters()}


def test_the_hidden_states_received_get_a_gradient() -> None:
    model = ReferenceGPT(ReferenceGPTConfig(num_layers=2))
    first, last = cut(model, (1, 1))
    ids = torch.randint(256, (2, 5))
    received = first(None, (), {"input_ids": ids}).detach().requires_grad_()
    last(received, (), {"input_ids": ids}).sum().backward()
    assert received.grad is not None
    assert received.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((3, 1), None),
        ((0, 4), None),
        ((2, 1), "pipeline_layers=2,1: 2 stages whose layers sum to the model's 4"),
        ((4,), "pipeline_layers=4: 2 stages"),
    ],
)
def test_a_split_that_does_not_fit_is_told(layers: tuple[int, ...], said: str | None) -> None:
    faults = split_faults(Strategy(pipeline_parallel_size=2, pipeline_layers=layers), 4)
    assert [str(fault).startswith(said or "") for fault in faults] == [True] * (said is not None)


def test_no_stage_in_the_middle_may_be_empty() -> None:
    (fault,) = split_faults(Strategy(pipeline_parallel_size=3, pipeline_layers=(2, 0, 2)), 4)
    assert "at least one layer in every stage but the first and the last" in str(fault)
    (fault,) = split_faults(Strategy(pipeline_parallel_size=8), 4)
    assert "at most the model's 4 blocks" in str(fault)


def test_without_a_split_layers_are_balanced() -> None:
    assert layers_of_stages(Strategy(pipeline_parallel_size=4), 8) == (2, 2, 2, 2)
    assert sum(layers_of_stages(Strategy(pipeline_parallel_size=3), 8)) == 8


def test_parameters_that_no_stage_would_own_are_refused_by_name() -> None:
    model = ReferenceGPT(ReferenceGPTConfig(num_layers=2))
    model.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(InvalidInputError, match="pipeline_parallel_size=scale"):
        cut(model, (1, 1))
