"""``autopar size``: the fewest GPUs by a deadline against a loop over all of them, prices, and why not."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest

import autopar as package
from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.errors import NoPlanError
from autopar.costmodel.step import evaluate
from autopar.costmodel.work import compute_gpu_seconds
from autopar.io.codec import from_json_as, to_json
from autopar.request import build_problem, resized
from autopar.search import Constraints, enumerate_space, search
from autopar.search.floor import can_divide, least_gpu_seconds
from autopar.sizing import Sizing

NOTHING = Constraints()


def on(problem: Problem, gpus: int) -> Problem:
    sized = resized(problem, gpus)
    assert sized is not None
    return sized


def step_times(problem: Problem, sizes: list[int]) -> dict[int, float]:
    """Best step time at every number of GPUs that holds a plan."""
    ranked = {gpus: search(on(problem, gpus), top=1).ranked for gpus in sizes}
    return {gpus: found[0].step_time_seconds for gpus, found in ranked.items() if found}


SIZES = [1, 2, 4, *range(8, 97, 8)]


@pytest.fixture(scope="module")
def small() -> tuple[Problem, dict[int, float]]:
    problem, _ = build_problem("gpt-1.2b", gpus=8, global_batch_size=48, sequence_length=1024)
    return problem, step_times(problem, SIZES)


@pytest.mark.parametrize(("target", "slack"), [(1, 1.2), (4, 1.0001), (16, 1.2), (24, 1.0001), (40, 1.2), (48, 1.0001), (96, 1.0001)])
def test_the_fewest_gpus_are_those_of_the_loop(small: tuple[Problem, dict[int, float]], target: int, slack: float) -> None:
    problem, times = small
    limit = times[target] * slack if target in times else min(times.values()) * slack
    expected = min(gpus for gpus in SIZES if gpus in times and times[gpus] <= limit)
    steps = 1000
    found = package.size(
        "gpt-1.2b", tokens=steps * problem.training.tokens_per_step, deadline=limit * steps, global_batch_size=48, sequence_length=1024
    ).clusters[0]
    assert found.fewest.num_gpus == expected
    assert found.fewest.wall_seconds == pytest.approx(times[expected] * steps)
    assert found.cheapest.gpu_hours <= found.fewest.gpu_hours
    assert found.cheapest.wall_seconds <= limit * steps
    assert found.least_gpu_hours <= min(times[gpus] * gpus for gpus in times) * steps / 3600


def test_time_does_not_fall_with_every_gpu(small: tuple[Problem, dict[int, float]]) -> None:
    """Why nothing is bisected: some number of GPUs is slower than a smaller one."""
    _, times = small
    ordered = [times[gpus] for gpus in sorted(times)]
    assert any(later > earlier for earlier, later in pairwise(ordered))


@pytest.mark.parametrize(
    ("model", "framework", "sizes"),
    [("gpt-1.2b", "megatron-core", SIZES), ("llama3-8b", "fsdp", [8, 16, 64]), ("mixtral-8x7b", "megatron-core", [32, 64])],
)
def test_no_strategy_on_any_number_of_gpus_takes_less_than_the_floor(model: str, framework: str, sizes: list[int]) -> None:
    problem, _ = build_problem(model, gpus=8, framework=framework)
    floor = least_gpu_seconds(problem, NOTHING)
    assert floor > 0
    for gpus in sizes:
        sized = on(problem, gpus)
        for rows in enumerate_space(sized, NOTHING):
            found = evaluate(Inputs.of(sized), rows)
            assert np.all(found.step_time_seconds * gpus >= floor)


def test_the_compute_of_a_strategy_is_below_its_step_and_does_not_depend_on_replicas() -> None:
    problem, _ = build_problem("llama3-8b", gpus=64)
    rows = next(enumerate_space(problem, NOTHING))
    compute = compute_gpu_seconds(Inputs.of(problem), rows)
    found = evaluate(Inputs.of(problem), rows)
    assert np.all(compute <= found.step_time_seconds * 64)
    doubled = rows.with_columns(data_parallel_size=rows.data_parallel_size * 2)
    assert compute_gpu_seconds(Inputs.of(on(problem, 128)), doubled) == pytest.approx(compute)


@pytest.mark.parametrize("batch", [48, 64, 100])
def test_only_numbers_that_divide_hold_a_plan(batch: int) -> None:
    problem, _ = build_problem("gpt-1.2b", gpus=8, global_batch_size=batch, sequence_length=1024)
    for gpus in range(8, 8 * 60, 8):
        rows = list(enumerate_space(on(problem, gpus), NOTHING))
        if any(map(len, rows)):
            assert can_divide(problem, gpus)
    assert not can_divide(problem, 8 * 101)


def test_prices_rank_the_clusters(autopar) -> None:
    flags = (
        "size",
        "--model",
        "gpt-1.2b",
        "--tokens",
        "20B",
        "--deadline",
        "2d",
        "--price",
        "h100=2 USD",
        "a100=1 USD",
        "--price",
        "v100=9 USD",
    )
    document = autopar(*flags, "--json").document
    costs = [each["cheapest"]["cost"] for each in document["clusters"]]
    assert [each["device"] for each in document["clusters"]][-1] == "v100-sxm2-32gb"
    assert costs == sorted(costs)
    assert len(costs) == 3
    assert document["currency"] == "USD"
    for each in document["clusters"]:
        for run in (each["fewest"], each["cheapest"]):
            price = {"h100-sxm5-80gb": 2, "a100-sxm4-80gb": 1, "v100-sxm2-32gb": 9}[run["device"]]
            assert run["cost"] == pytest.approx(run["gpu_hours"] * price)
            assert run["wall_seconds"] <= 2 * 86_400
            assert run["num_steps"] == math.ceil(20e9 / (document["global_batch_size"] * document["sequence_length"]))
    report = autopar(*flags).out
    for expected in ("cheapest first", "fewest", "how sure", "none at all takes fewer than"):
        assert expected in " ".join(report.split())
    assert max(map(len, report.splitlines())) <= 100


def test_json_and_python_agree_and_failures_take_longer(autopar) -> None:
    flags = ("size", "--model", "gpt-1.2b", "--tokens", "5B", "--deadline", "12h", "--gpu", "a100")
    outcome = autopar(*flags, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    found = package.size("gpt-1.2b", tokens=5e9, deadline="12 hours", gpu="a100")
    assert outcome.document == json.loads(to_json(found))
    assert from_json_as(Sizing, outcome.out) == found
    assert set(outcome.document) == set(autopar("schema", "size").document["properties"])
    failing = package.size("gpt-1.2b", tokens=5e9, deadline="12 hours", gpu="a100", mtbf_node="20h", checkpoint_seconds=300)
    assert failing.clusters[0].fewest.num_gpus >= found.clusters[0].fewest.num_gpus
    assert failing.clusters[0].fewest.expected_step_seconds > failing.clusters[0].fewest.step_time_seconds


def test_a_deadline_that_nothing_meets_says_why_and_what_would(autopar) -> None:
    flags = ("size", "--model", "gpt-1.2b", "--tokens", "1T", "--deadline", "6h", "--max-gpus", 2048, "--gbs", 64)
    outcome = autopar(*flags)
    assert (outcome.code, outcome.out) == (1, "")
    for expected in (
        "no number of GPUs trains gpt-1.2b on 1T tokens in 6 hours", "the batch bounds the data-parallel size: 64 sequences",
        "least change: a deadline of",
    ):  # fmt: skip
        assert expected in outcome.err
    document = autopar(*flags, "--json").document
    assert (document["fits"], document["clusters"]) == (False, [])
    fastest = document["missed"][0]["fastest"]["wall_seconds"]
    assert fastest > 6 * 3600
    answer = package.size("gpt-1.2b", tokens="1T", deadline=fastest * 1.005, max_gpus=2048, global_batch_size=64)
    assert answer.fits


def test_a_larger_batch_is_offered_where_it_would_do(autopar) -> None:
    outcome = autopar("size", "--model", "llama3-8b", "--tokens", "15T", "--deadline", "60d", "--gbs", 16, "--max-gpus", 4096)
    assert outcome.code == 1
    assert "or a batch of " in outcome.err


def test_what_the_compute_alone_rules_out_is_not_searched(autopar) -> None:
    outcome = autopar("size", "--model", "gpt-175b", "--tokens", "15T", "--deadline", "1d", "--max-gpus", 1024)
    assert outcome.code == 1
    assert "matrix products alone take" in outcome.err


def test_a_cluster_that_cannot_run_the_question_is_named_beside_those_that_can() -> None:
    found = package.size("gpt-1.2b", tokens="1B", deadline="3d", precision="fp8", price={"h100": 2, "a100": 1})
    assert [each.device for each in found.clusters] == ["h100-sxm5-80gb"]
    assert "does not compute in it" in found.missed[0].reasons[0]
    with pytest.raises(NoPlanError, match="no number of GPUs"):
        package.size("gpt-175b", tokens="1B", deadline="3d", max_gpus=8)


RUN = ("--tokens", "1B", "--deadline", "3d")


@pytest.mark.parametrize(
    ("flags", "messages"),
    [
        (("--tokens", "15TB", "--deadline", "30"), ["did you mean 15T?", "did you mean 30d?"]),
        (("--tokens", "1B", "--deadline", "-3d", "--price", "0"), ["--deadline", "--price"]),
        (("--tokens", "0", "--deadline", "0d"), ["a number of tokens above zero", "a time above zero"]),
        (("--tokens", "1B"), ["--deadline"]),
        ((*RUN, "--gpus", 8), ["No such option '--gpus'", "--max-gpus"]),
        ((*RUN, "--max-gpus", 0), ["--max-gpus"]),
        ((*RUN, "--max-gpus", 10**6), ["1000000", "131,072"]),
        ((*RUN, "--price", "h100=2", "--gpu", "a100"), ["needs the price of a GPU-hour of a100"]),
        ((*RUN, "--fix", "tpp=3"), ["tpp"]),
        ((*RUN, "--gpu", "h1000", "--price", "0"), ["did you mean h100", "above zero"]),
        ((*RUN, "--gpu", "h100", "--cluster", "dgx-h100"), ["not both"]),
        ((*RUN, "--cluster", "nope"), ["not a known cluster"]),
        ((*RUN, "--price", "a100=1", "h100=2", "--precision", "bf17"), ["did you mean bf16"]),
    ],
)
def test_bad_questions(autopar, flags: tuple[object, ...], messages: list[str]) -> None:
    outcome = autopar("size", "--model", "gpt-1.2b", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    for message in messages:
        assert message in outcome.err


@pytest.mark.parametrize("name", ["p5.48xlarge", "aws-p5"])
def test_a_node_type_by_any_of_its_names(name: str) -> None:
    (found,) = package.size("gpt-1.2b", tokens="1B", deadline="3d", cluster=name, max_gpus=16).clusters
    assert (found.cluster, found.fewest.cluster) == ("aws-p5", "aws-p5")


def test_a_cluster_that_says_its_size_is_the_limit() -> None:
    cluster = build_problem("gpt-1.2b", gpus=16)[0].cluster
    found = package.size("gpt-1.2b", tokens="1B", deadline="3d", cluster=cluster).clusters[0]
    assert found.cheapest.num_gpus <= 16
    with pytest.raises(NoPlanError, match="more than the 16"):
        package.size("gpt-1.2b", tokens="10T", deadline="3d", cluster=cluster)


def test_columns_of_one_strategy_are_enough_for_the_floor() -> None:
    problem, _ = build_problem("gpt-1.2b", gpus=8)
    best = search(problem, top=1).ranked[0]
    compute = compute_gpu_seconds(Inputs.of(problem), StrategyColumns.of([best.strategy]))
    assert 0.5 < float(compute[0]) / (8 * best.step_time_seconds) < 1


def test_layers_placed_stage_by_stage_finish_sooner(autopar) -> None:
    asked = ("size", "--model", "llama3-8b", "--gpu", "a100-sxm4-40gb", "--framework", "autopar", "--max-gpus", 8, "--fix", "pp=4", "vpp=1")
    run = ("--tokens", "10B", "--deadline", "90d", "--json")
    (even,), (uneven,) = (autopar(*asked, *run, "--stages", how).document["clusters"] for how in ("even", "uneven"))
    assert uneven["fewest"]["num_gpus"] == even["fewest"]["num_gpus"] == 8
    assert uneven["fewest"]["wall_seconds"] < 0.99 * even["fewest"]["wall_seconds"]
