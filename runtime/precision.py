"""Which tensor types a :class:`~autopar.costmodel.spec.training.Precision` stands for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.training import ComputeType, Precision

_RUNNABLE = "bf16, amp-bf16, pure-bf16, fp32 or tf32"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTypes:
    """The types of a training step.

    ``stored``: parameters that the optimizer updates, and its states. ``computed``: parameters and activations of forward and
    backward; a copy where it differs from ``stored``. ``reduced``: gradients as they are accumulated and reduced.
    ``autocast``: matrix multiplications in bf16 from parameters kept in fp32.
    """

    stored: torch.dtype
    computed: torch.dtype
    reduced: torch.dtype
    autocast: bool = False
    tf32: bool = False

    @property
    def is_mixed(self) -> bool:
        return self.stored != self.computed


def precision_faults(precision: Precision) -> tuple[Fault, ...]:
    """Why this runtime cannot train in ``precision``; empty where it can."""
    if precision.linear in (ComputeType.BF16, ComputeType.FP32, ComputeType.TF32):
        return ()
    reason = "needs a loss scale" if precision.linear is ComputeType.FP16 else "needs kernels that torch alone does not have"
    required = f"{precision.linear.value} {reason}, which this runtime does not provide; it runs {_RUNNABLE}"
    return (Fault(field="precision", given=precision.name, required=required, fix="use bf16"),)


def tensor_types(precision: Precision) -> TensorTypes:
    """The types that hold the bytes ``precision`` states; one of those :func:`precision_faults` has nothing against."""
    reduced = torch.float32 if precision.gradient_reduce_bytes >= 4 else torch.bfloat16
    if precision.linear is not ComputeType.BF16:
        wide = torch.float32
        return TensorTypes(stored=wide, computed=wide, reduced=wide, tf32=precision.linear is ComputeType.TF32)
    if precision.parameter_bytes >= 4:
        return TensorTypes(stored=torch.float32, computed=torch.float32, reduced=reduced, autocast=True)
    stored = torch.float32 if precision.master_weight_bytes else torch.bfloat16
    return TensorTypes(stored=stored, computed=torch.bfloat16, reduced=reduced)


def store_parameters(module: nn.Module, types: TensorTypes) -> None:
    """Cast floating-point parameters, and not buffers, to the type that the optimizer updates."""
    for parameter in module.parameters():
        if parameter.is_floating_point() and parameter.dtype != types.stored:
            parameter.data = parameter.data.to(types.stored)


def set_matmul_precision(types: TensorTypes, device: torch.device) -> None:
    """Let fp32 matrix multiplications on ``device`` run in TF32, or not, as the precision says; of the whole process."""
    if device.type == "cuda" and types.stored == torch.float32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = types.tf32
