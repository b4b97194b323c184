"""From a measured run to a problem and a strategy, with a note for every blank that had to be filled.

Nothing here looks at the measurement: what is not stated is filled by a rule of the framework or of the model's
family, the same for every row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

from autopar.catalog.links import link_profiles
from autopar.catalog.models import model as catalog_model
from autopar.catalog.profiles import hardware_profile
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.cluster import ClusterSpec
from autopar.costmodel.spec.errors import AutoparError, InvalidInputError
from autopar.costmodel.spec.model import MixtureOfExperts, ModelSpec, Norm, PositionEmbedding
from autopar.costmodel.spec.strategy import PipelineSchedule, RankOrder, Recompute, RecomputeModule, Strategy
from autopar.costmodel.spec.training import TrainingSpec, precision_named
from autopar.costmodel.spec.units import GB
from autopar.search.feasibility import faults

from .frameworks import INTERLEAVED_EXPERT_OVERLAP, overlaps_exchange, profile_of
from .machines import cluster_of, precision_of
from .peaks import MemoryCount, held_problem, memory_count
from .reasons import UnscorableError, known
from .runs import ORDER_NOTE, Run, Skipped

GPT2_VOCABULARY = 50257
HEAD_DIM = 128
HYBRID_MODELS = ("nemotron-h", "nemotron-3-", "nemotron-nano", "jamba", "mamba")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row ready to be predicted."""

    run: Run
    problem: Problem
    strategy: Strategy
    measured_seconds: float | None
    measured_bytes: float | None
    memory_counts: MemoryCount
    held: Problem
    """The problem whose memory is predicted: with the gradients and moments the row says are narrower, which the fitted constants of
    time do not know of."""
    memory_comparable: bool
    """False where part of the activations lies on the host, which is not modelled."""
    notes: tuple[str, ...]


def case_of(run: Run, *, model: ModelSpec | None = None, machines: ClusterSpec | None = None) -> Case | Skipped:
    """The problem and strategy of ``run``, or the reason why there is none.

    Args:
        run: what was measured.
        model: taken in place of the model that the row describes.
        machines: taken in place of the cluster that the row describes.
    """
    try:
        return _case(run, model, machines)
    except UnscorableError as error:
        return Skipped(run_id=run.run_id, reason=str(error))
    except AutoparError as error:
        return Skipped(run_id=run.run_id, reason=str(error).replace("\n", "; "))


def _case(run: Run, model: ModelSpec | None, machines: ClusterSpec | None) -> Case:
    notes: list[str] = []
    _require(run)
    spec = model or _model(run, notes)
    machines = machines or cluster_of(run, notes)
    profile = profile_of(run, machines, notes)
    precision = precision_named(precision_of(run, machines, notes))
    training = TrainingSpec(global_batch_size=known(run.global_batch_size), sequence_length=known(run.sequence_length), precision=precision)
    problem = Problem(
        model=spec,
        cluster=machines,
        training=training,
        framework=profile,
        hardware=hardware_profile(machines.device),
        links=link_profiles(machines),
    )
    strategy = _strategy(run, problem, notes)
    broken = [fault for fault in faults(problem, strategy) if fault.field not in _RULES_OF_EMITTING]
    if broken:
        raise InvalidInputError(broken)
    if overlaps_exchange(problem, strategy):
        notes.append("expert exchange beside the compute of another micro-batch, as the recipes have it where experts span nodes")
        problem = replace(problem, framework=replace(profile, expert_overlap=INTERLEAVED_EXPERT_OVERLAP))
    return Case(
        run=run,
        problem=problem,
        strategy=strategy,
        measured_seconds=_measured_seconds(run),
        measured_bytes=run.peak_memory_gb * GB if run.peak_memory_gb else None,
        memory_counts=memory_count(profile),
        held=held_problem(problem, run.notes),
        memory_comparable="offloaded to the host" not in run.notes,
        notes=tuple(notes),
    )


_RULES_OF_EMITTING = frozenset({"pipeline_schedule", "zero_stage", "context_parallel_kind"})
"""A run that was measured did run: what a profile's framework would not be asked for today is no reason to skip it."""


def _require(run: Run) -> None:
    name = run.model_name.lower()
    if any(hybrid in name for hybrid in HYBRID_MODELS):
        raise UnscorableError(f"{run.model_name} is a hybrid of state-space and attention layers, not a transformer")
    if re.search(r"\blora\b", f"{run.model_name} {run.notes} {run.framework}", re.IGNORECASE):
        raise UnscorableError("LoRA fine-tuning is not modelled")
    if not run.step_time_seconds and not run.tokens_per_second_per_gpu and not run.peak_memory_gb:
        raise UnscorableError("neither a step time nor a peak memory was measured")
    if not run.device:
        raise UnscorableError("no device is stated")
    needed = ("num_gpus", "sequence_length", "global_batch_size", "micro_batch_size", "tensor_parallel_size", "pipeline_parallel_size")
    missing = [field for field in needed if getattr(run, field) is None and not (field == "micro_batch_size" and _whole_batch(run))]
    if missing:
        raise UnscorableError(f"not stated: {', '.join(missing)}")


def _whole_batch(run: Run) -> int | None:
    """Micro-batch of a run whose data-parallel ranks hold the global batch at once, as FSDP runs without accumulation do."""
    ranks = run.data_parallel_size
    sharded = re.search(r"fsdp|full_shard|hsdp", run.sharding_as_stated, re.IGNORECASE)
    if sharded and ranks and run.global_batch_size and run.global_batch_size % ranks == 0:
        return run.global_batch_size // ranks
    return None


def _measured_seconds(run: Run) -> float | None:
    if run.step_time_seconds:
        return run.step_time_seconds
    if run.tokens_per_second_per_gpu and run.global_batch_size and run.sequence_length and run.num_gpus:
        return run.global_batch_size * run.sequence_length / (run.tokens_per_second_per_gpu * run.num_gpus)
    return None


# -- model ------------------------------------------------------------------------------------------


def _model(run: Run, notes: list[str]) -> ModelSpec:
    """The catalog's spec where the row's stated shape is the same, else one made of the row's columns."""
    known = _catalog_model(run.model_name)
    if known is not None and known.mtp_layers and not re.search(r"(w/|with) mtp", run.notes, re.IGNORECASE):
        notes.append("multi-token prediction taken as off")
        known = replace(known, mtp_layers=0)
    if known is not None and _agrees(known, run):
        if run.num_layers is None and run.hidden_size is None:
            notes.append(f"shape taken as the catalog's {known.name}")
        return replace(known, tied_embeddings=run.tied_embeddings) if run.tied_embeddings is not None else known
    if run.num_layers is None or run.hidden_size is None:
        raise UnscorableError(f"the shape of {run.model_name or 'the model'} is not stated (num_layers, hidden_size)")
    base = _catalog_model(re.sub(r"-l\d+$", "", run.model_name))
    if run.multi_latent_attention:
        if base is None or base.latent_attention is None:
            raise UnscorableError(f"latent attention of {run.model_name} has no known shape")
        notes.append(f"shape of {base.name} with {run.num_layers} layers")
        return replace(base, name=run.model_name, num_layers=run.num_layers)
    return _model_of_columns(run, notes)


@cache
def _catalog_model(name: str) -> ModelSpec | None:
    try:
        return catalog_model(name) if name else None
    except AutoparError:
        return None


def _agrees(spec: ModelSpec, run: Run) -> bool:
    """Whether nothing the row states of the shape speaks against the catalog's model; one figure alone is too little to tell."""
    moe = spec.moe
    pairs = (
        (run.num_layers, spec.num_layers),
        (run.hidden_size, spec.hidden_size),
        (run.ffn_hidden_size, spec.ffn_hidden_size),
        (run.num_attention_heads, spec.num_attention_heads),
        (run.num_key_value_heads, spec.num_key_value_heads),
        (run.num_experts, moe.num_experts if moe else None),
        (run.moe_ffn_hidden_size, moe.ffn_hidden_size if moe else None),
        (run.gated_mlp, spec.gated_mlp),
        (run.vocab_size, spec.vocab_size),
    )
    stated = [(given, known) for given, known in pairs if given is not None]
    return len(stated) != 1 and all(given == known for given, known in stated)


def _model_of_columns(run: Run, notes: list[str]) -> ModelSpec:
    layers, hidden = known(run.num_layers), known(run.hidden_size)
    gated = bool(run.gated_mlp)
    heads = run.num_attention_heads
    if heads is None:
        heads = max(hidden // HEAD_DIM, 1)
        notes.append(f"num_attention_heads taken as hidden_size / {HEAD_DIM}")
    ffn = run.ffn_hidden_size or run.moe_ffn_hidden_size
    if ffn is None:
        if gated:
            raise UnscorableError("ffn_hidden_size of a gated MLP is not stated")
        ffn = 4 * hidden
        notes.append("ffn_hidden_size taken as 4 x hidden_size")
    vocab = run.vocab_size
    if vocab is None:
        vocab = GPT2_VOCABULARY
        notes.append(f"vocab_size taken as GPT-2's {GPT2_VOCABULARY}")
    moe = None
    if run.num_experts:
        moe = MixtureOfExperts(
            num_experts=run.num_experts,
            experts_per_token=run.experts_per_token or 2,
            ffn_hidden_size=run.moe_ffn_hidden_size or ffn,
        )
    return ModelSpec(
        name=run.model_name or f"h{hidden}-l{layers}",
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=run.num_key_value_heads or heads,
        head_dim=run.head_dim or max(hidden // heads, 1),
        ffn_hidden_size=ffn,
        vocab_size=vocab,
        max_position_embeddings=known(run.sequence_length),
        gated_mlp=gated,
        norm=Norm.RMS_NORM if gated else Norm.LAYER_NORM,
        position_embedding=PositionEmbedding.ROTARY if gated else PositionEmbedding.LEARNED,
        tied_embeddings=not gated if run.tied_embeddings is None else run.tied_embeddings,
        qkv_bias=not gated,
        attention_output_bias=not gated,
        mlp_bias=not gated,
        moe=moe,
    )


# -- strategy ---------------------------------------------------------------------------------------


def _strategy(run: Run, problem: Problem, notes: list[str]) -> Strategy:
    tp, pp = known(run.tensor_parallel_size), known(run.pipeline_parallel_size)
    cp = run.context_parallel_size or 1
    count = known(run.num_gpus)
    dp = run.data_parallel_size or max(count // max(tp * pp * cp, 1), 1)
    if tp * pp * cp * dp != count:
        raise UnscorableError(f"tp {tp} x pp {pp} x cp {cp} x dp {dp} is {tp * pp * cp * dp}, not num_gpus={count}")
    micro = run.micro_batch_size or known(_whole_batch(run))
    vpp = run.virtual_pipeline_stages or 1
    if problem.framework.id == "torchtitan" and pp > 1:
        notes.append("micro-batch taken as the local batch over the stages: torchtitan splits it into one for each unless told otherwise")
        micro = max(known(run.global_batch_size) // (dp * pp), 1)
        vpp = 2 if vpp == 1 and "interleaved" in run.notes.lower() else vpp
    sp = run.sequence_parallel
    if sp is None:
        sp = tp > 1 and problem.framework.sequence_parallel
    repeated = _recompute(run, problem, notes)
    expert = problem.model.moe is not None
    schedule = PipelineSchedule.INTERLEAVED if vpp > 1 and pp > 1 else PipelineSchedule.ONE_F_ONE_B
    if run.pipeline_schedule:
        schedule = PipelineSchedule(run.pipeline_schedule)
    return Strategy(
        tensor_parallel_size=tp,
        sequence_parallel=bool(sp) and tp > 1,
        pipeline_parallel_size=pp,
        virtual_pipeline_stages=vpp if pp > 1 else 1,
        pipeline_schedule=schedule,
        context_parallel_size=cp,
        expert_parallel_size=(run.expert_parallel_size or 1) if expert else 1,
        expert_tensor_parallel_size=_expert_tensor(run, problem, notes) if expert else 1,
        data_parallel_size=dp,
        micro_batch_size=micro,
        zero_stage=_zero_stage(run, problem),
        recompute=repeated.kind,
        num_recompute_layers=repeated.layers,
        recompute_modules=repeated.modules,
        rank_order=next((order for order in RankOrder if f"{ORDER_NOTE}{order.value}" in run.notes), RankOrder.TP_CP_DP_PP),
    )


def _expert_tensor(run: Run, problem: Problem, notes: list[str]) -> int:
    """Expert-tensor-parallel size: a column, ``ETP=n`` among the notes, else the framework's default.

    Megatron-Core splits experts like the dense layers unless told not to; Megatron-Bridge's recipes tell it.
    """
    if run.expert_tensor_parallel_size:
        return run.expert_tensor_parallel_size
    if stated := re.search(r"\betp\s*=\s*(\d+)", run.notes, re.IGNORECASE):
        return int(stated[1])
    if problem.framework.id != "megatron-core" or known(run.tensor_parallel_size) == 1:
        return 1
    notes.append("expert_tensor_parallel_size taken as tensor_parallel_size, Megatron-Core's default")
    return known(run.tensor_parallel_size)


def _zero_stage(run: Run, problem: Problem) -> int:
    """ZeRO stage by what the row states, else the framework's usual one.

    FSDP2 under a pipeline does not reshard between micro-batches: whole parameters and gradients stay, as under ZeRO-1.
    """
    text = run.sharding_as_stated.lower()
    if problem.framework.id == "torchtitan" and (run.pipeline_parallel_size or 1) > 1:
        return 1
    if re.search(r"full_shard|fsdp|^3$|zero-?3", text):
        return 3
    if re.search(r"shard_grad_op|zero-?2|^2$", text):
        return 2
    if re.search(r"zero-?1|dist-opt|^1$", text):
        return 1
    if text == "0":
        return 0
    return min(1, max(problem.framework.zero_stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """What a row recomputes, as fields of a strategy."""

    kind: Recompute
    layers: int = 0
    modules: tuple[RecomputeModule, ...] = ()


_MODULE_WORDS = {RecomputeModule.LAYERNORM: r"layernorm|rmsnorm", RecomputeModule.MLA_UP_PROJ: r"mla_up_proj|mla up"}
_UNSTATED_IS_SELECTIVE = r"nemo-megatron (1\d|2[0-3])\."
_UNSTATED_IS_FULL = ("megatron-2019", "megatron-2021", "megatron-deepspeed", "deepspeed", "deepspeed-2021")


def _recompute(run: Run, problem: Problem, notes: list[str]) -> Recomputation:
    text = run.recompute.lower()
    if "full" in text or "checkpointing" in text or text == "1":
        counted = re.search(r"(\d+) layers", text)
        return Recomputation(kind=Recompute.FULL, layers=int(counted[1]) if counted else run.num_recompute_layers or 0)
    if text in ("none", "no", "off", "false", "0"):
        return Recomputation(kind=Recompute.NONE)
    named = tuple(module for module in RecomputeModule if re.search(_MODULE_WORDS.get(module, rf"\b{module}\b"), text))
    if named or "selective" in text:
        return Recomputation(kind=Recompute.SELECTIVE, modules=named)
    if text:
        known_names = ", ".join(RecomputeModule)
        raise UnscorableError(f"recompute={run.recompute!r} is not known; none, selective, full, or modules of {known_names}")
    if problem.framework.id in _UNSTATED_IS_FULL:
        notes.append("recompute taken as full, as that framework's large runs were")
        return Recomputation(kind=Recompute.FULL)
    if re.search(_UNSTATED_IS_SELECTIVE, run.framework, re.IGNORECASE):
        notes.append("recompute taken as selective: the scores of unfused attention would not fit")
        return Recomputation(kind=Recompute.SELECTIVE)
    notes.append("recompute taken as none")
    return Recomputation(kind=Recompute.NONE)
