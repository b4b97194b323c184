"""Cluster files of users: read with care, validated in full, every fault reported at once.

Imported by :func:`autopar.catalog.hardware.read_cluster_file` only, so that nothing else pays for pydantic.
"""

from __future__ import annotations

import difflib
import itertools
import json
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from autopar.costmodel.spec.cluster import ClusterSpec, DeviceSpec, LinkKind
from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnknownNameError, raise_if
from autopar.io.pools import PoolFile

from .fabric import Fabric, fabric_of, with_fabric
from .fabric_file import FabricTable, RegionsTable
from .hardware import MAX_GPUS, build_cluster, check_num_gpus, device
from .pool_file import PoolsFile, PoolTable, pools_of

MAX_FILE_BYTES = 100_000
"""Fifty times a real file."""
MAX_LINE_LENGTH = 2_000
"""The TOML parser takes time that grows with the square of a dotted key, which is on one line."""
MAX_REPORTED_FAULTS = 50

_NEEDS = {
    "bandwidth": "in bytes/s in one direction, per GPU: 450 GB/s is 450e9",
    "memory_bandwidth": "in bytes/s: 3.35 TB/s is 3.35e12",
    "memory_bytes": "in bytes: 80 GiB is 85899345920",
    "peak_flops": "in dense FLOP/s: 989 TFLOP/s is 989e12",
    "latency_seconds": "in seconds: 2 microseconds is 2e-6",
}


def _known_device(name: str) -> str:
    try:
        return device(name).id
    except UnknownNameError as error:
        fault = error.faults[0]
        raise PydanticCustomError("unknown_device", "{required}", {"required": fault.required, "fix": fault.fix}) from None


def _tiers_in_order(tiers: list[_Tier]) -> list[_Tier]:
    """Inside out: each domain a multiple of the one before, and networks outside."""
    names = [tier.name for tier in tiers]
    if len(set(names)) < len(names):
        raise PydanticCustomError("tiers", "each tier has a name of its own")
    sizes = [tier.domain_size for tier in tiers]
    for inner, outer in itertools.pairwise(sizes):
        if inner == 0 or (outer != 0 and (outer <= inner or outer % inner)):
            raise PydanticCustomError("tiers", "from the inside out, each domain_size a multiple of the one before; 0 (all GPUs) last only")
    is_network = [tier.kind is LinkKind.NETWORK for tier in tiers]
    if is_network != sorted(is_network):
        raise PydanticCustomError("tiers", "a tier of kind network comes after the others")
    return tiers


def _has_ports(tier: _Tier) -> _Tier:
    if tier.kind is LinkKind.NETWORK and tier.ports_per_domain == 0:
        raise PydanticCustomError("ports", "kind network needs ports_per_domain, the number of network adapters of a node")
    return tier


def _shape_of_device(raw: Any) -> str:
    return "table" if isinstance(raw, Mapping) else "name"


Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
Label = Annotated[str, Field(min_length=1, max_length=200)]
KnownDevice = Annotated[Label, AfterValidator(_known_device)]
# the lower bounds below catch numbers written in GB, GB/s or TFLOP/s where base units are meant
Flops = Annotated[float, Field(ge=1e9, le=1e20)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class _Tier(_Strict):
    name: Name
    kind: Annotated[LinkKind, Field(strict=False)]
    domain_size: Annotated[int, Field(ge=0, le=MAX_GPUS)]
    bandwidth: Annotated[float, Field(ge=1e6, le=1e15)]
    latency_seconds: Annotated[float, Field(ge=0, le=1)]
    ports_per_domain: Annotated[int, Field(ge=0, le=1024)] = 0
    oversubscription: Annotated[float, Field(ge=1, le=1000)] = 1.0


class _Device(_Strict):
    id: Name
    name: Label | None = None
    architecture: Name
    memory_bytes: Annotated[int, Field(ge=2**28, le=2**50)]
    memory_bandwidth: Annotated[float, Field(ge=1e9, le=1e15)]
    peak_flops: Annotated[dict[Precision, Flops], Field(min_length=1)]
    num_compute_units: Annotated[int, Field(ge=1, le=100_000)]
    l2_cache_bytes: Annotated[int, Field(ge=2**10, le=2**40)]
    power_watts: Annotated[float, Field(ge=1, le=100_000)]
    default_cluster: Name | None = None
    sources: dict[str, str] = {}


class _Cluster(_Strict):
    id: Name
    name: Label | None = None
    device: Annotated[Annotated[KnownDevice, Tag("name")] | Annotated[_Device, Tag("table")], Discriminator(_shape_of_device)]
    other_devices: list[KnownDevice] = []
    any_device: bool = False
    gpus_per_node: Annotated[int, Field(ge=1, le=4096)]
    num_gpus: Annotated[int, Field(ge=1, le=MAX_GPUS)] | None = None
    tiers: Annotated[list[Annotated[_Tier, AfterValidator(_has_ports)]], Field(min_length=1, max_length=8), AfterValidator(_tiers_in_order)]
    sources: dict[str, str] = {}
    fabric: FabricTable | None = None


class _FabricOnly(_Strict):
    fabric: FabricTable


def read(path: Path, num_gpus: int | None) -> ClusterSpec:
    """See :func:`autopar.catalog.hardware.read_cluster_file`."""
    raw = _parse(path, _read_text(path))
    if "pools" in raw:
        required = "holds pools of several devices, and this is answered for one kind of GPU"
        raise InvalidInputError(Fault(field="cluster", given=_short(repr(str(path))), required=required, fix="`autopar plan` takes it"))
    faults: list[Fault] = []
    try:
        valid = _Cluster.model_validate(raw)
    except ValidationError as error:
        faults.extend(_faults_of(error))
    faults.extend(_faults_of_num_gpus(raw, num_gpus, known={fault.field for fault in faults}))
    if len(faults) > MAX_REPORTED_FAULTS:
        more = len(faults) - MAX_REPORTED_FAULTS
        faults = [*faults[:MAX_REPORTED_FAULTS], Fault(field="$", given="", required=f"and {more} more faults")]
    raise_if(faults)
    cluster = build_cluster(
        {**valid.model_dump(exclude={"device", "fabric"}), "sources": valid.sources or {"*": f"cluster file {path.name}"}},
        device=_device_spec(valid, path),
        num_gpus=num_gpus if num_gpus is not None else valid.num_gpus or 0,
    )
    if valid.fabric is None:
        return cluster
    return with_fabric(cluster, fabric_of({**valid.fabric.model_dump(), "source": f"cluster file {path.name}"}))


def has_pools(path: Path) -> bool:
    """See :func:`autopar.catalog.hardware.has_pools`."""
    try:
        return "pools" in _parse(path, _read_text(path))
    except InvalidInputError:
        return False


def read_pools(path: Path) -> PoolFile:
    """See :func:`autopar.catalog.hardware.read_pool_file`."""
    raw = _parse(path, _read_text(path))
    of_one = [name for name in _Cluster.model_fields if name in raw and name not in PoolsFile.model_fields]
    if of_one:
        required = "a file has [[pools]], or the fields of one cluster"
        raise InvalidInputError(Fault(field="$", given=", ".join(of_one), required=required, fix="a pool with cluster = a file of its own"))
    faults: list[Fault] = []
    found = None
    try:
        found, faults = pools_of(PoolsFile.model_validate(raw), path)
    except ValidationError as error:
        faults.extend(_faults_of(error))
    raise_if(faults[:MAX_REPORTED_FAULTS])
    assert found is not None, "a file without faults has pools"
    return found


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of cluster files: those of one cluster, and those of pools."""
    schema = TypeAdapter(_Cluster | PoolsFile).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def read_fabric(document: Mapping[str, Any], source: str) -> Fabric:
    """The fabric of a topology file that holds a ``[fabric]`` table alone.

    Raises:
        InvalidInputError: every fault of the table at once.
    """
    try:
        valid = _FabricOnly.model_validate(document)
    except ValidationError as error:
        raise InvalidInputError(tuple(_faults_of(error))) from None
    return fabric_of({**valid.fabric.model_dump(), "source": f"topology file {source}"})


def _device_spec(valid: _Cluster, path: Path) -> DeviceSpec:
    if isinstance(valid.device, str):
        return device(valid.device)
    fields = valid.device.model_dump()
    fields["name"] = fields["name"] or fields["id"]
    fields["default_cluster"] = fields["default_cluster"] or valid.id
    fields["sources"] = fields["sources"] or {"*": f"cluster file {path.name}"}
    return DeviceSpec(**fields)


def _read_text(path: Path) -> str:
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
        content = _read_start(path) if regular else b""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a valid path"
        raise _file_fault(path, f"the file cannot be read: {reason}") from None
    if not regular:
        raise _file_fault(path, "a regular file is needed")
    if len(content) > MAX_FILE_BYTES:
        raise _file_fault(path, f"a cluster file has at most {MAX_FILE_BYTES:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _file_fault(path, "a cluster file is text in UTF-8") from None


def _read_start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def _parse(path: Path, text: str) -> dict[str, Any]:
    language, parse = ("JSON", json.loads) if path.suffix.lower() == ".json" else ("TOML", tomllib.loads)
    if language == "TOML" and any(len(line) > MAX_LINE_LENGTH for line in text.splitlines()):
        raise _file_fault(path, f"a line has at most {MAX_LINE_LENGTH:,} characters")
    try:
        raw = parse(text)
    except RecursionError:
        raise _file_fault(path, f"{language} nested too deep") from None
    except ValueError as error:
        raise _file_fault(path, f"valid {language} is needed: {_short(str(error))}") from None
    if not isinstance(raw, dict):
        raise _file_fault(path, "the top level is an object with the fields of a cluster")
    return raw


def _file_fault(path: Path, required: str) -> InvalidInputError:
    return InvalidInputError(Fault(field="cluster file", given=_short(repr(str(path))), required=required))


def _faults_of_num_gpus(raw: Mapping[str, Any], argument: int | None, known: set[str]) -> Iterator[Fault]:
    """What is wrong with the number of GPUs, as far as the rest of the file allows to say."""
    wanted = argument if argument is not None else raw.get("num_gpus")
    per_node = raw.get("gpus_per_node")
    if wanted is None:
        yield Fault(field="$.num_gpus", given="", required="the number of GPUs is needed", fix="add num_gpus to the file or pass it")
    elif isinstance(per_node, int) and not {"$.gpus_per_node", "$.num_gpus"} & known:
        try:
            check_num_gpus(wanted, per_node)
        except InvalidInputError as error:
            yield from error.faults


def _faults_of(error: ValidationError) -> Iterator[Fault]:
    return map(_fault_of, error.errors(include_url=False))


def _fault_of(detail: ErrorDetails) -> Fault:
    # "name" and "table" tell the two forms of a device apart and are no part of the path; "[key]" marks a bad key of a map
    loc = [part for i, part in enumerate(detail["loc"]) if not (i == 1 and detail["loc"][0] == "device") and part != "[key]"]
    field, kind = _path(loc), detail["type"]
    if kind == "missing":
        return Fault(field=field, given="", required="this field is needed", fix=_need(loc))
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(loc[-1]), _fields_at(loc), n=1)
        return Fault(field=field, given="", required="unknown field", fix=f"did you mean {near[0]}?" if near else "remove it")
    if kind == "string_pattern_mismatch":
        return Fault(field=field, given=_short_value(detail["input"]), required="letters, digits and . _ - only, a letter or digit first")
    required = detail["msg"].removeprefix("Input should be ")
    fix = detail.get("ctx", {}).get("fix") or ("" if "[key]" in detail["loc"] else _need(loc))
    return Fault(field=field, given=_short_value(detail["input"]), required=required, fix=fix)


def _fields_at(loc: list[int | str]) -> list[str]:
    models: dict[str, type[BaseModel]] = {"tiers": _Tier, "device": _Device, "fabric": FabricTable, "pools": PoolTable}
    model = models.get(str(loc[0]), _Cluster) if len(loc) > 1 else _Cluster
    model = RegionsTable if loc[:2] == ["fabric", "regions"] and len(loc) > 2 else model
    return list(model.model_fields)


def _need(loc: list[int | str]) -> str:
    """What a number is measured in, where a wrong unit is the likely cause."""
    if loc[:2] == ["fabric", "regions"] and loc[-1] == "bandwidth":
        return "in bytes/s in one direction, all that a region sends to the others: 100 Gb/s is 12.5e9"
    return next((_NEEDS[part] for part in reversed(loc) if isinstance(part, str) and part in _NEEDS), "")


def _path(loc: list[int | str]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" if part.isidentifier() else f"[{_short(repr(part))}]" for part in loc)
    return "$" + "".join(parts)


def _short_value(value: object) -> str:
    """A value as text: never long, and safe on a terminal."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a huge integer"
    return _short(str(value) if isinstance(value, BaseModel) else repr(value))


def _short(text: str) -> str:
    printable = text.encode("ascii", "backslashreplace").decode() if not text.isprintable() else text
    return printable if len(printable) <= 80 else f"{printable[:77]}..."
