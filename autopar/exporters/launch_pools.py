"""How the hosts of a mixed cluster are started: torchrun numbers ranks node by node, so that the order of nodes puts stages into pools.

torchrun counts the processes of the nodes before, whatever number each of them starts: pools may have nodes of unlike size.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.host_order import HostRun


def rendezvous(runs: Sequence[HostRun], hosts_file: str) -> list[str]:
    """torchrun and its flags over all lines but the program's, as :func:`autopar.exporters.launch.rendezvous` has them."""
    nodes, names = sum(run.nodes for run in runs), host_names(runs)
    alike = len({run.gpus_per_node for run in runs}) == 1
    number = f"{'-' if alike else '='}{_node_rank(hosts_file)}" if names else f"?the number of this node: {numbers_text(runs)}"
    address = f"-{names[0]}" if names else f"?the host of node 0, of {runs[0].pool}"
    each = f"--nproc-per-node {processes(runs, 'NODE_RANK')}"
    return [
        f"torchrun {each}" if alike else "torchrun",
        f'--nnodes "${{NNODES:-{nodes}}}" --node-rank "${{NODE_RANK:{number}}}"',
        f'--master-addr "${{MASTER_ADDR:{address}}}" --master-port "${{MASTER_PORT:-29500}}"',
        *([] if alike else [each]),
    ]


def numbers_text(runs: Sequence[HostRun]) -> str:
    """``0 to 7 on a100-40gb, 8 to 15 on h100``."""
    return ", ".join(f"{run.numbers} on {run.pool}" for run in runs)


def processes(runs: Sequence[HostRun], variable: str) -> str:
    """Shell words for how many processes a node starts, by its number in ``variable``: a number where all start as many."""
    *before, last = runs
    text = str(last.gpus_per_node)
    for run in reversed(before):
        if str(run.gpus_per_node) != text:
            text = f"{variable} <= {run.last} ? {run.gpus_per_node} : {text}"
    return text if text.isdecimal() else f'"$(({text}))"'


def host_names(runs: Sequence[HostRun]) -> tuple[str, ...]:
    """The hosts of all pools in the order of ranks; empty where some pool does not name its own."""
    return tuple(name for run in runs for name in run.names) if all(run.names for run in runs) else ()


def hosts_text(runs: Sequence[HostRun]) -> str:
    """``rank host local_rank`` for every rank."""
    rows, rank = [], 0
    for run in runs:
        for name in run.names:
            for local in range(run.gpus_per_node):
                rows.append(f"{rank} {name} {local}\n")
                rank += 1
    return "".join(rows)


def _node_rank(hosts_file: str) -> str:
    """Shell words for the number of the host that the script runs on: hosts that the file has before it."""
    ours = """'$2 != last {n++; last = $2} $2 == h || index($2, h ".") == 1 {print n - 1; exit}'"""
    return f"""$(awk -v h="$(hostname -s)" {ours} "$(dirname "${{BASH_SOURCE[0]}}")/{hosts_file}")"""
