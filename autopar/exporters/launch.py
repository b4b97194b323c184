"""Shell scripts that start one process a GPU, and how a shell has to see a word."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from autopar.costmodel.spec.cluster import ClusterSpec

from . import launch_pools
from .exporter import ExportedFile
from .settings import Settings, Value

if TYPE_CHECKING:
    from autopar.host_order import HostRun

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


SLURM_PROGRAM = '"${@:?the training program and its flags: sbatch job.sbatch train.py …}"'
"""The program that a batch script starts, with its flags."""


def slurm_job(directives: Sequence[str], text: str) -> ExportedFile:
    """``job.sbatch``: a script whose first line the directives follow."""
    first, rest = text.split("\n", 1)
    return ExportedFile(path="job.sbatch", text="\n".join([first, *directives, rest]), executable=True)


def slurm_first_host(variable: str) -> str:
    """Sets MASTER_ADDR to the first host of the list in ``variable``, which is read whole: ``pipefail`` ends a job whose pipe is closed."""
    return f'MASTER_ADDR="$(scontrol show hostnames "${variable}" | sed -n 1p)"'


def script(header: Sequence[str], environment: Mapping[str, str], body: Iterable[str]) -> str:
    """A bash script: comments, exported variables, then ``body``."""
    lines = ["#!/usr/bin/env bash", *(f"# {line}".rstrip() for line in header), "set -euo pipefail", ""]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    return "\n".join([*lines, *([""] if environment else []), *body]) + "\n"


def array(name: str, words: Sequence[str]) -> list[str]:
    """A bash array, one flag a line."""
    return [f"{name}=(", *(f"  {word}" for word in words), ")"]


HOSTS_FILE = "hosts.txt"
"""Beside the script: ``rank host local_rank``, a line a rank."""


def rendezvous(cluster: ClusterSpec, runs: Sequence[HostRun] = ()) -> list[str]:
    """torchrun and its flags over all lines but the program's; nodes and address come from the environment where they are set.

    Where the plan names its hosts, a host's number and the address are the plan's unless the environment says otherwise. Of a mixed
    cluster ``runs`` has the hosts.
    """
    if runs:
        return launch_pools.rendezvous(runs, HOSTS_FILE)
    nodes, names = cluster.num_nodes, host_names(cluster)
    lines = [f"torchrun --nproc-per-node {gpus_per_node(cluster)}"]
    if nodes > 1:
        number = f"-{_node_rank(cluster)}" if names else "?the number of this node, from 0"
        address = f"-{names[0]}" if names else "?the host of node 0"
        lines += [
            f'--nnodes "${{NNODES:-{nodes}}}" --node-rank "${{NODE_RANK:{number}}}"',
            f'--master-addr "${{MASTER_ADDR:{address}}}" --master-port "${{MASTER_PORT:-29500}}"',
        ]
    else:
        lines[0] += " --standalone"
    return lines


def _node_rank(cluster: ClusterSpec) -> str:
    """Shell words for the number of the host that the script runs on, by its line in the hosts file."""
    ours = f"""'$2 == h || index($2, h ".") == 1 {{print $1 / {gpus_per_node(cluster)}; exit}}'"""
    return f"""$(awk -v h="$(hostname -s)" {ours} "$(dirname "${{BASH_SOURCE[0]}}")/{HOSTS_FILE}")"""


def host_names(cluster: ClusterSpec, runs: Sequence[HostRun] = ()) -> tuple[str, ...]:
    """The plan's hosts in rank order; empty where it names none, or not those of every pool (``runs``)."""
    if runs:
        return launch_pools.host_names(runs)
    return cluster.hosts.names if cluster.hosts is not None else ()


def hosts_text(cluster: ClusterSpec, runs: Sequence[HostRun] = ()) -> str:
    """``rank host local_rank`` for every rank."""
    if runs:
        return launch_pools.hosts_text(runs)
    each = gpus_per_node(cluster)
    ranks = (
        (rank, name, local) for node, name in enumerate(host_names(cluster)) for local in range(each) for rank in (node * each + local,)
    )
    return "".join(f"{rank} {name} {local}\n" for rank, name, local in ranks)


def command(lines: Sequence[str]) -> list[str]:
    """One command over several lines."""
    last = len(lines) - 1
    return [f"{'  ' if index else ''}{line}{'' if index == last else ' ' + CONTINUED}" for index, line in enumerate(lines)]
