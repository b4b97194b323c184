"""torchrun and Slurm: scripts that start any training program on a plan's machines, with the plan's sizes in its environment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.strategy import RankOrder, Strategy
from autopar.host_order import blocks_of
from autopar.io.hostlist import fold_hosts

from . import launch, slurm_pools
from .exporter import ExportedFile
from .rule import BrokenRule, inexpressible

if TYPE_CHECKING:
    from autopar.costmodel.spec.cluster import ClusterSpec
    from autopar.costmodel.spec.framework import ExecutionProfile

    from .question import Question

_PREFIX = "AUTOPAR_"


class Torchrun:
    """Protocol :class:`~autopar.exporters.exporter.Exporter`."""

    name = "torchrun"
    version = "torch 2.13"

    def profile(self, question: Question) -> ExecutionProfile:
        """The plan's own: what runs is the person's program."""
        return question.problem.framework

    def broken_rules(self, question: Question) -> tuple[BrokenRule, ...]:
        """Nodes that are not all full cannot be started alike."""
        return inexpressible(_uneven_nodes(question))

    def notes(self, question: Question) -> tuple[str, ...]:
        """What the environment holds, and how ranks are numbered."""
        return (
            "The plan's sizes are in AUTOPAR_TENSOR_PARALLEL_SIZE and so on; ranks.json has the groups of every axis.",
            f"Ranks are numbered {rank_order(question.strategy)}, fastest first.",
            *([f"{launch.HOSTS_FILE} has the host of every rank."] if launch.host_names(question.cluster, question.hosts) else []),
        )

    def files(self, question: Question, header: Sequence[str]) -> tuple[ExportedFile, ...]:
        """``launch.sh`` and ``ranks.json``."""
        call = [*launch.rendezvous(question.cluster, question.hosts), '"${@:?the training program and its flags}"']
        script = launch.script(header, environment(question), launch.command(call))
        return (ExportedFile(path="launch.sh", text=script, executable=True), ranks_file(question))


class Slurm(Torchrun):
    """A batch script that starts torchrun once a node."""

    name = "slurm"
    version = "slurm 23.02"

    def broken_rules(self, question: Question) -> tuple[BrokenRule, ...]:
        """The same, and a job has only so many components."""
        return (*super().broken_rules(question), *inexpressible(slurm_pools.too_many_components(question.hosts)))

    def notes(self, question: Question) -> tuple[str, ...]:
        """The same, and where to submit from."""
        if question.hosts:
            return (*super().notes(question), *slurm_pools.notes(question.hosts))
        named = launch.host_names(question.cluster)
        return (*super().notes(question), *(["Submit from this folder: job.sbatch looks for hostfile there."] if named else []))

    def files(self, question: Question, header: Sequence[str]) -> tuple[ExportedFile, ...]:
        """``job.sbatch`` and ``ranks.json``; of a plan that names its hosts also the ``hostfile`` that puts them in rank order.

        Of a mixed cluster the job has a component a pool.
        """
        if question.hosts:
            return (slurm_pools.job_file(question, header, environment(question)), ranks_file(question))
        cluster, each, names = question.cluster, launch.gpus_per_node(question.cluster), launch.host_names(question.cluster)
        directives = [
            f"#SBATCH --job-name={question.model.name}",
            f"#SBATCH --nodes={cluster.num_nodes}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={each}",
            "#SBATCH --exclusive",
            *([f"#SBATCH --nodelist={fold_hosts(names)}"] if names else []),
        ]
        text = launch.script(header, environment(question), _named(cluster) if names else _any_hosts(cluster))
        hostfile = [ExportedFile(path=_HOSTFILE, text="".join(f"{name}\n" for name in names))] if names else []
        return (launch.slurm_job(directives, text), ranks_file(question), *hostfile)


_HOSTFILE = "hostfile"


def _any_hosts(cluster: ClusterSpec) -> list[str]:
    """The nodes that Slurm gives, in the order that torchrun's rendezvous makes of them."""
    return [
        launch.slurm_first_host("SLURM_JOB_NODELIST"),
        "export MASTER_ADDR",
        "",
        *launch.command([
            "srun --kill-on-bad-exit=1",
            f"torchrun --nproc-per-node {launch.gpus_per_node(cluster)} --nnodes {cluster.num_nodes}",
            '--rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$MASTER_ADDR:${MASTER_PORT:-29500}"',
            launch.SLURM_PROGRAM,
        ]),
    ]  # fmt: skip


def _named(cluster: ClusterSpec) -> list[str]:
    """The plan's hosts in the plan's order: Slurm gives task i the i-th line of the host file, and the task number is the node's.

    A c10d rendezvous would number nodes by their addresses.
    """
    start = f'torchrun --nproc-per-node {launch.gpus_per_node(cluster)} --nnodes {cluster.num_nodes} --node-rank "$SLURM_PROCID"'
    return [
        f'export SLURM_HOSTFILE="${{SLURM_HOSTFILE:-$SLURM_SUBMIT_DIR/{_HOSTFILE}}}"',
        f'export MASTER_ADDR="${{MASTER_ADDR:-{launch.host_names(cluster)[0]}}}" MASTER_PORT="${{MASTER_PORT:-29500}}"',
        "",
        *launch.command([
            f"srun --kill-on-bad-exit=1 --distribution=arbitrary --ntasks={cluster.num_nodes}",
            f"""bash -c 'exec {start} --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"' bash""",
            launch.SLURM_PROGRAM,
        ]),
    ]  # fmt: skip


_SAID_APART = ("pipeline_layers", "stage_recompute_layers", "rank_order", "recompute_modules")


def environment(question: Question) -> dict[str, str]:
    """The allocator's setting, and the plan's sizes by their names."""
    strategy = question.strategy
    values = {f.name: getattr(strategy, f.name) for f in fields(Strategy) if f.name not in _SAID_APART}
    sizes = {f"{_PREFIX}{name.upper()}": str(getattr(value, "value", value)).lower() for name, value in values.items()}
    training = {
        f"{_PREFIX}GLOBAL_BATCH_SIZE": str(question.training.global_batch_size),
        f"{_PREFIX}SEQUENCE_LENGTH": str(question.training.sequence_length),
        f"{_PREFIX}NUM_MICROBATCHES": str(question.num_microbatches),
        f"{_PREFIX}PIPELINE_LAYERS": ",".join(map(str, question.layers)),
    }
    if strategy.stage_recompute_layers:
        training[f"{_PREFIX}STAGE_RECOMPUTE_LAYERS"] = ",".join(map(str, strategy.stage_recompute_layers))
    if strategy.recompute_modules:
        training[f"{_PREFIX}RECOMPUTE_MODULES"] = ",".join(strategy.recompute_modules)
    if strategy.rank_order is not RankOrder.TP_CP_DP_PP:
        training[f"{_PREFIX}RANK_ORDER"] = strategy.rank_order.value
    if question.hosts:
        training[f"{_PREFIX}HOSTS"] = ",".join(f"{run.nodes}x{run.pool}" for run in question.hosts)
    return {**launch.ALLOCATOR, **sizes, **training}


def rank_order(strategy: Strategy) -> str:
    """``tp 8, cp 1, dp 8, pp 4``: the axes and their sizes, fastest first."""
    return ", ".join(f"{axis} {size}" for axis, (size, _) in RankLayout.of(strategy).axes().items())


def ranks_file(question: Question) -> ExportedFile:
    """The size and the stride of every axis of the dense and the expert grid: rank = sum of coordinate x stride.

    Without the expert grid where it has no strides, as under a dense model whose stages lie between replicas.
    """
    ranks = RankLayout.of(question.strategy)
    grids = {
        name: [{"axis": axis, "size": size, "stride": stride} for axis, (size, stride) in ranks.axes(expert=expert).items()]
        for name, expert in (("dense", False), ("expert", True))
        if not expert or ranks.expert_grid_has_strides
    }
    nodes = {"hosts": _runs(question)} if question.hosts else {"gpus_per_node": launch.gpus_per_node(question.cluster)}
    document = {"world_size": ranks.world_size, **nodes, **grids}
    return ExportedFile(path="ranks.json", text=json.dumps(document, indent=2) + "\n")


def _runs(question: Question) -> list[dict[str, str | int]]:
    """The hosts of every pool in the order of ranks, with the first rank on them."""
    return [
        {
            "pool": block.pool,
            "device": run.cluster.device.id,
            "first_rank": block.first_rank,
            "nodes": block.nodes,
            "gpus_per_node": block.gpus_per_node,
        }
        for run, block in zip(question.hosts, blocks_of(question.hosts), strict=True)
    ]


def _uneven_nodes(question: Question) -> Iterator[Fault]:
    if question.hosts:  # whose nodes are full: they could not be put in an order otherwise
        return
    gpus, each = question.cluster.num_gpus, launch.gpus_per_node(question.cluster)
    if gpus % each:
        below = gpus // each * each
        yield Fault(
            field="gpus",
            given=str(gpus),
            required=f"must fill nodes of {each}: torchrun starts as many on each",
            fix=f"{below} or {below + each}",
        )
