"""Checkpoints that one layout writes and any other reads, through torch.distributed.checkpoint.

A folder holds one sub-folder a save and a file ``latest`` that names the newest whole one. A save goes to a folder of its own
name ending in ``.partial``, is renamed when every rank has written, and is pointed to last: a run that is killed while it saves
leaves the checkpoint before as it was. Tensors are stored whole, under the user's parameter names; how they were sharded leaves no trace.

Beside torch's files lies ``checkpoint.json``: step, seed, every tensor's shape and type, the optimizer's settings, and a checksum of
every file (torch's own format has none), so that what differs is said before a tensor is touched.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors
from torch.distributed.tensor import DTensor

from autopar.costmodel.spec.errors import Fault, InvalidInputError

from .agreement import first_fault, from_first_rank, gather, rank_and_size
from .checkpoint_fused import FusedTensor
from .checkpoint_index import INDEX_FILE, FileSeal, Index, Plain, Settings, Shape, damage, data_files, differences, read_index, write_index
from .checkpoint_optimizer import apply_settings, create_states, named_settings, optimizer_tensors, plain_values, restore_plain_values
from .random.names import clean_name
from .tensor.fused import FusedLayout, fused_layouts

LATEST = "latest"
PARTIAL = ".partial"


@dataclass(kw_only=True)
class TrainState:
    """What a checkpoint holds of one rank.

    ``model_parts`` are the rank's pieces of the model, whose parameter names are those of the whole model; ``tied`` pairs the names
    of one tensor, the first of which names its optimizer state.
    """

    model_parts: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    step: int
    seed: int
    tied: Sequence[tuple[str, str]] = ()
    layout: str = ""
    """In words, for a person who reads the index."""


def save(state: TrainState, folder: str | Path) -> Path:
    """Write ``state`` under ``folder``; returns the new checkpoint's own folder.

    Called by all ranks together; ``folder`` must be one that all of them see.

    Raises:
        InvalidInputError: the folder cannot be written; on every rank, with the first rank's reason.
    """
    root = Path(folder)
    partial = root / from_first_rank(lambda: _start(root, state.step))
    tensors = state_tensors(state)
    index = _index(state, tensors)
    if fault := first_fault(_attempt(lambda: save_tensors(dict(tensors), storage_writer=FileSystemWriter(partial)))):
        from_first_rank(lambda: shutil.rmtree(partial, ignore_errors=True))
        raise _unwritable(root, fault)
    sealed = replace(index, files=_seals(partial))
    return root / from_first_rank(lambda: _commit(root, partial, sealed))


def require_writable(folder: str | Path) -> None:
    """Make ``folder`` where it is not there; collective.

    Raises:
        InvalidInputError: checkpoints cannot be written there; before the training that they are to keep.
    """

    def attempt() -> None:
        root = Path(folder)
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                return
        except OSError as error:
            raise _unwritable(root, error.strerror or str(error)) from None

    from_first_rank(attempt)


def load(state: TrainState, folder: str | Path) -> None:
    """Read the newest checkpoint of ``folder`` (or the one that ``folder`` is) into ``state``, in place; sets its step and seed.

    Called by all ranks together, under any layout, on a model that holds its shards already.

    Raises:
        InvalidInputError: no checkpoint, a damaged one, or one of another model or optimizer; on every rank, with all that differs.
    """
    checkpoint, index = from_first_rank(lambda: _newest_with_index(folder))
    if damaged := _damage(checkpoint, index):
        raise InvalidInputError(damaged)
    for optimizer in state.optimizers:
        create_states(optimizer)
    tensors = state_tensors(state)
    expected = {name: shape for part in gather(_shapes(tensors)) for name, shape in part.items()}
    if found := differences(index, expected):
        raise InvalidInputError(found)
    if fault := first_fault(_attempt(lambda: load_tensors(dict(tensors), storage_reader=FileSystemReader(checkpoint)))):
        required = f"is damaged: {fault}"
        raise InvalidInputError(Fault(field="checkpoint", given=repr(str(checkpoint)), required=required, fix="load an earlier one"))
    names = parameter_names(state)
    for optimizer in state.optimizers:
        apply_settings(optimizer, index.settings, names)
        restore_plain_values(optimizer, index.values, names)
    state.step, state.seed = index.step, index.seed


def newest(folder: str | Path) -> Path:
    """The whole checkpoint that ``folder`` points to, or ``folder`` itself where it is one.

    Raises:
        InvalidInputError: it holds none.
    """
    root = Path(folder)
    if (root / INDEX_FILE).is_file():
        return root
    try:
        name = (root / LATEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        name = ""
    if name and Path(name).name == name and (root / name / INDEX_FILE).is_file():
        return root / name
    required = f"points to {name!r}, which is no whole checkpoint" if name else "no checkpoint of autopar is there"
    if not root.is_dir():
        required = "no such folder"
    raise InvalidInputError(Fault(field="checkpoint", given=repr(str(root)), required=required))


def state_tensors(state: TrainState) -> dict[str, Tensor]:
    """Every tensor of this rank by its name in the checkpoint: ``model.NAME`` and ``optimizer.NAME.KEY``.

    Local shards are DTensors; fused parameters and their optimizer states are views in the user's order.
    """
    tensors: dict[str, Tensor] = {}
    # first, since it makes FSDP put its shards where its gathered parameters may be
    for part in state.model_parts:
        held = {f"model.{clean_name(name)}": value.detach() for name, value in part.state_dict().items() if isinstance(value, Tensor)}
        tensors |= held
    names = parameter_names(state)
    for optimizer in state.optimizers:
        tensors |= optimizer_tensors(optimizer, names)
    for part in state.model_parts:
        for name, layout in fused_layouts(part).items():
            _in_users_order(tensors, clean_name(name), layout)
    return tensors


def _in_users_order(tensors: dict[str, Tensor], name: str, layout: FusedLayout) -> None:
    whole = tensors[f"model.{name}"].shape
    for key, tensor in tensors.items():
        ours = key == f"model.{name}" or key.startswith(f"optimizer.{name}.")
        if ours and tensor.shape == whole and isinstance(tensor, DTensor):
            tensors[key] = FusedTensor.of(tensor, layout)


def parameter_names(state: TrainState) -> dict[Tensor, str]:
    """The name that each parameter's optimizer state goes by."""
    first_name = {second: first for first, second in state.tied}
    names: dict[Tensor, str] = {}
    for name, parameter in _named_parameters(state.model_parts):
        names.setdefault(parameter, first_name.get(name, name))
    return names


def _named_parameters(parts: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for part in parts:
        for name, parameter in part.named_parameters(remove_duplicate=False):
            yield clean_name(name), parameter


# -- the index ---------------------------------------------------------------------------------------


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    """Global shape and type of each tensor; a DTensor's ``shape`` is the whole tensor's."""
    return {name: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors.items()}


def _index(state: TrainState, tensors: Mapping[str, Tensor]) -> Index:
    """What all ranks hold together; collective."""
    names = parameter_names(state)
    settings: list[Settings] = []
    values: dict[str, Mapping[str, Plain]] = {}
    mine = ([s for o in state.optimizers for s in named_settings(o, names)], [plain_values(o, names) for o in state.optimizers])
    for theirs, plain in gather(mine):
        settings += theirs
        for each in plain:
            values |= each
    shapes = {name: shape for part in gather(_shapes(tensors)) for name, shape in part.items()}
    return Index(
        step=state.step,
        seed=state.seed,
        layout=state.layout,
        optimizer=", ".join(type(optimizer).__name__ for optimizer in state.optimizers),
        torch_version=str(torch.__version__),
        tensors=dict(sorted(shapes.items())),
        settings=Settings.merged(settings),
        values=dict(sorted(values.items())),
        files={},
    )


def _seals(folder: Path) -> dict[str, FileSeal]:
    """Size and checksum of every file, each rank reading its share; collective."""
    rank, size = rank_and_size()
    mine = {path.name: FileSeal.of(path) for path in data_files(folder)[rank::size]}
    return {name: seal for part in gather(mine) for name, seal in sorted(part.items())}


def _damage(folder: Path, index: Index) -> tuple[Fault, ...]:
    """Files that are not as they were written, each rank reading its share; collective."""
    rank, size = rank_and_size()
    mine = damage(folder, dict(sorted(index.files.items())[rank::size]))
    return tuple(fault for part in gather(mine) for fault in part)


# -- the folder --------------------------------------------------------------------------------------


def _start(root: Path, step: int) -> str:
    """Name of the new folder, which is made; on rank 0."""
    partial = root / f"step-{step:08d}-{uuid.uuid4().hex[:8]}{PARTIAL}"
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise _unwritable(root, error.strerror or str(error)) from None
    return partial.name


def _unwritable(root: Path, reason: str) -> InvalidInputError:
    return InvalidInputError(Fault(field="checkpoint", given=repr(str(root)), required=f"cannot be written: {reason}"))


def _commit(root: Path, partial: Path, index: Index) -> str:
    """Give the whole folder its name, point to it, and clear away what killed runs left; on rank 0."""
    write_index(partial, index)
    name = f"step-{index.step:08d}"
    if (root / name).exists():
        name = partial.name.removesuffix(PARTIAL)
    partial.rename(root / name)
    _flush(root)
    pointer = root / f".{LATEST}.{uuid.uuid4().hex[:8]}"
    pointer.write_text(name + "\n", encoding="utf-8")
    pointer.replace(root / LATEST)
    _flush(root)
    for left in root.glob(f"step-*{PARTIAL}"):
        shutil.rmtree(left, ignore_errors=True)
    return name


def _flush(folder: Path) -> None:
    """Make renames in ``folder`` last through a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _newest_with_index(folder: str | Path) -> tuple[Path, Index]:
    checkpoint = newest(folder)
    return checkpoint, read_index(checkpoint)


def _attempt(action: Callable[[], object]) -> str:
    """Run ``action``; the reason why it failed, or ""."""
    try:
        with warnings.catch_warnings():
            # one process without a group is a layout like any other
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
            action()
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError, CheckpointException) as error:
        return _reason(error)
    return ""


def _reason(error: BaseException) -> str:
    """The cause in one line; torch gathers those of all ranks in one exception."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
        return f"rank {rank}: {_reason(cause)}"
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
