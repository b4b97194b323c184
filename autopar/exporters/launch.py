"""Shell scripts that start one process a GPU, and how a shell has to see a word."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from autopar.costmodel.spec.cluster import ClusterSpec

from .settings import Settings, Value

ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Fragmentation of the caching allocator alone makes runs of more than about 70 % of the memory fail: segments that grow do not
fragment (Megatron-Bridge memory-tuning guide, 2026: 58.8 GB of tensors on 80 GB failed in 30 to 60 % of runs)."""


CONTINUED = "\\"


def gpus_per_node(cluster: ClusterSpec) -> int:
    """Processes of one node."""
    return min(cluster.gpus_per_node, cluster.num_gpus)


def flag_words(settings: Settings, *, dashes: str = "--") -> list[str]:
    """``--name value`` for each setting, quoted for a shell; a switch that is off is left out."""
    return [line for name, value in settings.items() if (line := _flag(f"{dashes}{name}", value))]


def _flag(name: str, value: Value) -> str:
    if isinstance(value, bool):
        return name if value else ""
    parts = value if isinstance(value, tuple) else (value,)
    return " ".join([name, *(shlex.quote(str(part)) for part in parts)])


def script(header: Sequence[str], environment: Mapping[str, str], body: Iterable[str]) -> str:
    """A bash script: comments, exported variables, then ``body``."""
    lines = ["#!/usr/bin/env bash", *(f"# {line}".rstrip() for line in header), "set -euo pipefail", ""]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    return "\n".join([*lines, *([""] if environment else []), *body]) + "\n"


def array(name: str, words: Sequence[str]) -> list[str]:
    """A bash array, one flag a line."""
    return [f"{name}=(", *(f"  {word}" for word in words), ")"]


def rendezvous(cluster: ClusterSpec) -> list[str]:
    """torchrun and its flags over all lines but the program's; nodes and address come from the environment where they are set."""
    nodes = cluster.num_nodes
    lines = [f"torchrun --nproc-per-node {gpus_per_node(cluster)}"]
    if nodes > 1:
        lines += [
            f'--nnodes "${{NNODES:-{nodes}}}" --node-rank "${{NODE_RANK:?the number of this node, from 0}}"',
            '--master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}"',
        ]
    else:
        lines[0] += " --standalone"
    return lines


def command(lines: Sequence[str]) -> list[str]:
    """One command over several lines."""
    last = len(lines) - 1
    return [f"{'  ' if index else ''}{line}{'' if index == last else ' ' + CONTINUED}" for index, line in enumerate(lines)]
