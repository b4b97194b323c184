"""From what a user said to the problem that is solved, with a line for everything left unsaid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.calibration import Calibration
from autopar.costmodel.spec.cluster import ClusterSpec, DeviceSpec, Hosts
from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnavailableError, raise_if
from autopar.costmodel.spec.model import ModelSpec
from autopar.costmodel.spec.training import Precision, TrainingSpec, precision_named
from autopar.costmodel.spec.units import format_count, parse_bytes

if TYPE_CHECKING:
    from autopar.costmodel.spec.framework import ExecutionProfile
    from autopar.costmodel.spec.hardware import HardwareProfile
    from autopar.costmodel.spec.measured import MeasuredProfile
    from autopar.costmodel.spec.plan import Plan, PlanInputs
    from autopar.io.switch_tree import SwitchTree

T = TypeVar("T")

DEFAULT_DEVICE = "h100-sxm5-80gb"
DEFAULT_FRAMEWORK = "megatron-core"
DEFAULT_TOKENS_PER_STEP = 2**22
"""Of a model whose usual batch is not known: 4M tokens a step, as large public runs take."""
DEFAULT_SEQUENCE_LENGTH = 4096


def build_problem(
    model: str | Path | ModelSpec,
    *,
    cluster: str | Path | ClusterSpec | None = None,
    gpus: int | None = None,
    gpu: str | None = None,
    global_batch_size: int | None = None,
    sequence_length: int | None = None,
    precision: str | None = None,
    framework: str = DEFAULT_FRAMEWORK,
    memory_reserve: str | int | None = None,
    profile: str | Path | Calibration | MeasuredProfile | None = None,
    allow_other_device: bool = False,
    topology: str | Path | SwitchTree | None = None,
    hosts: str | Path | Sequence[str] | None = None,
) -> tuple[Problem, tuple[str, ...]]:
    """The problem, and one line for each thing assumed.

    Args:
        model: catalog name, path of a Hugging Face ``config.json`` or of its folder, or a spec.
        cluster: catalog id of a node type, path of a cluster file, or a spec; not together with ``gpu``.
        gpus: number of GPUs; may be left out where the cluster says it.
        gpu: catalog name of the device, in the nodes it usually comes in. Neither this nor ``cluster``: H100 SXM.
        global_batch_size: sequences of one optimizer step; the model's usual one if left out.
        sequence_length: tokens of one sequence; the model's usual one if left out.
        precision: ``bf16`` (default), ``fp16``, ``fp8``, ``mxfp8``, …; see ``autopar.costmodel.spec.training.PRECISIONS``.
        framework: execution profile of the training framework.
        memory_reserve: bytes (``"4GiB"`` or a number) kept free on each GPU in place of the framework's own reserve.
        profile: file written by ``autopar profile`` (measured times) or ``autopar calibrate`` (constants), or its content; or the
            name of a measured profile of the catalog.
        allow_other_device: use measured times of another device than the cluster's.
        topology: the switches above the hosts: Slurm's ``topology.conf``, a TOML or JSON list of hosts with their switches, a
            ``[fabric]`` table, or the name of a fabric of the catalog.
        hosts: the nodes of the job, ``"node[001-032,040]"``, a file of them or their names; all of the topology's if left out.
            Without ``gpus`` the job is as large as its hosts.

    Raises:
        InvalidInputError: with all faults of the question at once.
        UnknownNameError: a name that the catalog does not hold, with the close matches.
    """
    notes: list[str] = []
    faults: list[Fault] = []
    found_model = gather(faults, lambda: resolve_model(model))
    found_cluster = gather(faults, lambda: _placed_cluster(cluster, gpus, gpu, topology, hosts, notes))
    reserve = gather(faults, lambda: _reserve(memory_reserve))
    execution = gather(faults, lambda: _framework(framework))
    given = gather(faults, lambda: _profile(profile))
    measured = None if given is None or isinstance(given, Calibration) else given
    if measured is not None and found_cluster is not None:
        gather(faults, lambda: _refuse_other_device(measured, found_cluster.device, allowed=allow_other_device))
    chosen = gather(faults, lambda: _precision(precision, found_cluster.device if found_cluster else None, notes))
    training = gather(faults, lambda: _training(found_model, global_batch_size, sequence_length, chosen, notes))
    raise_if(faults)
    if not (found_model and found_cluster and execution and training):
        raise InvalidInputError("the question is incomplete")
    if framework == DEFAULT_FRAMEWORK:
        notes.append(f"framework: {execution.name} (overlap, kernels and memory reserve as it has them)")
    problem = _problem(found_model, found_cluster, training, execution.id, reserve, measured)
    if measured is not None:
        notes.append(_measured_note(measured, found_cluster.device))
    if isinstance(given, Calibration):
        problem = _calibrated(problem, given, notes)
    return problem, tuple(notes)


def problem_of(plan: Plan) -> Problem:
    """The problem that ``plan`` answers, from its own inputs.

    Raises:
        InvalidInputError: the plan is for a mixed cluster, which is no one problem.
    """
    if plan.mixed is not None:
        given = f"a plan for a mixed cluster ({', '.join(f'{pool.name}={pool.cluster.num_gpus}' for pool in plan.mixed.pools)})"
        required = "this takes plans for one kind of GPU"
        raise InvalidInputError(Fault(field="plan", given=given, required=required, fix="autopar estimate, explain and export take it"))
    return problem_from(plan.inputs)


def problem_from(inputs: PlanInputs) -> Problem:
    """The problem that the inputs of a plan make."""
    problem = _problem(inputs.model, inputs.cluster, inputs.training, inputs.framework, inputs.memory_reserve_bytes, inputs.measured)
    return problem if inputs.calibration is None else _calibrated(problem, inputs.calibration, [])


def resized(problem: Problem, num_gpus: int) -> Problem | None:
    """``problem`` on ``num_gpus`` GPUs of its cluster, with the link tiers that many need; None where it has no such size.

    A cluster of the catalog is built anew (one node has no network tier, several have); any other keeps its tiers.
    """
    from autopar.catalog import hardware
    from autopar.catalog.links import link_profiles

    def of_size(size: int) -> ClusterSpec:
        return hardware.cluster(problem.cluster.id, size, device=problem.cluster.device)

    now, known = problem.cluster, dict(zip(problem.cluster.tiers, problem.links, strict=True))
    try:
        is_catalogs = now.id in hardware.cluster_names() and of_size(now.num_gpus).tiers == now.tiers
        if not is_catalogs and 0 < now.network_tier.domain_size < num_gpus:
            return None
        cluster = of_size(num_gpus) if is_catalogs else _part_of(now, num_gpus)
    except InvalidInputError:
        return None
    links = tuple(known.get(tier, link) for tier, link in zip(cluster.tiers, link_profiles(cluster), strict=True))
    changed = replace(problem, cluster=cluster, links=links)
    return changed if problem.calibration is None else _calibrated(changed, problem.calibration, [])


def _part_of(cluster: ClusterSpec, num_gpus: int) -> ClusterSpec:
    """``cluster`` at another size: of named hosts the first ones; more hosts than there are have no names, and fill the switches evenly."""
    nodes, hosts = -(-num_gpus // cluster.gpus_per_node), cluster.hosts
    if hosts is not None:
        switches = tuple(row[:nodes] for row in hosts.switches)
        fewer = Hosts(names=hosts.names[:nodes], switches=switches, fast_domains=hosts.fast_domains[:nodes])
        hosts = fewer if nodes <= cluster.num_nodes else None
    return replace(cluster, num_gpus=num_gpus, hosts=hosts)


def _problem(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    framework: str,
    reserve: float | None,
    measured: MeasuredProfile | None,
) -> Problem:
    from autopar.catalog.frameworks import framework as profile_named
    from autopar.catalog.links import link_profiles
    from autopar.catalog.residuals import residual_table
    from autopar.costmodel.measurements import Measurements

    return Problem(
        model=model,
        cluster=cluster,
        training=training,
        framework=profile_named(framework),
        hardware=_hardware(cluster.device, measured),
        links=link_profiles(cluster),
        memory_reserve_bytes=reserve,
        measured=None if measured is None else Measurements(measured),
        residuals=residual_table(),
    )


def _hardware(device: DeviceSpec, measured: MeasuredProfile | None) -> HardwareProfile:
    """The catalog's constants of ``device``; those read off its own measured points where the catalog has none."""
    from autopar.catalog.profiles import hardware_profile
    from autopar.costmodel.measurements import measured_constants

    try:
        return hardware_profile(device)
    except UnavailableError:
        if measured is None or measured.device != device.id:
            raise
        return measured_constants(measured, device)


def _profile(profile: str | Path | Calibration | MeasuredProfile | None) -> Calibration | MeasuredProfile | None:
    if not isinstance(profile, str | Path):
        return profile
    from autopar.catalog.measured import measured_names, measured_profile
    from autopar.io.profile_file import read_profile

    if str(profile) in measured_names() and not looks_like_path(profile) and not _is_there(profile):
        return measured_profile(str(profile))
    return read_profile(profile)


def _refuse_other_device(measured: MeasuredProfile, device: DeviceSpec, *, allowed: bool) -> None:
    if measured.device != device.id and not allowed:
        required = f"times measured on another device than {device.id}"
        fix = "plan with a cluster of that device, or pass --allow-other-device to use them all the same"
        raise InvalidInputError(Fault(field="profile", given=measured.device, required=required, fix=fix))


def _measured_note(measured: MeasuredProfile, device: DeviceSpec) -> str:
    other = "" if measured.device == device.id else f", a profile of {measured.device} used for {device.id} as asked"
    date = f", {measured.machine.date}" if measured.machine.date else ""
    return f"profile: {measured.num_points} times measured on {measured.machine.device_name or measured.device}{date}{other}"


def _calibrated(problem: Problem, calibration: Calibration, notes: list[str]) -> Problem:
    """``problem`` with the profile's constants, and a note of what they are and how many are of other machines.

    Raises:
        InvalidInputError: the profile has constants, and none of them is of this device, cluster or framework.
    """
    from autopar.costmodel.constants import calibrated, concerns

    mine = [constant for constant in calibration.constants if concerns(problem, constant)]
    if calibration.constants and not mine:
        given = f"{', '.join(calibration.devices)} under {', '.join(calibration.frameworks)}"
        asked = f"{problem.cluster.device.id} in {problem.cluster.id} under {problem.framework.id}"
        raise InvalidInputError(
            Fault(field="profile", given=given, required=f"calibrated on other machines than {asked}", fix="leave --profile out")
        )
    if not calibration.constants:
        notes.append("profile: its rows did not improve on the catalog's constants, which are used")
        return calibrated(problem, calibration)
    others = len(calibration.constants) - len(mine)
    aside = f"; {others} of other devices, links or frameworks left aside" if others else ""
    notes.append(f"profile: {len(mine)} constants calibrated on {calibration.rows} measured rows{aside}")
    return calibrated(problem, calibration)


def gather(faults: list[Fault], read: Callable[[], T]) -> T | None:
    """What ``read`` returns, or None after keeping its faults, so that a question's faults are all told at once."""
    try:
        return read()
    except InvalidInputError as error:
        faults.extend(error.faults)
        return None


def resolve_model(model: str | Path | ModelSpec) -> ModelSpec:
    """The model that a catalog name, a path or a spec means; raises as :func:`build_problem`."""
    if isinstance(model, ModelSpec):
        return model
    if not isinstance(model, str | Path):
        required, fix = "a catalog name, a path of a config.json or a ModelSpec is needed", "autopar.parallelize takes a PyTorch model"
        raise InvalidInputError(Fault(field="model", given=type(model).__name__, required=required, fix=fix))
    from autopar.catalog.models import model_names

    if is_file(model, model_names()):
        from autopar.io.hf_config import read_model

        return read_model(Path(model))
    from autopar.catalog.models import model as model_named

    return model_named(str(model))


def looks_like_path(name: str | Path) -> bool:
    """Whether ``name`` can only be meant as a file or folder: it has a separator or a file's ending."""
    return isinstance(name, Path) or "/" in name or "\\" in name or name in (".", "..") or name.endswith((".json", ".toml"))


def is_file(name: str | Path, known: tuple[str, ...]) -> bool:
    """Whether ``name`` means a file: it looks like one, or is one and none of the ``known`` names."""
    return looks_like_path(name) or (str(name) not in known and _is_there(name))


def _is_there(name: str | Path) -> bool:
    try:
        return bool(name) and Path(name).exists()
    except OSError:
        return False


def resolve_cluster(cluster: str | Path | ClusterSpec | None, gpus: int | None, gpu: str | None, notes: list[str]) -> ClusterSpec:
    """The cluster that the flags mean, with a note of what was left unsaid; raises as :func:`build_problem`."""
    from autopar.catalog import hardware

    if isinstance(cluster, ClusterSpec):
        _refuse_other_size(cluster, gpus)
        return cluster
    if cluster is not None and gpu is not None:
        raise InvalidInputError(
            Fault(field="gpu", given=repr(gpu), required="a cluster says its own device", fix="give gpu or cluster, not both")
        )
    if cluster is not None and is_file(cluster, hardware.cluster_names()):
        return hardware.read_cluster_file(Path(cluster), gpus)
    if gpus is None:
        raise InvalidInputError(Fault(field="gpus", given="", required="the number of GPUs is needed", fix="for example --gpus 64"))
    if cluster is not None:
        return hardware.cluster(str(cluster), gpus)
    found = hardware.cluster_for_device(gpu or DEFAULT_DEVICE, gpus)
    if gpu is None:
        notes.append(f"GPUs: {found.device.name} in {found.id} nodes of {found.gpus_per_node} (neither a GPU nor a cluster was named)")
    else:
        notes.append(f"nodes: {found.id}, {found.gpus_per_node} GPUs each (usual for {found.device.name})")
    return found


def _placed_cluster(
    cluster: str | Path | ClusterSpec | None,
    gpus: int | None,
    gpu: str | None,
    topology: str | Path | SwitchTree | None,
    hosts: str | Path | Sequence[str] | None,
    notes: list[str],
) -> ClusterSpec:
    """The cluster, with the hosts and switches that were given."""
    if topology is None and hosts is None:
        return resolve_cluster(cluster, gpus, gpu, notes)
    from autopar.placing import Topology

    faults: list[Fault] = []
    given = gather(faults, lambda: Topology(topology, hosts))
    if gpus is None and given is not None and given.names and not isinstance(cluster, ClusterSpec):
        per_node = gather(faults, lambda: _gpus_per_node(cluster, gpu)) or 1
        gpus = len(given.names) * per_node
        notes.append(f"GPUs: {gpus}, {per_node} on each of the {len(given.names)} hosts")
    found = gather(faults, lambda: resolve_cluster(cluster, gpus, gpu, notes)) if not faults or gpus is not None else None
    raise_if(list(dict.fromkeys(faults)))
    assert given is not None, "gather keeps a fault where it returns nothing"
    assert found is not None, "gather keeps a fault where it returns nothing"
    return given.on(found, notes)


def _gpus_per_node(cluster: str | Path | None, gpu: str | None) -> int:
    """Of the cluster at the size that it says itself, or at the least there is."""
    try:
        return resolve_cluster(cluster, None, gpu, []).gpus_per_node
    except InvalidInputError:
        return resolve_cluster(cluster, 1, gpu, []).gpus_per_node


def _refuse_other_size(cluster: ClusterSpec, gpus: int | None) -> None:
    if gpus is not None and gpus != cluster.num_gpus:
        raise InvalidInputError(Fault(field="gpus", given=str(gpus), required=f"the cluster {cluster.id} has {cluster.num_gpus}"))


def _reserve(memory_reserve: str | int | None) -> float | None:
    if memory_reserve is None:
        return None
    value = parse_bytes(memory_reserve, field="memory_reserve") if isinstance(memory_reserve, str) else memory_reserve
    if not 0 <= value < float("inf"):
        raise InvalidInputError(Fault(field="memory_reserve", given=str(value), required="0 bytes or more"))
    return float(value)


def _framework(name: str) -> ExecutionProfile:
    from autopar.catalog.frameworks import framework

    return framework(name)


def _precision(name: str | None, device: DeviceSpec | None, notes: list[str]) -> Precision:
    if name is None:
        has_bf16 = device is None or "bf16" in device.peak_flops
        has_fp16 = device is None or "fp16" in device.peak_flops
        chosen = precision_named("bf16" if has_bf16 else "fp16" if has_fp16 else "fp32")
        why = "" if has_bf16 or device is None else f" ({device.name} has no bf16)"
        masters = " with fp32 master weights" if chosen.master_weight_bytes else ""
        notes.append(f"precision: {chosen.name}{masters}{' and' if masters else ' with'} Adam{why}")
        return chosen
    chosen = precision_named(str(name))
    if device is not None and chosen.linear.value not in device.peak_flops:
        known = ", ".join(device.peak_flops)
        raise InvalidInputError(
            Fault(field="precision", given=repr(name), required=f"{device.name} does not compute in it", fix=f"it has {known}")
        )
    return chosen


def _training(
    model: ModelSpec | None, batch: int | None, sequence: int | None, precision: Precision | None, notes: list[str]
) -> TrainingSpec:
    if model is not None and sequence is None:
        sequence = model.default_sequence_length or min(DEFAULT_SEQUENCE_LENGTH, model.max_position_embeddings or DEFAULT_SEQUENCE_LENGTH)
        origin = "the model's usual one" if model.default_sequence_length else "none is known for this model"
        notes.append(f"sequence length: {sequence:,} tokens ({origin})")
    if model is not None and batch is None:
        batch = model.default_global_batch_size or max(1, DEFAULT_TOKENS_PER_STEP // max(1, sequence or 1))
        origin = "the model's usual one" if model.default_global_batch_size else "none is known for this model"
        tokens = format_count(batch * (sequence or 0))
        notes.append(f"global batch: {batch:,} sequences, {tokens} tokens a step ({origin})")
    spec = TrainingSpec(global_batch_size=1 if batch is None else batch, sequence_length=1 if sequence is None else sequence)
    return TrainingSpec(
        global_batch_size=spec.global_batch_size, sequence_length=spec.sequence_length, precision=precision or spec.precision
    )
