"""The catalog as lists and tables: one way to ask for devices, clusters, models and frameworks alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autopar.costmodel.spec.cluster import ClusterSpec, DeviceSpec, LinkTier
from autopar.costmodel.spec.errors import AutoparError, InvalidInputError, UnknownNameError
from autopar.costmodel.spec.framework import ExecutionProfile
from autopar.costmodel.spec.model import ModelSpec
from autopar.costmodel.spec.units import GB, TERA, format_bytes, format_count

KINDS = ("devices", "clusters", "models", "frameworks")

Entry = DeviceSpec | ClusterSpec | ModelSpec | ExecutionProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Entries of one kind, a row each."""

    kind: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def names(kind: str) -> tuple[str, ...]:
    """Every name of a kind, sorted."""
    from autopar.catalog import frameworks, hardware, models

    sources: dict[str, Callable[[], tuple[str, ...]]] = {
        "devices": hardware.device_names,
        "clusters": hardware.cluster_names,
        "models": models.model_names,
        "frameworks": frameworks.framework_names,
    }
    if kind not in sources:
        raise UnknownNameError("kind of catalog entry", kind, KINDS)
    return tuple(sorted(sources[kind]()))


def entry(kind: str, name: str) -> Entry:
    """One entry.

    Raises:
        UnknownNameError: the catalog has no such entry; names the close matches.
    """
    from autopar.catalog import frameworks, hardware, models

    if kind == "devices":
        return hardware.device(name)
    if kind == "clusters":
        return _two_nodes(name)
    if kind == "models":
        return models.model(name)
    if kind == "frameworks":
        return frameworks.framework(name)
    raise UnknownNameError("kind of catalog entry", kind, KINDS)


def find(name: str) -> Iterator[tuple[str, Entry]]:
    """Entries of any kind called ``name``."""
    for kind in KINDS:
        try:
            yield kind, entry(kind, name)
        except UnknownNameError:
            continue


def listing(kind: str) -> Listing:
    """All entries of a kind with their main figures."""
    columns, row = _TABLES[kind]
    rows = tuple(row(entry(kind, name)) for name in names(kind))
    return Listing(kind=kind, columns=columns, rows=rows)


def tier_text(tier: LinkTier) -> str:
    """``nvlink 450 GB/s`` (per GPU, one direction)."""
    return f"{tier.name} {tier.bandwidth / GB:.3g} GB/s"


def _two_nodes(name: str) -> ClusterSpec:
    """A cluster large enough to show all its tiers, or one node of what ends at its node."""
    from autopar.catalog import hardware

    per_node = hardware.cluster(name, 1).gpus_per_node
    try:
        return hardware.cluster(name, 2 * per_node)
    except InvalidInputError:
        return hardware.cluster(name, per_node)


def _device_row(device: Entry) -> tuple[str, ...]:
    if not isinstance(device, DeviceSpec):
        raise AutoparError("not a device")
    has_bf16 = "bf16" in device.peak_flops
    peak = device.peak_flops["bf16"] if has_bf16 else device.peak_flops.get("fp16", 0.0)
    fp8 = device.peak_flops.get("fp8")
    return (
        device.id,
        device.name,
        format_bytes(device.memory_bytes),
        f"{device.memory_bandwidth / GB:,.0f}",
        f"{peak / TERA:,.0f}{'' if has_bf16 else ' (fp16)'}",
        f"{fp8 / TERA:,.0f}" if fp8 else "-",
        device.default_cluster,
    )


def _cluster_row(cluster: Entry) -> tuple[str, ...]:
    if not isinstance(cluster, ClusterSpec):
        raise AutoparError("not a cluster")
    return cluster.id, cluster.device.id, str(cluster.gpus_per_node), ", ".join(map(tier_text, cluster.tiers))


def _model_row(model: Entry) -> tuple[str, ...]:
    if not isinstance(model, ModelSpec):
        raise AutoparError("not a model")
    active = format_count(model.num_active_parameters) if model.moe else "-"
    heads = f"{model.num_attention_heads}/{model.num_key_value_heads}"
    experts = f"{model.moe.num_experts}/{model.moe.experts_per_token}" if model.moe else "-"
    return (
        model.name, format_count(model.num_parameters), active, str(model.num_layers), str(model.hidden_size), heads, experts,
        str(model.default_sequence_length or "-"), str(model.default_global_batch_size or "-"),
    )  # fmt: skip


def _framework_row(profile: Entry) -> tuple[str, ...]:
    if not isinstance(profile, ExecutionProfile):
        raise AutoparError("not a framework")
    return profile.id, profile.name, ", ".join(profile.schedules), ", ".join(map(str, profile.zero_stages))


_TABLES: dict[str, tuple[tuple[str, ...], Callable[[Entry], tuple[str, ...]]]] = {
    "devices": (("id", "name", "memory", "GB/s", "bf16 TFLOP/s", "fp8 TFLOP/s", "usual nodes"), _device_row),
    "clusters": (("id", "device", "GPUs per node", "links (per GPU, one direction)"), _cluster_row),
    "models": (("name", "params", "active", "layers", "hidden", "heads/kv", "experts/used", "sequence", "batch"), _model_row),
    "frameworks": (("id", "name", "schedules", "ZeRO stages"), _framework_row),
}
