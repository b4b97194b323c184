"""``autopar.parallelize``: an engine that trains an unmodified PyTorch model under a plan.

>>> engine = autopar.parallelize(model, optimizer=lambda p: torch.optim.AdamW(p, lr=3e-4), global_batch_size=64)
>>> for batch in loader:
...     loss = engine.train_step(batch)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import torch
from torch import nn

from autopar.catalog.cpu import CPU, cpu_cluster, kind_of
from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnavailableError, raise_if
from autopar.costmodel.spec.plan import Plan
from autopar.mixed_problem import unequal_faults
from autopar.plan_choice import choose, strategies
from autopar.runtime.agreement import from_first_rank, rank_and_size
from autopar.runtime.context import loss_faults, sequence_faults
from autopar.runtime.engine import Engine, EngineOptions, build_engine
from autopar.runtime.mesh import ensure_process_group
from autopar.runtime.structure import read_structure
from autopar.runtime.support import training_faults
from autopar.torch_models import model_faults, spec_of

if TYPE_CHECKING:
    from autopar.costmodel.spec.calibration import Calibration
    from autopar.costmodel.spec.cluster import ClusterSpec
    from autopar.costmodel.spec.model import ModelSpec
    from autopar.costmodel.spec.strategy import Strategy
    from autopar.runtime.engine import LossFunction, OptimizerBuilder
    from autopar.runtime.random.initialise import Initialiser
    from autopar.runtime.structure import ModelStructure

FRAMEWORK = "autopar"
"""The execution profile of this runtime."""
CANDIDATES = 50
"""Strategies looked through for one that this runtime can run on the model at hand."""


class Limits(TypedDict, total=False):
    """What :func:`autopar.plan` may be held to."""

    fix: Mapping[str, int | str | bool] | Iterable[str]
    maximum: Mapping[str, int] | Iterable[str]
    minimum: Mapping[str, int] | Iterable[str]
    forbid: Iterable[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be planned."""

    spec: ModelSpec
    cluster: ClusterSpec
    global_batch_size: int
    sequence_length: int | None
    precision: str
    profile: str | Path | Calibration | None
    limits: Limits
    loss_fn: LossFunction | None = None


def parallelize(
    model: nn.Module,
    cluster: ClusterSpec | str | Path | None = None,
    *,
    optimizer: OptimizerBuilder,
    global_batch_size: int | None = None,
    loss_fn: LossFunction | None = None,
    plan: Plan | str | Path | None = None,
    sequence_length: int | None = None,
    precision: str | None = None,
    profile: str | Path | Calibration | None = None,
    device: str | torch.device | None = None,
    max_grad_norm: float | None = None,
    seed: int = 0,
    initialise: Initialiser | None = None,
    **limits: Unpack[Limits],
) -> Engine:
    """An engine that trains ``model`` under a plan, in a job that torchrun started or in this one process.

    Args:
        model: any module with a list of repeated blocks; on the meta device each rank makes its own shard alone.
        cluster: what to plan for: a spec, a catalog id or a file. Left out: the GPUs of the job, or its CPU cores.
        optimizer: takes parameters and returns a torch optimizer over them.
        global_batch_size: sequences of one optimizer step, over all ranks; may be left out with a plan, which says it.
        loss_fn: takes the model's output and the batch; left out for a model that returns its own loss, or next-token loss.
        plan: a plan, or the path of a plan file; left out, rank 0 plans and all ranks get its plan.
        sequence_length: tokens of one sequence, for planning; the model's usual if left out.
        precision: ``bf16`` (the default on GPUs), ``amp-bf16``, ``pure-bf16``, ``fp32`` (the default on a CPU) or ``tf32``.
        profile: constants that ``autopar calibrate`` found, for planning.
        device: where to run; left out: this rank's GPU, or the CPU where the cluster is one.
        max_grad_norm: largest norm of all gradients together; larger ones are scaled down.
        seed: of initial weights and dropout, which do not depend on the layout.
        initialise: sets a module's initial weights in place, called for every module of a model on the meta device, children
            first, after the model's own code.
        limits: ``fix``, ``maximum``, ``minimum`` and ``forbid`` of :func:`autopar.plan`.

    Raises:
        InvalidInputError: the plan is not for this model, batch or number of ranks, or holds what this runtime cannot run;
            all faults at once, on every rank.
        UnavailableError: a GPU is needed and there is none.
        NoPlanError: nothing fits, or nothing that fits can be run.
    """
    given = _read(plan)
    place = choose_device(device, _cluster_kind(given, cluster))
    ensure_process_group(place, timedelta(minutes=10))
    given = from_first_rank(lambda: given)
    structure = read_structure(model)
    spec = spec_of(model, structure)
    if given is not None:
        raise_if(plan_faults(given, spec, rank_and_size()[1], global_batch_size))
    elif global_batch_size is None:
        required = "sequences of one step are needed where no plan says them"
        raise InvalidInputError(Fault(field="global_batch_size", given="", required=required, fix="for example global_batch_size=64"))
    else:
        size = rank_and_size()[1]
        question = Question(
            spec=spec,
            cluster=_cluster(cluster, place, size),
            global_batch_size=global_batch_size,
            sequence_length=sequence_length,
            precision=precision or ("fp32" if place.type == "cpu" else "bf16"),
            profile=profile,
            limits=limits,
            loss_fn=loss_fn,
        )
        given = from_first_rank(lambda: plan_for(question, model, structure))
    training = given.inputs.training
    return build_engine(
        model,
        given.strategy,
        optimizer=optimizer,
        loss_fn=loss_fn,
        global_batch_size=training.global_batch_size,
        options=EngineOptions(precision=training.precision, max_grad_norm=max_grad_norm, seed=seed, initialise=initialise),
        device=place,
    )


def plan_for(question: Question, model: nn.Module, structure: ModelStructure) -> Plan:
    """The fastest plan that fits and that this runtime can run on ``model``.

    Raises:
        NoPlanError: there is none.
    """
    from autopar.api import plan as find_plan
    from autopar.costmodel.spec.errors import NoPlanError

    found = find_plan(
        question.spec,
        top=CANDIDATES,
        cluster=question.cluster,
        global_batch_size=question.global_batch_size,
        sequence_length=question.sequence_length,
        precision=question.precision,
        framework=FRAMEWORK,
        profile=question.profile,
        **question.limits,
    )
    training = found.inputs.training

    def refused(strategy: Strategy) -> tuple[Fault, ...]:
        faults = training_faults(model, structure, strategy, global_batch_size=training.global_batch_size, precision=training.precision)
        split = (*sequence_faults(training.sequence_length, strategy, model), *loss_faults(question.loss_fn, strategy))
        return (*faults, *split)

    for strategy in strategies(found, CANDIDATES):
        if not refused(strategy):
            return choose(found, strategy)
    reasons = "\n".join(f"  {fault}" for fault in refused(found.strategy))
    raise NoPlanError(f"of the {CANDIDATES} fastest strategies that fit this runtime can run none; the first, because:\n{reasons}")


def plan_faults(plan: Plan, spec: ModelSpec, world_size: int, global_batch_size: int | None) -> tuple[Fault, ...]:
    """Everything in which ``plan`` is for another run than this one."""
    faults = [*model_faults(plan.inputs.model, spec), *unequal_faults(plan)]
    planned = plan.strategy.world_size
    if world_size != planned:
        fix = f"start the job with {planned} processes, or plan for {world_size}"
        faults.append(Fault(field="world_size", given=str(world_size), required=f"the plan is for {planned} ranks", fix=fix))
    batch = plan.inputs.training.global_batch_size
    if global_batch_size not in (None, batch):
        fix = "leave it out, or plan again"
        faults.append(Fault(field="global_batch_size", given=str(global_batch_size), required=f"the plan is for {batch}", fix=fix))
    return tuple(faults)


def _read(plan: Plan | str | Path | None) -> Plan | None:
    """The plan that was given. Every rank reads the file, since the plan says which device to run on, before ranks can talk."""
    if plan is None or isinstance(plan, Plan):
        return plan
    from autopar.io.plan_file import read_plan

    return read_plan(plan)


def choose_device(device: str | torch.device | None, planned_for: str | None) -> torch.device:
    """Where this rank runs: what was asked for, else its own GPU, else the CPU where that is what was planned for.

    Args:
        planned_for: id of the device of the plan or cluster; None where neither is given.

    Raises:
        UnavailableError: a GPU is needed and there is none, or fewer than this machine has ranks.
    """
    wanted = torch.device(device) if device is not None else None
    if wanted is None:
        wanted = (
            torch.device("cpu") if planned_for == CPU or (planned_for is None and not torch.cuda.is_available()) else torch.device("cuda")
        )
    if wanted.type != "cuda" or wanted.index is not None:
        return wanted
    local, here = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count() if torch.cuda.is_available() else 0
    needed = int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))
    if here < needed:
        what = f"a plan for {planned_for} " if planned_for else ""
        fix = "; device='cpu' (--device cpu) runs it on the cores of this machine" if not here else ""
        raise UnavailableError(f"{what}needs {needed} GPU{'s' * (needed > 1)} on this machine, which has {here or 'none'}{fix}")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _cluster_kind(plan: Plan | None, cluster: ClusterSpec | str | Path | None) -> str | None:
    if plan is not None:
        return kind_of(plan.inputs.cluster.device)
    if cluster is None:
        return None
    if isinstance(cluster, str | Path):
        from autopar.request import resolve_cluster

        cluster = resolve_cluster(cluster, int(os.environ.get("WORLD_SIZE", "1")), None, [])
    return kind_of(cluster.device)


def _cluster(cluster: ClusterSpec | str | Path | None, device: torch.device, world_size: int) -> ClusterSpec:
    """The cluster that was named, or the one that the job's ranks make.

    Raises:
        UnknownNameError: the catalog does not hold this GPU.
    """
    if cluster is not None:
        from autopar.request import resolve_cluster

        return resolve_cluster(cluster, world_size, None, [])
    if device.type == "cpu":
        return cpu_cluster(world_size)
    from autopar.catalog.hardware import cluster_for_device

    return cluster_for_device(torch.cuda.get_device_name(device), world_size)
