"""``--report`` of plan and estimate: one strategy with everything behind it, as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autopar.costmodel.spec.units import TERA, format_bytes, format_count, format_seconds

from . import figure_data, svg
from .origins import origin_sections
from .page import Markup, Section, bullets, details, facts, legend, page, paragraph, table
from .placement import placement_rows
from .subject import Subject
from .text import batch_text, strategy_rows

if TYPE_CHECKING:
    from autopar.costmodel.spec.plan import Plan
    from autopar.costmodel.step_timeline import StepTimeline

MAX_FRONT_ROWS = 40


def strategy_page(subject: Subject) -> str:
    """The whole report, one document of HTML."""
    model, cluster = subject.problem.model, subject.problem.cluster
    kind = "Plan" if subject.plan is not None else "Estimate"
    title = f"{kind}: {model.name} on {cluster.num_gpus:,} x {cluster.device.name}"
    return page(title, _lead(subject), _sections(subject))


def _sections(subject: Subject) -> Iterator[Section]:
    estimate = subject.estimate
    yield Section(id="strategy", title="The strategy", parts=(_strategy(subject),))
    yield Section(id="time", title="Where the time goes", parts=(svg.bars(figure_data.time_terms(estimate)), time_note()))
    yield Section(id="memory", title="Where the memory goes", parts=tuple(_memory(subject)))
    yield Section(
        id="timeline", title="The pipeline, micro-batch by micro-batch", parts=tuple(timeline_parts(subject.timeline, subject.not_drawn))
    )
    yield Section(id="communication", title="Communication", parts=tuple(_communication(subject)))
    yield Section(id="landscape", title="Time against memory", parts=tuple(_landscape(subject)))
    yield Section(id="alternatives", title="Alternatives", parts=tuple(_alternatives(subject)))
    yield Section(id="rejected", title="What was not considered, and why", parts=tuple(rejected_parts(subject.plan)))
    yield from origin_sections(subject)


def _lead(subject: Subject) -> list[Markup]:
    problem, estimate = subject.problem, subject.estimate
    cluster, model = problem.cluster, problem.model
    active = f", {format_count(model.num_active_parameters)} active" if model.moe else ""
    nodes = f"{cluster.num_nodes:,} nodes of {cluster.gpus_per_node} ({cluster.id})" if cluster.num_nodes > 1 else cluster.id
    question = (
        f"{format_count(model.num_parameters)} parameters{active}; {nodes}; {batch_text(problem.training)} a step,"
        f" {problem.training.precision.name}, {problem.framework.name}."
    )
    if estimate.fits:
        verdict = paragraph(subject.strategy.describe(), "verdict")
    else:
        over = format_bytes(estimate.peak_memory_bytes - estimate.memory_capacity_bytes)
        verdict = paragraph(f"{subject.strategy.describe()} does not fit: {over} too much on a GPU.", "verdict warning")
    return [paragraph(question), verdict, _facts(subject)]


def _facts(subject: Subject) -> Markup:
    estimate = subject.estimate
    interval = estimate.step_time_interval
    spread = (
        f"{format_seconds(interval.low)} to {format_seconds(interval.high)}, {interval.coverage:.0%} of measured runs" if interval else ""
    )
    chance = f", fits with probability {estimate.fit_probability:.0%}" if estimate.fit_probability is not None else ""
    share = estimate.peak_memory_bytes / estimate.memory_capacity_bytes
    tokens = subject.problem.training.tokens_per_step / estimate.step_time_seconds
    return facts(
        [
            ("step time", format_seconds(estimate.step_time_seconds), spread),
            ("tokens/s per GPU", f"{estimate.tokens_per_second_per_gpu:,.0f}", f"{format_count(tokens)} tokens/s in all"),
            ("MFU", f"{estimate.mfu:.1%}", f"{estimate.model_flops_per_second_per_gpu / TERA:,.0f} model TFLOP/s; HFU {estimate.hfu:.1%}"),
            (
                "peak memory per GPU",
                format_bytes(estimate.peak_memory_bytes),
                f"{share:.0%} of {format_bytes(estimate.memory_capacity_bytes)}{chance}",
            ),
            ("pipeline bubble", f"{estimate.bubble_fraction:.1%}", "idle share of the busiest rank"),
        ]
    )


def _strategy(subject: Subject) -> Markup:
    return table(("axis", "value"), strategy_rows(subject.strategy, subject.problem.training.global_batch_size), words=(0, 1))


def time_note() -> Markup:
    """What the terms of the step time are of."""
    return paragraph(
        "Of the pipeline rank that computes longest; the terms add up to the step time. Communication is what stays exposed after overlap."
        " Gradients and optimizer are of the rank that is last with them. MFU counts causal attention half and no recomputation.",
        "note",
    )


def _memory(subject: Subject) -> Iterator[Markup]:
    estimate = subject.estimate
    yield svg.bars(figure_data.memory_waterfall(estimate))
    if len(estimate.stages) > 1:
        yield svg.bars(figure_data.memory_of_ranks(estimate))
    kinds = [name for name, _ in figure_data.memory_of_ranks(estimate).legend]
    rows = (
        (
            str(stage.pipeline_rank),
            f"{'embedding, ' if stage.holds_embedding else ''}{stage.num_layers}{', head' if stage.holds_head else ''}",
            *(f"{getattr(stage.memory, kind.replace(' ', '_')) / 2**30:.2f}" for kind in kinds),
            f"{stage.peak_memory_bytes / 2**30:.2f}",
        )
        for stage in estimate.stages
    )
    yield details(
        "All ranks in figures (GiB)", table(("rank", "layers", *kinds, "peak"), rows, words=(0, 1), caption="GiB on one GPU of each rank")
    )


def timeline_parts(drawn: StepTimeline | None, not_drawn: str) -> Iterator[Markup]:
    """The pipeline as lanes of passes; or why it is ``not_drawn``."""
    if drawn is None:
        yield paragraph(f"Not drawn: {not_drawn}.", "note")
        return
    count, ranks = drawn.num_microbatches, len(drawn.ranks)
    of = f"{drawn.schedule.value} over {ranks} ranks" if ranks > 1 else "one pipeline rank"
    yield paragraph(
        f"{count:,} micro-batch{'' if count == 1 else 'es'} through {of}, as the cost model simulates them; the number is the micro-batch."
    )
    windows = figure_data.lanes(drawn)
    yield legend(dict.fromkeys(entry for window in windows for entry in window.legend))
    for window in windows:
        yield svg.lanes(window)
    notes = []
    if len(windows) > 1:
        notes.append("The steady state between the two is left out.")
    if ranks > figure_data.MAX_RANKS:
        notes.append(f"The first {figure_data.MAX_RANKS} of {ranks} ranks.")
    notes.append("Busy: the share of the passes' time in which the rank computes or waits for communication inside a pass.")
    notes.append("`--trace FILE` writes the passes for Perfetto.")
    yield paragraph(" ".join(notes), "note")


def _communication(subject: Subject) -> Iterator[Markup]:
    drawn = subject.timeline
    if drawn is None:
        return
    rank = drawn.pacing_rank
    groups = {group.axis: group for group in drawn.groups}
    tiers = [tier.name for tier in subject.problem.cluster.tiers]
    rows = []
    for one in drawn.step_traffic(rank):
        group = groups.get(one.axis)
        where = "" if group is None else f"{group.size} ranks{f' over {group.num_domains} domains' if group.num_domains > 1 else ''}"
        exposed = format_seconds(one.exposed_seconds) if one.exposed_seconds else "-"
        rows.append((one.axis.value, where, *(_bytes(sent) for sent in one.tier_bytes), exposed))
    if not rows:
        yield paragraph("One rank on every axis: nothing is sent.")
        return
    if len(tiers) == 1:
        tiers.append("network")
    columns = ("axis", "group", *(f"over {name}" for name in tiers[: len(rows[0]) - 3]), "exposed time")
    yield table(columns, rows, words=(0, 1), caption=f"Sent by one GPU of pipeline rank {rank} in a step")
    yield paragraph(
        "Bytes are those of ring algorithms, experts' of the fullest rank; of a group over several domains a part crosses the network."
        " Exposed time is what overlap does not hide; what a recomputation sends again counts under recomputation.",
        "note",
    )
    placement = subject.plan.placement if subject.plan is not None else None
    if placement is not None:
        told = placement_rows(subject.problem.cluster, placement, subject.estimate.step_time_seconds)
        yield table(("axis", "where its ranks sit"), told, words=(0, 1), caption="Placement: domains that the worst group crosses")


def _bytes(value: float) -> str:
    return format_bytes(value) if value else "-"


def _landscape(subject: Subject) -> Iterator[Markup]:
    found, estimate = subject.landscape, subject.estimate
    name = "this plan" if subject.plan is not None else "this strategy"
    chosen = [(name, subject.strategy, estimate.step_time_seconds, estimate.peak_memory_bytes)]
    if subject.plan is not None:
        others = subject.plan.alternatives
        chosen += [
            (f"runner-up {place}", each.strategy, each.step_time_seconds, each.peak_memory_bytes) for place, each in enumerate(others, 1)
        ]
    if not found.spots:
        yield paragraph("No other strategy of this question is accepted by the rules.", "note")
        return
    yield svg.scatter(figure_data.cloud(found, chosen, estimate.memory_capacity_bytes))
    ringed = f"Ringed: {name}{' and the runners-up' if len(chosen) > 1 else ''}."
    yield paragraph(
        f"Of {found.evaluated:,} strategies that the rules accept, without recomputation and with full, the fastest of each memory size"
        f" ({len(found.spots)}). Blue: no strategy that fits is both faster and smaller. {ringed}",
        "note",
    )
    front = [spot for spot in found.efficient if spot.fits]
    rows = ((spot.strategy.describe(), format_seconds(spot.step_time_seconds), format_bytes(spot.peak_memory_bytes)) for spot in front)
    yield details(
        "The front as a table",
        table(("strategy", "step", "memory"), list(rows)[-MAX_FRONT_ROWS:], caption="Least time for each amount of memory"),
    )


def _alternatives(subject: Subject) -> Iterator[Markup]:
    best = subject.estimate.step_time_seconds
    if subject.plan is None:
        rows = [
            (
                each.change,
                format_seconds(each.step_time_seconds),
                f"{each.step_time_seconds / best - 1:+.1%}",
                format_bytes(each.peak_memory_bytes),
            )
            for each in subject.changes
        ]
        if rows:
            yield table(("change", "step", "against this", "memory"), rows, caption="Single changes that fit and help, fastest first")
        else:
            yield paragraph("No single change that fits makes it faster.")
        return
    rows = [
        (
            each.strategy.describe(),
            format_seconds(each.step_time_seconds),
            f"{each.step_time_seconds / best - 1:+.1%}{' tie' if each.tie else ''}",
            format_bytes(each.peak_memory_bytes),
        )
        for each in subject.plan.alternatives
    ]
    if rows:
        yield table(("strategy", "step", "against the plan", "memory"), rows, caption="Runners-up")
    if any(each.tie for each in subject.plan.alternatives):
        yield paragraph("Tie: closer to the best than the model orders measured runs reliably. What would tell them apart:", "note")
        yield bullets(f"{each.strategy.describe()}: {each.separated_by}" for each in subject.plan.alternatives if each.separated_by)


def rejected_parts(plan: Plan | None) -> Iterator[Markup]:
    """How the search went, and which rule refused how many; nothing where none was searched."""
    if plan is None:
        return
    search = plan.search
    yield paragraph(f"{search.evaluated:,} strategies were evaluated ({search.method}; {search.optimality}).")
    if search.bound_seconds is not None:
        yield paragraph(f"No strategy, its stages placed evenly or not, has a step shorter than {format_seconds(search.bound_seconds)}.")
    if plan.inputs.constraints:
        yield paragraph(f"Asked for: {', '.join(plan.inputs.constraints)}.")
    from autopar.search.feasibility import summaries

    said = summaries()
    rows = [(name, f"{count:,}", said.get(name, "")) for name, count in sorted(search.rejected.items(), key=lambda item: -item[1]) if count]
    if rows:
        yield table(
            ("rule", "strategies", "what it asks for"), rows, words=(0, 2), caption="Strategies refused, by the first rule that did"
        )
