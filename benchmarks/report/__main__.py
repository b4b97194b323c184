"""Writes the benchmark report of today: ``python -m benchmarks.report``, or ``make bench``.

``benchmarks/results/DATE/`` gets report.md, report.html and report.json; the last is what the next report is compared with.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from autopar.accuracy.page import points_by
from autopar.accuracy.scatter import by_size, scatter
from autopar.accuracy.score import Accuracy
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.io.codec import to_json
from autopar.io.files import write_text
from autopar.report.page import Markup, Section, page, paragraph, table
from benchmarks.accuracy.tables import markdown, shipped_accuracy
from benchmarks.search.speed import REPEATS

from .measure import all_results
from .parts import Part, parts
from .results import FOLDER, NAME, Results, previous, read_results


def main(arguments: list[str] | None = None) -> None:
    """Measure, compare with the report before, and write."""
    options = _options(arguments)
    accuracy = shipped_accuracy()
    now = all_results(options.date, accuracy, repeats=options.repeats)
    then, why_not = _report_before(options)
    shown = list(parts(now, then, why_not))
    folder = options.output / options.date
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / NAME, to_json(now))
    write_text(folder / "report.md", markdown_report(now, shown))
    write_text(folder / "report.html", html_report(now, shown, accuracy))
    print(f"{folder / 'report.md'}: {' '.join(shown[0].texts)}")


def markdown_report(now: Results, shown: list[Part]) -> str:
    """The report in Markdown."""
    lines = [f"# Benchmarks, {now.date}", "", f"autopar {now.autopar_version} on {now.machine}. Written by `make bench`; do not edit.", ""]
    for part in shown:
        lines += [f"## {part.title}", "", *(line for text in part.texts for line in (text, ""))]
        if part.columns:
            lines += markdown(part.columns, part.rows, text=len(part.words) if part.words == tuple(range(len(part.words))) else 1)
    return "\n".join(lines).rstrip() + "\n"


def html_report(now: Results, shown: list[Part], accuracy: Accuracy) -> str:
    """The same as one HTML file, with the scatter of predicted against measured."""
    sections = []
    for number, part in enumerate(shown):
        body = [paragraph(text) for text in part.texts]
        body += [table(part.columns, part.rows, words=part.words, caption=part.title)] if part.columns else []
        if part.title.startswith("Accuracy"):
            drawn = scatter(by_size(points_by(accuracy, "device")), title="step time by device", unit="seconds")
            body.append(Markup(f'<div class="paper scroll" role="region" tabindex="0" aria-label="Scatter plot">{drawn}</div>'))
        sections.append(Section(id=f"part-{number}", title=part.title, parts=tuple(body)))
    return page(f"Benchmarks, {now.date}", [paragraph(f"autopar {now.autopar_version} on {now.machine}.")], sections)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    parser.add_argument("--date", default=today, type=_day, help="day of the report (default: today, UTC)")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the reports (default: benchmarks/results)")
    parser.add_argument("--against", type=Path, help=f"the {NAME} to compare with (default: the newest older one there)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"searches of each case (default {REPEATS})")
    return parser.parse_args(arguments)


def _day(text: str) -> str:
    return datetime.date.fromisoformat(text).isoformat()


def _report_before(options: argparse.Namespace) -> tuple[Results | None, str]:
    """The report to compare with, or why there is none."""
    path = options.against or previous(options.output, options.date)
    if path is None:
        return None, ""
    try:
        return read_results(path), ""
    except InvalidInputError as error:
        return None, f"{path} cannot be compared with: {error.faults[0]}"


if __name__ == "__main__":
    main()
