"""Megatron-LM's rules of the batch, experts, sharded states, recomputation and precision.

As its source enforces them: ``megatron/training/arguments.py``, ``core/transformer/transformer_config.py``,
``core/num_microbatches_calculator.py``, ``core/transformer/moe`` (2026-08).
"""

from __future__ import annotations

from collections.abc import Iterator

from autopar.costmodel.spec.errors import Fault

from .megatron_sizes import Sizes, flag_fault, is_full_recompute, uses_fsdp
from .rule import Configuration, Enforcement, FrameworkRule
from .settings import Settings, integer, is_on, text, words

_DIST_OPT, _FSDP, _FSDP2 = "use-distributed-optimizer", "use-megatron-fsdp", "use-torch-fsdp2"
_GBS, _MBS = "global-batch-size", "micro-batch-size"
_EP_OVERLAP = "overlap-moe-expert-parallel-comm"


# -- batch --------------------------------------------------------------------------------------------------------------


def _batch(c: Configuration) -> Iterator[Fault]:
    """The global batch is a multiple of micro-batch x data-parallel sizes."""
    yield from _batch_fault(c, integer(c.settings, _GBS, 0), integer(c.settings, _MBS, 1), _GBS)


def _batch_fault(c: Configuration, batch: int, micro: int, flag: str) -> Iterator[Fault]:
    step = micro * Sizes.of(c).dp
    if step and batch % step and not is_on(c.settings, "decrease-batch-size-if-needed"):
        lower = batch // step * step
        fix = f"--{flag} {f'{lower} or ' if lower else ''}{lower + step}"
        yield Fault(field=f"--{flag}", given=str(batch), required=f"must be a multiple of micro-batch x dp = {step}", fix=fix)


def _batch_unset(c: Configuration) -> Iterator[Fault]:
    """Without a global batch size there is one micro-batch a step."""
    if _GBS not in c.settings and "step-batch-size-schedule" not in c.settings:
        yield flag_fault(c.settings, _GBS, "is not given, so Megatron runs one micro-batch a step", f"give --{_GBS}")


def _evaluation_batch(c: Configuration) -> Iterator[Fault]:
    """The evaluation batch is a multiple of its micro-batch x data-parallel sizes."""
    batch = integer(c.settings, "eval-global-batch-size", integer(c.settings, _GBS, 0))
    micro = integer(c.settings, "eval-micro-batch-size", integer(c.settings, _MBS, 1))
    if "eval-global-batch-size" in c.settings or "eval-micro-batch-size" in c.settings:
        yield from _batch_fault(c, batch, micro, "eval-global-batch-size")


def _batch_schedule(c: Configuration) -> Iterator[Fault]:
    """A schedule of batch sizes excludes a global batch size."""
    if "step-batch-size-schedule" in c.settings and _GBS in c.settings:
        yield flag_fault(c.settings, "step-batch-size-schedule", f"does not go with --{_GBS}", "keep one of them")


# -- experts ------------------------------------------------------------------------------------------------------------


def _experts(c: Configuration) -> Iterator[Fault]:
    """Expert parallelism needs experts, and divides them."""
    sizes, count = Sizes.of(c), integer(c.settings, "num-experts", 0)
    if sizes.ep > 1 and (not count or count % sizes.ep):
        required = f"must divide --num-experts={count}" if count else "needs --num-experts"
        yield flag_fault(c.settings, "expert-model-parallel-size", required)


def _experts_need_sequence(c: Configuration) -> Iterator[Fault]:
    """Training experts under tensor parallelism needs sequence parallelism."""
    sizes = Sizes.of(c)
    if sizes.is_moe and sizes.tp > 1 and not is_on(c.settings, "sequence-parallel"):
        yield flag_fault(c.settings, "sequence-parallel", "is needed for experts with tensor parallelism", "add it")


def _biased_experts(c: Configuration) -> Iterator[Fault]:
    """Experts with biases are not cut."""
    sizes = Sizes.of(c)
    if sizes.is_moe and sizes.etp > 1 and not is_on(c.settings, "disable-bias-linear"):
        flag = "expert-tensor-parallel-size"
        yield flag_fault(c.settings, flag, "must be 1 for experts with biases", f"--{flag} 1")


def _router(c: Configuration) -> Iterator[Fault]:
    """Router groups divide the experts, and top-1 softmax is taken before the choice."""
    given, count = c.settings, integer(c.settings, "num-experts", 0)
    groups, chosen = integer(given, "moe-router-num-groups", 0), integer(given, "moe-router-group-topk", 0)
    if groups and count % groups:
        yield flag_fault(given, "moe-router-num-groups", f"must divide --num-experts={count}")
    if groups and chosen > groups:
        yield flag_fault(given, "moe-router-group-topk", f"is at most --moe-router-num-groups={groups}")
    softmax = text(given, "moe-router-score-function", "softmax") == "softmax"
    if count and integer(given, "moe-router-topk", 2) == 1 and softmax and not is_on(given, "moe-router-pre-softmax"):
        yield flag_fault(given, "moe-router-pre-softmax", "is needed for --moe-router-topk 1 with softmax", "add it")


def _overlapped_exchange(c: Configuration) -> Iterator[Fault]:
    """Overlapping the experts' exchange needs several ranks, half precision and an interleaved pipeline, and little recomputation."""
    given, sizes = c.settings, Sizes.of(c)
    if not is_on(given, _EP_OVERLAP):
        return
    needs = (
        (sizes.ep == 1, "--expert-model-parallel-size above 1"),
        (text(given, "moe-token-dispatcher-type", "allgather") == "allgather", "--moe-token-dispatcher-type alltoall or flex"),
        (not is_on(given, "bf16") and not is_on(given, "fp16"), "--bf16 or --fp16"),
        (sizes.pp > 1 and sizes.virtual == 1, "virtual stages under a pipeline"),
        (is_full_recompute(given) or "moe" in words(given, "recompute-modules"), "no recomputation of whole layers or of moe"),
        (is_on(given, "moe-shared-expert-overlap"), "no --moe-shared-expert-overlap"),
        (integer(given, "mtp-num-layers", 0) > 1, "at most one --mtp-num-layers"),
    )
    for broken, what in needs:
        if broken:
            yield flag_fault(given, _EP_OVERLAP, f"needs {what}")


def _delayed_gradients(c: Configuration) -> Iterator[Fault]:
    """Delayed weight gradients need the overlapped exchange."""
    if is_on(c.settings, "delay-wgrad-compute") and not is_on(c.settings, _EP_OVERLAP):
        yield flag_fault(c.settings, "delay-wgrad-compute", f"needs --{_EP_OVERLAP}", "leave it out")


def _grouped(c: Configuration) -> Iterator[Fault]:
    """Recomputed expert activations need grouped products, which need Ampere or later."""
    given = c.settings
    if "moe_act" in words(given, "recompute-modules") and not is_on(given, "moe-grouped-gemm"):
        yield flag_fault(given, "recompute-modules", "moe_act needs --moe-grouped-gemm", "add it")
    if is_on(given, "moe-grouped-gemm") and 0 < c.capability < 8:
        yield flag_fault(given, "moe-grouped-gemm", "needs Ampere or later", "leave it out")


def _small_exchange(c: Configuration) -> Iterator[Fault]:
    """DeepEP is slower than a plain exchange inside one node."""
    if text(c.settings, "moe-token-dispatcher-type") == "flex" and Sizes.of(c).ep <= 8:
        required = "is slower than alltoall for up to 8 expert-parallel ranks in a node"
        yield flag_fault(c.settings, "moe-token-dispatcher-type", required, "--moe-token-dispatcher-type alltoall")


# -- sharded states -------------------------------------------------------------------------------------------------------


def _gather_overlap(c: Configuration) -> Iterator[Fault]:
    """Overlapped gathers need sharded states and overlapped reductions."""
    given = c.settings
    sharded = is_on(given, _DIST_OPT) or is_on(given, _FSDP) or text(given, "optimizer") == "dist_muon"
    if is_on(given, "overlap-param-gather") and not (sharded and is_on(given, "overlap-grad-reduce")):
        yield flag_fault(given, "overlap-param-gather", f"needs --{_DIST_OPT} and --overlap-grad-reduce", "add them")


def _gather_with_step(c: Configuration) -> Iterator[Fault]:
    """Gathers overlapped with the optimizer step need overlapped gathers and virtual stages."""
    given, flag = c.settings, "overlap-param-gather-with-optimizer-step"
    if is_on(given, flag) and not (is_on(given, _DIST_OPT) and is_on(given, "overlap-param-gather") and Sizes.of(c).virtual > 1):
        yield flag_fault(given, flag, f"needs --{_DIST_OPT}, --overlap-param-gather and virtual stages", "leave it out")


def _low_precision_gather(c: Configuration) -> Iterator[Fault]:
    """Gathers in FP8 need sharded states."""
    if is_on(c.settings, "fp8-param-gather") and not (is_on(c.settings, _DIST_OPT) or uses_fsdp(c.settings)):
        yield flag_fault(c.settings, "fp8-param-gather", f"needs --{_DIST_OPT} or FSDP", f"--{_DIST_OPT}")


def _torch_fsdp(c: Configuration) -> Iterator[Fault]:
    """torch FSDP2 runs without a pipeline, experts, distributed optimizer, fused accumulation, tied embeddings or fp16."""
    given, sizes = c.settings, Sizes.of(c)
    if not is_on(given, _FSDP2):
        return
    needs = (
        (sizes.pp > 1, "--pipeline-model-parallel-size 1"),
        (sizes.ep > 1, "--expert-model-parallel-size 1"),
        (is_on(given, _DIST_OPT), f"no --{_DIST_OPT}"),
        (not is_on(given, "no-gradient-accumulation-fusion"), "--no-gradient-accumulation-fusion"),
        (text(given, "ckpt-format", "torch_dist") not in ("torch_dist", "torch_dcp"), "--ckpt-format torch_dist or torch_dcp"),
        (not is_on(given, "untie-embeddings-and-output-weights"), "--untie-embeddings-and-output-weights"),
        (is_on(given, "fp16"), "no --fp16"),
        (c.environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1", "CUDA_DEVICE_MAX_CONNECTIONS other than 1"),
    )
    for broken, what in needs:
        if broken:
            yield flag_fault(given, _FSDP2, f"needs {what}")


def _torch_checkpoint(c: Configuration) -> Iterator[Fault]:
    """torch_dcp checkpoints are for torch FSDP2 alone, without tensor parallelism or a pipeline."""
    sizes = Sizes.of(c)
    if text(c.settings, "ckpt-format") == "torch_dcp" and (not is_on(c.settings, _FSDP2) or sizes.tp > 1 or sizes.pp > 1):
        yield flag_fault(c.settings, "ckpt-format", f"torch_dcp needs --{_FSDP2}, and no tensor parallelism or pipeline")


def _megatron_fsdp(c: Configuration) -> Iterator[Fault]:
    """Megatron-FSDP turns the distributed optimizer on, and needs sgd or adam, its own checkpoints and several connections."""
    given = c.settings
    if not is_on(given, _FSDP):
        return
    no_shard = text(given, "data-parallel-sharding-strategy") == "no_shard"
    needs = (
        (not is_on(given, _DIST_OPT), f"--{_DIST_OPT}, which it turns on by itself"),
        (text(given, "optimizer", "adam") not in ("sgd", "adam"), "--optimizer sgd or adam"),
        (text(given, "ckpt-format", "torch_dist") != "fsdp_dtensor", "--ckpt-format fsdp_dtensor"),
        (c.environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1", "CUDA_DEVICE_MAX_CONNECTIONS other than 1"),
        (is_on(given, "init-model-with-meta-device") and no_shard, "no meta device with no_shard"),
    )
    for broken, what in needs:
        if broken:
            yield flag_fault(given, _FSDP, f"needs {what}")


def _offloaded_optimizer(c: Configuration) -> Iterator[Fault]:
    """An optimizer on the host is a precision-aware one."""
    if is_on(c.settings, "optimizer-cpu-offload") and not is_on(c.settings, "use-precision-aware-optimizer"):
        yield flag_fault(c.settings, "optimizer-cpu-offload", "needs --use-precision-aware-optimizer", "add it")


_MODULES = (
    "core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "gdn_norm_out", "mhc",
)  # fmt: skip


def _recompute(c: Configuration) -> Iterator[Fault]:
    """Full recomputation names a method and layers, selective one neither, and modules are those that there are."""
    given, granularity = c.settings, text(c.settings, "recompute-granularity")
    if granularity == "full" and (text(given, "recompute-method") not in ("uniform", "block") or "recompute-num-layers" not in given):
        yield flag_fault(given, "recompute-granularity", "full needs --recompute-method uniform or block and --recompute-num-layers")
    if granularity == "selective" and ("recompute-method" in given or "recompute-num-layers" in given):
        yield flag_fault(given, "recompute-granularity", "selective takes no --recompute-method or --recompute-num-layers")
    unknown = [module for module in words(given, "recompute-modules") if module not in _MODULES]
    if unknown:
        yield flag_fault(given, "recompute-modules", f"{', '.join(unknown)}: known are {', '.join(_MODULES)}")


def _one_low_precision(c: Configuration) -> Iterator[Fault]:
    """FP4 and FP8 exclude each other."""
    if "fp4-format" in c.settings and "fp8-format" in c.settings:
        yield flag_fault(c.settings, "fp4-format", "does not go with --fp8-format", "keep one of them")


def _alignment(c: Configuration) -> Iterator[Fault]:
    """FP8 needs local widths in multiples of 16 (32 when block-scaled) and rows in multiples of 8."""
    given, sizes = c.settings, Sizes.of(c)
    multiple = _multiple(given)
    if not multiple:
        return
    cut = [("ffn-hidden-size", sizes.tp)] + [("moe-ffn-hidden-size", sizes.etp)] * sizes.is_moe
    for flag, size in cut:
        if integer(given, flag, 0) % (size * multiple):
            yield flag_fault(given, flag, f"over {size} ranks must leave a multiple of {multiple} for low precision", "--bf16 alone")
    pieces = sizes.cp * (sizes.tp if is_on(given, "sequence-parallel") else 1)
    rows = integer(given, "seq-length", 0) * integer(given, _MBS, 1)
    if rows % (8 * pieces):
        yield flag_fault(given, _MBS, f"times the sequence over {pieces} ranks must leave a multiple of 8 rows", "a larger micro-batch")


def _multiple(settings: Settings) -> int:
    if "fp4-format" in settings:
        return 32
    if "fp8-format" in settings:
        return 32 if text(settings, "fp8-recipe") == "mxfp8" else 16
    return 0


def _fake_group(c: Configuration) -> Iterator[Fault]:
    """A fake process group does not go with the flex dispatcher."""
    if is_on(c.settings, "fake-process-group") and text(c.settings, "moe-token-dispatcher-type") == "flex":
        yield flag_fault(c.settings, "fake-process-group", "does not go with --moe-token-dispatcher-type flex")


_H, _S, _R, _D = Enforcement.HARD, Enforcement.SILENT, Enforcement.RUNTIME, Enforcement.DOCUMENTED

STATE_RULES: tuple[FrameworkRule, ...] = tuple(
    FrameworkRule(id=f"ML-{name}", enforcement=how, check=check)
    for name, how, check in (
        ("B1", _H, _batch), ("B2", _S, _batch_unset), ("B3", _H, _evaluation_batch), ("B4", _H, _batch_schedule),
        ("E1", _H, _experts), ("E2", _R, _experts_need_sequence), ("E3", _H, _biased_experts), ("E4", _H, _router),
        ("E5", _H, _overlapped_exchange), ("E6", _H, _delayed_gradients), ("E7", _H, _grouped), ("E8", _D, _small_exchange),
        ("D1", _H, _gather_overlap), ("D2", _H, _gather_with_step), ("D3", _H, _low_precision_gather), ("D4", _H, _torch_fsdp),
        ("D5", _H, _torch_checkpoint), ("D6", _H, _megatron_fsdp), ("D7", _H, _offloaded_optimizer), ("D8", _H, _recompute),
        ("D9", _H, _one_low_precision), ("D10", _R, _alignment), ("D11", _H, _fake_group),
    )
)  # fmt: skip
