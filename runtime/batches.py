"""A step's batch: checked, and cut into this data-parallel rank's micro-batches."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from autopar.costmodel.spec.errors import Fault

from .loss import Batch


def batch_faults(batch: Batch, rows: int | None, multiple: int) -> list[Fault]:
    """Whether ``batch`` has ``rows`` rows (None: any multiple of ``multiple``) in every tensor."""
    tensors = batch if isinstance(batch, Mapping) else {"batch": batch}
    required = f"tensors of {rows} rows" if rows is not None else f"tensors whose rows are a multiple of {multiple}"
    faults, sizes = [], set()
    for name, value in tensors.items():
        if not isinstance(value, Tensor) or value.dim() == 0:
            given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            faults.append(Fault(field=name, given=given, required=required))
        elif (rows is not None and len(value) != rows) or len(value) % multiple or len(value) == 0:
            faults.append(Fault(field=name, given=f"{len(value)} rows", required=required))
        else:
            sizes.add(len(value))
    if len(sizes) > 1:
        faults.append(Fault(field="batch", given=f"tensors of {sorted(sizes)} rows", required="as many rows in every tensor"))
    if not tensors:
        faults.append(Fault(field="batch", given="nothing", required=required))
    return faults


def num_rows(batch: Batch) -> int:
    return len(batch) if isinstance(batch, Tensor) else len(next(iter(batch.values())))


def rows(batch: Batch, start: int, stop: int) -> Batch:
    """Rows ``start`` to ``stop`` (exclusive) of every tensor, as views."""
    if isinstance(batch, Tensor):
        return batch[start:stop]
    return {name: value[start:stop] for name, value in batch.items()}


def to_device(batch: Batch, device: torch.device) -> Batch:
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def micro_batches(batch: Batch, micro_batch_size: int) -> list[Batch]:
    """``batch``, whose rows ``micro_batch_size`` divides, in parts of that many."""
    return [rows(batch, start, start + micro_batch_size) for start in range(0, num_rows(batch), micro_batch_size)]
