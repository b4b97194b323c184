"""A measured run of a plan as a row of the tables that ``autopar accuracy`` and ``autopar calibrate`` read."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.costmodel.spec.model import ModelSpec
from autopar.costmodel.spec.strategy import RankOrder, Strategy
from autopar.costmodel.spec.training import TrainingSpec
from autopar.costmodel.spec.units import GB
from autopar.io.files import target_faults, write_text

from .runs import ORDER_NOTE, Run, read_runs

COLUMNS = tuple(field.name for field in fields(Run))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one run measured, beside what it ran."""

    model: ModelSpec
    training: TrainingSpec
    strategy: Strategy
    framework: str
    device: str
    """Catalog id, or the name its driver gives."""
    gpus_per_node: int
    step_time_seconds: float | None
    peak_memory_bytes: float | None
    """Tensors of the fullest rank; None where no allocator tells."""
    notes: str = ""


def _order_note(strategy: Strategy) -> str:
    return "" if strategy.rank_order is RankOrder.TP_CP_DP_PP else f"{ORDER_NOTE}{strategy.rank_order.value}"


def run_of(measured: Measured, run_id: str) -> Run:
    """The row."""
    model, training, strategy = measured.model, measured.training, measured.strategy
    pipelined, seconds = strategy.pipeline_parallel_size > 1, measured.step_time_seconds
    tokens = training.tokens_per_step / seconds / strategy.world_size if seconds else None
    return Run(
        run_id=run_id,
        family="own",
        device=measured.device,
        framework=measured.framework,
        model_name=model.name,
        sharding_as_stated=f"zero-{strategy.zero_stage}" if strategy.zero_stage else "0",
        recompute=": ".join([strategy.recompute.value, *(["+".join(strategy.recompute_modules)] if strategy.recompute_modules else [])]),
        precision=training.precision.name,
        notes="; ".join(filter(None, (measured.notes, _order_note(strategy)))),
        pipeline_schedule=strategy.pipeline_schedule.value if pipelined else "",
        gpus_per_node=measured.gpus_per_node,
        num_gpus=strategy.world_size,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        sequence_length=training.sequence_length,
        global_batch_size=training.global_batch_size,
        micro_batch_size=strategy.micro_batch_size,
        tensor_parallel_size=strategy.tensor_parallel_size,
        pipeline_parallel_size=strategy.pipeline_parallel_size,
        virtual_pipeline_stages=strategy.virtual_pipeline_stages,
        context_parallel_size=strategy.context_parallel_size,
        data_parallel_size=strategy.data_parallel_size,
        num_recompute_layers=strategy.num_recompute_layers,
        step_time_seconds=seconds,
        tokens_per_second_per_gpu=tokens,
        peak_memory_gb=measured.peak_memory_bytes / GB if measured.peak_memory_bytes else None,
        gated_mlp=model.gated_mlp,
        tied_embeddings=model.tied_embeddings,
        sequence_parallel=strategy.sequence_parallel,
    )


def append_runs(path: str | Path, runs: Sequence[Run]) -> None:
    """Add ``runs`` to the table at ``path``, which is made where there is none; the file is replaced whole.

    Raises:
        InvalidInputError: the file cannot be written, or is there and is no such table.
    """
    before = _kept(Path(path))
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for run in (*before, *runs):
        writer.writerow({name: _text(getattr(run, name)) for name in COLUMNS})
    write_text(path, stream.getvalue(), field="--output")


def require_table(path: str | Path) -> None:
    """Raise InvalidInputError where :func:`append_runs` would, before the runs that it is to keep."""
    raise_if(target_faults(path, field="--output"))
    _kept(Path(path))


def _kept(path: Path) -> tuple[Run, ...]:
    """The rows that are there already.

    Raises:
        InvalidInputError: rows that cannot be read, and would be lost.
    """
    if not path.is_file() or not path.stat().st_size:
        return ()
    runs, unread = read_runs(path)
    if unread:
        required = f"a table of runs is needed to add to; {unread[0].run_id}: {unread[0].reason}"
        raise InvalidInputError(Fault(field="--output", given=repr(str(path)), required=required, fix="name another file"))
    return runs


def _text(value: str | float | bool | None) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
