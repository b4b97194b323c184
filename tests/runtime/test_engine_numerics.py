"""Every axis alone, and axes together, train as one process does: loss, gradients and parameters over several steps.

The oracle is plain PyTorch over the whole batch (``oracle.train_alone``). Checks of one number of ranks share the start of
their processes.
"""

from __future__ import annotations

from typing import Any

import pytest

from autopar.costmodel.spec.schedule import build_schedule
from autopar.costmodel.spec.strategy import PipelineSchedule, RankOrder, Recompute, Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.runtime.engine import Engine, EngineOptions

from .oracle import FP32, Trained, assert_same, small_gpt, token_batches, train_alone, train_parallel
from .processes import run_ranks

GPIPE, ONE_F_ONE_B, INTERLEAVED = PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.INTERLEAVED
ZERO_BUBBLE, DUALPIPE = PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.DUALPIPE
SCHEDULES = ((GPIPE, 1), (ONE_F_ONE_B, 1), (INTERLEAVED, 2), (ZERO_BUBBLE, 1), (ZERO_BUBBLE, 2), (DUALPIPE, 1))
ROWS = 8
SHORT = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "vpp": "virtual_pipeline_stages", "dp": "data_parallel_size",
    "mbs": "micro_batch_size", "zero": "zero_stage", "schedule": "pipeline_schedule", "sp": "sequence_parallel",
}  # fmt: skip


def plan(**short: Any) -> Strategy:
    return Strategy(**{SHORT.get(name, name): value for name, value in short.items()})


def test_one_process_accumulates_micro_batches() -> None:
    check(1, [plan(mbs=8), plan(mbs=2), plan(mbs=2, recompute=Recompute.FULL)])


def test_data_parallel_with_every_zero_stage() -> None:
    accumulating = [plan(dp=2, mbs=1, zero=zero) for zero in (0, 1, 2, 3)]
    check(2, [*accumulating, plan(dp=2, mbs=4, zero=0), plan(dp=2, mbs=4, zero=3)])


def test_shard_groups_smaller_than_the_data_axis() -> None:
    check(4, [plan(dp=4, mbs=1, zero=zero, shard_group_size=2) for zero in (1, 2, 3)], steps=2)


@pytest.mark.parametrize("tied", [False, True])
def test_every_pipeline_schedule(tied: bool) -> None:
    check(2, [plan(pp=2, vpp=chunks, mbs=1, schedule=kind) for kind, chunks in SCHEDULES], tied_embeddings=tied, inspect=runs_its_schedule)


def test_schedules_on_four_ranks_and_tied_embeddings() -> None:
    """More ranks than hold the embeddings: their group is not the whole pipeline."""
    kinds = [plan(pp=4, mbs=1, schedule=kind) for kind in (ONE_F_ONE_B, ZERO_BUBBLE, DUALPIPE)]
    kinds += [plan(pp=4, vpp=2, mbs=1, schedule=kind) for kind in (INTERLEAVED, ZERO_BUBBLE)]
    check(4, kinds, steps=2, tied_embeddings=True, num_layers=8, inspect=runs_its_schedule)


def test_uneven_stages() -> None:
    """A first stage with embeddings alone, a last one with the head alone, and chunks of different sizes."""
    splits = [plan(pp=2, mbs=2, pipeline_layers=layers) for layers in ((1, 3), (0, 4), (4, 0))]
    check(2, [*splits, plan(pp=2, vpp=2, mbs=2, schedule=INTERLEAVED, pipeline_layers=(1, 2, 1, 0))])


def test_recomputation_under_pipelines_and_shards() -> None:
    full = Recompute.FULL
    check(
        2,
        [
            plan(dp=2, mbs=2, zero=0, recompute=full),
            plan(dp=2, mbs=2, zero=3, recompute=full, num_recompute_layers=3),
            plan(dp=2, mbs=2, zero=2, recompute=Recompute.SELECTIVE),
            plan(pp=2, mbs=2, recompute=full, num_recompute_layers=1),
            plan(pp=2, vpp=2, mbs=2, schedule=INTERLEAVED, recompute=full, num_recompute_layers=1),
            plan(pp=2, mbs=2, pipeline_layers=(3, 1), recompute=full, stage_recompute_layers=(2, 0)),
            plan(pp=2, mbs=2, schedule=ZERO_BUBBLE, recompute=full),
            plan(pp=2, vpp=2, mbs=2, schedule=ZERO_BUBBLE, recompute=full, num_recompute_layers=1),
        ],
    )


def test_tensor_parallel_with_accumulation() -> None:
    check(2, [plan(tp=2, mbs=2), plan(tp=2, mbs=2, sp=True), plan(tp=2, sp=True, mbs=4, recompute=Recompute.FULL)], tied_embeddings=True)


def test_pipelines_with_every_zero_stage() -> None:
    """Stage 3 with every schedule: it gathers and frees parameters between the parts of a split backward."""
    some = [(0, INTERLEAVED, 2), (0, ZERO_BUBBLE, 1), (1, ONE_F_ONE_B, 1), (1, DUALPIPE, 1), (2, ZERO_BUBBLE, 1), (2, INTERLEAVED, 2)]
    some += [(3, kind, chunks) for kind, chunks in SCHEDULES[1:]]
    check(4, [plan(pp=2, dp=2, vpp=chunks, mbs=1, zero=zero, schedule=kind) for zero, kind, chunks in some], steps=2, tied_embeddings=True)


def test_tensor_parallel_with_pipelines_and_with_data() -> None:
    check(
        4,
        [
            plan(tp=2, dp=2, mbs=1, zero=0, sp=True),
            plan(tp=2, dp=2, mbs=2, zero=3),
            plan(tp=2, pp=2, mbs=1, sp=True, schedule=ZERO_BUBBLE),
            plan(tp=2, pp=2, vpp=2, mbs=1, schedule=INTERLEAVED),
            plan(tp=2, pp=2, mbs=1, sp=True, schedule=DUALPIPE),
        ],
        steps=2,
        tied_embeddings=True,
    )


def test_all_axes_on_eight_ranks() -> None:
    check(
        8,
        [
            plan(tp=2, pp=2, dp=2, mbs=1, zero=1, sp=True),
            plan(tp=2, pp=2, vpp=2, dp=2, mbs=2, zero=3, sp=True, schedule=ZERO_BUBBLE),
            plan(pp=2, dp=4, mbs=1, zero=2, shard_group_size=2, recompute=Recompute.FULL),
        ],
        steps=2,
        tied_embeddings=True,
    )


def test_stages_between_replicas_train_the_same() -> None:
    """The other order of ranks: every stage's replicas lie apart, also under copies of stages and shard groups."""
    other = RankOrder.TP_CP_PP_DP
    check(
        8,
        [
            plan(tp=2, pp=2, dp=2, mbs=1, zero=1, sp=True, rank_order=other),
            plan(pp=2, vpp=2, dp=4, mbs=1, zero=3, schedule=INTERLEAVED, shard_group_size=2, rank_order=other),
            plan(tp=2, pp=2, dp=2, mbs=1, zero=0, schedule=DUALPIPE, rank_order=other),
        ],
        steps=2,
        tied_embeddings=True,
        inspect=runs_its_schedule,
    )


def test_the_norm_counts_every_gradient_once() -> None:
    """Clipped to a tenth of their norm, so that a wrong one would show in the parameters; the norm itself is compared too."""
    clipped = EngineOptions(precision=PRECISIONS["fp32"], max_grad_norm=0.1)
    plans = [
        plan(dp=4, mbs=1, zero=0),
        plan(dp=4, mbs=1, zero=3, shard_group_size=2),
        plan(tp=2, dp=2, mbs=1, zero=1, sp=True),
        plan(tp=2, pp=2, mbs=1, sp=True),
        plan(pp=2, vpp=2, dp=2, mbs=1, zero=2, schedule=ZERO_BUBBLE),
        plan(pp=4, mbs=1, schedule=DUALPIPE),
        plan(pp=2, dp=2, mbs=1, zero=1, rank_order=RankOrder.TP_CP_PP_DP),
    ]
    check(4, plans, steps=2, options=clipped, tied_embeddings=True)


def test_losses_that_are_clipped_nowhere_stay_as_they_are() -> None:
    check(1, [plan(mbs=2)], options=EngineOptions(precision=PRECISIONS["fp32"], max_grad_norm=1e6))


def runs_its_schedule(engine: Engine) -> None:
    """The actions executed are the ones that the cost model simulates, in their order."""
    strategy = engine.strategy
    simulated = build_schedule(
        strategy.pipeline_schedule, strategy.pipeline_parallel_size, strategy.virtual_pipeline_stages, strategy.num_microbatches(ROWS)
    )
    assert engine.executed == simulated.actions[engine.mesh.coordinate("pp")]


def check(
    world_size: int, strategies: list[Strategy], *, steps: int = 3, options: EngineOptions = FP32, inspect: Any = None, **model: Any
) -> None:
    """Train under each strategy, and compare with one process."""
    model = {"vocab_size": 48, **model}
    batches = token_batches(steps, ROWS)
    alone = train_alone(small_gpt(**model), batches, max_grad_norm=options.max_grad_norm)

    def train_all(_: int) -> list[Trained]:
        return [train_parallel(small_gpt(**model), strategy, batches, options=options, inspect=inspect) for strategy in strategies]

    results = run_ranks(world_size, train_all, timeout=120)
    clipped = options.max_grad_norm is not None
    for position, strategy in enumerate(strategies):
        try:
            assert_same([result[position] for result in results], alone, compare_gradients=not clipped)
        except AssertionError as error:
            error.add_note(strategy.describe())
            raise
