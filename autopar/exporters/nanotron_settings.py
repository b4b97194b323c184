"""nanotron's YAML, as dotted names: which are one field of a plan, and how the others are written and read."""

from __future__ import annotations

from autopar.costmodel.spec.model import ModelSpec, Norm, PositionEmbedding
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute

from .model_numbers import Usual
from .question import Question
from .settings import Kind, Setting, Settings, Value, Vocabulary, integer, is_on, number, text

_MODEL = "model.model_config."
TENSOR, PIPELINE, DATA, EXPERT = (f"parallelism.{name}" for name in ("tp", "pp", "dp", "expert_parallel_size"))
CONTEXT, RECOMPUTE = "parallelism.context_parallel_size", "parallelism.recompute_layer"
ENGINE, MODE = "parallelism.pp_engine", "parallelism.tp_mode"
MICRO, STEPS, LENGTH = "tokens.micro_batch_size", "tokens.batch_accumulation_per_replica", "tokens.sequence_length"
STAGE, FP32_GRADIENTS, DTYPE = "optimizer.zero_stage", "optimizer.accumulate_grad_in_fp32", "model.dtype"
ROTARY_BASE, EPSILON = f"{_MODEL}rope_theta", f"{_MODEL}rms_norm_eps"
USUAL = {"rotary_base": Usual(name=ROTARY_BASE, value=10_000.0), "norm_epsilon": Usual(name=EPSILON, value=1e-6)}
LAYERS, HEADS, GROUPS = f"{_MODEL}num_hidden_layers", f"{_MODEL}num_attention_heads", f"{_MODEL}num_key_value_heads"

VOCABULARY = Vocabulary(
    settings=(
        Setting(name=DATA, field="strategy.data_parallel_size", always=True),
        Setting(name=PIPELINE, field="strategy.pipeline_parallel_size", default=1, always=True),
        Setting(name=TENSOR, field="strategy.tensor_parallel_size", default=1, always=True),
        Setting(name=CONTEXT, field="strategy.context_parallel_size", default=1),
        Setting(name=MICRO, field="strategy.micro_batch_size", always=True),
        Setting(name=STAGE, field="strategy.zero_stage", default=0, always=True),
        Setting(name=LENGTH, field="training.sequence_length", always=True),
        Setting(name=f"{_MODEL}hidden_size", field="model.hidden_size", always=True),
        Setting(name=f"{_MODEL}intermediate_size", field="model.ffn_hidden_size", always=True),
        Setting(name=LAYERS, field="model.num_layers", always=True),
        Setting(name=HEADS, field="model.num_attention_heads", always=True),
        Setting(name=GROUPS, field="model.num_key_value_heads", always=True),
        Setting(name=f"{_MODEL}vocab_size", field="model.vocab_size", always=True),
        Setting(name=f"{_MODEL}tie_word_embeddings", kind=Kind.SWITCH, field="model.tied_embeddings", default=False, always=True),
        *(Setting(name=name) for name in (STEPS, EXPERT, f"{_MODEL}max_position_embeddings", "model.make_vocab_size_divisible_by",
                                          "tokens.train_steps")),
        *(
            Setting(name=name, kind=Kind.SWITCH)
            for name in (FP32_GRADIENTS, RECOMPUTE, f"{_MODEL}is_llama_config", "parallelism.tp_linear_async_communication",
                         "parallelism.tp_recompute_allgather", f"{_MODEL}is_qwen2_config", f"{_MODEL}is_starcoder2_config")
        ),
        *(Setting(name=name, kind=Kind.TEXT) for name in (ENGINE, MODE, DTYPE)),
        *(Setting(name=name, kind=Kind.NUMBER) for name in (ROTARY_BASE, EPSILON)),
    ),
)  # fmt: skip
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
ENGINES = {PipelineSchedule.ONE_F_ONE_B: "1f1b", PipelineSchedule.GPIPE: "afab"}


def settings_of(question: Question) -> dict[str, Value]:
    """The settings of a plan. nanotron's defaults (AFAB, ALL_REDUCE) are slow: both are always written."""
    strategy, model = question.strategy, question.model
    written = VOCABULARY.write(question)
    written |= {
        ENGINE: ENGINES.get(strategy.pipeline_schedule, ""),
        MODE: "REDUCE_SCATTER" if strategy.sequence_parallel or strategy.tensor_parallel_size == 1 else "ALL_REDUCE",
        "parallelism.tp_linear_async_communication": strategy.sequence_parallel,
        EXPERT: 1,
        STEPS: question.num_microbatches,
        FP32_GRADIENTS: question.training.precision.name != "fp32",
        DTYPE: PRECISIONS.get(question.training.precision.name, ""),
        "model.make_vocab_size_divisible_by": 1,
        f"{_MODEL}is_llama_config": True,
        f"{_MODEL}max_position_embeddings": max(model.max_position_embeddings, question.training.sequence_length),
    }
    if strategy.recompute is Recompute.FULL:
        written[RECOMPUTE] = True
    if model.rotary_base not in (0.0, USUAL["rotary_base"].value):
        written[ROTARY_BASE] = float(model.rotary_base)
    return written | ({EPSILON: model.norm_epsilon} if model.norm_epsilon else {})


def strategy_fields(settings: Settings) -> dict[str, Value]:
    """The strategy's and the training's fields that the settings mean, by dotted names."""
    found = VOCABULARY.read(settings)
    found["strategy.sequence_parallel"] = (
        text(settings, MODE, "ALL_REDUCE").upper() == "REDUCE_SCATTER" and integer(settings, TENSOR, 1) > 1
    )
    engine = text(settings, ENGINE, "afab").lower()
    single = integer(settings, PIPELINE, 1) == 1
    found["strategy.pipeline_schedule"] = (PipelineSchedule.ONE_F_ONE_B if engine == "1f1b" or single else PipelineSchedule.GPIPE).value
    found["strategy.recompute"] = (Recompute.FULL if is_on(settings, RECOMPUTE) else Recompute.NONE).value
    found["training.precision"] = next((name for name, word in PRECISIONS.items() if word == text(settings, DTYPE, "bfloat16")), "bf16")
    found["training.num_microbatches"] = integer(settings, STEPS, 1)
    return found


def model_of(settings: Settings) -> ModelSpec | None:
    """The Llama-like model that the settings describe; None where they do not."""
    if f"{_MODEL}hidden_size" not in settings or LAYERS not in settings or HEADS not in settings:
        return None
    hidden, heads = integer(settings, f"{_MODEL}hidden_size", 1), integer(settings, HEADS, 1)
    return ModelSpec(
        name="imported",
        num_layers=integer(settings, LAYERS, 1),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=integer(settings, GROUPS, heads),
        head_dim=max(1, hidden // max(heads, 1)),
        ffn_hidden_size=integer(settings, f"{_MODEL}intermediate_size", 4 * hidden),
        vocab_size=integer(settings, f"{_MODEL}vocab_size", 32000),
        max_position_embeddings=integer(settings, f"{_MODEL}max_position_embeddings", 2048),
        gated_mlp=True,
        norm=Norm.RMS_NORM,
        position_embedding=PositionEmbedding.ROTARY,
        tied_embeddings=is_on(settings, f"{_MODEL}tie_word_embeddings"),
        rotary_base=number(settings, ROTARY_BASE),
        norm_epsilon=number(settings, EPSILON),
        source="imported from a nanotron configuration",
    )
