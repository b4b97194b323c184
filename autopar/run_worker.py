"""One rank of ``autopar run``: builds the model and engine of a plan, trains some steps, and says what they took."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from autopar.accuracy.record import Measured
from autopar.catalog.cpu import CPU, kind_of
from autopar.costmodel.spec.errors import UnavailableError, raise_if
from autopar.run_result import RunOptions, RunResult
from autopar.runtime.agreement import rank_and_size
from autopar.runtime.checkpoint import require_writable
from autopar.runtime.engine import EngineOptions, build_engine
from autopar.runtime.launch import RENDEZVOUS_VARIABLE
from autopar.runtime.measure import MemoryKind, Recorder
from autopar.runtime.token_data import BatchShape, open_tokens
from autopar.torch_models import build_model, read_hugging_face
from autopar.training import FRAMEWORK, choose_device, plan_faults

if TYPE_CHECKING:
    from autopar.costmodel.spec.plan import Plan
    from autopar.runtime.measure import Measurement
    from autopar.torch_models import BuiltModel

Progress = Callable[[int, float], None]
"""Called after each step with its number, from 1, and its loss."""


def train(plan: Plan, options: RunOptions, progress: Progress | None = None) -> tuple[RunResult, Measured]:
    """Train ``options.steps`` steps under ``plan`` on this rank, together with the others; the same result on every rank.

    Raises:
        InvalidInputError: the plan, the model and the job do not belong together; all faults at once.
        UnavailableError: hardware or a package that is needed is absent.
        TrainingFailedError: out of memory, or the loss is no number.
    """
    device = choose_device(options.device, kind_of(plan.inputs.cluster.device))
    join_job(device, options.timeout_seconds)
    built = model_of(plan, options.model)
    raise_if(plan_faults(plan, built.spec if options.model else plan.inputs.model, rank_and_size()[1], None))
    training = plan.inputs.training
    shape = BatchShape(
        global_batch_size=training.global_batch_size,
        sequence_length=training.sequence_length,
        vocab_size=built.spec.vocab_size,
        seed=options.seed,
    )
    data = open_tokens(options.data, shape)
    engine = build_engine(
        built.module,
        plan.strategy,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=options.learning_rate),
        global_batch_size=training.global_batch_size,
        options=EngineOptions(precision=training.precision, max_grad_norm=options.max_grad_norm, seed=options.seed),
        device=device,
    )
    if options.save is not None:
        require_writable(options.save)
    if options.resume is not None:
        engine.load(options.resume)
    first = engine.step
    recorder = Recorder(device, warmup_steps=min(options.warmup_steps, options.steps - 1))
    losses = []
    for step in range(first, first + options.steps):
        batch = data.batch(step)
        with recorder.step():
            losses.append(engine.train_step({"input_ids": batch, "labels": batch}))
        if progress is not None:
            progress(step - first + 1, losses[-1])
        if options.save is not None and (
            step + 1 == first + options.steps or (options.save_every and (step + 1) % options.save_every == 0)
        ):
            engine.save(options.save)
    measurement = recorder.result(tokens_per_step=training.tokens_per_step)
    return _result(plan, options, built, device, measurement, first, losses), _measured(plan, built, device, measurement)


def model_of(plan: Plan, folder: Path | None) -> BuiltModel:
    """The model to train, on the meta device: the one in ``folder``, else one of the plan's shape."""
    if folder is not None:
        return read_hugging_face(folder)
    return build_model(plan.inputs.model, sequence_length=plan.inputs.training.sequence_length)


def join_job(device: torch.device, timeout_seconds: float) -> None:
    """Meet the other ranks, over the launcher's file or at torchrun's address.

    Raises:
        UnavailableError: the address is taken, or nobody is there.
    """
    import torch.distributed as dist

    from autopar.runtime.mesh import ensure_process_group

    timeout = timedelta(seconds=timeout_seconds)
    if dist.is_initialized():
        return
    rendezvous = os.environ.get(RENDEZVOUS_VARIABLE)
    if rendezvous is None:
        try:
            ensure_process_group(device, timeout)
        except dist.DistNetworkError as error:
            where = f"{os.environ.get('MASTER_ADDR', 'localhost')}:{os.environ.get('MASTER_PORT', '')}"
            taken = "EADDRINUSE" in str(error) or "in use" in str(error)
            reason = "the port is in use" if taken else "no answer from there"
            raise UnavailableError(f"ranks cannot meet at {where}: {reason}; another --master-port of torchrun may be free") from None
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{rendezvous}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )


def _result(
    plan: Plan, options: RunOptions, built: BuiltModel, device: torch.device, measurement: Measurement, first: int, losses: list[float]
) -> RunResult:
    estimate, name = plan.estimate, device_id(device)
    same = name == kind_of(plan.inputs.cluster.device)
    notes = list(built.notes)
    if not same:
        notes.append(f"the plan is for {plan.inputs.cluster.device.id}; times and memory here are of {name}, and MFU is not given")
    return RunResult(
        strategy=plan.strategy.describe(),
        model=built.spec.name,
        device=name,
        world_size=measurement.world_size,
        first_step=first + 1,
        steps=len(losses),
        first_loss=losses[0],
        last_loss=losses[-1],
        step_time_seconds=measurement.step_time_seconds,
        step_seconds=measurement.step_seconds,
        tokens_per_second=measurement.tokens_per_second,
        tokens_per_second_per_gpu=measurement.tokens_per_second_per_gpu,
        # the same FLOPs over the same peak as in the plan, in the time that was measured
        mfu=estimate.mfu * estimate.step_time_seconds / measurement.step_time_seconds if same else None,
        planned_step_time_seconds=estimate.step_time_seconds,
        planned_peak_memory_bytes=estimate.peak_memory_bytes,
        peak_memory_bytes=measurement.peak_memory_bytes,
        memory_kind=measurement.memory_kind.value,
        checkpoint=str(options.save) if options.save else None,
        notes=tuple(notes),
    )


def _measured(plan: Plan, built: BuiltModel, device: torch.device, measurement: Measurement) -> Measured:
    allocated = measurement.memory_kind is MemoryKind.ALLOCATED
    return Measured(
        model=built.spec,
        training=plan.inputs.training,
        strategy=plan.strategy,
        framework=FRAMEWORK,
        device=device_id(device),
        gpus_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        step_time_seconds=measurement.step_time_seconds,
        peak_memory_bytes=max(measurement.peak_memory_bytes) if allocated else None,
        notes=f"autopar run, median of {len(measurement.step_seconds)} steps, {time.strftime('%Y-%m-%d', time.gmtime())}",
    )


def device_id(device: torch.device) -> str:
    """The catalog's id of this device, or its driver's name where the catalog has none."""
    if device.type == "cpu":
        return CPU
    from autopar.catalog.hardware import device as catalog_device
    from autopar.costmodel.spec.errors import UnknownNameError

    name = torch.cuda.get_device_name(device)
    try:
        return catalog_device(name).id
    except UnknownNameError:
        return name
