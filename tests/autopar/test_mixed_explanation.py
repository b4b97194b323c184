"""Why a mixed plan is as it is: loads and changes are the cost model's, and each change is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

import autopar
from autopar.costmodel.mixed_estimate import mixed_estimate
from autopar.costmodel.spec.errors import InvalidInputError, NoPlanError
from autopar.costmodel.spec.mixed import MixedStrategy
from autopar.costmodel.spec.plan import Plan
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute
from autopar.io.codec import from_json_as, to_json
from autopar.mixed_explanation import MixedExplanation, explain_mixed
from autopar.mixed_problem import mixed_of, on_one_pool, told_as_one, unequal_faults
from autopar.request import problem_of
from autopar.search.mixed_rules import mixed_faults

from .mixed_plans import STAGED, alone, replicas, staged


@pytest.fixture(scope="module", params=["stages", "replicas"])
def asked(request: pytest.FixtureRequest) -> tuple[Plan, MixedExplanation]:
    plan = staged() if request.param == "stages" else replicas()
    return plan, explain_mixed(plan)


def test_every_change_is_priced_by_the_cost_model(asked: tuple[Plan, MixedExplanation]) -> None:
    plan, found = asked
    problem, mixed = mixed_of(plan)
    assert found.estimate == plan.estimate
    assert len(found.changes) >= 6
    for change in found.changes:
        other = MixedStrategy(strategy=change.strategy, lanes=change.lanes)
        assert other != mixed
        assert mixed_faults(problem, other) == ()
        result = mixed_estimate(problem, other)
        assert (result.step_time_seconds, result.fits) == (change.step_time_seconds, change.fits)
    assert [change.step_time_seconds for change in found.changes] == sorted(change.step_time_seconds for change in found.changes)
    assert len({change.change for change in found.changes}) == len(found.changes)


def test_loads_are_of_the_busiest_rank(asked: tuple[Plan, MixedExplanation]) -> None:
    plan, found = asked
    assert plan.mixed is not None
    counts = [lane.num_microbatches for lane in plan.mixed.lanes for _ in lane.pools]
    work = [count * (stage.forward_seconds + stage.backward_seconds) for count, stage in zip(counts, plan.estimate.stages, strict=True)]
    assert [load.of_busiest for load in found.loads] == pytest.approx([each / max(work) for each in work])
    assert [load.pool for load in found.loads] == [stage.pool for stage in plan.estimate.stages]


def test_it_is_a_document(asked: tuple[Plan, MixedExplanation]) -> None:
    found = asked[1]
    assert from_json_as(MixedExplanation, to_json(found)) == found
    assert autopar.explain(asked[0]) == found


def test_the_pools_are_tried_the_other_way_round_with_the_layers_they_have() -> None:
    found = explain_mixed(staged())
    (turned,) = (change for change in found.changes if change.change == "stages in the order h100, a100-40gb")
    assert turned.strategy.pipeline_layers == (12, 11, 5, 4)
    assert turned.lanes[0].pools == ("h100", "h100", "a100-40gb", "a100-40gb")
    virtual = explain_mixed(
        staged(virtual_pipeline_stages=2, pipeline_schedule=PipelineSchedule.INTERLEAVED, pipeline_layers=(2, 2, 6, 6, 3, 2, 6, 5))
    )
    (turned,) = (change for change in virtual.changes if change.change == "stages in the order h100, a100-40gb")
    assert turned.strategy.pipeline_layers == (6, 6, 2, 2, 6, 5, 3, 2)
    assert any(change.change == "interleaved_1f1b -> 1f1b" for change in virtual.changes)


def test_a_layer_goes_from_one_pool_to_the_other() -> None:
    for change in explain_mixed(staged()).changes:
        if change.change.startswith("a layer from"):
            moved = [new - old for new, old in zip(change.strategy.pipeline_layers, STAGED.pipeline_layers, strict=True)]
            assert sorted(moved) == [-1, 0, 0, 1]
            pools = change.lanes[0].pools
            assert change.change == f"a layer from {pools[moved.index(-1)]} to {pools[moved.index(1)]}"


def test_one_that_is_too_large_says_so_and_what_would_fit() -> None:
    found = explain_mixed(staged(tensor_parallel_size=1, sequence_parallel=False, data_parallel_size=8, micro_batch_size=8))
    assert not found.fits
    assert any("GiB" in str(fault) for fault in found.refused_by)
    assert any(change.fits for change in found.changes)


def test_a_rule_refuses_it_without_an_estimate_and_the_changes_run() -> None:
    found = explain_mixed(staged(recompute=Recompute.FULL, stage_recompute_layers=(5, 4, 0, 0)))
    assert (found.fits, found.estimate, found.loads) == (False, None, ())
    assert any("stage_recompute_layers" in str(fault) for fault in found.refused_by)
    assert any(change.change == "recompute full -> none" for change in found.changes)


def test_one_pool_alone_is_a_plan_for_one_kind_of_gpu() -> None:
    one = on_one_pool(alone())
    assert one is not None
    assert one.mixed is None
    assert problem_of(one).cluster.num_gpus == 16
    assert on_one_pool(staged()) is None
    assert on_one_pool(one) is None


def test_compared_plans_are_told_with_all_their_gpus() -> None:
    told = told_as_one(staged())
    assert (told.cluster.num_gpus, told.cluster.device.name) == (32, "NVIDIA H100 SXM5 80GB + NVIDIA A100 SXM4 40GB")
    comparison = autopar.compare([staged(), alone(), replicas()])
    assert [plan.num_gpus for plan in comparison.plans] == [32, 16, 32]
    assert [plan.estimate for plan in comparison.plans] == [plan.estimate for plan in (staged(), alone(), replicas())]
    (pools,) = (row.values for row in comparison.differences if row.field == "pools")
    assert pools[2] == "4 x (2 h100) x 12 micro-batches + 4 x (2 a100-40gb) x 4 micro-batches"


def test_the_runtime_takes_stages_and_no_replicas() -> None:
    assert unequal_faults(staged()) == unequal_faults(alone()) == ()
    (fault,) = unequal_faults(replicas())
    assert "12 on h100, 4 on a100-40gb" in str(fault)
    assert "--pools-as stages" in fault.fix


def test_a_file_that_names_pools_it_does_not_have_is_told_all_at_once() -> None:
    plan = staged()
    assert plan.mixed is not None
    lanes = (replace(plan.mixed.lanes[0], pools=("h100", "h100", "gone", "gone")),)
    odd = replace(plan, mixed=replace(plan.mixed, lanes=lanes, network_of="lost", pools=(*plan.mixed.pools, plan.mixed.pools[0])))
    asked = (mixed_of, on_one_pool, autopar.estimate, autopar.explain, lambda each: autopar.export(each, "megatron-lm"))
    for ask in asked:
        with pytest.raises(InvalidInputError) as error:
            ask(odd)  # type: ignore[operator]
        assert [fault.field for fault in error.value.faults] == ["$.mixed.lanes[0].pools", "$.mixed.network_of", "$.mixed.pools"]


def test_an_estimate_or_export_of_what_makes_no_batch_is_refused() -> None:
    plan = staged()
    assert plan.mixed is not None
    odd = replace(plan, mixed=replace(plan.mixed, lanes=(replace(plan.mixed.lanes[0], num_microbatches=3),)))
    for ask in (autopar.estimate, lambda each: autopar.export(each, "torchrun")):
        with pytest.raises(NoPlanError, match="12 sequences: the global batch is 64"):
            ask(odd)
