"""torchtitan's settings: which are one field of a plan, and how the others are written and read."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute

from .question import Question
from .settings import Kind, Setting, Settings, Value, Vocabulary, integer, text

_PARALLEL = "parallelism."
REPLICAS, SHARDS = f"{_PARALLEL}data_parallel_replicate_degree", f"{_PARALLEL}data_parallel_shard_degree"
SCHEDULE, RESHARD = f"{_PARALLEL}pipeline_parallel_schedule", f"{_PARALLEL}fsdp_reshard_after_forward"
TENSOR, PIPELINE, CONTEXT, EXPERT = (f"{_PARALLEL}{axis}_parallel_degree" for axis in ("tensor", "pipeline", "context", "expert"))
SEQUENCE, PIECE = f"{_PARALLEL}enable_sequence_parallel", f"{_PARALLEL}pipeline_parallel_microbatch_size"
STAGES, PER_STAGE = f"{_PARALLEL}module_fqns_per_model_part", f"{_PARALLEL}pipeline_parallel_layers_per_stage"
FIRST_LESS, LAST_LESS = (f"{_PARALLEL}pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))
LOCAL, GLOBAL, LENGTH = "training.local_batch_size", "training.global_batch_size", "training.seq_len"
DTYPE, PARAM_DTYPE, NO_GRAPHS = "training.dtype", "training.mixed_precision_param", "training.disable_cuda_graphs"
CHECKPOINTING, CONVERTER, ATTENTION, COMPILE = "activation_checkpoint", "model.converter", "model.attn_backend", "compile.enable"
MODULE, FLAVOR = "model.module", "model.flavor"

VOCABULARY = Vocabulary(
    settings=(
        Setting(name=TENSOR, field="strategy.tensor_parallel_size", default=1, always=True),
        Setting(name=PIPELINE, field="strategy.pipeline_parallel_size", default=1, always=True),
        Setting(name=CONTEXT, field="strategy.context_parallel_size", default=1, always=True),
        Setting(name=EXPERT, field="strategy.expert_parallel_size", default=1, always=True),
        Setting(name=GLOBAL, field="training.global_batch_size", always=True),
        Setting(name=LENGTH, field="training.sequence_length", default=2048, always=True),
        *(Setting(name=name) for name in (REPLICAS, SHARDS, LOCAL, PIECE, PER_STAGE, FIRST_LESS, LAST_LESS)),
        *(Setting(name=name, kind=Kind.SWITCH) for name in (SEQUENCE, NO_GRAPHS, COMPILE)),
        *(
            Setting(name=name, kind=Kind.TEXT)
            for name in (SCHEDULE, RESHARD, DTYPE, PARAM_DTYPE, CHECKPOINTING, CONVERTER, ATTENTION, MODULE, FLAVOR,
                f"{_PARALLEL}spmd_backend")
        ),
        Setting(name=STAGES, kind=Kind.WORDS),
        *(
            Setting(name=name)
            for name in ("training.num_tokens_per_microbatch_per_dp_rank", "training.num_tokens_per_train_step",
                "training.max_context_length",
                         f"{_PARALLEL}num_pp_microbatches")
        ),
    ),
)  # fmt: skip

SCHEDULES = {
    (PipelineSchedule.GPIPE, 1): "GPipe",
    (PipelineSchedule.ONE_F_ONE_B, 1): "1F1B",
    (PipelineSchedule.INTERLEAVED, 0): "Interleaved1F1B",
    (PipelineSchedule.ZERO_BUBBLE, 2): "ZBVZeroBubble",
}
"""(schedule, virtual stages, 0 for any above one) -> torchtitan's name."""
CHECKPOINTS = {Recompute.NONE: "none", Recompute.SELECTIVE: "selective", Recompute.FULL: "full"}
CONVERTERS = {"fp8": "Float8LinearConverter", "mxfp8": "MXFP8LinearConverter", "nvfp4": "NVFP4LinearConverter"}
PRECISIONS = ("bf16", "pure-bf16", "fp32", *CONVERTERS)


def schedule_name(question: Question) -> str:
    """torchtitan's name of the plan's schedule; empty where it has none."""
    schedule, virtual = question.strategy.pipeline_schedule, question.strategy.virtual_pipeline_stages
    return SCHEDULES.get((schedule, virtual), "") or (SCHEDULES.get((schedule, 0), "") if virtual > 1 else "")


def settings_of(question: Question) -> dict[str, Value]:
    """The settings of a plan."""
    strategy, model = question.strategy, question.model
    written = VOCABULARY.write(question)
    pipelined = strategy.pipeline_parallel_size > 1
    share = question.training.global_batch_size // max(strategy.data_parallel_size, 1)
    written[LOCAL] = share if pipelined else strategy.micro_batch_size
    written[SEQUENCE] = strategy.sequence_parallel or strategy.tensor_parallel_size == 1
    written |= sharding(question)
    if pipelined:
        written |= {PIECE: strategy.micro_batch_size, SCHEDULE: schedule_name(question), STAGES: stage_words(question.layers)}
    written[NO_GRAPHS] = pipelined or strategy.expert_parallel_size > 1
    written[COMPILE] = True
    written[CHECKPOINTING] = CHECKPOINTS[strategy.recompute]
    precision = question.training.precision.name
    written[DTYPE] = "bfloat16" if precision == "pure-bf16" else "float32"
    written[PARAM_DTYPE] = "float32" if precision == "fp32" else "bfloat16"
    if precision in CONVERTERS:
        written[CONVERTER] = CONVERTERS[precision]
    written[ATTENTION] = "flex" if model.moe is None or strategy.context_parallel_size > 1 or not model.attention_sinks else "varlen"
    return written


def sharding(question: Question) -> dict[str, Value]:
    """How data-parallel ranks replicate and shard: FSDP2 under a pipeline keeps parameters, as ZeRO-1 does, unless told otherwise."""
    strategy = question.strategy
    if strategy.zero_stage == 0:
        return {REPLICAS: strategy.data_parallel_size, SHARDS: 1}
    shards = max(1, question.shard_group // strategy.context_parallel_size)
    policy = "always" if strategy.zero_stage == 3 else "never"
    return {REPLICAS: strategy.data_parallel_size // shards, SHARDS: shards, RESHARD: policy}


def stage_words(layers: Sequence[int]) -> tuple[str, ...]:
    """The modules of each stage, a stage a word: ``tok_embeddings layers.0``."""
    words, first, last = [], 0, len(layers) - 1
    for stage, count in enumerate(layers):
        names = ["tok_embeddings"] * (stage == 0) + [f"layers.{first + index}" for index in range(count)]
        words.append(" ".join(names + ["norm", "lm_head"] * (stage == last)))
        first += count
    return tuple(words)


# -- back -----------------------------------------------------------------------------------------------------------------


def strategy_fields(settings: Settings, *, num_layers: int) -> dict[str, Value]:
    """The strategy's and the training's fields that the settings mean, by dotted names."""
    settings = in_sequences(settings)
    found = VOCABULARY.read(settings)
    tensor, pipeline = integer(settings, TENSOR, 1), integer(settings, PIPELINE, 1)
    local = integer(settings, LOCAL, 8)
    found["strategy.micro_batch_size"] = integer(settings, PIECE, 1) if pipeline > 1 else local
    found["strategy.sequence_parallel"] = settings.get(SEQUENCE, True) is True and tensor > 1
    found["strategy.context_parallel_kind"] = "all_gather" if integer(settings, CONTEXT, 1) > 1 else "ring"
    layers = stage_layers(settings, num_layers)
    found["strategy.virtual_pipeline_stages"] = max(1, len(layers) // pipeline) if pipeline > 1 else 1
    found["strategy.pipeline_layers"] = layers if len(set(layers)) > 1 else ()
    found["strategy.pipeline_schedule"] = schedule_of(text(settings, SCHEDULE, "1F1B")).value
    found["strategy.zero_stage"] = zero_stage(settings)
    found["strategy.recompute"] = next(
        kind.value for kind, name in CHECKPOINTS.items() if name == text(settings, CHECKPOINTING, "selective")
    )
    found["training.precision"] = precision_name(settings)
    if integer(settings, GLOBAL, -1) < 1:
        found.pop("training.global_batch_size", None)
        found["training.num_microbatches"] = max(1, local // integer(settings, PIECE, 1)) if pipeline > 1 else 1
    return found


def in_sequences(settings: Settings) -> Settings:
    """``settings`` with batches in sequences, where a later release counts them in tokens."""
    length = integer(settings, "training.max_context_length", 0)
    if not length:
        return settings
    changed = dict(settings) | {LENGTH: length}
    micro = integer(settings, "training.num_tokens_per_microbatch_per_dp_rank", length) // length
    pieces = integer(settings, f"{_PARALLEL}num_pp_microbatches", 1)
    changed |= {PIECE: max(1, micro), LOCAL: max(1, micro) * pieces}
    if step := integer(settings, "training.num_tokens_per_train_step", 0):
        changed[GLOBAL] = step // length
    return changed


def stage_layers(settings: Settings, num_layers: int) -> tuple[int, ...]:
    """Decoder layers of each virtual stage, as torchtitan splits them; () without a pipeline."""
    pipeline = integer(settings, PIPELINE, 1)
    if pipeline < 2:
        return ()
    named = settings.get(STAGES, ())
    if isinstance(named, tuple) and named:
        return tuple(sum(name.startswith("layers.") for name in str(stage).split()) for stage in named)
    first, last = integer(settings, FIRST_LESS, 1), integer(settings, LAST_LESS, 1)
    weight = num_layers + first + last
    per_stage = integer(settings, PER_STAGE, 0)
    looped = schedule_of(text(settings, SCHEDULE, "1F1B")) in (PipelineSchedule.INTERLEAVED, PipelineSchedule.ZERO_BUBBLE)
    stages = -(-weight // per_stage) if per_stage > 0 else pipeline * (2 if looped else 1)
    each, extra = divmod(weight, stages)
    split = [each + (stage < extra) for stage in range(stages)]
    split[0] -= first
    split[-1] -= last
    return tuple(split)


def schedule_of(name: str) -> PipelineSchedule:
    """The schedule that torchtitan calls ``name``; those that autopar has no own word for by their nearest."""
    known = {
        "gpipe": PipelineSchedule.GPIPE, "1f1b": PipelineSchedule.ONE_F_ONE_B, "interleaved1f1b": PipelineSchedule.INTERLEAVED,
        "loopedbfs": PipelineSchedule.INTERLEAVED, "interleavedzerobubble": PipelineSchedule.ZERO_BUBBLE,
        "zbvzerobubble": PipelineSchedule.ZERO_BUBBLE, "dualpipev": PipelineSchedule.ZERO_BUBBLE,
    }  # fmt: skip
    return known.get(name.lower(), PipelineSchedule.ONE_F_ONE_B)


def zero_stage(settings: Settings) -> int:
    """The ZeRO stage that replicas, shards and the resharding policy amount to."""
    if integer(settings, SHARDS, -1) == 1 and integer(settings, REPLICAS, 1) > 1 and integer(settings, CONTEXT, 1) == 1:
        return 0
    pipelined = integer(settings, PIPELINE, 1) > 1
    policy = text(settings, RESHARD, "default")
    reshards = policy == "always" or (policy == "default" and not pipelined)
    return 3 if reshards else 1 if pipelined else 2


def precision_name(settings: Settings) -> str:
    """The precision preset that the types and converters amount to."""
    converter = text(settings, CONVERTER)
    if found := next((name for name, known in CONVERTERS.items() if known == converter), ""):
        return found
    if text(settings, DTYPE, "float32") == "bfloat16":
        return "pure-bf16"
    return "fp32" if text(settings, PARAM_DTYPE, "bfloat16") == "float32" else "bf16"
