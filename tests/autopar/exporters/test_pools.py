"""Exports of plans over pools: golden files, the order of hosts as a shell starts them, and who refuses what by which rule.

``python -c "from tests.autopar.exporters.test_pools import write_all; write_all()"`` writes the golden files anew.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autopar.catalog.frameworks import framework
from autopar.costmodel.mixed_estimate import mixed_estimate
from autopar.costmodel.spec.errors import InvalidInputError, NoPlanError
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.plan import Plan
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, RankOrder, Recompute
from autopar.exporters import exporter_names
from autopar.exporters.export import export
from autopar.exporters.pools import UNEQUAL, who_runs_it
from autopar.host_order import host_order, order_text
from autopar.interchange import import_plan
from autopar.io.plan_file import dump_plan, parse_plan
from autopar.mixed_problem import mixed_of
from tests.autopar.mixed_plans import STAGED, alone, named, on, plan_of, question, replicas, staged

FOLDER = Path(__file__).with_name("golden-pools")
TAKERS = ("megatron-bridge", "megatron-lm", "slurm", "torchrun", "torchtitan")
PLANS = {"unnamed": lambda: staged(), "named": lambda: named(staged())}
CASES = [(which, name) for which in PLANS for name in TAKERS]


def golden_files(which: str, name: str) -> dict[str, str]:
    """The files by path, without the lines of figures, which a better cost model changes."""
    figures = ("estimated:", "# estimated:", "planned for", "# planned for", "torchtitan needs", "# torchtitan needs")
    files = export(PLANS[which](), name).files
    return {file.path: "".join(line for line in file.text.splitlines(keepends=True) if not line.startswith(figures)) for file in files}


def write_all() -> None:
    """Write every golden file anew."""
    for which, name in CASES:
        folder = FOLDER / which / name
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in golden_files(which, name).items():
            (folder / path).write_text(text, encoding="utf-8", newline="\n")


@pytest.mark.parametrize(("which", "name"), CASES)
def test_files_are_the_golden_ones(which: str, name: str) -> None:
    kept, files = FOLDER / which / name, golden_files(which, name)
    assert {path.name for path in kept.iterdir()} == set(files)
    for path, text in files.items():
        assert text == (kept / path).read_text(encoding="utf-8"), f"{which}/{name}/{path} differs: write_all() writes it anew"


def _recorder(folder: Path, name: str) -> None:
    """A program called ``name`` that writes down its words and its node's number."""
    program = folder / name
    program.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > "{folder}/$HOST.words"\n')
    program.chmod(0o755)


def _flags(words: list[str]) -> dict[str, str]:
    return {word: words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")}


def _unequal_nodes() -> Plan:
    """A100s in nodes of 4, H100s in nodes of 8."""
    plan = named(staged(), {"h100": ("fast1", "fast2"), "a100-40gb": ("old1", "old2")})
    assert plan.mixed is not None
    fast, old = plan.mixed.pools
    hosts = replace(old.cluster.hosts, names=("old1", "old2", "old3", "old4"))  # type: ignore[type-var]
    return replace(plan, mixed=replace(plan.mixed, pools=(fast, replace(old, cluster=replace(old.cluster, gpus_per_node=4, hosts=hosts)))))


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("name", ["torchrun", "megatron-lm"])
def test_every_host_starts_as_the_node_that_the_plan_gives_it(name: str, unequal: bool, tmp_path: Path) -> None:
    plan = _unequal_nodes() if unequal else named(staged())
    assert plan.mixed is not None
    done = export(plan, name)
    for file in done.files:
        (tmp_path / file.path).write_text(file.text)
    script = next(file.path for file in done.files if file.path.endswith(".sh"))
    _recorder(tmp_path, "torchrun")
    first = 0
    for node, host in enumerate([host for run in host_order(plan.mixed, plan.strategy) for host in run.names]):
        (tmp_path / "hostname").write_text(f"#!/bin/bash\necho {host}\n")
        (tmp_path / "hostname").chmod(0o755)
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOST": host}
        subprocess.run(["bash", str(tmp_path / script), "train.py"], check=True, env=environment, timeout=20)
        flags = _flags((tmp_path / f"{host}.words").read_text().splitlines())
        each = 4 if unequal and host.startswith("old") else 8
        assert (flags["--node-rank"], flags["--nproc-per-node"], flags["--nnodes"]) == (str(node), str(each), "6" if unequal else "4")
        assert flags["--master-addr"] == host_order(plan.mixed, plan.strategy)[0].names[0]
        hosts = (tmp_path / "hosts.txt").read_text().splitlines()
        assert hosts[first : first + each] == [f"{first + local} {host} {local}" for local in range(each)]
        first += each


@pytest.mark.parametrize("which", ["named", "unnamed", "unequal"])
def test_slurm_starts_one_step_over_a_component_a_pool(which: str, tmp_path: Path) -> None:
    """``srun`` is stood in for: it runs its command once a node, with the task number and the node's name that Slurm would set."""
    plan = _unequal_nodes() if which == "unequal" else PLANS[which]()
    assert plan.mixed is not None
    done = export(plan, "slurm")
    for file in done.files:
        (tmp_path / file.path).write_text(file.text)
    text = (tmp_path / "job.sbatch").read_text()
    assert text.count("#SBATCH hetjob") == 1
    assert ("--nodelist=old" in text) == (which != "unnamed")
    nodes = ["old03", "old07", "fast1", "fast2"] if which != "unequal" else ["old1", "old2", "old3", "old4", "fast1", "fast2"]
    _recorder(tmp_path, "torchrun")
    # more hosts than a pipe holds: who stops reading after the first would end the job by SIGPIPE
    (tmp_path / "scontrol").write_text(
        '#!/bin/bash\n[ "$3" = old ] && printf "old03\\nold07\\n" || printf "fast1\\nfast2\\n"\nseq 100000\n'
    )
    steps = "\n".join(
        f'HOST={host} SLURM_PROCID={task} SLURMD_NODENAME={host} "${{@:4}}"' for task, host in enumerate(nodes)
    )  # Slurm numbers nodes as it sorts them; words 1 to 3 are srun's own
    (tmp_path / "srun").write_text(f'#!/bin/bash\nprintf "%s " "${{@:1:3}}" > {tmp_path}/srun.words\n{steps}\n')
    for name in ("scontrol", "srun"):
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST_HET_GROUP_0": "old",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "fast",
    }  # fmt: skip
    subprocess.run(["bash", str(tmp_path / "job.sbatch"), "train.py"], check=True, env=environment, timeout=20)
    assert (tmp_path / "srun.words").read_text() == "--het-group=0,1 --ntasks-per-node=1 --kill-on-bad-exit=1 "
    started = {host: _flags((tmp_path / f"{host}.words").read_text().splitlines()) for host in nodes}
    order = nodes if which != "named" else ["old07", "old03", "fast1", "fast2"]
    assert [int(started[host]["--node-rank"]) for host in order] == list(range(len(nodes)))
    assert {started[host]["--master-addr"] for host in nodes} == {order[0]}
    assert [started[host]["--nproc-per-node"] for host in nodes] == [
        "4" if which == "unequal" and host[0] == "o" else "8" for host in nodes
    ]


@pytest.mark.parametrize("make", [staged, replicas, alone, lambda: staged(context_parallel_size=2, data_parallel_size=2)])
def test_what_a_plan_says_of_frameworks_is_what_exports_do(make: Any) -> None:
    plan = make()
    said = who_runs_it(plan)
    for name in exporter_names():
        try:
            export(plan, name)
            takes = True
        except NoPlanError as error:
            takes, reason = False, str(error)
        line = next((line for line in said if line.startswith(f"{name} ")), said[0])
        assert takes == (" takes it" in line)
        if not takes:
            assert line.removeprefix(f"{name} does not: ") in reason


@pytest.mark.parametrize("name", exporter_names())
def test_replicas_by_pool_break_one_rule_everywhere(name: str) -> None:
    with pytest.raises(NoPlanError, match="plan with --pools-as stages") as error:
        export(replicas(), name)
    answer: Any = error.value.answer
    assert [broken.rule for broken in answer.broken] == [UNEQUAL]
    assert (answer.nearest is not None) == (name in TAKERS)


def test_in_place_of_replicas_the_runner_up_of_stages_is_written() -> None:
    plan, straight = replicas(), staged()
    done = export(plan, "megatron-lm", take_nearest=True)
    assert done.replaces == plan.strategy
    assert (done.strategy, done.estimate) == (straight.strategy, straight.estimate)
    without_notes = [line for line in done.files[0].text.splitlines() if not line.startswith("#")]
    assert without_notes == [line for line in export(straight, "megatron-lm").files[0].text.splitlines() if not line.startswith("#")]


def test_the_nearest_plan_keeps_every_stage_in_its_pool() -> None:
    plan = staged(context_parallel_size=2, data_parallel_size=2)
    with pytest.raises(NoPlanError, match="context_parallel_kind ring -> all_gather"):
        export(plan, "torchtitan")
    done = export(plan, "torchtitan", take_nearest=True)
    assert done.strategy == replace(plan.strategy, context_parallel_kind=ContextParallelKind.ALL_GATHER)
    assert done.replaces == plan.strategy
    problem, mixed = mixed_of(plan)
    pools = tuple(replace(pool, problem=replace(pool.problem, framework=framework("torchtitan"))) for pool in problem.pools)
    assert done.estimate == mixed_estimate(replace(problem, pools=pools), replace(mixed, strategy=done.strategy))


def test_another_schedule_leaves_each_rank_its_layers() -> None:
    """Under a V schedule the first rank has the first and the last stage; interleaved it has the first and the fifth."""
    changes = {"virtual_pipeline_stages": 2, "pipeline_schedule": PipelineSchedule.ZERO_BUBBLE}
    plan = staged(**changes, pipeline_layers=(3, 2, 6, 6, 5, 6, 2, 2))
    with pytest.raises(NoPlanError, match="schedule=interleaved_1f1b") as error:
        export(plan, "megatron-lm")
    answer: Any = error.value.answer
    split = answer.nearest.strategy.pipeline_layers
    assert split == ((3, 2, 6, 6, 2, 2, 6, 5) if answer.nearest.strategy.virtual_pipeline_stages == 2 else (5, 4, 12, 11))


def test_virtual_stages_become_one_with_the_layers_of_their_rank() -> None:
    changes = {"virtual_pipeline_stages": 2, "pipeline_schedule": PipelineSchedule.INTERLEAVED}
    plan = staged(**changes, pipeline_layers=(2, 2, 6, 6, 3, 2, 6, 5))
    done = export(plan, "megatron-lm")
    assert "--num-virtual-stages-per-pipeline-rank" not in done.files[0].text
    assert "Et*2|t*2|(t*6|)*2t*3|t*2|t*6|t*5L" in done.files[0].text


@pytest.mark.parametrize("name", ["nanotron", "deepspeed", "accelerate"])
def test_frameworks_without_sized_stages_say_who_has_them(name: str) -> None:
    with pytest.raises(NoPlanError) as error:
        export(staged(sequence_parallel=False), name)
    said = str(error.value)
    assert f"{name} runs no stages that are sized to their pool; megatron-bridge, megatron-lm, slurm, torchrun, torchtitan take" in said
    assert "`autopar plan --gpu h100 --gpus 16 --framework" in said


def test_one_pool_alone_is_exported_as_a_plan_for_its_gpus() -> None:
    plan = alone()
    done = export(plan, "megatron-lm")
    assert "on 16 x NVIDIA H100 SXM5 80GB (2 x dgx-h100)" in done.files[0].text
    assert "Hosts start" not in "".join(done.notes)
    assert any(line == "slurm takes it, on h100 alone" for line in who_runs_it(plan))


def test_ranks_are_on_gpus_of_the_pool_that_their_stage_is_in() -> None:
    """Held to the rank layout, for both orders of ranks; nodes of 4, so that stages between replicas fill whole ones."""
    base = staged()
    assert base.mixed is not None
    pools = tuple(replace(pool, cluster=replace(pool.cluster, gpus_per_node=4)) for pool in base.mixed.pools)
    mixed = replace(base.mixed, pools=pools)
    for order in RankOrder:
        strategy = replace(STAGED, rank_order=order)
        runs = host_order(mixed, strategy)
        on_pool = [run.pool for run in runs for _ in range(run.num_gpus)]
        ranks = RankLayout.of(strategy)
        assert on_pool == [mixed.lanes[0].pools[ranks.coordinates(rank)["pp"]] for rank in range(strategy.world_size)]
        assert [run.first for run in runs] == [sum(run.nodes for run in runs[:place]) for place in range(len(runs))]
    assert order_text(host_order(base.mixed, STAGED)) == "nodes 0 to 1 are a100-40gb (2 x dgx-a100-40gb), nodes 2 to 3 h100 (2 x dgx-h100)"


def test_the_plan_file_says_the_order_of_hosts() -> None:
    plan = named(staged())
    assert plan.mixed is not None
    told = [(block.pool, block.first_node, block.nodes, block.first_rank, block.names) for block in plan.mixed.start_order]
    assert told == [("a100-40gb", 0, 2, 0, ("old07", "old03")), ("h100", 2, 2, 16, ("fast1", "fast2"))]
    assert parse_plan(dump_plan(plan)) == plan
    assert export(plan, "torchrun").start_order == plan.mixed.start_order
    for other in (replicas(), staged(rank_order=RankOrder.TP_CP_PP_DP)):
        assert other.mixed is not None
        assert other.mixed.start_order == ()


def test_a_node_in_two_pools_is_refused_with_the_order_that_has_none() -> None:
    plan = staged(rank_order=RankOrder.TP_CP_PP_DP)
    with pytest.raises(NoPlanError, match=r"nodes of 8 GPUs, and 4 ranks.*order=tp-cp-dp-pp"):
        export(plan, "megatron-lm")
    assert plan.mixed is not None
    with pytest.raises(InvalidInputError, match="do not fill them"):
        host_order(plan.mixed, plan.strategy)


def test_recomputation_by_stage_goes_where_it_is_understood() -> None:
    """The strategy's counts or the lane's, which are the same; autopar's own runtime has them, Megatron one number for all stages."""
    counts = {"recompute": Recompute.FULL, "stage_recompute_layers": (5, 4, 0, 0)}
    asked = question()
    pools = tuple(replace(pool, problem=replace(pool.problem, framework=framework("autopar"))) for pool in asked.problem.pools)
    asked = replace(asked, problem=replace(asked.problem, pools=pools))
    own = plan_of(asked, on(replace(STAGED, **counts)))
    plain = on(replace(STAGED, recompute=Recompute.FULL))
    lanes = plan_of(asked, replace(plain, lanes=(replace(plain.lanes[0], stage_recompute_layers=(5, 4, 0, 0)),)))
    for plan in (own, lanes):
        done = export(plan, "torchrun")
        assert "AUTOPAR_STAGE_RECOMPUTE_LAYERS=5,4,0,0" in done.files[0].text
        assert done.estimate == plan.estimate
        with pytest.raises(NoPlanError, match="stage_recompute_layers") as error:
            export(plan, "megatron-lm")
        answer: Any = error.value.answer
        assert answer.nearest.strategy == replace(STAGED, recompute=Recompute.FULL)


def test_flags_of_an_imported_script_go_out_again(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(export(staged(), "megatron-lm").files[0].text.replace("--lr 0.0001", "--lr 0.0003"))
    back = import_plan(tmp_path / "train.sh", "megatron-lm", pools={"a100-40gb": 16, "h100": 16}, between="25GB/s")
    assert "--lr 0.0003" in export(back, "megatron-lm").files[0].text


def test_settings_are_those_that_every_device_has() -> None:
    """Megatron asks for one connection before Blackwell: with older GPUs in the job all ranks have it."""
    asked = question(pools=(("b200", 16), ("h100", 16)))
    plan = plan_of(asked, on(STAGED, ("h100", "h100", "b200", "b200")))
    text = export(plan, "megatron-lm").files[0].text
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in text
    assert "compiled for hopper and blackwell" in text


def test_ranks_json_has_the_hosts_of_every_pool() -> None:
    files = {file.path: file.text for file in export(staged(), "torchrun").files}
    hosts = json.loads(files["ranks.json"])["hosts"]
    assert [(each["pool"], each["first_rank"], each["nodes"], each["gpus_per_node"]) for each in hosts] == [
        ("a100-40gb", 0, 2, 8), ("h100", 16, 2, 8),
    ]  # fmt: skip
    assert "AUTOPAR_HOSTS=2xa100-40gb,2xh100" in files["launch.sh"]


@pytest.mark.parametrize("name", ["megatron-lm", "megatron-bridge"])
def test_a_configuration_with_its_pools_beside_it_is_the_plan_again(name: str, tmp_path: Path) -> None:
    plan = staged()
    for file in export(plan, name).files:
        (tmp_path / file.path).write_text(file.text)
    source = tmp_path / ("train.sh" if name == "megatron-lm" else "autopar_bridge.py")
    pools, given = {"a100-40gb": 16, "h100": 16}, {"model": "llama3-8b", "sequence_length": 4096}
    back = import_plan(source, name, pools=pools, between="25GB/s", **given)  # type: ignore[arg-type]
    assert back.mixed is not None
    assert plan.mixed is not None
    assert (back.strategy, back.mixed.lanes) == (plan.strategy, plan.mixed.lanes)
    if name == "megatron-lm":
        assert back.estimate == plan.estimate
        as_one = import_plan(source, name, model="llama3-8b")
        assert any("exported for a mixed cluster (nodes 0 to 1 are a100-40gb" in note for note in as_one.inputs.assumptions)
        assert as_one.mixed is None


def test_pools_take_as_many_stages_as_they_hold(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(export(staged(), "megatron-lm").files[0].text)
    back = import_plan(tmp_path / "train.sh", "megatron-lm", pools={"a100-40gb": 8, "h100": 24})
    assert back.mixed is not None
    assert back.mixed.lanes[0].ranks_by_pool == (("a100-40gb", 1), ("h100", 3))
    with pytest.raises(InvalidInputError, match=r"--pool a100-40gb=4: a stage has 8 GPUs.*nearest: 8"):
        import_plan(tmp_path / "train.sh", "megatron-lm", pools={"a100-40gb": 4, "l4": 4, "h100": 24})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pools": {"a100-40gb": 4, "h100": 32}}, "--pool=36 GPUs in all: the configuration starts 32 processes"),
        ({"pools": {"a100-40gb": 16, "h100": 16}, "gpus": 32}, "--gpus=32: does not go together with pools"),
        ({"pools": {"a100-40gb": 32}}, "two pools or more"),
        ({"between": "25GB/s"}, "network between pools, and none are given"),
    ],
)
def test_pools_beside_a_configuration_that_cannot_be_meant(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(export(staged(), "megatron-lm").files[0].text)
    with pytest.raises(InvalidInputError, match=said):
        import_plan(tmp_path / "train.sh", "megatron-lm", **given)
