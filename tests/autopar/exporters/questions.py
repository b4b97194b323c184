"""Problems and strategies that exporters are tried with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from hypothesis import strategies as st

from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, RankOrder, Recompute, Strategy
from autopar.exporters.question import Question
from autopar.request import build_problem

SMALL = ("llama3-8b", "gpt3-6.7b", "qwen3-30b-a3b", "mixtral-8x7b")


@cache
def problem(model: str, gpus: int, batch: int = 512, sequence: int = 4096, precision: str = "bf16", gpu: str = "h100-sxm5-80gb") -> Problem:
    """A problem of the catalog's model on ``gpus`` GPUs."""
    found, _ = build_problem(model, gpus=gpus, gpu=gpu, global_batch_size=batch, sequence_length=sequence, precision=precision)
    return found


def question(strategy: Strategy, model: str = "llama3-8b", **inputs: object) -> Question:
    """``strategy`` as an answer to a problem of its own size."""
    return Question.of(problem(model, strategy.world_size, **inputs), strategy)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A drawn strategy for a model of the catalog; small enough to be printed where a law fails."""

    model: str
    precision: str
    strategy: Strategy

    @property
    def question(self) -> Question:
        return Question.of(problem(self.model, self.strategy.world_size, precision=self.precision), self.strategy)


@st.composite
def splits(draw: st.DrawFn, layers: int, stages: int) -> tuple[int, ...]:
    """A split of ``layers`` over ``stages``, each with one at least: even, or with a few layers moved."""
    base, spare = divmod(layers, stages)
    split = [base + (stage < spare) for stage in range(stages)]
    for _ in range(draw(st.integers(0, 3))):
        source, target = draw(st.integers(0, stages - 1)), draw(st.integers(0, stages - 1))
        if split[source] > 1:
            split[source] -= 1
            split[target] += 1
    return tuple(split)


@st.composite
def cases(draw: st.DrawFn, *, models: tuple[str, ...] = SMALL, precisions: tuple[str, ...] = ("bf16",)) -> Case:
    """A case of any kind: uneven stages, virtual ones, context and expert parallelism, ZeRO stages, recomputation."""
    model = draw(st.sampled_from(models))
    tensor, pipeline = draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from((1, 2, 4)))
    virtual = draw(st.sampled_from((1, 1, 2))) if pipeline > 1 else 1
    context, data = draw(st.sampled_from((1, 1, 2))), draw(st.sampled_from((1, 2, 4)))
    micro = draw(st.sampled_from((1, 2)))
    gpus = tensor * pipeline * context * data
    asked = problem(model, gpus)
    moe = asked.model.moe is not None
    expert = draw(st.sampled_from([size for size in (1, 2, 4, 8) if tensor * context * data % size == 0])) if moe else 1
    cuts = [size for size in (1, 2, tensor) if tensor * context * data % (expert * size) == 0]
    layers = draw(splits(asked.model.num_layers, pipeline * virtual)) if pipeline > 1 and draw(st.booleans()) else ()
    recompute = draw(st.sampled_from(Recompute))
    zero = draw(st.integers(0, 3))
    ranks = data * context
    strategy = Strategy(
        tensor_parallel_size=tensor,
        sequence_parallel=tensor > 1 and draw(st.booleans()),
        pipeline_parallel_size=pipeline,
        virtual_pipeline_stages=virtual,
        pipeline_schedule=draw(st.sampled_from(_schedules(virtual))),
        context_parallel_size=context,
        context_parallel_kind=draw(st.sampled_from(ContextParallelKind)),
        expert_parallel_size=expert,
        expert_tensor_parallel_size=draw(st.sampled_from(cuts)) if moe else 1,
        data_parallel_size=data,
        micro_batch_size=micro,
        zero_stage=zero,
        shard_group_size=draw(st.sampled_from([0, *([ranks // 2] if zero and ranks > 1 else [])])),
        recompute=recompute,
        num_recompute_layers=draw(st.sampled_from((0, 1, 2, 4))) if recompute is Recompute.FULL else 0,
        pipeline_layers=layers,
        rank_order=draw(st.sampled_from((RankOrder.TP_CP_DP_PP, RankOrder.TP_CP_DP_PP, RankOrder.TP_CP_PP_DP))),
    )
    return Case(model=model, precision=draw(st.sampled_from(precisions)), strategy=strategy)


def _schedules(virtual: int) -> tuple[PipelineSchedule, ...]:
    return (PipelineSchedule.INTERLEAVED,) if virtual > 1 else (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.GPIPE)


def adapted(asked: Question, **changes: object) -> Question:
    """The same question with fields of its strategy changed."""
    return Question.of(asked.problem, replace(asked.strategy, **changes))  # type: ignore[arg-type]
