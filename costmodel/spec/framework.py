"""Execution profiles: what a training framework overlaps, fuses, keeps and refuses.

The same strategy runs at different speed and in different memory under Megatron-LM and under FSDP. That
is a property of the framework, written down once in ``autopar/catalog/frameworks/`` and never per model.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .strategy import ContextParallelKind, PipelineSchedule, RankOrder, RecomputeModule


class RecomputeCount(StrEnum):
    """Of how many of a pipeline rank's layers a framework can repeat the forward pass."""

    ANY = "any"
    """Any number."""
    VIRTUAL_STAGES = "virtual_stages"
    """As many on each virtual stage of a rank (Megatron counts for each model chunk)."""
    ALL = "all"
    """All of them or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionProfile:
    """One framework (and era of it).

    Overlap fractions say how much of a transfer hides behind the compute that could cover it: 1 hides all of it.
    """

    id: str
    name: str
    # kernels
    fused_attention: bool
    """Flash attention: nothing of size s x s is kept or moved."""
    portable_attention: bool
    """Fused attention runs in the portable FlashAttention-2 kernels, slower than the vendor's on Hopper and later."""
    dropout: bool
    elementwise_forward_passes: float
    """Bytes the memory-bound operators of a layer move forward, over the least that unfused operators must move."""
    elementwise_backward_passes: float
    score_passes: float
    """The same for the score matrices of unfused attention (softmax, mask, dropout)."""
    rotary_passes: float
    """The same for rotary positions, on top: eager PyTorch runs five kernels, some in fp32."""
    gated_activation_passes: float
    expert_passes: float
    """The same for the routed rows of experts: permutation there and back, activation."""
    biased_expert_passes: float
    """The same for the activation of experts with biases, on top: gpt-oss' unit, one kernel each for bias, clamps, sigmoid and products."""
    elementwise_kernels: float
    """Memory-bound kernels of one layer's forward; each pays the device's ramp."""
    kernels_per_layer_forward: float
    kernels_per_layer_backward: float
    kernels_per_expert_layer: float
    """Kernels that routing, permutation and exchange add to an expert layer, forward and again backward."""
    kernels_per_local_expert: float
    """Kernels that each expert of a rank adds to the forward pass, and twice as many to the backward: products and casts launched one
    by one (Transformer Engine's grouped linear layers before 26.06); 0 where one grouped kernel does them all."""
    host_launch_factor: float
    """Host seconds a kernel over the device profile's; near 0 with CUDA graphs."""
    host_seconds_per_collective: float
    """Host time each tensor-parallel collective adds to a layer."""
    fused_gradient_accumulation: float
    """Share of the gradient accumulation's memory traffic that the weight-gradient GEMM absorbs."""
    loss_passes: float
    """Bytes moved over the logits by the loss, forward and backward, in units of 4 bytes a logit."""
    gemm_share: float
    """Rate of the framework's matrix multiplications over the device's: kernels of its day, strided operands, small splits."""
    attention_share: float
    """Rate of its fused attention kernels over the device's current ones."""
    # overlap
    tensor_overlap_forward: float
    tensor_overlap_backward: float
    data_overlap: float
    param_gather_overlap: float
    sharded_overlap: float
    """ZeRO-3: share of a layer's compute that its gathers hide behind."""
    sharded_bandwidth_share: float
    """Bandwidth of ZeRO-3's gathers over that of one large collective: parameters go one by one in early releases."""
    pipeline_overlap: float
    """For interleaved and zero-bubble schedules; plain 1F1B exposes its transfers."""
    expert_overlap: float
    expert_deduplicated: bool
    """A token is sent once to each domain that holds some of its experts (DeepEP, HybridEP), not once an expert."""
    context_overlap: float
    pipeline_scatter_gather: bool
    """A boundary tensor is sent in tensor-parallel slices and gathered on arrival."""
    step_overhead_fraction: float
    """Jitter, data loading and logging, over the computed step."""
    step_overhead_seconds: float
    straggler_fraction_per_doubling: float
    """Slowdown for every doubling of the number of nodes."""
    expert_imbalance: float
    """Tokens of the busiest expert rank over the mean."""
    # memory
    memory_reserve_bytes: float
    """Context, communicators and workspace outside the tensors."""
    fragmentation: float
    """Reserved over allocated, minus 1."""
    persistent_gradients: bool
    """Gradients live in buffers for the whole step; else a single micro-batch has none until its backward."""
    gradient_bytes: float
    """Bytes a parameter of the accumulated gradients, FP16 apart (its own are); 0 takes the precision's."""
    gradient_reduce_bytes: float
    """Bytes a parameter that the gradient reduction sends; 0 takes the precision's."""
    sharded_gradient_bytes: float
    """Bytes a parameter of a second copy of the gradients that is sharded like the optimizer states."""
    boundary_tensors_kept: float
    """Tensors of a stage boundary's size that each micro-batch in flight holds beside its activations."""
    selective_kept: float
    """Share of a layer's activations (attention scores apart) that selective recomputation keeps."""
    selective_recomputed: float
    """Share of a layer's forward products that it repeats beside the attention core."""
    selective_by_operator: bool
    """It keeps the outputs of chosen operators instead: the attention core and the other products stay, while memory-bound operators
    and the gathers of sequence parallelism repeat (torchtitan)."""
    plain_tensors_kept: float
    """Tensors of the feed-forward's width that a plain MLP keeps: the activation's input and output."""
    gated_tensors_kept: float
    """Tensors of the feed-forward's width that a gated MLP keeps for backward: gate, up, activated gate, product."""
    rms_norm_copies_kept: float
    """Activations an RMSNorm keeps beside its input and output: eager ones cast to fp32 and multiply by the weight on its own."""
    gathered_inputs_kept: float
    """Share of a sequence-parallel region's gathered input that is kept for backward; 0 gathers it again (Megatron)."""
    low_precision_inputs: bool
    """FP8 and FP4 linear layers keep their inputs as quantised (Transformer Engine); else as they came, and quantise again (torchao)."""
    low_precision_copies: float
    """Bytes a parameter of the FP8 weights that are kept beside the low-precision ones: as they are and transposed; 0 where they are the
    parameters themselves (``fp8_param_gather``) or are cast for each product anew."""
    routed_rows_kept: float
    """Copies of the routed rows, as wide as the model, that an expert layer keeps beside the experts' input: 1 where the experts' output
    is weighted as it comes back, more where rows are weighted in fp32 or permuted in steps of their own."""
    unrotated_latent_kept: float
    """1: latent attention keeps queries and keys also as they were before rotation, as unfused rotation does."""
    gathered_context_kept: float
    """1: keys and values gathered over context-parallel ranks are kept for backward, and the output once more; 0: gathered again."""
    context_heads_repeated: bool
    """Context-parallel attention repeats key-value heads for the queries before it exchanges them (PyTorch's)."""
    query_copies_kept: float
    """Tensors of the queries' size that rotary attention keeps beyond q, k, v and the output."""
    logits_bytes: float
    """Bytes a logit held at the loss's peak: low-precision logits, their fp32 copy, the gradient."""
    split_logits_bytes: float
    """The same where the vocabulary is split over tensor-parallel ranks, whose loss is another code path; 0: the same."""
    sharded_master_alone: bool
    """ZeRO-3 keeps each rank's share in the master's type alone and casts it to gather it (FSDP); else a low-precision share beside it."""
    # what it accepts
    tensor_parallel: bool
    pipeline_parallel: bool
    expert_parallel: bool
    context_parallel_kinds: tuple[ContextParallelKind, ...]
    """How it spreads attention over the context-parallel ranks, its own default first; empty where it does not."""
    experts_under_pipeline: bool
    """Layers of experts run in a pipeline's stages."""
    ulysses_repeats_kv_heads: bool
    """Ulysses works with more ranks than key-value heads: each head goes to several (DeepSpeed; not Transformer Engine)."""
    schedules: tuple[PipelineSchedule, ...]
    zero_bubble_virtual_stages: tuple[int, ...]
    """Virtual stages a rank that its zero-bubble schedule has: 1 (ZB-H1), 2 (ZBV)."""
    zero_stages: tuple[int, ...]
    """Without a pipeline."""
    zero_stages_with_pipeline: tuple[int, ...]
    vocab_padding_multiple: int
    """The vocabulary is padded to a multiple of this x tensor parallel; 0 for no padding."""
    kv_heads_may_replicate: bool
    expert_tensor_parallel: bool
    sequence_parallel: bool
    empty_end_stages: bool
    """The first virtual stage may hold the embedding alone, and the last one the head (Megatron counts each as a layer)."""
    places_layers: bool
    """It can be told which stage holds how many layers; else it splits them itself, evenly where they divide."""
    rank_orders: tuple[RankOrder, ...]
    """How it can number ranks, its own default first."""
    recompute_modules: tuple[RecomputeModule, ...]
    """Parts of a layer that selective recomputation can be told to repeat; empty where it takes no names."""
    recompute_count: RecomputeCount
    recompute_by_stage: bool
    """Each virtual stage can recompute a number of layers of its own; else they all recompute as many."""
    source: str
