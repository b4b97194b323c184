"""``autopar run --dry-run``: one rank of a plan, built without hardware, beside what was planned for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autopar.costmodel.spec.layout import RankLayout
from autopar.runtime.dry_run import DryBatch, build_rank
from autopar.torch_models import build_model, model_faults, read_hugging_face

if TYPE_CHECKING:
    from autopar.costmodel.spec.plan import Plan
    from autopar.torch_models import BuiltModel

DRY_RUN_SCHEMA_VERSION = "1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One kind of memory."""

    name: str
    built: float | None
    """Bytes; None where it cannot be counted without hardware."""
    planned: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """One rank as it was built."""

    strategy: str
    model: str
    rank: int
    world_size: int
    coordinates: dict[str, int]
    layers: tuple[tuple[int, int], ...]
    """``(first, last + 1)`` blocks of each of its virtual stages."""
    num_parameters: int
    """Before data-parallel sharding."""
    planned_num_parameters: int
    memory: tuple[Compared, ...]
    memory_capacity_bytes: float
    notes: tuple[str, ...]
    schema_version: str = DRY_RUN_SCHEMA_VERSION


def dry_run(plan: Plan, *, rank: int, folder: Path | None) -> DryRun:
    """Build rank ``rank`` of ``plan`` with the model in ``folder``, or one of the plan's shape.

    Raises:
        InvalidInputError: no such rank, another model than the plan's, or what this runtime cannot run; all faults at once.
    """
    from autopar.costmodel.spec.errors import raise_if

    training, strategy = plan.inputs.training, plan.strategy

    def build() -> BuiltModel:
        if folder is not None:
            return read_hugging_face(folder)
        return build_model(plan.inputs.model, sequence_length=training.sequence_length)

    built = build()
    if folder is not None:
        raise_if(model_faults(plan.inputs.model, built.spec))
    batch = DryBatch(global_batch_size=training.global_batch_size, sequence_length=training.sequence_length)
    parts = build_rank(lambda: build().module, strategy, batch, training.precision, rank=rank)
    stage = plan.estimate.stages[RankLayout.of(strategy).coordinates(rank)["pp"]]
    planned = stage.memory
    # Under mixed precision the runtime's sharded fp32 parameters are the planner's master weights.
    mixed = training.precision.master_weight_bytes > 0
    stored, computed = parts.sharded_parameter_bytes, parts.compute_parameter_bytes
    memory = (
        Compared(
            name="parameters", built=computed if mixed else stored + computed, planned=planned.parameters + planned.communication_buffers
        ),
        Compared(name="master weights", built=stored if mixed else 0, planned=planned.master_weights),
        Compared(name="gradients", built=parts.gradient_bytes, planned=planned.gradients),
        Compared(name="optimizer states", built=parts.optimizer_state_bytes, planned=planned.optimizer_states),
        Compared(name="activations and loss", built=parts.activation_bytes, planned=planned.activations + planned.logits_and_loss),
        Compared(name="framework reserve", built=None, planned=planned.framework_reserve),
    )
    notes = list(built.notes)
    if not planned.gradients:
        notes.append("the plan's peak comes before the single micro-batch's backward makes gradients; those built are counted all the same")
    if stage.holds_head:
        notes.append("the logits' gradient, which the loss's backward makes, is planned and not built")
    if parts.activations_not_counted:
        notes.append(f"activations not counted: {parts.activations_not_counted}")
    return DryRun(
        strategy=strategy.describe(),
        model=built.spec.name,
        rank=rank,
        world_size=strategy.world_size,
        coordinates=parts.coordinates,
        layers=parts.layers,
        num_parameters=parts.num_parameters,
        planned_num_parameters=stage.num_parameters,
        memory=memory,
        memory_capacity_bytes=stage.memory_capacity_bytes or plan.estimate.memory_capacity_bytes,
        notes=tuple(notes),
    )
