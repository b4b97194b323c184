"""Checkpoints: saved under one layout, read under another; and what a damaged or foreign one says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.runtime.checkpoint import TrainState, load, newest, save
from autopar.runtime.checkpoint_index import read_index

from .processes import run_ranks

WIDTH = 12
TIED = (("embedding.weight", "head.weight"),)


class Model(nn.Module):
    """Embedding, four blocks, tied head: what a pipeline cuts, tensor parallelism splits and sharding shards."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, width)
        self.blocks = nn.ModuleDict({str(i): nn.Sequential(nn.Linear(width, 3 * width), nn.Linear(3 * width, width)) for i in range(4)})
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10, bias=False)
        self.head.weight = self.embedding.weight


def reference() -> Model:
    torch.manual_seed(5)
    return Model()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def adamw(parameters: list[nn.Parameter], rate: float = 0.01) -> torch.optim.Optimizer:
    matrices = [p for p in parameters if p.ndim > 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.3}, {"params": [p for p in parameters if p.ndim == 1]}], lr=rate)


def layout(kind: str, rank: int) -> tuple[list[nn.Module], list[nn.Module]]:
    """The rank's parts of the model under ``kind``, all of the reference model's values."""
    model = reference()
    if kind == "single":
        return [model], [model]
    if kind.startswith("fsdp"):
        mesh = init_device_mesh("cpu", (int(kind[4:]),))
        for block in model.blocks.values():
            fully_shard(block, mesh=mesh)
        return [fully_shard(model, mesh=mesh)], [model]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    if kind == "tp2fsdp2":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for block in model.blocks.values():
        parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    if kind == "tp2fsdp2":
        return [fully_shard(model, mesh=mesh["dp"])], [model]
    assert kind == "tp2pp2"
    first = rank // 2 == 0
    for name in ("0", "1") if not first else ("2", "3"):
        del model.blocks[name]
    if first:
        model.norm, model.head = nn.Identity(), nn.Identity()
    else:
        model.embedding = nn.Identity()
    return [model], [model]


def train_state(kind: str, rank: int, rate: float = 0.01) -> TrainState:
    parts, _ = layout(kind, rank)
    optimizer = adamw([p for part in parts for p in part.parameters()], rate)
    return TrainState(model_parts=parts, optimizers=[optimizer], step=0, seed=0, tied=TIED)


def take_steps(state: TrainState) -> None:
    """Three steps whose gradients are a function of the parameters, and so the same under any layout."""
    for _ in range(3):
        for part in state.model_parts:
            for parameter in part.parameters():
                parameter.grad = (parameter.detach() * 0.5 + 0.1).clone()
        state.optimizers[0].step()
        state.step += 1


def values(state: TrainState) -> dict[str, torch.Tensor]:
    found = {}
    for part in state.model_parts:
        for name, parameter in part.named_parameters(remove_duplicate=False):
            found[name] = whole(parameter.detach()).clone()
            for key, value in state.optimizers[0].state[parameter].items():
                found[f"{name}/{key}"] = whole(value).clone()
    return found


def save_under(rank: int, kind: str, folder: Path) -> None:
    state = train_state(kind, rank)
    state.seed = 77
    take_steps(state)
    save(state, folder)


def load_under(rank: int, kind: str, folder: Path) -> tuple[dict[str, torch.Tensor], int, int, float]:
    """The values after loading, and after one more step the optimizer's rate, so that it is shown to be usable."""
    state = train_state(kind, rank, rate=0.5)
    with torch.no_grad():
        for part in state.model_parts:
            for parameter in part.parameters():
                parameter.zero_()
    load(state, folder)
    return values(state), state.step, state.seed, state.optimizers[0].param_groups[0]["lr"]


@pytest.fixture(scope="module")
def truth() -> dict[str, torch.Tensor]:
    state = train_state("single", 0)
    take_steps(state)
    return values(state)


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [("tp2pp2", "fsdp4"), ("fsdp4", "single"), ("tp2fsdp2", "tp2pp2"), ("single", "tp2fsdp2"), ("tp2pp2", "single")],
)
def test_one_layout_reads_what_another_wrote(saved: str, loaded: str, tmp_path: Path, truth: dict[str, torch.Tensor]) -> None:
    if saved == "single":
        save_under(0, saved, tmp_path)
    else:
        run_ranks(4, save_under, saved, tmp_path)
    ranks = [load_under(0, loaded, tmp_path)] if loaded == "single" else run_ranks(4, load_under, loaded, tmp_path)
    seen = set()
    for found, step, seed, rate in ranks:
        assert (step, seed, rate) == (3, 77, 0.01)
        for name, value in found.items():
            torch.testing.assert_close(value, truth[name], rtol=1e-6, atol=1e-7)
        seen |= set(found)
    assert seen == set(truth)


def test_names_are_those_of_the_users_model(tmp_path: Path) -> None:
    run_ranks(4, save_under, "tp2pp2", tmp_path)
    names = {name.removeprefix("model.") for name in read_index(newest(tmp_path)).tensors if name.startswith("model.")}
    assert names == set(reference().state_dict())


def test_a_killed_save_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    save_under(0, "single", tmp_path)
    before = newest(tmp_path)
    torn = tmp_path / "step-00000009-abc.partial"
    torn.mkdir()
    (torn / "__0_0.distcp").write_bytes(b"half")
    assert newest(tmp_path) == before
    assert load_under(0, "single", tmp_path)[1] == 3
    save_under(0, "single", tmp_path)
    assert not torn.exists()
    assert newest(tmp_path) != before
    assert before.is_dir()


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    save_under(0, "single", tmp_path)
    file = next(newest(tmp_path).glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InvalidInputError, match=r"__0_0\.distcp.*bytes"):
        load_under(0, "single", tmp_path)


def test_flipped_bytes_are_noticed(tmp_path: Path, truth: dict[str, torch.Tensor]) -> None:
    save_under(0, "single", tmp_path)
    file = next(newest(tmp_path).glob("*.distcp"))
    data = bytearray(file.read_bytes())
    place = data.find(truth["blocks.2.0.weight"].numpy().tobytes())
    assert place > 0
    data[place : place + 4] = b"\x12\x34\x56\x78"
    file.write_bytes(bytes(data))
    with pytest.raises(InvalidInputError, match="is damaged"):
        load_under(0, "single", tmp_path)


def test_a_foreign_checkpoint_says_all_that_differs(tmp_path: Path) -> None:
    save_under(0, "single", tmp_path)
    model = Model(WIDTH + 4)
    model.extra = nn.Linear(2, 2)
    del model.blocks["3"]
    state = TrainState(model_parts=[model], optimizers=[torch.optim.SGD(model.parameters(), lr=0.1)], step=0, seed=0, tied=TIED)
    with pytest.raises(InvalidInputError) as raised:
        load(state, tmp_path)
    text = str(raised.value)
    assert "model.extra.weight" in text
    assert "are in it and not needed" in text
    assert "model.blocks.0.1.bias 12 float32, needed 16 float32" in text
    assert len(raised.value.faults) == 3


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"schema_version": "9.0", "files": {}}', '{"schema_version": "1.0", "files": 3}'])
def test_a_broken_index_is_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "checkpoint.json").write_text(content)
    with pytest.raises(InvalidInputError, match=r"checkpoint=.*(cannot be read|version)"):
        load_under(0, "single", tmp_path)


def test_an_empty_or_absent_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no checkpoint of autopar"):
        newest(tmp_path)
    with pytest.raises(InvalidInputError, match="no such folder"):
        newest(tmp_path / "absent")
    (tmp_path / "latest").write_text("../elsewhere")
    with pytest.raises(InvalidInputError, match="no whole checkpoint"):
        newest(tmp_path)


def test_the_index_reads_without_torch(tmp_path: Path) -> None:
    save_under(0, "single", tmp_path)
    document = json.loads((newest(tmp_path) / "checkpoint.json").read_text())
    assert document["step"] == 3
    assert document["tensors"]["model.norm.weight"] == [[WIDTH], "float32"]
