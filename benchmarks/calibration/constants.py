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
    also: tuple[str, ...] = ()
    """Other owners that share the one value."""
    in_proportion: bool = False
    """A device's rate of products that its rates of FP8 and of attention follow: its file has none of them."""
    before: float | None = None
    """Its value before any fit, where the base profile of a framework (the kernel measurements of a device) do not say it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every owner."""
        return (self.name, *self.also)

    def applies_to(self, case: Case) -> bool:
        return (case.problem.framework.id if self.owner == "framework" else case.problem.cluster.device.id) in self.names

    def documented(self) -> float:
        """Its value before any fit: the framework's base profile's, the device's kernel measurements'."""
        if self.before is not None:
            return self.before
        return self.current() if self.owner == "device" else float(base_table(self.name)[self.field])

    def current(self) -> float:
        """Its value in the catalog."""
        source = framework(self.name) if self.owner == "framework" else hardware_profile(device(self.name))
        return float(getattr(source, self.field))


def _of(name: str, **ranges: tuple[float, ...]) -> tuple[Constant, ...]:
    return _shared((name,), **ranges)


def _shared(names: tuple[str, ...], **ranges: tuple[float, ...]) -> tuple[Constant, ...]:
    """One value for all of ``names``: (low, high), or (low, high, before) where the base profile's is not what is known before."""
    return tuple(
        Constant("framework", names[0], field, low, high, also=names[1:], before=before[0] if before else None)
        for field, (low, high, *before) in ranges.items()
    )


def _device(name: str, field: str, before: float, low: float, high: float, *families: str) -> tuple[Constant, ...]:
    return (Constant("device", name, field, low, high, families, before=before),)


_A100_FAMILIES = ("paper-kort", "paper-meg21_T1", "paper-meg21_T2", "vtrain1", "vtrainN")
_PASSES = {"elementwise_forward_passes": (0.8, 4.0), "elementwise_backward_passes": (0.8, 4.0)}
_OVERHEAD = {"step_overhead_fraction": (0.0, 0.1)}
_EXPERTS = {
    "kernels_per_expert_layer": (0.0, 300.0),
    "kernels_per_local_expert": (0.0, 30.0),
    "expert_passes": (0.5, 6.0),
    "expert_overlap": (0.0, 1.0),
}
_TRANSFERS = {
    "tensor_overlap_forward": (0.0, 1.0),
    "tensor_overlap_backward": (0.0, 1.0),
    "data_overlap": (0.0, 1.0),
    "param_gather_overlap": (0.0, 1.0),
    "fused_gradient_accumulation": (0.0, 1.0),
    "pipeline_overlap": (0.0, 1.0),
}
_CORE = ("megatron-core", "megatron-mlperf", "megatron-bridge-25", "megatron-bridge-26")
"""Releases of one code base, whose transfers are scheduled alike."""

RELATIVES: tuple[frozenset[str], ...] = (
    frozenset(_CORE),
    frozenset({"megatron-2019", "megatron-2021", "megatron-2022", "megatron-vtrain", "megatron-deepspeed"}),
    frozenset({"fsdp", "torchtitan", "deepspeed-2021"}),
    frozenset({"gb200-nvl72", "gb300-nvl72", "b200-sxm"}),
)
"""Owners whose constants are pulled together: eras of one framework, devices of one architecture."""

NOT_FITTED = {
    "nemolauncher": "recomputation is not stated: the scores of unfused attention would not fit without, how much was repeated is a guess"
}
"""Families that are predicted but never fitted on, and why."""

TRUST = {"bs-v100": 0.3, "h200-step": 4.0, "h200-hf_step": 4.0}
"""Weight of the rows of a family whose source says they are noisy (Jean Zay's shared network, results within 40 %), or which repeat
to a percent (steps of our own)."""

CONSTANTS: dict[str, tuple[Constant, ...]] = {
    "one H200": _of("pytorch-eager", **_PASSES, loss_passes=(3, 40)),
    "one H200, transformers": _of("transformers", **_PASSES, loss_passes=(3, 60), kernels_per_layer_forward=(10, 200)),
    "Megatron of 2019 to 2022, with DeepSpeed too": _device("a100-sxm4-80gb", "gemm_efficiency", 0.82, 0.78, 0.95, *_A100_FAMILIES)
    + _device("v100-sxm2-32gb", "gemm_efficiency", 0.7, 0.6, 0.9, "bs-v100", "paper-meg19")
    + _device("v100-sxm2-16gb", "gemm_efficiency", 0.7, 0.6, 0.9, "bs-v100", "dlperf")
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
    )
    + _of(
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
    "DeepSpeed ZeRO-3": _of("deepspeed-2021", gemm_share=(0.5, 1.1), sharded_overlap=(0, 1, 0.8), sharded_bandwidth_share=(0.03, 1, 1.0)),
    "Megatron-Core": _shared(_CORE, **_TRANSFERS)
    + _shared(("megatron-bridge-25", "megatron-bridge-26"), biased_expert_passes=(0.5, 10))
    + _of("megatron-core", **_PASSES, **_OVERHEAD, **_EXPERTS)
    + _of("megatron-mlperf", **_PASSES, **_OVERHEAD)
    + _of("megatron-bridge-25", **_PASSES, **_OVERHEAD, **_EXPERTS)
    + _of("megatron-bridge-26", **_PASSES, **_OVERHEAD, **_EXPERTS)
    + _device("h100-sxm5-80gb", "gemm_efficiency", 0.66, 0.5, 0.69, "dgxc", "mbridge")
    + _device("h100-sxm5-80gb", "fp8_efficiency", 0.67, 0.45, 0.69, "dgxc", "mbridge", "nemo2407", "mlperf-gpt3", "mlperf-llama31-405b")
    + _device("gb200-nvl72", "gemm_efficiency", 0.6, 0.5, 0.74, "dgxc", "mbridge")
    + _device("gb200-nvl72", "fp8_efficiency", 0.6, 0.45, 0.74, "dgxc", "mbridge")
    + _device("gb300-nvl72", "gemm_efficiency", 0.6, 0.5, 0.74, "mbridge")
    + _device("gb300-nvl72", "fp8_efficiency", 0.6, 0.45, 0.74, "mbridge")
    + _device("b200-sxm", "gemm_efficiency", 0.57, 0.5, 0.74, "mbridge")
    + _device("b200-sxm", "fp8_efficiency", 0.57, 0.45, 0.74, "mbridge"),
    "FSDP": _of(
        "fsdp",
        elementwise_forward_passes=(0.8, 6, 1.6),
        elementwise_backward_passes=(0.8, 6, 1.9),
        attention_share=(0.3, 1.1),
        sharded_overlap=(0, 1),
        sharded_bandwidth_share=(0.1, 1),
        **_OVERHEAD,
    )
    + _of(
        "torchtitan",
        elementwise_forward_passes=(0.8, 6),
        elementwise_backward_passes=(0.8, 6),
        attention_share=(0.3, 1.1),
        sharded_overlap=(0, 1),
    )
    + (Constant("device", "h100-sxm5-96gb-hbm2e", "gemm_efficiency", 0.4, 0.8, ("torchtitan",), before=0.53, in_proportion=True),),
    "InternEvo": _of(
        "internevo",
        elementwise_forward_passes=(0.8, 6, 1.6),
        elementwise_backward_passes=(0.8, 6, 1.9),
        gemm_share=(0.6, 1.1),
        tensor_overlap_forward=(0, 1),
        data_overlap=(0, 1),
        **_OVERHEAD,
    ),
}
