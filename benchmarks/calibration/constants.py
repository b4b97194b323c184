"""Which constants are fitted, on which rows: the whole list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autopar.accuracy.cases import Case
from autopar.catalog.frameworks import base_table, framework
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
    families: tuple[str, ...] = ()
    """Families of runs that a device's constant is fitted on, for its source."""

    def applies_to(self, case: Case) -> bool:
        return self.name == (case.problem.framework.id if self.owner == "framework" else case.problem.cluster.device.id)

    def documented(self) -> float:
        """Its value before any fit: the framework's base profile's; a device's own, which its measurements bound."""
        if self.owner == "device":
            return self.current()
        return float(base_table(self.name)[self.field])

    def current(self) -> float:
        """Its value in the catalog."""
        source = framework(self.name) if self.owner == "framework" else hardware_profile(device(self.name))
        return float(getattr(source, self.field))


def _of(name: str, **ranges: tuple[float, float]) -> tuple[Constant, ...]:
    return tuple(Constant("framework", name, field, low, high) for field, (low, high) in ranges.items())


def _device(name: str, field: str, low: float, high: float, *families: str) -> tuple[Constant, ...]:
    return (Constant("device", name, field, low, high, families),)


_A100_FAMILIES = ("paper-kort", "paper-meg21_T1", "paper-meg21_T2", "vtrain1", "vtrainN")
_PASSES = {"elementwise_forward_passes": (0.8, 4.0), "elementwise_backward_passes": (0.8, 4.0)}
_OVERHEAD = {"step_overhead_fraction": (0.0, 0.1)}
_MODERN = {
    **_PASSES,
    **_OVERHEAD,
    "kernels_per_layer_forward": (10.0, 80.0),
    "kernels_per_expert_layer": (0.0, 1000.0),
    "expert_passes": (0.5, 6.0),
    "tensor_overlap_forward": (0.0, 1.0),
    "expert_overlap": (0.0, 1.0),
    "pipeline_overlap": (0.0, 1.0),
}

NOT_FITTED = {"nemolauncher": "recomputation neither stated nor to be inferred: without it the runs would not fit their memory"}
"""Families that are predicted but never fitted on, and why."""

TRUST = {"bs-v100": 0.3}
"""Weight of the rows of a family whose source says they are noisy: Jean Zay's shared network, results within 40 %."""

CONSTANTS: dict[str, tuple[Constant, ...]] = {
    "one H200": _of("pytorch-eager", **_PASSES, loss_passes=(3, 40)),
    "one H200, transformers": _of("transformers", **_PASSES, loss_passes=(3, 60), kernels_per_layer_forward=(10, 200)),
    "Megatron of 2019 to 2022": _device("a100-sxm4-80gb", "gemm_efficiency", 0.78, 0.95, *_A100_FAMILIES)
    + _device("v100-sxm2-32gb", "gemm_efficiency", 0.6, 0.9, "bs-v100", "paper-meg19")
    + _device("v100-sxm2-16gb", "gemm_efficiency", 0.6, 0.9, "bs-v100", "dlperf")
    + _of("megatron-2019", data_overlap=(0, 1), score_passes=(0.5, 4), **_OVERHEAD)
    + _of("megatron-2022", tensor_overlap_backward=(0, 1), fused_gradient_accumulation=(0, 1), **_OVERHEAD)
    + _of("megatron-2021", tensor_overlap_backward=(0, 1), data_overlap=(0, 1), score_passes=(0.5, 4), **_OVERHEAD)
    + _of(
        "megatron-vtrain",
        elementwise_forward_passes=(0.4, 4),
        elementwise_backward_passes=(0.4, 4),
        score_passes=(0.3, 4),
        kernels_per_layer_forward=(5, 300),
        kernels_per_layer_backward=(5, 500),
        host_seconds_per_collective=(0, 1e-3),
        tensor_overlap_backward=(0, 1),
        data_overlap=(0, 1),
        fused_gradient_accumulation=(0, 1),
        loss_passes=(1, 40),
        step_overhead_seconds=(0, 0.1),
        straggler_fraction_per_doubling=(0, 0.02),
    ),
    "Megatron-DeepSpeed": _of(
        "megatron-deepspeed",
        elementwise_forward_passes=(0.8, 6),
        elementwise_backward_passes=(0.8, 6),
        gemm_share=(0.6, 1.1),
        fused_gradient_accumulation=(0, 1),
        kernels_per_layer_forward=(5, 300),
        data_overlap=(0, 1),
        score_passes=(0.5, 4),
        loss_passes=(1, 40),
        **_OVERHEAD,
    ),
    "DeepSpeed ZeRO-3": _of("deepspeed", gemm_share=(0.5, 1.1), sharded_overlap=(0, 1), sharded_bandwidth_share=(0.03, 1)),
    "FSDP": _of(
        "fsdp",
        **_PASSES,
        **_OVERHEAD,
        gemm_share=(0.6, 1.1),
        attention_share=(0.3, 1.1),
        sharded_overlap=(0, 1),
        sharded_bandwidth_share=(0.1, 1),
    ),
    "torchtitan": _of("torchtitan", **_PASSES, attention_share=(0.3, 1.1), sharded_overlap=(0, 1), tensor_overlap_forward=(0, 1))
    + _device("h100-sxm5-96gb-hbm2e", "gemm_efficiency", 0.4, 0.8, "torchtitan"),
    "InternEvo": _of("internevo", gemm_share=(0.6, 1.1), tensor_overlap_forward=(0, 1), **_OVERHEAD),
    "Megatron-Core": _of(
        "megatron-core",
        **_MODERN,
        attention_share=(0.4, 1.1),
        tensor_overlap_backward=(0, 1),
        data_overlap=(0, 1),
        param_gather_overlap=(0, 1),
        fused_gradient_accumulation=(0, 1),
    )
    + _of("megatron-mlperf", **_PASSES, **_OVERHEAD, tensor_overlap_forward=(0, 1), data_overlap=(0, 1), fused_gradient_accumulation=(0, 1))
    + _of("megatron-bridge-25", **_MODERN)
    + _of("megatron-bridge-26", **_MODERN)
    + _device("h100-sxm5-80gb", "gemm_efficiency", 0.6, 0.72, "dgxc", "mbridge")
    + _device("h100-sxm5-80gb", "fp8_efficiency", 0.55, 0.7, "dgxc", "mbridge", "nemo2407", "mlperf-gpt3", "mlperf-llama31-405b")
    + _device("gb200-nvl72", "gemm_efficiency", 0.5, 0.7, "dgxc", "mbridge")
    + _device("gb200-nvl72", "fp8_efficiency", 0.45, 0.7, "dgxc", "mbridge")
    + _device("gb300-nvl72", "gemm_efficiency", 0.5, 0.7, "mbridge")
    + _device("gb300-nvl72", "fp8_efficiency", 0.45, 0.7, "mbridge")
    + _device("b200-sxm", "gemm_efficiency", 0.5, 0.7, "mbridge")
    + _device("b200-sxm", "fp8_efficiency", 0.45, 0.7, "mbridge"),
}
