"""What one training step is asked to do: batch, sequence, precision and optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .errors import Fault, UnknownNameError, raise_if


class Optimizer(StrEnum):
    ADAM = "adam"
    SGD = "sgd"


class ComputeType(StrEnum):
    """The type matrix multiplications run in; also the key of a device's peak rates."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    FP4 = "nvfp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Where each number of a training step lives, in bytes a parameter (or a value).

    ``linear`` is the type of the linear layers' matrix multiplications; attention, embedding and head
    run in ``activation_bytes``-wide types. ``cached_weight_bytes`` are low-precision copies kept beside
    the parameters (autocast's, FP8 weights and their transposes).
    """

    name: str
    linear: ComputeType
    activation_bytes: int = 2
    parameter_bytes: float = 2
    gradient_bytes: float = 4
    sharded_gradient_bytes: float = 0
    """A wider copy of the gradients that the optimizer makes of its shard (FP16 with loss scaling)."""
    master_weight_bytes: float = 4
    optimizer_state_bytes: float = 8
    gradient_reduce_bytes: float = 4
    parameter_gather_bytes: float = 2
    cached_weight_bytes: float = 0

    @property
    def bytes_per_parameter(self) -> float:
        """Resident bytes a parameter with nothing sharded."""
        gradients = self.gradient_bytes + self.sharded_gradient_bytes
        return self.parameter_bytes + gradients + self.master_weight_bytes + self.optimizer_state_bytes + self.cached_weight_bytes


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision(name="bf16", linear=ComputeType.BF16),
        Precision(name="fp16", linear=ComputeType.FP16, gradient_reduce_bytes=2, gradient_bytes=2, sharded_gradient_bytes=4),
        Precision(name="fp8", linear=ComputeType.FP8),
        Precision(name="mxfp8", linear=ComputeType.MXFP8),
        Precision(name="nvfp4", linear=ComputeType.FP4),
        Precision(
            name="amp-bf16",
            linear=ComputeType.BF16,
            parameter_bytes=4,
            gradient_bytes=4,
            master_weight_bytes=0,
            parameter_gather_bytes=2,
            cached_weight_bytes=2,
        ),
        Precision(
            name="pure-bf16",
            linear=ComputeType.BF16,
            gradient_bytes=2,
            master_weight_bytes=0,
            optimizer_state_bytes=4,
            gradient_reduce_bytes=2,
        ),
        Precision(
            name="fp32", linear=ComputeType.FP32, activation_bytes=4, parameter_bytes=4, master_weight_bytes=0, parameter_gather_bytes=4
        ),
        Precision(
            name="tf32", linear=ComputeType.TF32, activation_bytes=4, parameter_bytes=4, master_weight_bytes=0, parameter_gather_bytes=4
        ),
    )
}


def precision_named(name: str) -> Precision:
    """The preset called ``name``.

    Raises:
        UnknownNameError: no such preset.
    """
    try:
        return PRECISIONS[name.lower()]
    except KeyError:
        raise UnknownNameError("precision", name, PRECISIONS) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """One optimizer step: ``global_batch_size`` sequences of ``sequence_length`` tokens."""

    global_batch_size: int
    sequence_length: int
    precision: Precision = PRECISIONS["bf16"]
    optimizer: Optimizer = Optimizer.ADAM

    def __post_init__(self) -> None:
        faults = [
            Fault(field=field, given=repr(value), required=f"an integer from 1 to {limit:,}")
            for field, value, limit in (
                ("global_batch_size", self.global_batch_size, 10**9),
                ("sequence_length", self.sequence_length, 10**9),
            )
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit
        ]
        raise_if(faults)

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.sequence_length
