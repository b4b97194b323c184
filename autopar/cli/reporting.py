"""``--report``, ``--figures`` and ``--trace``: what plan and estimate write beside their answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .options import chain
from .output import note

if TYPE_CHECKING:
    from autopar.comparison import Comparison
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.plan import Plan
    from autopar.costmodel.spec.strategy import Strategy
    from autopar.report.subject import Subject

F = TypeVar("F", bound=Callable[..., object])

REPORT_NAMES = ("report", "figures", "trace")


def report_options(function: F) -> F:
    """Files to write beside the answer."""
    return chain(
        [
            click.option("--report", metavar="FILE", help="Write an HTML page with every figure here, one file that stands alone."),
            click.option("--figures", metavar="DIR", help="Write the figures as SVG and PNG for papers here."),
            click.option("--trace", metavar="FILE", help="Write the simulated step here, for Perfetto or chrome://tracing."),
        ]
    )(function)


def check_targets(options: dict[str, Any]) -> None:
    """Refuse what cannot be written before anything is computed.

    Raises:
        InvalidInputError: with every target that cannot be written.
        UnavailableError: figures were asked for and matplotlib is not installed.
    """
    from autopar.costmodel.spec.errors import raise_if
    from autopar.io.files import folder_faults, target_faults

    faults = [
        fault
        for name in ("report", "html", "trace", "output")
        if options.get(name) is not None
        for fault in target_faults(options[name], field=f"--{name}")
    ]
    if options.get("figures") is not None:
        faults += folder_faults(options["figures"], field="--figures")
    raise_if(faults)
    if options.get("figures") is not None:
        from autopar.report.figures import require_matplotlib

        require_matplotlib()


def write_reports(options: dict[str, Any], subject: Callable[[], Subject]) -> None:
    """Write what was asked for; ``subject`` is called once, where something was."""
    if options["report"] is None and options["figures"] is None:
        return
    about = subject()
    if options["report"] is not None:
        from autopar.io.files import write_text
        from autopar.report.strategy_page import strategy_page

        write_text(options["report"], strategy_page(about), field="--report")
        note(f"wrote {options['report']}")
    if options["figures"] is not None:
        from autopar.report.figures import subject_figures

        _write_figures(options["figures"], subject_figures(about))


def write_trace(options: dict[str, Any], problem: Problem, strategy: Strategy) -> None:
    """Write the trace, where it was asked for, and say what it leaves out."""
    if options["trace"] is None:
        return
    from autopar.costmodel.step_timeline import step_timeline
    from autopar.io.files import write_text
    from autopar.report.trace import left_out, trace_json

    drawn = step_timeline(problem, strategy)
    write_text(options["trace"], trace_json(problem, strategy, drawn), field="--trace")
    note(f"wrote {options['trace']}{'; ' if left_out(drawn) else ''}{left_out(drawn)}")


def write_mixed(options: dict[str, Any], plan: Plan) -> None:
    """Write the page and the trace of a plan for a mixed cluster, where they were asked for."""
    from autopar.io.files import write_text

    if options["trace"] is not None:
        from autopar.costmodel.pool_timeline import pool_timeline
        from autopar.mixed_problem import mixed_of
        from autopar.report.mixed import pools_text
        from autopar.report.trace import left_out, trace_json

        problem, mixed = mixed_of(plan)
        drawn = pool_timeline(problem, mixed)
        text = trace_json(problem.question, mixed.strategy, drawn, cluster=pools_text(plan))
        write_text(options["trace"], text, field="--trace")
        note(f"wrote {options['trace']}{'; ' if left_out(drawn) else ''}{left_out(drawn)}")
    if options["report"] is not None:
        from autopar.exporters.pools import who_runs_it
        from autopar.report.mixed_page import mixed_page, mixed_subject

        write_text(options["report"], mixed_page(mixed_subject(plan, who_runs_it(plan))), field="--report")
        note(f"wrote {options['report']}")


def write_comparison(options: dict[str, Any], comparison: Comparison) -> None:
    """Write the page and the figures of a comparison, where they were asked for."""
    if options["html"] is not None:
        from autopar.io.files import write_text
        from autopar.report.comparison_page import comparison_page

        write_text(options["html"], comparison_page(comparison), field="--html")
        note(f"wrote {options['html']}")
    if options["figures"] is not None:
        from autopar.report.figures import comparison_figures

        _write_figures(options["figures"], comparison_figures(comparison))


def _write_figures(folder: str, files: Iterable[tuple[str, bytes]]) -> None:
    from autopar.io.files import write_folder

    written = write_folder(folder, files, field="--figures")
    note(f"wrote {len(written)} files to {folder}")
