"""Devices and clusters by name: the catalog's TOML files, read one at a time when they are asked for.

A device file holds the fields of :class:`DeviceSpec`, a cluster file those of one node and its link tiers,
both with a ``sources`` table that says where each number is published. Cluster files of users have the same
fields and are validated in full (:func:`read_cluster_file`); the shipped ones are validated by the tests.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopar.costmodel.spec.cluster import ClusterSpec, DeviceSpec, LinkKind, LinkTier
from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnknownNameError

if TYPE_CHECKING:
    from autopar.io.pools import PoolFile

MAX_GPUS = 10_000_000
_CATALOG = Path(__file__).parent
_DEVICE_ALIASES: Mapping[str, str] = {
    "v100": "v100-sxm2-32gb",
    "v100-16gb": "v100-sxm2-16gb",
    "v100-32gb": "v100-sxm2-32gb",
    "v100-sxm2": "v100-sxm2-32gb",
    "v100-sxm3": "v100-sxm3-32gb",
    "v100-pcie": "v100-pcie-32gb",
    "a100": "a100-sxm4-80gb",
    "a100-40gb": "a100-sxm4-40gb",
    "a100-80gb": "a100-sxm4-80gb",
    "a100-sxm": "a100-sxm4-80gb",
    "a100-sxm4": "a100-sxm4-80gb",
    "a100-sxm-40gb": "a100-sxm4-40gb",
    "a100-sxm-80gb": "a100-sxm4-80gb",
    "a100-pcie": "a100-pcie-80gb",
    "a100-80gb-pcie": "a100-pcie-80gb",
    "a800": "a800-sxm4-80gb",
    "a800-80gb": "a800-sxm4-80gb",
    "h100": "h100-sxm5-80gb",
    "h100-80gb": "h100-sxm5-80gb",
    "h100-80gb-hbm3": "h100-sxm5-80gb",
    "h100-sxm": "h100-sxm5-80gb",
    "h100-sxm5": "h100-sxm5-80gb",
    "h100-sxm-80gb": "h100-sxm5-80gb",
    "h100-96gb": "h100-sxm5-96gb-hbm2e",
    "h100-96gb-hbm2e": "h100-sxm5-96gb-hbm2e",
    "h100-pcie": "h100-pcie-80gb",
    "h100-nvl": "h100-nvl-94gb",
    "gh200": "gh200-96gb",
    "gh200-120gb": "gh200-96gb",
    "gh200-480gb": "gh200-96gb",
    "h800": "h800-sxm-80gb",
    "h20": "h20-96gb",
    "h200": "h200-sxm-141gb",
    "h200-sxm": "h200-sxm-141gb",
    "h200-141gb": "h200-sxm-141gb",
    "b200": "b200-sxm",
    "b200-180gb": "b200-sxm",
    "b200-sxm-180gb": "b200-sxm",
    "b300": "b300-sxm",
    "b300-sxm6-ac": "b300-sxm",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "l4": "l4-24gb",
    "l40s": "l40s-48gb",
    "a10": "a10-24gb",
    "a10g": "a10g-24gb",
    "a40": "a40-48gb",
    "a6000": "a6000-48gb",
    "rtx-a6000": "a6000-48gb",
    "3090": "rtx3090-24gb",
    "rtx3090": "rtx3090-24gb",
    "rtx-3090": "rtx3090-24gb",
    "4090": "rtx4090-24gb",
    "rtx4090": "rtx4090-24gb",
    "rtx-4090": "rtx4090-24gb",
    "t4": "t4-16gb",
    "mi300x": "mi300x-192gb",
}
"""What people and drivers write -> catalog id, after :func:`_normalise`. A bare name means the part most often meant in training."""

_CLUSTER_ALIASES: Mapping[str, str] = {
    "dgx-a100-80gb": "dgx-a100",
    "dgx-1": "dgx-1v",
    "hgx-h100": "dgx-h100",
    "hgx-h200": "dgx-h200",
    "hgx-b200": "dgx-b200",
    "dgx-b300": "hgx-b300",
    "gb200-nvl72": "nvl72-gb200",
    "gb300-nvl72": "nvl72-gb300",
    "frontier": "mi250x-frontier",
    "grand-teton": "grand-teton-h100",
    "alps": "alps-gh200",
    "p3dn.24xlarge": "aws-p3dn",
    "p4d.24xlarge": "aws-p4d",
    "p4de.24xlarge": "aws-p4de",
    "p5.48xlarge": "aws-p5",
    "p5e.48xlarge": "aws-p5e",
    "p6-b200.48xlarge": "aws-p6-b200",
    "g5.48xlarge": "aws-g5",
    "g6e.48xlarge": "aws-g6e",
    "a2-highgpu-8g": "gcp-a2-highgpu",
    "a2-ultragpu-8g": "gcp-a2-ultragpu",
    "a3-highgpu-8g": "gcp-a3-high",
    "a3-megagpu-8g": "gcp-a3-mega",
    "a3-ultragpu-8g": "gcp-a3-ultra",
}
_VENDOR_WORDS = re.compile(r"^(?:(?:nvidia|amd|tesla|geforce|instinct)-)+")


def device(name: str) -> DeviceSpec:
    """The device called ``name``: a catalog id, a common spelling (``h100``, ``4090``) or the name a driver reports.

    Case, spaces and a leading vendor name do not matter.

    Raises:
        UnknownNameError: no such device; the close matches are named, nothing is substituted.
    """
    return _load_device(_resolve("device", name, device_names(), _DEVICE_ALIASES))


@cache
def device_names() -> tuple[str, ...]:
    """Every device id of the catalog, sorted."""
    return _ids("devices")


def device_aliases() -> Mapping[str, str]:
    """Common spellings of devices and the id each stands for."""
    return dict(_DEVICE_ALIASES)


@cache
def cluster_names() -> tuple[str, ...]:
    """Every cluster id of the catalog, sorted."""
    return _ids("clusters")


def cluster(name: str, num_gpus: int, *, device: DeviceSpec | None = None) -> ClusterSpec:
    """The catalog's cluster ``name`` (id or common spelling) sized to ``num_gpus`` GPUs.

    Link tiers that no pair of these GPUs needs are left out: one node, or a part of one, has no network tier.

    Args:
        num_gpus: all GPUs of the job; above one node, whole nodes.
        device: puts another device into the box, where the box takes it (``pcie-box-8`` takes any).

    Raises:
        UnknownNameError: no such cluster.
        InvalidInputError: ``num_gpus`` is not possible on it, or the box does not come with ``device``.
    """
    cluster_id = _resolve("cluster", name, cluster_names(), _CLUSTER_ALIASES)
    raw = _read_toml("clusters", cluster_id)
    if device is None:
        device = _load_device(raw["device"])
    elif not raw.get("any_device") and device.id not in (raw["device"], *raw.get("other_devices", ())):
        raise InvalidInputError(_device_fault(cluster_id, raw, device))
    return build_cluster(raw, device=device, num_gpus=num_gpus)


def cluster_for_device(device_name: str, num_gpus: int) -> ClusterSpec:
    """``num_gpus`` of a device in the node it usually comes in (``h100`` -> ``dgx-h100``).

    Raises:
        UnknownNameError: no such device.
        InvalidInputError: ``num_gpus`` is not possible on that node.
    """
    spec = device(device_name)
    return cluster(spec.default_cluster, num_gpus, device=spec)


def clusters_with_device(device_id: str) -> tuple[str, ...]:
    """Ids of the catalog's clusters that come with ``device_id``, boxes that take any device left out."""
    files = ((name, _read_toml("clusters", name)) for name in cluster_names())
    return tuple(name for name, raw in files if device_id in (raw["device"], *raw.get("other_devices", ())))


def read_cluster_file(path: str | Path, num_gpus: int | None = None) -> ClusterSpec:
    """Read a user's cluster from a TOML file, or a JSON file by its suffix.

    The fields are those of the catalog's cluster files. ``device`` is a catalog name or a table with the fields of
    :class:`DeviceSpec`; ``sources`` may be left out.

    Args:
        num_gpus: overrides the file's ``num_gpus``; one of the two must be there.

    Raises:
        InvalidInputError: the file cannot be read or is wrong; every fault at once, each with the path of its field.
    """
    # pydantic costs a tenth of a second to import, which only a file should pay
    from .cluster_file import read

    return read(Path(path), num_gpus)


def has_pools(path: str | Path) -> bool:
    """Whether the cluster file ``path`` holds ``[[pools]]`` of several device types; False where it cannot be read."""
    from .cluster_file import has_pools as holds

    return holds(Path(path))


def read_pool_file(path: str | Path) -> PoolFile:
    """Read the pools of a mixed cluster from a TOML or JSON file.

    Raises:
        InvalidInputError: the file is wrong; every fault at once, each with the path of its field.
    """
    from .cluster_file import read_pools

    return read_pools(Path(path))


def build_cluster(raw: Mapping[str, Any], *, device: DeviceSpec, num_gpus: int) -> ClusterSpec:
    """Make the :class:`ClusterSpec` of ``num_gpus`` GPUs from the fields of a cluster file.

    Raises:
        InvalidInputError: ``num_gpus`` is out of range, does not fill whole nodes, or no tier reaches all of them.
    """
    per_node = raw["gpus_per_node"]
    check_num_gpus(num_gpus, per_node)
    tiers = []
    for fields in raw["tiers"]:
        tiers.append(LinkTier(**{**fields, "kind": LinkKind(fields["kind"])}))
        reach = fields["domain_size"]
        if reach == 0 or reach >= num_gpus:
            break
    else:
        required = f"the outermost link tier reaches {tiers[-1].domain_size} GPUs"
        fix = f"use at most {tiers[-1].domain_size}, or add a tier of kind network with domain_size 0"
        raise InvalidInputError(Fault(field="num_gpus", given=str(num_gpus), required=required, fix=fix))
    return ClusterSpec(
        id=raw["id"], device=device, gpus_per_node=per_node, num_gpus=num_gpus, tiers=tuple(tiers), sources=dict(raw["sources"])
    )


def check_num_gpus(num_gpus: int, per_node: int) -> None:
    """Raise InvalidInputError where ``num_gpus`` is out of range or is several nodes and a part of one."""
    if isinstance(num_gpus, bool) or not isinstance(num_gpus, int) or not 1 <= num_gpus <= MAX_GPUS:
        raise InvalidInputError(Fault(field="num_gpus", given=repr(num_gpus), required=f"an integer from 1 to {MAX_GPUS:,}"))
    if num_gpus > per_node and num_gpus % per_node:
        below = num_gpus // per_node * per_node
        near = [n for n in (below, below + per_node) if n <= MAX_GPUS]
        required = f"a job of more than one node takes whole nodes of {per_node} GPUs"
        fix = f"nearest valid: {', '.join(map(str, near))}"
        raise InvalidInputError(Fault(field="num_gpus", given=str(num_gpus), required=required, fix=fix))


def _device_fault(cluster_id: str, raw: Mapping[str, Any], given: DeviceSpec) -> Fault:
    accepted = ", ".join((raw["device"], *raw.get("other_devices", ())))
    homes = clusters_with_device(given.id)
    fix = f"clusters with {given.id}: {', '.join(homes)}" if homes else "pcie-box-8 takes any device; a cluster file describes any node"
    return Fault(field="device", given=given.id, required=f"cluster {cluster_id} comes with {accepted}", fix=fix)


def _resolve(kind: str, name: str, known: tuple[str, ...], aliases: Mapping[str, str]) -> str:
    """The id that ``name`` stands for; ids and aliases are in normal form already."""
    spelled = _normalise(name)
    found = aliases.get(spelled, spelled)
    if found not in known:
        raise UnknownNameError(kind, name, (*known, *aliases))
    return found


def _normalise(name: str) -> str:
    dashed = re.sub(r"[\s_]+", "-", name.strip().lower())
    return _VENDOR_WORDS.sub("", dashed)


def _ids(folder: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (_CATALOG / folder).glob("*.toml")))


@cache
def _read_toml(folder: str, stem: str) -> Mapping[str, Any]:
    return tomllib.loads((_CATALOG / folder / f"{stem}.toml").read_text(encoding="utf-8"))


@cache
def _load_device(device_id: str) -> DeviceSpec:
    return DeviceSpec(**_read_toml("devices", device_id))
