"""Which constants are fitted, on which rows: the whole list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autopar.accuracy.cases import Case
from autopar.catalog.frameworks import framework
from autopar.catalog.hardware import device
from autopar.catalog.profiles import hardware_profile


@dataclass(frozen=True, slots=True)
class Constant:
    """One named constant, its owner and the range physics allows it."""

    owner: Literal["framework", "device"]
    name: str
    field: str
    low: float
    high: float

    def applies_to(self, case: Case) -> bool:
        return self.name == (case.problem.framework.id if self.owner == "framework" else case.problem.cluster.device.id)

    def current(self) -> float:
        """Its value in the catalog."""
        source = framework(self.name) if self.owner == "framework" else hardware_profile(device(self.name))
        return float(getattr(source, self.field))


def _of(name: str, **ranges: tuple[float, float]) -> tuple[Constant, ...]:
    return tuple(Constant("framework", name, field, low, high) for field, (low, high) in ranges.items())


CONSTANTS: dict[str, tuple[Constant, ...]] = {
    "pytorch-eager": _of(
        "pytorch-eager",
        elementwise_forward_passes=(0.8, 2.5),
        elementwise_backward_passes=(0.8, 3.5),
        loss_passes=(3, 30),
    ),
    "transformers": _of(
        "transformers",
        elementwise_forward_passes=(0.8, 4),
        elementwise_backward_passes=(0.8, 5),
        loss_passes=(3, 40),
    ),
    "megatron-vtrain": _of(
        "megatron-vtrain",
        elementwise_forward_passes=(0.5, 3),
        elementwise_backward_passes=(0.5, 3),
        score_passes=(0.3, 4),
        kernels_per_layer_forward=(5, 300),
        kernels_per_layer_backward=(5, 500),
        host_seconds_per_collective=(0, 1e-3),
        tensor_overlap_backward=(0, 1),
        data_overlap=(0, 1),
        fused_gradient_accumulation=(0, 1),
        loss_passes=(1, 40),
        step_overhead_seconds=(0, 0.1),
        step_overhead_fraction=(0, 0.1),
        straggler_fraction_per_doubling=(0, 0.02),
    )
    + (Constant("device", "a100-sxm4-80gb", "gemm_efficiency", 0.6, 0.95),),
}
