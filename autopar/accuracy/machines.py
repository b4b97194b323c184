"""The cluster and the precision that a row's columns mean."""

from __future__ import annotations

import re
from dataclasses import replace

from autopar.catalog.cpu import CPU, cpu_cluster
from autopar.catalog.hardware import cluster, cluster_names, device
from autopar.costmodel.spec.cluster import ClusterSpec
from autopar.costmodel.spec.units import GBIT_PER_SECOND

from .reasons import UnscorableError, known
from .runs import Run

_NAMED_NETWORKS: tuple[tuple[str, str], ...] = (
    (r"selene", "selene"),
    (r"omni-?path.*shared|opa.*shared", "jean-zay-v100"),
    (r"omni-?path|opa100", "jean-zay-a100"),
    (r"inter_node_bandwidth 800", "vtrain-a100"),
    (r"1600 gb/s.*roce", "oci-bm-a100"),
    (r"4x100gb roce", "internevo-a100"),
    (r"tcpxo", "gcp-a3-mega"),
)


def cluster_of(run: Run, notes: list[str]) -> ClusterSpec:
    """The cluster that the row's columns name, else the one its device usually comes in, resized to its network."""
    count = known(run.num_gpus)
    if run.device == CPU:
        return cpu_cluster(count)
    part = device(run.device)
    if run.cluster:
        return cluster(run.cluster, count, device=part)
    text = run.interconnect_inter
    name = next((known for pattern, known in _NAMED_NETWORKS if re.search(pattern, text, re.IGNORECASE)), "")
    if not name and "vtrain" in run.framework.lower():
        name = "vtrain-a100"
    if name not in cluster_names():
        name = part.default_cluster
        if not text:
            notes.append(f"interconnect taken as {name}'s")
    machines = cluster(name, count, device=part)
    return _with_network(machines, text, run.gpus_per_node)


def _with_network(machines: ClusterSpec, text: str, gpus_per_node: int | None) -> ClusterSpec:
    """``machines`` with the node bandwidth that the text states (``8x400Gb/s``, ``800 Gb/s per node``)."""
    if len(machines.tiers) < 2:
        return machines
    per_node = None
    if adapters := re.findall(r"(\d+)\s*x[^,;]*?(\d+)\s*gb", text, re.IGNORECASE):
        per_node = max(int(count) * int(rate) for count, rate in adapters) * GBIT_PER_SECOND
    elif found := re.search(r"(\d+)\s*gb/s\S* (node|per node)", text, re.IGNORECASE):
        per_node = int(found[1]) * GBIT_PER_SECOND
    elif found := re.search(r"(\d+)\s*gb/s.*per gpu", text, re.IGNORECASE):
        per_node = int(found[1]) * GBIT_PER_SECOND * (gpus_per_node or machines.gpus_per_node)
    elif found := re.fullmatch(r"(\d+)\s*gb/s", text, re.IGNORECASE):
        per_node = int(found[1]) * GBIT_PER_SECOND
    if per_node is None:
        return machines
    network = replace(machines.network_tier, bandwidth=per_node / machines.gpus_per_node)
    return replace(machines, tiers=(*machines.tiers[:-1], network))


def precision_of(run: Run, machines: ClusterSpec, notes: list[str]) -> str:
    text = run.precision.lower()
    if "fp8" in text and "rowwise" in run.notes.lower():
        notes.append("precision taken as bf16: torchao's FP8 kernels with a scale a row ran no faster")
        return "bf16"
    for name in ("amp-bf16", "pure-bf16", "mxfp8", "nvfp4", "fp8", "bf16", "fp16", "tf32", "fp32"):
        if name in text:
            return name
    if text:
        raise UnscorableError(f"precision={run.precision!r} is not known; for example bf16, fp16, fp8")
    peaks = machines.device.peak_flops
    older = "bf16" not in peaks or run.device.startswith("a100")
    notes.append(f"precision taken as {'fp16' if older else 'bf16'}")
    return "fp16" if older else "bf16"
