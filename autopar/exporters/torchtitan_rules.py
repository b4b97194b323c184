"""torchtitan's rules, as its source enforces them: ``distributed/parallel_dims.py``, ``distributed/pipeline_parallel.py``,
``models/common/decoder.py``, ``trainer.py`` (0.3.0, and main of 2026-08 where it differs)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from autopar.costmodel.spec.errors import Fault

from . import torchtitan_settings as titan
from .rule import Configuration, Enforcement, FrameworkRule
from .settings import Settings, integer, text


def _fault(settings: Settings, name: str, required: str, fix: str = "") -> Fault:
    value = settings.get(name, "")
    return Fault(field=name, given=str(value).lower() if isinstance(value, bool) else str(value), required=required, fix=fix)


def degrees(configuration: Configuration) -> dict[str, int]:
    """Degree of each axis, the shards filled in where they are left over (-1)."""
    given = configuration.settings
    found = {name: max(1, integer(given, name, 1)) for name in (titan.REPLICAS, titan.CONTEXT, titan.TENSOR, titan.PIPELINE)}
    shards = integer(given, titan.SHARDS, -1)
    left = configuration.world_size // prod(found.values()) if configuration.world_size else 1
    return {**found, titan.SHARDS: max(1, left if shards == -1 else shards)}


def _world(c: Configuration) -> Iterator[Fault]:
    """The degrees multiply to the world size."""
    found = degrees(c)
    if c.world_size and prod(found.values()) != c.world_size:
        product = " x ".join(map(str, found.values()))
        required = f"replicate x cp x tp x pp x shard = {product} = {prod(found.values())}, and there are {c.world_size} ranks"
        yield _fault(c.settings, titan.SHARDS, required, f"{titan.SHARDS}=-1 takes what is left")


def _expert_ranks(c: Configuration) -> Iterator[Fault]:
    """Expert parallelism divides shard x context x tensor degrees: it borrows their ranks."""
    found, expert = degrees(c), integer(c.settings, titan.EXPERT, 1)
    ranks = found[titan.SHARDS] * found[titan.CONTEXT] * found[titan.TENSOR]
    if c.world_size and ranks % max(expert, 1):
        yield _fault(c.settings, titan.EXPERT, f"must divide shard x cp x tp = {ranks}")


def _heads(c: Configuration) -> Iterator[Fault]:
    """Query heads and key-value heads divide over the tensor-parallel ranks; none is replicated."""
    size = integer(c.settings, titan.TENSOR, 1)
    if c.model is None:
        return
    for field in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(c.model, field)
        if count % size:
            valid = max(n for n in range(1, size) if count % n == 0)
            yield _fault(c.settings, titan.TENSOR, f"must divide {field}={count}", f"{titan.TENSOR}={valid}")


def _experts(c: Configuration) -> Iterator[Fault]:
    """The experts of every layer divide over the expert-parallel ranks."""
    count = c.model.moe.num_experts if c.model is not None and c.model.moe is not None else 0
    size = integer(c.settings, titan.EXPERT, 1)
    if size > 1 and (not count or count % size):
        yield _fault(c.settings, titan.EXPERT, f"must divide num_experts={count}" if count else "the model has no experts")


def _tied(c: Configuration) -> Iterator[Fault]:
    """Tied embeddings run without a pipeline."""
    if c.model is not None and c.model.tied_embeddings and integer(c.settings, titan.PIPELINE, 1) > 1:
        yield _fault(c.settings, titan.PIPELINE, "must be 1 for tied embeddings", f"{titan.PIPELINE}=1")


def _context(c: Configuration) -> Iterator[Fault]:
    """Context parallelism runs with FlexAttention and the spmd_types backend."""
    backend = text(c.settings, "parallelism.spmd_backend", "spmd_types")
    if integer(c.settings, titan.CONTEXT, 1) > 1 and (text(c.settings, titan.ATTENTION, "flex") != "flex" or backend != "spmd_types"):
        yield _fault(c.settings, titan.CONTEXT, "needs attn_backend=flex and spmd_backend=spmd_types")


def _sequence(c: Configuration) -> Iterator[Fault]:
    """The sequence is a multiple of the tensor degree (under sequence parallelism) times twice the context degree."""
    given = titan.in_sequences(c.settings)
    tensor = integer(given, titan.TENSOR, 1) if given.get(titan.SEQUENCE, True) is True else 1
    context = integer(given, titan.CONTEXT, 1)
    step, length = tensor * (2 * context if context > 1 else 1), integer(given, titan.LENGTH, 2048)
    if length % step:
        yield _fault(given, titan.LENGTH, f"must be a multiple of {step}", f"{titan.LENGTH}={length // step * step or step}")


def _batch(c: Configuration) -> Iterator[Fault]:
    """The global batch is a multiple of the local batch x data-parallel degrees, the local one of a pipeline's micro-batch."""
    given, found = titan.in_sequences(c.settings), degrees(c)
    local, piece = integer(given, titan.LOCAL, 8), integer(given, titan.PIECE, 1)
    step, batch = local * found[titan.REPLICAS] * found[titan.SHARDS], integer(given, titan.GLOBAL, -1)
    if c.world_size and batch > 0 and batch % step:
        yield _fault(given, titan.GLOBAL, f"must be a multiple of local batch x data-parallel degrees = {step}")
    if found[titan.PIPELINE] > 1 and (piece < 1 or local % piece):
        yield _fault(given, titan.LOCAL, f"must be a multiple of {titan.PIECE}={piece}")


_SINGLE, _V = ("gpipe", "1f1b"), ("zbvzerobubble", "dualpipev")


def _stages(c: Configuration) -> Iterator[Fault]:
    """Virtual stages are a multiple of the pipeline degree: one a rank, two for V schedules, two or more for looped ones."""
    pipeline, schedule = integer(c.settings, titan.PIPELINE, 1), text(c.settings, titan.SCHEDULE, "1F1B").lower()
    if pipeline < 2 or c.model is None:
        return
    count = len(titan.stage_layers(c.settings, c.model.num_layers))
    each, left = divmod(count, pipeline)
    if left:
        yield _fault(c.settings, titan.PER_STAGE, f"makes {count} stages, which {pipeline} ranks do not divide")
        return
    wanted = "exactly 1" if schedule in _SINGLE else "exactly 2" if schedule in _V else "at least 2"
    if (schedule in _SINGLE and each != 1) or (schedule in _V and each != 2) or (schedule not in _SINGLE and each < 2):
        yield _fault(c.settings, titan.SCHEDULE, f"needs {wanted} stages a rank, and there are {each}")


def _enough_layers(c: Configuration) -> Iterator[Fault]:
    """Stages are no more than the layers, ends counted; every one holds some, and together they hold all."""
    if integer(c.settings, titan.PIPELINE, 1) < 2 or c.model is None:
        return
    split = titan.stage_layers(c.settings, c.model.num_layers)
    if min(split) < 0 or sum(split) != c.model.num_layers or (titan.STAGES not in c.settings and 0 in split[1:-1]):
        yield _fault(c.settings, titan.PIPELINE, f"{len(split)} stages hold {sum(split)} of {c.model.num_layers} layers")


def _bubble(c: Configuration) -> Iterator[Fault]:
    """Fewer micro-batches than stages leave ranks idle: a warning alone."""
    given = titan.in_sequences(c.settings)
    if integer(given, titan.PIPELINE, 1) < 2 or c.model is None:
        return
    count, stages = (
        integer(given, titan.LOCAL, 8) // max(1, integer(given, titan.PIECE, 1)),
        len(titan.stage_layers(given, c.model.num_layers)),
    )
    if count < stages:
        yield _fault(given, titan.LOCAL, f"makes {count} micro-batches for {stages} stages: ranks stay idle")


def _graphs(c: Configuration) -> Iterator[Fault]:
    """CUDA graphs, on by default, do not run under a pipeline."""
    if integer(c.settings, titan.PIPELINE, 1) > 1 and c.settings.get(titan.NO_GRAPHS) is not True:
        yield _fault(c.settings, titan.NO_GRAPHS, f"must be true with {titan.PIPELINE} above 1", f"{titan.NO_GRAPHS}=True")


_GONE = "parallelism.expert_tensor_parallel_degree"


def _expert_tensor(c: Configuration) -> Iterator[Fault]:
    """There is no tensor parallel degree inside experts any more."""
    if integer(c.settings, _GONE, 1) > 1:
        yield _fault(c.settings, _GONE, "is gone: experts are whole", "leave it out")


def _resharding(c: Configuration) -> Iterator[Fault]:
    """Under a pipeline the default policy keeps parameters gathered after the forward pass."""
    if integer(c.settings, titan.PIPELINE, 1) > 1 and text(c.settings, titan.RESHARD, "default") == "default":
        yield _fault(c.settings, titan.RESHARD, "keeps whole parameters under a pipeline", f"{titan.RESHARD}=always saves their memory")


_H, _S, _D = Enforcement.HARD, Enforcement.SILENT, Enforcement.DOCUMENTED

RULES: tuple[FrameworkRule, ...] = tuple(
    FrameworkRule(id=f"TT-{number}", enforcement=how, check=check)
    for number, how, check in (
        (1, _H, _world), (2, _H, _expert_ranks), (3, _H, _heads), (4, _H, _experts), (5, _H, _tied), (6, _H, _context), (7, _H, _sequence),
        (8, _H, _batch), (9, _H, _stages), (10, _H, _enough_layers), (11, _S, _bubble), (12, _H, _graphs), (14, _D, _resharding),
        (15, _D, _expert_tensor),
    )
)  # fmt: skip
