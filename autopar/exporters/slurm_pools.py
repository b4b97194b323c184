"""A batch script for the hosts of a mixed cluster: a heterogeneous job with a component for each run of hosts of one pool.

One component cannot name two partitions, and nodes of one allocation are numbered as Slurm sorts them; components keep the order in which
they stand (Slurm's guide to heterogeneous jobs). One ``srun`` over all of them is one step whose task numbers go on from component to
component: with a task a node, the task's number is the node's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from autopar.costmodel.spec.errors import Fault
from autopar.io.hostlist import fold_hosts

from . import launch, launch_pools

if TYPE_CHECKING:
    from autopar.host_order import HostRun

    from .exporter import ExportedFile
    from .question import Question

MAX_COMPONENTS = 128
"""Of a heterogeneous job (Slurm's MAX_HET_JOB_COMPS)."""


def too_many_components(runs: Sequence[HostRun]) -> Iterator[Fault]:
    """A fault where the pools take turns too often for one job."""
    if len(runs) > MAX_COMPONENTS:
        required = f"a heterogeneous job has at most {MAX_COMPONENTS} components, and hosts of the pools take turns"
        yield Fault(field="rank_order", given=f"{len(runs)} components", required=required, fix="order=tp-cp-dp-pp")


def notes(runs: Sequence[HostRun]) -> tuple[str, ...]:
    """What to add to the script, and what a cluster has to allow."""
    named = launch_pools.host_names(runs)
    where = (f"Say in job.sbatch which partition each pool is in ({', '.join(dict.fromkeys(run.pool for run in runs))}).",)
    submit = (f"Submit from this folder: job.sbatch looks for {launch.HOSTS_FILE} there.",) if named else ()
    return (*where, *submit, "One srun spans the components: a cluster with disable_hetero_steps in SchedulerParameters refuses it.")


def job_file(question: Question, header: Sequence[str], environment: Mapping[str, str]) -> ExportedFile:
    """``job.sbatch``."""
    runs = question.hosts
    directives = [f"#SBATCH --job-name={question.model.name}", *_components(runs)]
    return launch.slurm_job(directives, launch.script(header, environment, _body(runs)))


def _components(runs: Sequence[HostRun]) -> Iterator[str]:
    for place, run in enumerate(runs):
        if place:
            yield "#SBATCH hetjob"
        partition = "--partition of these hosts" if run.names else "--partition or --constraint of nodes"
        yield f"# {run.pool}: {partition} with {run.gpus_per_node} x {run.cluster.device.name}"
        yield f"#SBATCH --nodes={run.nodes}"
        yield "#SBATCH --ntasks-per-node=1"
        yield f"#SBATCH --gpus-per-node={run.gpus_per_node}"
        yield "#SBATCH --exclusive"
        if run.names:
            yield f"#SBATCH --nodelist={fold_hosts(run.names)}"


def _body(runs: Sequence[HostRun]) -> list[str]:
    """One step over all components, its node numbers those of the plan."""
    names, nodes = launch_pools.host_names(runs), sum(run.nodes for run in runs)
    number = _number_in_file() if names else 'NODE_RANK="$SLURM_PROCID"'
    start = f"torchrun --nproc-per-node {launch_pools.processes(runs, 'NODE_RANK')} --nnodes {nodes} --node-rank" + ' "$NODE_RANK"'
    groups = ",".join(str(place) for place in range(len(runs)))
    return [
        *_address(names),
        "",
        *launch.command([
            f"srun --het-group={groups} --ntasks-per-node=1 --kill-on-bad-exit=1",
            f"""bash -c '{number}; exec {start} --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"' bash""",
            launch.SLURM_PROGRAM,
        ]),
    ]  # fmt: skip


def _address(names: Sequence[str]) -> list[str]:
    if names:
        return [
            f'export MASTER_ADDR="${{MASTER_ADDR:-{names[0]}}}" MASTER_PORT="${{MASTER_PORT:-29500}}"',
            f'export HOSTS_FILE="$SLURM_SUBMIT_DIR/{launch.HOSTS_FILE}"',
        ]
    return [
        launch.slurm_first_host("SLURM_JOB_NODELIST_HET_GROUP_0"),
        'export MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}"',
    ]


def _number_in_file() -> str:
    """Shell words inside single quotes that set the node's number: its place in the file of hosts."""
    found = r"""\$2 != last {n++; last = \$2} \$2 == h {print n - 1; exit}"""
    return f'NODE_RANK="$(awk -v h="$SLURMD_NODENAME" "{found}" "$HOSTS_FILE")"'
