"""Execution profiles: what a training framework overlaps, fuses, keeps and refuses.

The same strategy runs at different speed and in different memory under Megatron-LM and under FSDP. That
is a property of the framework, written down once in ``autopar/catalog/frameworks/`` and never per model.
"""

from __future__ import annotations

from dataclasses import dataclass

from .strategy import PipelineSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionProfile:
    """One framework (and era of it).

    Overlap fractions say how much of a transfer hides behind compute that could cover it: 1 hides all of it.
    """

    id: str
    name: str
    # kernels
    fused_attention: bool
    """Flash attention: nothing of size s x s is kept or moved."""
    dropout: bool
    elementwise_passes: float
    """Bytes moved by the memory-bound operators of a layer over the least a fused kernel would move."""
    kernels_per_layer_forward: float
    kernels_per_layer_backward: float
    host_launch_factor: float
    """Host seconds a kernel over the device profile's; near 0 with CUDA graphs."""
    fused_gradient_accumulation: bool
    fused_cross_entropy: bool
    # overlap
    tensor_overlap_forward: float
    tensor_overlap_backward: float
    data_overlap: float
    param_gather_overlap: float
    pipeline_overlap: float
    """For interleaved schedules; plain 1F1B exposes its transfers."""
    expert_overlap: float
    context_overlap: float
    # memory
    memory_reserve_bytes: float
    """Context, communicators and workspace outside the tensors."""
    fragmentation: float
    """Reserved over allocated, minus 1."""
    gradient_bytes: float
    """Bytes a parameter of the accumulated gradients; 0 takes the precision's."""
    gradient_reduce_bytes: float
    """Bytes a parameter that the gradient reduction sends; 0 takes the precision's."""
    norm_saves_fp32: bool
    # what it accepts
    schedules: tuple[PipelineSchedule, ...]
    zero_stages: tuple[int, ...]
    zero_stages_with_pipeline: tuple[int, ...]
    vocab_padding_multiple: int
    """The vocabulary is padded to a multiple of this x tensor parallel; 0 for no padding."""
    kv_heads_may_replicate: bool
    expert_tensor_parallel: bool
    sequence_parallel: bool
    uneven_pipeline: bool
    source: str
