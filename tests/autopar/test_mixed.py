"""Questions to pools, and plans over them as files."""

from __future__ import annotations

from dataclasses import replace

import pytest

import autopar
from autopar.costmodel.spec.errors import InvalidInputError, NoPlanError
from autopar.costmodel.spec.plan import Plan
from autopar.exporters.pools import who_runs_it
from autopar.io.plan_file import dump_plan, parse_plan
from autopar.io.pools import parse_rate, read_pools
from autopar.mixed import posed
from autopar.mixed_problem import estimate_of, mixed_of
from autopar.request import problem_of

NO_BOUNDS = ((), (), (), ())


@pytest.fixture(scope="module")
def plan() -> Plan:
    return autopar.plan(
        "llama3.2-1b", pools={"h100": 8, "a100-40gb": 8}, global_batch_size=64, fix={"mbs": 1, "zero": 1}, maximum={"vpp": 2}
    )


@pytest.mark.parametrize(
    ("text", "rate"), [("25GB/s", 25e9), ("200 Gbit/s", 25e9), ("200Gb/s", 25e9), ("400Gbps", 50e9), (1e10, 1e10), ("1.5 TB/s", 1.5e12)]
)
def test_rates_as_people_write_them(text: str | float, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["25", "GB/s", "-1GB/s", "25 GB", "0GB/s", 0, "fast"])
def test_what_is_no_rate_says_what_would_be(text: str | float) -> None:
    with pytest.raises(InvalidInputError, match="25GB/s or 200Gbit/s"):
        parse_rate(text)


def test_pools_from_words_and_from_a_mapping() -> None:
    assert read_pools(["h100=64", "a100-40gb=1,024"]) == read_pools({"h100": 64, "a100-40gb": 1024}) == {"h100": 64, "a100-40gb": 1024}


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        (["h100=64"], "--gpu h100 --gpus 64"),
        ([], "for example --pool h100=64 a100=64"),
        (["h100=0", "a100=8"], "above zero"),
        (["h100", "a100=8"], "for example h100=64"),
        (["h100=8", "h100=16"], "already given as 8"),
        (["h100=-8", "a100=8"], "above zero"),
    ],
)
def test_pools_that_cannot_be_meant(pools: list[str], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        read_pools(pools)


def test_all_faults_of_a_question_come_at_once() -> None:
    with pytest.raises(InvalidInputError) as error:
        autopar.plan("llama3.2-1b", pools={"h100": 12, "a100": 8}, gpus=8, price=2.5, objective="cost", search="hill", fix={"nothing": 1})
    told = {fault.field for fault in error.value.faults}
    assert {"objective", "search", "gpus", "price", "--pool h100: num_gpus"} <= told
    assert any("nothing" in str(fault) for fault in error.value.faults)


def test_a_device_that_is_not_known_is_named_with_close_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"--pool h10: device='h10'.*did you mean h100"):
        posed("llama3.2-1b", {"h10": 8, "a100": 8}, None, NO_BOUNDS, {})


def test_vendors_do_not_mix() -> None:
    with pytest.raises(InvalidInputError, match="NCCL and RCCL"):
        posed("llama3.2-1b", {"h100": 8, "mi300x": 8}, None, NO_BOUNDS, {})


def test_the_precision_is_one_that_every_pool_has() -> None:
    asked = posed("llama3.2-1b", {"h100": 8, "v100": 8}, None, NO_BOUNDS, {})
    assert {pool.problem.training.precision.name for pool in asked.problem.pools} == {"fp16"}
    with pytest.raises(InvalidInputError, match="--pool v100: precision"):
        posed("llama3.2-1b", {"h100": 8, "v100": 8}, None, NO_BOUNDS, {"precision": "bf16"})


def test_the_network_between_is_the_slower_pools_unless_told() -> None:
    usual = posed("llama3.2-1b", {"h100": 8, "a100-40gb": 16}, None, NO_BOUNDS, {})
    assert usual.network_of == "a100-40gb"
    assert usual.problem.between.tier.bandwidth == 25e9
    assert any("between the pools: 25 GB/s" in note for note in usual.assumptions)
    told = posed("llama3.2-1b", {"h100": 8, "a100-40gb": 16}, "1GB/s", NO_BOUNDS, {})
    assert told.problem.between.tier.bandwidth == 1e9
    assert not any("between the pools" in note for note in told.assumptions)


def test_a_plan_over_pools_is_a_file_that_stands_alone(plan: Plan) -> None:
    again = parse_plan(dump_plan(plan))
    assert again == plan
    assert dump_plan(again) == dump_plan(plan)
    assert estimate_of(again) == plan.estimate == autopar.estimate(again)
    problem, mixed = mixed_of(again)
    assert mixed.lanes == plan.mixed.lanes if plan.mixed else False
    assert [pool.name for pool in problem.pools] == ["h100", "a100-40gb"]


def test_the_same_question_gives_the_same_bytes(plan: Plan) -> None:
    again = autopar.plan(
        "llama3.2-1b", pools={"h100": 8, "a100-40gb": 8}, global_batch_size=64, fix={"mbs": 1, "zero": 1}, maximum={"vpp": 2}
    )
    assert dump_plan(again) == dump_plan(plan)


def test_what_a_uniform_plan_would_take_is_beside_it(plan: Plan) -> None:
    assert plan.mixed is not None
    names = [each.name for each in plan.mixed.references]
    assert names == ["all 16 GPUs as a100-40gb", "h100 alone", "a100-40gb alone"]
    known = [each.step_time_seconds for each in plan.mixed.references if each.step_time_seconds]
    assert plan.estimate.step_time_seconds <= min(known)


def test_what_takes_one_kind_of_gpu_says_so(plan: Plan) -> None:
    for asked in (lambda: problem_of(plan), lambda: autopar.whatif(plan)):
        with pytest.raises(InvalidInputError, match=r"h100=8, a100-40gb=8.*one kind of GPU.*autopar estimate, explain and export take it"):
            asked()
    with pytest.raises(InvalidInputError, match="a plan for one kind of GPU"):
        mixed_of(replace(plan, mixed=None))


def test_nothing_fits_says_what_would() -> None:
    with pytest.raises(NoPlanError, match="smallest number of h100 alone"):
        autopar.plan("llama3-8b", pools={"h100": 1, "a100-40gb": 1}, between="25GB/s", forbid=["recompute"])


def test_who_takes_a_plan_is_told_by_framework_and_rule(plan: Plan) -> None:
    said = who_runs_it(plan)
    assert plan.mixed is not None
    one_lane = len(plan.mixed.lanes) == 1
    assert any(line.startswith("megatron-lm takes it") for line in said) == one_lane
    shared = autopar.plan("llama3.2-1b", pools={"h100": 8, "a100-40gb": 8}, global_batch_size=64, fix={"pp": 1, "mbs": 1, "zero": 1})
    assert shared.mixed is not None
    assert len(shared.mixed.lanes) == 2
    (line,) = who_runs_it(shared)
    assert line.startswith("unequal_replicas: ")


def test_a_network_between_needs_pools() -> None:
    with pytest.raises(InvalidInputError, match="none are given"):
        autopar.plan("llama3.2-1b", gpus=8, between="25GB/s")
