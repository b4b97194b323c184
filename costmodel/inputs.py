"""Everything an evaluation reads besides the strategies, as columns.

A single problem gives 0-d arrays that broadcast over the strategies; an accuracy table stacks one problem a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from .columns import Floats, stack
from .compute import DeviceColumns
from .device_rates import CPU_ARCHITECTURE, LOW_PRECISION
from .measured import Uses
from .measurements import Measurements
from .model_columns import ModelColumns
from .problem import Problem
from .spec.cluster import has_flash_attention
from .spec.framework import ExecutionProfile
from .spec.training import ComputeType, Optimizer, TrainingSpec
from .topology import LinkColumns, aligned


def wide_type(linear: ComputeType) -> ComputeType:
    """The type of what does not run in FP8 or FP4."""
    return ComputeType.BF16 if linear in LOW_PRECISION else linear


def attention_is_fused(problem: Problem) -> bool:
    """The framework runs flash attention, and the device has kernels of it."""
    return problem.framework.fused_attention and has_flash_attention(problem.cluster.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingColumns:
    """Batch, sequence and the bytes each value takes."""

    global_batch_size: Floats
    sequence_length: Floats
    activation_bytes: Floats
    parameter_bytes: Floats
    gradient_bytes: Floats
    sharded_gradient_bytes: Floats
    master_weight_bytes: Floats
    optimizer_state_bytes: Floats
    gradient_reduce_bytes: Floats
    parameter_gather_bytes: Floats
    cached_weight_bytes: Floats
    low_precision_linear: Floats
    """1 where the linear layers run in FP8 or FP4."""
    autocast: Floats
    """1 where parameters are wider than the activations and are cast on the fly."""

    @classmethod
    def of(cls, training: TrainingSpec, framework: ExecutionProfile) -> TrainingColumns:
        """Sizes of ``training``, with what ``framework`` stores in its own way."""
        precision = training.precision
        own = precision.linear is not ComputeType.FP16
        mixed = precision.master_weight_bytes > 0
        low = precision.linear in LOW_PRECISION
        values = {
            "global_batch_size": training.global_batch_size,
            "sequence_length": training.sequence_length,
            "activation_bytes": precision.activation_bytes,
            "parameter_bytes": precision.parameter_bytes,
            "gradient_bytes": (framework.gradient_bytes if mixed and own else 0.0) or precision.gradient_bytes,
            "sharded_gradient_bytes": precision.sharded_gradient_bytes + (framework.sharded_gradient_bytes if own else 0.0),
            "master_weight_bytes": precision.master_weight_bytes,
            "optimizer_state_bytes": precision.optimizer_state_bytes if training.optimizer is Optimizer.ADAM else 0.0,
            "gradient_reduce_bytes": (framework.gradient_reduce_bytes if own else 0.0) or precision.gradient_reduce_bytes,
            "parameter_gather_bytes": precision.parameter_gather_bytes,
            "cached_weight_bytes": precision.cached_weight_bytes + framework.low_precision_copies * low,
            "low_precision_linear": low,
            "autocast": precision.parameter_bytes > precision.activation_bytes,
        }
        return cls(**{name: np.asarray(value, dtype=np.float64) for name, value in values.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkColumns:
    """The numbers and flags of :class:`ExecutionProfile`, field for field."""

    fused_attention: Floats
    dropout: Floats
    elementwise_forward_passes: Floats
    elementwise_backward_passes: Floats
    score_passes: Floats
    rotary_passes: Floats
    gated_activation_passes: Floats
    expert_passes: Floats
    biased_expert_passes: Floats
    elementwise_kernels: Floats
    kernels_per_layer_forward: Floats
    kernels_per_layer_backward: Floats
    kernels_per_expert_layer: Floats
    kernels_per_local_expert: Floats
    host_launch_factor: Floats
    host_seconds_per_collective: Floats
    fused_gradient_accumulation: Floats
    loss_passes: Floats
    gemm_share: Floats
    attention_share: Floats
    tensor_overlap_forward: Floats
    tensor_overlap_backward: Floats
    data_overlap: Floats
    param_gather_overlap: Floats
    sharded_overlap: Floats
    sharded_bandwidth_share: Floats
    pipeline_overlap: Floats
    expert_overlap: Floats
    expert_deduplicated: Floats
    context_overlap: Floats
    pipeline_scatter_gather: Floats
    step_overhead_fraction: Floats
    step_overhead_seconds: Floats
    straggler_fraction_per_doubling: Floats
    expert_imbalance: Floats
    memory_reserve_bytes: Floats
    fragmentation: Floats
    persistent_gradients: Floats
    boundary_tensors_kept: Floats
    selective_kept: Floats
    selective_recomputed: Floats
    selective_by_operator: Floats
    plain_tensors_kept: Floats
    gated_tensors_kept: Floats
    rms_norm_copies_kept: Floats
    gathered_inputs_kept: Floats
    low_precision_inputs: Floats
    routed_rows_kept: Floats
    unrotated_latent_kept: Floats
    gathered_context_kept: Floats
    context_heads_repeated: Floats
    query_copies_kept: Floats
    logits_bytes: Floats
    split_logits_bytes: Floats
    sharded_master_alone: Floats
    vocab_padding_multiple: Floats

    @classmethod
    def of(
        cls,
        framework: ExecutionProfile,
        *,
        memory_reserve_bytes: float | None = None,
        flash_attention: bool = True,
        sends_while_computing: bool = True,
    ) -> FrameworkColumns:
        """The columns of ``framework``, with the reserve the user asked for in place of its own.

        Without ``flash_attention`` on the device, attention is unfused whatever the framework would run elsewhere. A device that does
        not send while it computes overlaps nothing: a processor's cores do both.
        """
        columns = {f.name: np.asarray(getattr(framework, f.name), dtype=np.float64) for f in fields(cls)}
        if memory_reserve_bytes is not None:
            columns["memory_reserve_bytes"] = np.asarray(memory_reserve_bytes, dtype=np.float64)
        if not flash_attention:
            columns["fused_attention"] = np.zeros_like(columns["fused_attention"])
        if not sends_while_computing:
            columns |= {name: np.zeros_like(values) for name, values in columns.items() if "_overlap" in name}
        return cls(**columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One problem, or one a row."""

    model: ModelColumns
    device: DeviceColumns
    """Rates for the linear layers' type."""
    wide_device: DeviceColumns
    """Rates for everything else: attention, head, router."""
    links: LinkColumns
    training: TrainingColumns
    framework: FrameworkColumns
    num_gpus: Floats
    gpus_per_node: Floats
    memory_bytes: Floats

    @classmethod
    def of(cls, problem: Problem, uses: Uses | None = None) -> Inputs:
        """The constants of ``problem`` as 0-d arrays; evaluations of one strategy note in ``uses`` the shapes they ask for."""
        cluster, linear = problem.cluster, problem.training.precision.linear
        flash2, measured = problem.framework.portable_attention, problem.measured
        if measured is None and uses is not None:
            measured = Measurements.none()

        def device(compute_type: ComputeType) -> DeviceColumns:
            columns = DeviceColumns.of(cluster.device, problem.hardware, compute_type, flash2=flash2)
            return columns if measured is None else measured.on_device(columns, compute_type, uses)

        links = LinkColumns.of(cluster, problem.links)
        return cls(
            model=ModelColumns.of(problem.model),
            device=device(linear),
            wide_device=device(wide_type(linear)),
            links=links if measured is None else measured.on_links(links, uses),
            training=TrainingColumns.of(problem.training, problem.framework),
            framework=FrameworkColumns.of(
                problem.framework,
                memory_reserve_bytes=problem.memory_reserve_bytes,
                flash_attention=has_flash_attention(cluster.device),
                sends_while_computing=cluster.device.architecture.lower() != CPU_ARCHITECTURE,
            ),
            num_gpus=np.asarray(cluster.num_gpus, dtype=np.float64),
            gpus_per_node=np.asarray(cluster.gpus_per_node, dtype=np.float64),
            memory_bytes=np.asarray(cluster.device.memory_bytes, dtype=np.float64),
        )

    @classmethod
    def stacked(cls, problems: Sequence[Problem]) -> Inputs:
        """One row a problem."""
        rows = [cls.of(problem) for problem in problems]
        return stack([replace(row, links=links) for row, links in zip(rows, aligned([row.links for row in rows]), strict=True)])
