"""``--report`` of a plan for a mixed cluster: who does what, how evenly, and what another use of the pools would take, as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autopar.costmodel.spec.mixed import MixedStrategy
from autopar.costmodel.spec.units import GIB, TERA, format_bytes, format_count, format_seconds

from . import figure_data, svg
from .mixed import LANE_COLUMNS, lane_rows, mixed_strategy_rows, order_lines, pools_text
from .page import Markup, Section, bullets, details, facts, page, paragraph, table
from .strategy_page import rejected_parts, time_note, timeline_parts
from .text import batch_text

if TYPE_CHECKING:
    from autopar.costmodel.spec.estimate import Estimate
    from autopar.costmodel.spec.mixed import MixedPlan
    from autopar.costmodel.spec.plan import Plan
    from autopar.costmodel.step_timeline import StepTimeline
    from autopar.mixed_explanation import MixedExplanation


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSubject:
    """A plan for a mixed cluster and all that is told of it."""

    plan: Plan
    found: MixedExplanation
    runs: tuple[str, ...]
    """Which frameworks take it."""
    timeline: StepTimeline | None
    not_drawn: str
    """Why there is no timeline; empty where there is one."""

    @property
    def mixed(self) -> MixedPlan:
        assert self.plan.mixed is not None, "a page of a plan for a mixed cluster"
        return self.plan.mixed

    @property
    def described(self) -> str:
        return MixedStrategy(strategy=self.plan.strategy, lanes=self.mixed.lanes).describe()


def mixed_subject(plan: Plan, runs: Sequence[str]) -> MixedSubject:
    """All that is told of ``plan``, with the numbers that its file has."""
    from autopar.costmodel.pool_timeline import pool_timeline
    from autopar.costmodel.spec.errors import InvalidInputError
    from autopar.mixed_explanation import explain_mixed
    from autopar.mixed_problem import mixed_of

    drawn, why = None, ""
    try:
        drawn = pool_timeline(*mixed_of(plan))
    except InvalidInputError as error:
        why = str(error)
    return MixedSubject(plan=plan, found=explain_mixed(plan), runs=tuple(runs), timeline=drawn, not_drawn=why)


def mixed_page(subject: MixedSubject) -> str:
    """The whole report, one document of HTML."""
    plan = subject.plan
    title = (
        f"Plan: {plan.inputs.model.name} on {' + '.join(f'{p.cluster.num_gpus:,} x {p.cluster.device.name}' for p in subject.mixed.pools)}"
    )
    return page(title, _lead(subject), _sections(subject))


def _lead(subject: MixedSubject) -> list[Markup]:
    plan, inputs = subject.plan, subject.plan.inputs
    model, estimate = inputs.model, plan.estimate
    active = f", {format_count(model.num_active_parameters)} active" if model.moe else ""
    question = (
        f"{format_count(model.num_parameters)} parameters{active}; {pools_text(plan)};"
        f" {subject.mixed.between.bandwidth / 1e9:g} GB/s a GPU between the pools; {batch_text(inputs.training)} a step,"
        f" {inputs.training.precision.name}, {inputs.framework}."
    )
    over = estimate.peak_memory_bytes - estimate.memory_capacity_bytes
    verdict = subject.described if estimate.fits else f"{subject.described} does not fit: {format_bytes(over)} too much on a GPU."
    return [paragraph(question), paragraph(verdict, "verdict" if estimate.fits else "verdict warning"), _facts(subject)]


def _facts(subject: MixedSubject) -> Markup:
    estimate, best = subject.plan.estimate, _best_uniform(subject)
    tokens = subject.plan.inputs.training.tokens_per_step / estimate.step_time_seconds
    share = f"{estimate.peak_memory_bytes / estimate.memory_capacity_bytes:.0%} of {format_bytes(estimate.memory_capacity_bytes)}"
    chance = f", fits with probability {estimate.fit_probability:.0%}" if estimate.fit_probability is not None else ""
    return facts(
        [
            ("step time", format_seconds(estimate.step_time_seconds), best),
            ("tokens/s per GPU", f"{estimate.tokens_per_second_per_gpu:,.0f}", f"{format_count(tokens)} tokens/s in all"),
            ("MFU", f"{estimate.mfu:.1%}", f"{estimate.model_flops_per_second_per_gpu / TERA:,.0f} model TFLOP/s; HFU {estimate.hfu:.1%}"),
            ("peak memory per GPU", format_bytes(estimate.peak_memory_bytes), f"{share}{chance}"),
            ("pipeline bubble", f"{estimate.bubble_fraction:.1%}", "idle share of the busiest rank"),
        ]
    )


def _best_uniform(subject: MixedSubject) -> str:
    """What the best uniform plan would take."""
    known = [(each.step_time_seconds, each.name) for each in subject.mixed.references if each.step_time_seconds is not None]
    if not known:
        return ""
    seconds, name = min(known)
    return f"{name}, the best uniform plan: {seconds / subject.plan.estimate.step_time_seconds - 1:+.1%}"


def _sections(subject: MixedSubject) -> Iterator[Section]:
    plan = subject.plan
    yield Section(id="strategy", title="Who does what", parts=tuple(_strategy(subject)))
    yield Section(id="pools", title="How evenly the pools are loaded", parts=tuple(_loads(subject)))
    yield Section(id="time", title="Where the time goes", parts=(svg.bars(figure_data.time_terms(plan.estimate)), time_note()))
    yield Section(id="memory", title="Where the memory goes", parts=tuple(_memory(plan.estimate)))
    lane = " Of the replicas, those that end last are drawn." if len(subject.mixed.lanes) > 1 else ""
    drawn = tuple(timeline_parts(subject.timeline, subject.not_drawn))
    yield Section(
        id="timeline", title="The pipeline, micro-batch by micro-batch", parts=(*drawn, *([paragraph(lane, "note")] if lane else []))
    )
    yield Section(id="why", title="Why this one", parts=tuple(_why(subject)))
    yield Section(id="runs", title="Who runs it", parts=(bullets(subject.runs),))
    yield Section(
        id="rejected", title="What was not considered, and why", parts=tuple(rejected_parts(plan)) if not plan.inputs.imported_from else ()
    )
    yield Section(
        id="assumptions",
        title="Assumed, and to be careful with",
        parts=(bullets(plan.inputs.assumptions), bullets(plan.estimate.warnings, "warning")),
    )
    yield Section(
        id="origin",
        title="Where the numbers come from",
        parts=(table(("part", "origin"), plan.estimate.provenance.items(), words=(0, 1)),),
    )


def _strategy(subject: MixedSubject) -> Iterator[Markup]:
    yield table(LANE_COLUMNS, lane_rows(subject.plan), words=(0, 3), caption="Stages, layers and share of the batch of each pool")
    yield table(("axis", "value"), mixed_strategy_rows(subject.plan), words=(0, 1), caption="Sizes that all share")
    if order := order_lines(subject.plan):
        yield paragraph("Hosts start in this order:")
        yield bullets(order)


def _loads(subject: MixedSubject) -> Iterator[Markup]:
    rows = (
        (
            f"{load.pool}, rank {load.pipeline_rank}",
            str(load.num_layers),
            format_seconds(load.microbatch_seconds),
            f"{load.of_busiest:.1%}",
            f"{load.peak_memory_bytes / load.memory_capacity_bytes:.0%}",
        )
        for load in subject.found.loads
    )
    yield table(
        ("rank", "layers", "a micro-batch", "of the busiest", "memory"), rows, caption="Work of a step and memory of each pipeline rank"
    )


def _memory(estimate: Estimate) -> Iterator[Markup]:
    """A figure for each pool, whose GPUs have a limit of their own."""
    for pool in dict.fromkeys(stage.pool for stage in estimate.stages):
        own = tuple(stage for stage in estimate.stages if stage.pool == pool)
        room, peak = own[0].memory_capacity_bytes or 0.0, max(stage.peak_memory_bytes for stage in own)
        part = replace(estimate, stages=own, memory_capacity_bytes=room, peak_memory_bytes=peak)
        yield svg.bars(replace(figure_data.memory_of_ranks(part), title=f"Peak memory of the pipeline ranks on {pool}"))
    kinds = [name for name, _ in figure_data.memory_of_ranks(estimate).legend]
    rows = (
        (
            f"{stage.pipeline_rank} {stage.pool}",
            f"{'embedding, ' if stage.holds_embedding else ''}{stage.num_layers}{', head' if stage.holds_head else ''}",
            *(f"{getattr(stage.memory, kind.replace(' ', '_')) / GIB:.2f}" for kind in kinds),
            f"{stage.peak_memory_bytes / GIB:.2f}",
            f"{(stage.memory_capacity_bytes or 0.0) / GIB:.2f}",
        )
        for stage in estimate.stages
    )
    columns = ("rank", "layers", *kinds, "peak", "of")
    yield details("All ranks in figures (GiB)", table(columns, rows, words=(0, 1), caption="GiB on one GPU of each rank"))


def _why(subject: MixedSubject) -> Iterator[Markup]:
    now = subject.plan.estimate.step_time_seconds

    def versus(seconds: float) -> str:
        return f"{seconds / now - 1:+.1%}"

    uniform = [
        (
            each.name,
            "nothing fits" if each.strategy is None else each.strategy.describe(),
            format_seconds(each.step_time_seconds) if each.step_time_seconds else "",
            versus(each.step_time_seconds) if each.step_time_seconds else "",
        )
        for each in subject.mixed.references
    ]
    if uniform:
        yield table(("plan", "strategy", "step", "against this"), uniform, words=(0, 1), caption="What planning uniformly would take")
    changes = [
        (
            change.change,
            format_seconds(change.step_time_seconds),
            versus(change.step_time_seconds),
            f"{format_bytes(change.peak_memory_bytes)} of {format_bytes(change.memory_capacity_bytes)}",
            "yes" if change.fits else "no",
        )
        for change in subject.found.changes
    ]
    if changes:
        columns = ("change", "step", "against this", "fullest GPU", "fits")
        yield table(columns, changes, caption="Single changes, layers and shares else as they are")
    others = [
        (
            MixedStrategy(strategy=each.strategy, lanes=each.lanes).describe(),
            format_seconds(each.step_time_seconds),
            versus(each.step_time_seconds),
            format_bytes(each.peak_memory_bytes),
        )
        for each in subject.plan.alternatives
    ]
    if others:
        yield table(("strategy", "step", "against this", "memory"), others, caption="Runners-up")
