"""The timeline of a step over pools: it is the estimate's, pass by pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.costmodel.axis_traffic import Axis
from autopar.costmodel.mixed_estimate import mixed_estimate
from autopar.costmodel.pool_timeline import pool_timeline
from autopar.costmodel.spec.mixed import MixedStrategy
from autopar.costmodel.spec.schedule_action import ActionKind
from autopar.costmodel.spec.strategy import PipelineSchedule, Strategy
from autopar.costmodel.step_timeline import step_timeline

from .mixed_problems import by_replicas, by_stages, pools_of, whole_of

LAYERS = Strategy(tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=4, data_parallel_size=4)
INTERLEAVED = replace(LAYERS, virtual_pipeline_stages=2, pipeline_schedule=PipelineSchedule.INTERLEAVED)


@pytest.mark.parametrize(
    "mixed",
    [
        by_stages(LAYERS, 32, (2, 2)),
        by_stages(INTERLEAVED, 32, (1, 3)),
        by_stages(replace(LAYERS, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE), 32, (2, 2)),
        by_replicas(replace(LAYERS, pipeline_parallel_size=2, data_parallel_size=8), (6, 2)),
        by_replicas(replace(LAYERS, pipeline_parallel_size=1, data_parallel_size=16), (3, 1)),
    ],
)
def test_the_step_ends_when_the_estimate_says(mixed: MixedStrategy) -> None:
    problem = pools_of("h100", "a100")
    drawn, estimate = pool_timeline(problem, mixed), mixed_estimate(problem, mixed)
    assert drawn.step_time_seconds == pytest.approx(estimate.step_time_seconds, rel=1e-12)
    assert drawn.pools in [lane.pools for lane in mixed.lanes]
    assert len(drawn.pools) == len(drawn.ranks) == mixed.strategy.pipeline_parallel_size


def test_pools_of_one_device_draw_what_one_cluster_does() -> None:
    problem = pools_of("h100", "h100")
    drawn, alone = pool_timeline(problem, by_stages(LAYERS, 32, (2, 2))), step_timeline(whole_of(problem), LAYERS)
    assert drawn.step_time_seconds == pytest.approx(alone.step_time_seconds, rel=1e-12)
    assert [rank.finish_seconds.tolist() for rank in drawn.ranks] == [rank.finish_seconds.tolist() for rank in alone.ranks]
    assert drawn.stage_traffic == alone.stage_traffic
    assert replace(drawn, pools=()).ends == alone.ends


def test_what_passes_between_two_pools_goes_over_the_network() -> None:
    """Pools of one node each: inside them nothing leaves the node."""
    problem = pools_of("h100", "a100", size=8)
    strategy = replace(LAYERS, tensor_parallel_size=1, sequence_parallel=False)
    drawn = pool_timeline(problem, by_stages(strategy, 32, (2, 2)))
    for stage, crosses in enumerate((False, True, False)):
        for kind, sender in ((ActionKind.FORWARD, stage), (ActionKind.BACKWARD, stage + 1)):
            (sent,) = (one for one in drawn.traffic_of(sender, kind) if one.axis is Axis.PIPELINE)
            assert (sent.network_bytes > 0, sent.fast_bytes > 0) == (crosses, not crosses)
