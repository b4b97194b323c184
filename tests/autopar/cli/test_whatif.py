"""``autopar whatif``: plateaus, replans and cliffs, and the comparison of ``explain`` with the best."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import autopar as package
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.io.codec import from_json_as, to_json
from autopar.perturbation import TOLERANCE, Verdict, WhatIf, changes_of
from autopar.request import build_problem

SMALL = ("--model", "gpt-1.2b", "--gpus", 16, "--gbs", 64)


@pytest.fixture(scope="module")
def found() -> WhatIf:
    return package.whatif("gpt-1.2b", gpus=16, global_batch_size=64)


def test_the_five_usual_changes(found: WhatIf) -> None:
    words = [effect.change for effect in found.effects]
    assert words[:3] == ["3 nodes (24 GPUs)", "1 node (8 GPUs)", "batch of 128 sequences"]
    assert words[3].startswith("0.5 x the bandwidth of ")
    assert words[4] == "sequences of 2,048 tokens"


def test_the_verdict_follows_its_rule(found: WhatIf) -> None:
    for effect in found.effects:
        same = effect.same is not None and effect.same.loss <= TOLERANCE
        anew = effect.replanned is not None and effect.replanned.loss <= TOLERANCE
        assert effect.verdict is (Verdict.PLATEAU if same else Verdict.REPLAN if anew else Verdict.CLIFF)


def test_a_new_plan_is_never_slower_than_the_same_strategy(found: WhatIf) -> None:
    for effect in found.effects:
        for outcome in (effect.same, effect.replanned):
            if outcome is not None:
                assert outcome.loss == pytest.approx(outcome.step_time_seconds / effect.ideal_step_time_seconds - 1)
                assert outcome.num_gpus == outcome.strategy.world_size <= effect.num_gpus
        if effect.same is not None and effect.replanned is not None:
            assert effect.replanned.step_time_seconds <= effect.same.step_time_seconds


def test_the_same_strategy_keeps_all_sizes_but_the_replicas(found: WhatIf) -> None:
    names = [name for name in found.strategy.__slots__ if name != "data_parallel_size"]
    for effect in found.effects:
        if effect.same is not None:
            assert [getattr(effect.same.strategy, name) for name in names] == [getattr(found.strategy, name) for name in names]
            assert effect.global_batch_size % (effect.same.strategy.data_parallel_size * found.strategy.micro_batch_size) == 0


def test_the_numbers_are_those_of_the_parts() -> None:
    """The same strategy and the new plan of one change, each asked for on its own."""
    plan = package.plan("gpt-1.2b", gpus=16, global_batch_size=64)
    (effect,) = package.whatif(plan, changes=["batch=x2"]).effects
    doubled = package.plan("gpt-1.2b", gpus=16, global_batch_size=128)
    assert effect.replanned is not None
    assert effect.replanned.step_time_seconds == pytest.approx(doubled.estimate.step_time_seconds)
    again = package.estimate("gpt-1.2b", gpus=16, global_batch_size=128, strategy=plan.strategy)
    assert effect.same is not None
    assert effect.same.step_time_seconds == pytest.approx(again.step_time_seconds)
    assert effect.ideal_step_time_seconds == pytest.approx(2 * plan.estimate.step_time_seconds)


def test_the_constraints_of_a_plan_hold_for_the_new_one() -> None:
    plan = package.plan("gpt-1.2b", gpus=16, global_batch_size=64, fix={"tp": 2}, maximum={"pp": 2}, forbid=["recompute"])
    for effect in package.whatif(plan).effects:
        if effect.replanned is not None:
            assert effect.replanned.strategy.tensor_parallel_size == 2
            assert effect.replanned.strategy.pipeline_parallel_size <= 2


def test_more_network_is_never_slower_and_less_never_faster() -> None:
    plan = package.plan("gpt-1.2b", gpus=16, global_batch_size=64)
    times = []
    for factor in ("x0.25", "x0.5", "x2"):
        (effect,) = package.whatif(plan, changes=[f"network={factor}"]).effects
        assert effect.same is not None
        times.append(effect.same.step_time_seconds)
    assert times == sorted(times, reverse=True)
    assert times[1] >= plan.estimate.step_time_seconds >= times[2]


def test_a_refused_strategy_says_why_and_a_cliff_is_named(autopar) -> None:
    flags = ("--model", "llama3-8b", "--gpus", 8, "--change", "gpus=1", "--change", "sequence=x2")
    document = autopar("whatif", *flags, "--json").document
    one, longer = document["effects"]
    assert (one["verdict"], one["replanned"], one["same"]) == ("cliff", None, None)
    assert longer["refused"] or longer["same"]
    report = autopar("whatif", *flags).out
    for expected in ("does not run", "nothing fits", "cliff", "ideal: the plan's time by work and GPUs"):
        assert expected in " ".join(report.split())
    assert max(map(len, report.splitlines())) <= 100


def test_json_python_and_plan_files_agree(autopar, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    autopar("plan", *SMALL, "-o", file)
    outcome = autopar("whatif", file, "--change", "nodes=+1", "--change", "batch=x2", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    found = package.whatif(package.read_plan(file), changes=["nodes=+1", "batch=x2"])
    assert outcome.document == json.loads(to_json(found))
    assert from_json_as(WhatIf, outcome.out) == found
    assert set(outcome.document) == set(autopar("schema", "whatif").document["properties"])
    strategy = {"tp": 2, "mbs": 1}
    named = autopar("whatif", *SMALL, "--tp", 2, "--mbs", 1, "--change", "batch=x2", "--json").document
    assert named == json.loads(to_json(package.whatif("gpt-1.2b", gpus=16, global_batch_size=64, strategy=strategy, changes=["batch=x2"])))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("nodes", "is not a change of nodes, gpus"),
        ("node=+1", "is not a change of nodes"),
        ("nodes=x", "for example nodes=+1"),
        ("gpus=12", "does not come in 12 GPUs"),
        ("nodes=-2", "makes 0 of 16"),
        ("batch=x0.3", "a whole number of at least 1"),
        ("batch=0", "a whole number of at least 1"),
        ("network=0.5", "a factor above zero"),
        ("network=x0", "a factor above zero"),
    ],
)
def test_a_change_that_is_none(autopar, change: str, message: str) -> None:
    outcome = autopar("whatif", *SMALL, "--tp", 2, "--change", change)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err


def test_every_wrong_change_is_told_at_once() -> None:
    problem, _ = build_problem("gpt-1.2b", gpus=16)
    with pytest.raises(InvalidInputError) as raised:
        changes_of(problem, ["nodes=x", "batch=0", "gpus=7000000000"])
    assert len(raised.value.faults) == 3


def test_below_a_node_one_less_is_half() -> None:
    problem, _ = build_problem("gpt-1.2b", gpus=8)
    halved, doubled = (change.problem.cluster.num_gpus for change in changes_of(problem, ["nodes=-1", "nodes=+1"]))
    assert (halved, doubled) == (4, 16)


def test_a_strategy_that_does_not_run_has_no_what_if(autopar) -> None:
    outcome = autopar("whatif", "--model", "gpt-22b", "--gpus", 8, "--tp", 1, "--json")
    assert outcome.code == 1
    assert outcome.document["fits"] is False
    assert outcome.document["faults"][0]["field"] == "peak_memory"
    assert autopar("whatif").code == 2
    assert "leave out --global-batch-size" in autopar("whatif", "plan.json", "--gbs", 4).err


def test_explain_says_where_a_strategy_loses_against_the_best(autopar) -> None:
    flags = ("--model", "gpt-22b", "--gpus", 64, "--tp", 8, "--pp", 8, "--gbs", 64, "--recompute", "full")
    against = autopar("explain", *flags, "--json").document["against_best"]
    best = package.plan("gpt-22b", gpus=64, global_batch_size=64)
    assert against["step_time_seconds"] == pytest.approx(best.estimate.step_time_seconds)
    assert against["best"]["tensor_parallel_size"] == best.strategy.tensor_parallel_size
    losses = [term["loses_seconds"] for term in against["terms"]]
    assert sum(losses) == pytest.approx(against["loses_seconds"])
    assert [abs(loss) for loss in losses] == sorted(map(abs, losses), reverse=True)
    assert next(term for term in against["terms"] if term["term"] == "recompute")["best_seconds"] == 0
    report = " ".join(autopar("explain", *flags).out.split())
    assert "against the best (" in report
    assert "most is lost in recompute, which rests on gemm_efficiency" in report


def test_explain_of_the_best_says_so(autopar, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    autopar("plan", *SMALL, "-o", file)
    outcome = autopar("explain", file)
    assert "it is the best of its space" in outcome.out
    document = autopar("explain", file, "--json").document
    assert document["against_best"]["loses_seconds"] == 0
    assert document["against_best"]["tie"] is True
    assert set(document) == set(autopar("schema", "explain").document["properties"])


def test_new_plans_place_layers_as_asked(autopar) -> None:
    tight = ("--model", "llama3-8b", "--gpus", 8, "--gpu", "a100-sxm4-40gb", "--framework", "autopar")
    asked = ("whatif", *tight, "--change", "batch=x2", "--json")
    even, uneven = autopar(*asked).document, autopar(*asked, "--stages", "uneven").document
    assert uneven["step_time_seconds"] < 0.999 * even["step_time_seconds"]
    assert uneven["strategy"]["stage_recompute_layers"]
    assert uneven["effects"][0]["replanned"]["step_time_seconds"] < 0.995 * even["effects"][0]["replanned"]["step_time_seconds"]
