"""``plan --objective``, ``--pareto`` and failures: the answers, and every way to ask badly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import autopar as package
from autopar.costmodel.spec.cluster import ClusterSpec
from autopar.costmodel.spec.errors import InvalidInputError, NoPlanError, UnavailableError
from autopar.frontier import Axis, ParetoFront, gpu_counts
from autopar.io.codec import from_json_as, to_json
from autopar.io.plan_file import dump_plan, parse_plan
from autopar.request import build_problem, resized
from autopar.search import search
from autopar.search.pareto import front, non_dominated

SMALL = ("--model", "gpt-1.2b", "--gpus", 8, "--gbs", 64)
FAILING = ("--mtbf-node", "4000h", "--checkpoint-seconds", 60)


def test_least_memory_is_below_the_fastest_and_slower(autopar) -> None:
    fastest = autopar("plan", *SMALL, "--json").document
    smallest = autopar("plan", *SMALL, "--objective", "memory", "--json").document
    assert smallest["inputs"]["objective"] == "memory"
    assert smallest["estimate"]["peak_memory_bytes"] < fastest["estimate"]["peak_memory_bytes"]
    assert smallest["estimate"]["step_time_seconds"] > fastest["estimate"]["step_time_seconds"]
    peaks = [smallest["estimate"]["peak_memory_bytes"], *(other["peak_memory_bytes"] for other in smallest["alternatives"])]
    assert peaks == sorted(peaks)
    assert "best strategy (least memory)" in autopar("plan", *SMALL, "--objective", "memory").out


@pytest.mark.parametrize("objective", ["cost", "energy"])
def test_on_one_number_of_gpus_the_cheapest_is_the_fastest(autopar, objective: str) -> None:
    outcome = autopar("plan", *SMALL, "--objective", objective, "--price", "2.5 USD", "--json")
    found, fastest = parse_plan(outcome.out), package.plan("gpt-1.2b", gpus=8, global_batch_size=64)
    assert found.strategy == fastest.strategy
    assert found.economics is not None
    seconds = found.estimate.step_time_seconds
    assert found.economics.cost_per_step == pytest.approx(8 * seconds / 3600 * 2.5)
    assert found.economics.energy_joules_per_step == pytest.approx(8 * seconds * 700)
    report = " ".join(autopar("plan", *SMALL, "--objective", objective, "--price", "2.5 USD").out.split())
    assert f"`--pareto gpus,{objective}` compares numbers of GPUs" in report
    assert "an upper bound" in report


def test_a_plan_with_money_and_failures_is_a_plan_file(autopar, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    flags = ("--model", "gpt-1.2b", "--gpus", 16, "--gbs", 64, "--price", "h100=2", *FAILING)
    outcome = autopar("plan", *flags, "-o", file, "--json")
    plan = package.plan("gpt-1.2b", gpus=16, global_batch_size=64, price={"h100-sxm5-80gb": 2.0}, mtbf_node="4000h", checkpoint_seconds=60)
    assert outcome.document == json.loads(dump_plan(plan)) == json.loads(file.read_text())
    assert parse_plan(file.read_text()) == plan
    assert plan.goodput is not None
    assert plan.goodput.num_nodes == 2
    assert 0.9 < plan.goodput.useful_fraction < 1
    assert plan.goodput.useful_fraction + plan.goodput.checkpoint_fraction + plan.goodput.failure_fraction == pytest.approx(1)
    assert plan.goodput.expected_step_seconds == pytest.approx(plan.estimate.step_time_seconds / plan.goodput.useful_fraction)
    assert plan.economics is not None
    assert plan.economics.cost_per_step == pytest.approx(16 * plan.goodput.expected_step_seconds / 3600 * 2)


def test_the_plan_after_losing_a_node_is_the_fastest_of_those_looked_at(autopar) -> None:
    plan = package.plan("gpt-1.2b", gpus=32, global_batch_size=64, mtbf_node="1000h", checkpoint_seconds="1 min", restart_seconds=300)
    assert plan.goodput is not None
    after = plan.goodput.after_loss
    assert after is not None
    assert 24 in after.looked_at
    assert after.num_gpus + after.idle_gpus == 24
    problem, _ = build_problem("gpt-1.2b", gpus=32, global_batch_size=64)
    times = []
    for gpus in after.looked_at:
        smaller = resized(problem, gpus)
        assert smaller is not None
        times.append(search(smaller, top=1).ranked[0].step_time_seconds)
    assert after.step_time_seconds == pytest.approx(min(times))
    assert after.resharding.moved_bytes <= after.resharding.loaded_bytes
    assert after.resharding.changed
    report = autopar("plan", "--model", "gpt-1.2b", "--gpus", 32, "--gbs", 64, *FAILING).out
    for expected in ("spare nodes", "after losing a node", "resharding", "useful time", "Daly"):
        assert expected in report


def test_one_node_has_no_plan_after_its_loss(autopar) -> None:
    outcome = autopar("plan", *SMALL, *FAILING, "--json")
    assert outcome.document["goodput"]["after_loss"] is None
    assert "one node" in outcome.document["goodput"]["after_loss_refused"]


def test_a_job_that_fails_all_the_time_is_a_no(autopar) -> None:
    outcome = autopar("plan", *SMALL, "--mtbf-node", "10s", "--checkpoint-seconds", 600)
    assert (outcome.code, outcome.out) == (1, "")
    assert "no progress" in outcome.err
    assert "faster checkpoints" in outcome.err


@pytest.mark.parametrize(
    ("flags", "messages"),
    [
        (("--objective", "cost"), ["needs the price of a GPU-hour of h100-sxm5-80gb"]),
        (("--objective", "cost", "--price", "a100=2"), ["prices of a100-sxm4-80gb", "needs the price"]),
        (("--price", "0"), ["above zero"]),
        (("--price", "-2"), ["above zero"]),
        (("--price", "2,5"), ["not a price"]),
        (("--price", "h1000=2"), ["h1000", "did you mean"]),
        (("--price", "h100=2 USD", "--price", "a100=1 EUR"), ["one currency"]),
        (("--mtbf-node", "4000h"), ["--checkpoint-seconds"]),
        (("--checkpoint-seconds", "60"), ["--mtbf-node"]),
        (("--mtbf-node", "4000", "--checkpoint-seconds", "0"), ["did you mean 4000d?", "above zero"]),
        (("--mtbf-node", "-1h", "--checkpoint-seconds", "one", "--price", "x"), ["-1h", "one", "--price"]),
        (("--pareto", "time"), ["two axes or more"]),
        (("--pareto", "time,tme"), ["did you mean time"]),
        (("--pareto", "time,time"), ["each once"]),
        (("--pareto", "time,cost"), ["needs the price"]),
        (("--pareto", "time,memory", "--top", 3), ["leave out --top"]),
        (("--pareto", "time,memory", "--objective", "cost", "-o", "x.json"), ["leave out --objective, --output"]),
        (("--pareto", "time,memory", "--plot", "x.gif"), [".svg, .png, .pdf"]),
        (("--pareto", "time,memory", "--report", "x.html", "--trace", "x.json"), ["leave out --report, --trace"]),
        (("--pareto", "time,memory", "--stages", "uneven"), ["a front of memory is found over even stages alone"]),
        (("--pareto", "time,tme", "--time-limit", "0"), ["did you mean time", "time_limit"]),
        (("--objective", "memory", "--stages", "exact"), ["the least memory is found over even stages alone", "leave --stages out"]),
        (("--plot", "x.svg"), ["give --pareto too"]),
        (("--objective", "speed"), ["'speed' is not one of"]),
        (("--fix", "tp=8", "--max", "tp=4"), ["is fixed, and a maximum of 4 rules it out", "a maximum of 8 allows it, or fix 4"]),
        (("--fix", "tp=2", "--min", "tp=4"), ["a minimum of 4 rules it out", "a minimum of 2 allows it"]),
        (("--fix", "tp=8", "--forbid", "tp"), ["is forbidden", "fix 1"]),
        (("--min", "tp=8", "--max", "tp=4"), ["the minimum is above the maximum", "a minimum of 4 or a maximum of 8"]),
    ],
)
def test_bad_questions_are_told_in_full(autopar, flags: tuple[object, ...], messages: list[str]) -> None:
    outcome = autopar("plan", *SMALL, *flags)
    assert (outcome.code, outcome.out) == (2, "")
    for message in messages:
        assert message in outcome.err


def test_python_names_an_objective_that_is_none() -> None:
    with pytest.raises(InvalidInputError, match="did you mean memory"):
        package.plan("gpt-1.2b", gpus=8, objective="memry")
    with pytest.raises(TypeError, match="checkpoint"):
        package.plan("gpt-1.2b", gpus=8, checkpoint=60)  # type: ignore[call-arg]


def without_power(gpus: int) -> ClusterSpec:
    cluster = build_problem("gpt-1.2b", gpus=gpus)[0].cluster
    return replace(cluster, id="no-power", device=replace(cluster.device, power_watts=0.0))


def test_a_device_without_power_has_a_plan_but_no_energy() -> None:
    cluster = without_power(8)
    with pytest.raises(UnavailableError, match="h100-sxm5-80gb has no power figure"):
        package.plan("gpt-1.2b", cluster=cluster, objective="energy", global_batch_size=64)
    assert package.plan("gpt-1.2b", cluster=cluster, global_batch_size=64).economics is None


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        (("--fix", "tp=3"), ["without tp=3: "]),
        (("--fix", "tp=8", "pp=8", "dp=2"), ["without tp=8 and pp=8: ", "without pp=8 and dp=2: "]),
        (("--gbs", 7, "--forbid", "pp,tp,cp"), ["without forbid pp: ", "with a batch of 8 sequences in place of 7: "]),
    ],
)
def test_an_emptied_space_is_told_what_reopens_it(autopar, flags: tuple[object, ...], changes: list[str]) -> None:
    outcome = autopar("plan", "--model", "gpt-1.2b", "--gpus", 8, *flags)
    assert (outcome.code, outcome.out) == (1, "")
    for change in changes:
        assert f"there is a plan {change}" in outcome.err
    document = autopar("plan", "--model", "gpt-1.2b", "--gpus", 8, *flags, "--json").document
    assert len(document["reopened_by"]) >= len(changes)


def test_the_front_in_json_is_the_one_of_python(autopar) -> None:
    outcome = autopar("plan", *SMALL, "--pareto", "time,memory", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    found = package.pareto("gpt-1.2b", "time,memory", gpus=8, global_batch_size=64)
    assert outcome.document == json.loads(to_json(found))
    assert from_json_as(ParetoFront, outcome.out) == found
    assert set(outcome.document) == set(autopar("schema", "pareto").document["properties"])
    times, peaks = ([getattr(point, name) for point in found.points] for name in ("step_time_seconds", "peak_memory_bytes"))
    assert times == sorted(times)
    assert peaks == sorted(peaks, reverse=True)


def test_a_front_over_all_axes_is_that_of_the_union() -> None:
    """Every axis at every number of GPUs, against brute force over the fronts of time and memory at each."""
    axes = ("time", "gpus", "memory", "cost", "energy")
    found = package.pareto("gpt-1.2b", axes, gpus=8, global_batch_size=16, price=2.0, mtbf_node="100h", checkpoint_seconds=30)
    problem, _ = build_problem("gpt-1.2b", gpus=8, global_batch_size=16)
    assert found.looked_at == gpu_counts(problem.cluster) == (1, 2, 4, 8)
    rows = []
    for gpus in found.looked_at:
        sized = resized(problem, gpus)
        assert sized is not None
        rows += [(point.step_time_seconds, gpus, point.peak_memory_bytes, point.step_time_seconds * gpus) for point in front(sized).ranked]
    kept = np.array(rows)[non_dominated(np.array(rows))]
    expected = sorted({(round(t, 9), int(n), round(m)) for t, n, m, _ in kept.tolist()})
    assert sorted((round(p.step_time_seconds, 9), p.num_gpus, round(p.peak_memory_bytes)) for p in found.points) == expected
    for point in found.points:
        assert point.expected_step_seconds > point.step_time_seconds
        assert point.cost_per_step == pytest.approx(point.num_gpus * point.expected_step_seconds / 3600 * 2)


def test_money_is_compared_over_numbers_of_gpus() -> None:
    found = package.pareto("gpt-1.2b", ["time", "cost"], gpus=16, global_batch_size=64, price="1 EUR")
    assert len(found.looked_at) > 3
    assert found.currency == "EUR"
    costs = [point.value(Axis.COST) for point in found.points]
    assert costs == sorted(costs, reverse=True)


def test_the_report_has_a_table_and_a_plot(autopar, tmp_path: Path) -> None:
    file = tmp_path / "front.svg"
    flags = ("plan", *SMALL, "--pareto", "time,gpus,cost", "--price", "2.5 USD", "--plot", file)
    outcome = autopar(*flags)
    assert (outcome.code, outcome.err) == (0, f"wrote {file}\n")
    for expected in ("Pareto front of time, gpus, cost", "GPUs (up) over step time", "cost/Mtok", "numbers of GPUs: 1, 2, 4, 8"):
        assert expected in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 100
    drawn = file.read_text(encoding="utf-8")
    assert drawn.startswith("<?xml")
    autopar(*flags)
    assert file.read_text(encoding="utf-8") == drawn


def test_a_long_front_shows_its_ends_and_some_between(autopar) -> None:
    lines = autopar("plan", *SMALL, "--pareto", "time,memory").out.splitlines()
    points = len(autopar("plan", *SMALL, "--pareto", "time,memory", "--json").document["points"])
    assert points > 24
    assert any(f"of the {points} points; --json has them all" in line for line in lines)


def test_a_plot_without_matplotlib_says_what_to_install(autopar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    outcome = autopar("plan", *SMALL, "--pareto", "time,memory", "--plot", tmp_path / "x.png")
    assert outcome.code == 3
    assert "pip install 'autopar[report]'" in outcome.err


def test_where_nothing_fits_there_is_no_empty_front(autopar) -> None:
    outcome = autopar("plan", "--model", "gpt-175b", "--gpus", 8, "--pareto", "time,gpus", "--json")
    assert outcome.code == 1
    assert outcome.document["fits"] is False
    assert "smallest number of GPUs that holds it" in outcome.err


def test_a_front_without_memory_places_layers_as_asked(autopar) -> None:
    tight = ("--model", "llama3-8b", "--gpus", 8, "--gpu", "a100-sxm4-40gb", "--framework", "autopar")
    fixed = ("--fix", "pp=4", "vpp=1", "--pareto", "time,gpus", "--json")
    (uneven,) = autopar("plan", *tight, *fixed, "--stages", "uneven").document["points"]
    (even,) = autopar("plan", *tight, *fixed).document["points"]
    assert uneven["num_gpus"] == even["num_gpus"] == 8
    assert uneven["step_time_seconds"] < 0.99 * even["step_time_seconds"]
    assert uneven["strategy"]["stage_recompute_layers"]


@pytest.mark.parametrize("axes", ["time,memory", "time,gpus"])
def test_a_front_that_runs_out_of_time_is_a_no_not_an_empty_table(autopar, axes: str) -> None:
    outcome = autopar("plan", *SMALL, "--pareto", axes, "--time-limit", "0.000001s")
    assert (outcome.code, outcome.out) == (1, "")
    assert "the time limit of 1e-06 s ended the search before a strategy that fits was found" in outcome.err


def test_a_front_says_that_time_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first number of GPUs is finished, and no other is begun."""
    seen = []
    whole = package.pareto("gpt-1.2b", "time,gpus", gpus=16, global_batch_size=64)
    monkeypatch.setattr("autopar.frontier._points", lambda problem, *_: seen.append(problem) or [])
    monkeypatch.setattr("autopar.search.progress.Watch.seconds", property(lambda _: 100.0 * len(seen)))
    with pytest.raises(NoPlanError, match="time limit"):
        package.pareto("gpt-1.2b", "time,gpus", gpus=16, global_batch_size=64, time_limit="10s")
    assert [problem.cluster.num_gpus for problem in seen] == [16]
    assert len(whole.looked_at) > 1
