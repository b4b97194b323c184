"""Writes ``docs/accuracy.md`` and its plots: how far the cost model is from every public measured run.

    python -m benchmarks.accuracy.report

Accuracy is tracked, never a gate; what a change does to predictions is :mod:`drift`'s.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autopar.accuracy import view
from autopar.accuracy.page import points_by
from autopar.accuracy.scatter import by_size, scatter
from autopar.accuracy.score import RECOMPUTE_ASSUMED, Accuracy, comparable_set
from autopar.costmodel.spec.units import format_seconds
from autopar.io.files import write_text

from .golden_memory import section as golden_memory_section
from .profiled import section as profiled_section
from .public_cases import section as public_cases_section
from .published import comparisons
from .tables import FOLDER, ROOT, markdown, shipped_accuracy, shipped_runs
from .targets import MEMORY_TARGETS, TIME_TARGETS, Target, ranking_rows, verdict
from .terms import PARTS, family_terms, largest_terms

WORST = 20
DOCS = ROOT / "docs"
LEFT_OUT_KEYS = ("family", "device", "model_name")
LEFT_OUT, CAUSES = FOLDER / "left_out.json", FOLDER / "causes.toml"
PEERS = (
    ("Korthikanti table 5", "paper-kort", (("Calculon", 0.0365), ("SimuMax", 0.026))),
    ("vTrain, several nodes", "vtrainN", (("SimuMax", 0.103), ("Calculon", 0.197), ("llm-analysis", 0.18), ("vTrain itself", 0.147))),
    ("vTrain, one node", "vtrain1", (("vTrain itself", 0.084),)),
)
"""Mean absolute errors of other tools on the same tables, measured by this project. The multi-node table had 109 rows in
vTrain's repository, the single-node one 1,440; the tables shipped here hold 73 and 926 of them."""

CONVENTIONS = """\
Step times are compared, not TFLOP/s: sources count FLOPs in four ways (with or without recomputation, causal attention whole or
half). Error is predicted over measured, minus 1; "mean" is of its size, "bias" keeps the sign. MFU here counts causal attention half
and no recomputation. Memory is the peak of the fullest rank; where a row gives the allocator's figure, tensors alone are compared.
What a source does not state is filled by one rule for all rows of its kind, never by looking at the measurement, and the rule
is named beside the row. A set of runs for ranking holds those that agree in model, device, GPUs, global batch, sequence length, precision
and framework; a strategy measured several times enters once, by its median. Regret is the measured time of the strategy we rank
first over the best measured, minus 1."""


def main() -> None:
    """Score the tables and write the page."""
    accuracy = shipped_accuracy()
    left_out = json.loads(LEFT_OUT.read_text()) if LEFT_OUT.exists() else None
    causes = tomllib.loads(CAUSES.read_text()) if CAUSES.exists() else {}
    plots = _plots(accuracy)
    sections = [
        ["# Accuracy", "", "Written by `make bench-accuracy`; do not edit.", ""],
        _overall(accuracy),
        _targets(accuracy, left_out, causes),
        _left_out(left_out),
        _groups(accuracy, "family"),
        _groups(accuracy, "device"),
        _memory(accuracy),
        golden_memory_section(),
        profiled_section(),
        _ranking(accuracy),
        _published(accuracy),
        _peers(accuracy),
        _terms(accuracy),
        ["## Scatter plots", "", *(f"![step time by {column}](accuracy/{path.name})\n" for column, path in plots.items())],
        _worst(accuracy),
        _skipped(accuracy),
        public_cases_section(),
    ]
    text = "\n".join(line for section in sections for line in section)
    write_text(DOCS / "accuracy.md", text.rstrip() + "\n")
    print(f"docs/accuracy.md: {view.headline(accuracy)}, mean error {view.percent(accuracy.step_time.mean_absolute_error)}")


def _plots(accuracy: Accuracy) -> dict[str, Path]:
    folder = DOCS / "accuracy"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {column: folder / f"step_time_by_{column}.svg" for column in ("device", "family")}
    for column, path in paths.items():
        write_text(path, scatter(by_size(points_by(accuracy, column)), title=f"step time by {column}", unit="seconds"))
    return paths


def _overall(accuracy: Accuracy) -> list[str]:
    named = (("step time", accuracy.step_time), ("peak memory", accuracy.memory))
    return [
        f"{view.headline(accuracy)}. The rows and their sources: [benchmarks/accuracy](../benchmarks/accuracy/README.md).",
        "`autopar accuracy RUNS.csv` does the same for runs of your own.",
        "",
        "## What is counted",
        "",
        CONVENTIONS,
        "",
        "## Overall",
        "",
        *markdown(("", *view.ERROR_COLUMNS), ((name, *view.error_row(summary)) for name, summary in named)),
        *(f"- {line}" for line in view.memory_lines(accuracy)),
        "",
    ]


def _left_out_error(target: Target, left_out: Mapping[str, Any] | None) -> float | None:
    """Mean error of the target's rows, each with its family left out of the fit; None where not computed."""
    found = (left_out or {}).get("targets", {}).get(target.name)
    return None if found is None else float(found["mean_absolute_error"])


def _targets(accuracy: Accuracy, left_out: Mapping[str, Any] | None, causes: Mapping[str, Any]) -> list[str]:
    """Target against reached; the causes found for what is not reached."""
    columns = ("step time", "rows", "target", "mean error", "bias", "left out", "reached")
    rows, missed = [], []
    for target in TIME_TARGETS:
        summary, outside = target.of(accuracy), _left_out_error(target, left_out)
        judged = summary.mean_absolute_error if outside is None else outside
        reached = verdict(judged, target.limit)
        sizes = (view.percent(target.limit), view.percent(summary.mean_absolute_error), view.percent(summary.bias, signed=True))
        rows.append((target.name, str(summary.rows), *sizes, view.percent(outside), reached))
        if "no" in reached:
            missed.append(target)
    memory = []
    for target in MEMORY_TARGETS:
        summary = target.of(accuracy, memory=True)
        sizes = (view.percent(target.limit), view.percent(summary.mean_absolute_error), view.percent(summary.bias, signed=True))
        memory.append((target.name, str(summary.rows), *sizes, verdict(summary.mean_absolute_error, target.limit)))
    return [
        "## Targets and what is reached",
        "",
        "Judged by the left-out error (constants fitted without the family) where it is computed, else by the error as shipped.",
        "",
        *markdown(columns, rows),
        *markdown(("peak memory", "rows", "target", "mean error", "bias", "reached"), memory),
        *markdown(("ranking", "target", "figure", "reached"), ranking_rows(accuracy)),
        *_causes(missed, causes),
    ]


def _causes(missed: list[Target], causes: Mapping[str, Any]) -> list[str]:
    if not missed:
        return []
    texts = [
        f"- **{target.name}**: "
        + (" ".join(causes[name] for name in target.families if name in causes) or "no cause found yet; see the terms below")
        for target in missed
    ]
    return ["Not reached, and why:", "", *texts, ""]


def _left_out(left_out: Mapping[str, Any] | None) -> list[str]:
    head = ["## Left-out errors", ""]
    if left_out is None:
        return [*head, "Not computed in this tree (`python -m benchmarks.calibration.steps` makes them).", ""]
    lines = [*head, "Each group's rows are predicted with constants that were fitted on the others.", ""]
    for by, groups in left_out.get("by", {}).items():
        rows = (
            (name, str(each["rows"]), view.percent(each.get("mean_absolute_error")), view.percent(each.get("bias"), signed=True))
            for name, each in groups.items()
        )
        lines += markdown((f"{by} left out", "rows", "mean", "bias"), rows)
    if missing := [key for key in LEFT_OUT_KEYS if key not in left_out.get("by", {})]:
        lines += [
            f"Not computed yet: each {', each '.join(missing)} left out (`benchmarks.calibration.steps --left-out`, an hour of fits).",
            "",
        ]
    constants = left_out.get("constants", [])
    lines += [f"Fitted constants: {len(constants)}.", ""]
    cells = (
        (f"{c['owner']} {c['name']}", c["field"], f"{c['value']:.4g}", f"{c['low']:g} to {c['high']:g}", str(c["rows"])) for c in constants
    )
    return lines + markdown(("owner", "constant", "value", "bounds", "rows"), cells, text=2) if constants else lines


def _groups(accuracy: Accuracy, column: str) -> list[str]:
    rows = ((name, *view.error_row(summary)) for name, summary in accuracy.step_time_groups[column].items())
    return [f"## Step time by {column}", "", *markdown((column, *view.ERROR_COLUMNS), rows)]


def _memory(accuracy: Accuracy) -> list[str]:
    rows = ((name, *view.error_row(summary)) for name, summary in accuracy.memory_groups["family"].items())
    pairs = list(zip(accuracy.cases, accuracy.predictions, strict=True))
    ran = Counter(case.run.family for case, prediction in pairs if prediction.ran_out_of_memory is False)
    wrong = [(case, prediction) for case, prediction in pairs if prediction.ran_out_of_memory is False and not prediction.predicted_fits]
    refused = Counter(case.run.family for case, _ in wrong)
    unstated = sum(any(note.startswith(RECOMPUTE_ASSUMED) for note in prediction.notes) for _, prediction in wrong)
    counts = ", ".join(f"{family} {count} of {ran[family]}" for family, count in refused.most_common())
    text = (
        f"Runs that ran though said not to fit, by family: {counts or 'none'}. Of these {len(wrong)}, {unstated} do not state what they "
        "recompute, or offload, and are taken to keep all activations; they are not counted in the verdict at the top."
    )
    return ["## Peak memory by family", "", *markdown(("family", *view.ERROR_COLUMNS), rows), text, ""]


def _ranking(accuracy: Accuracy) -> list[str]:
    """Means by family, then the largest sets."""
    families: dict[str, set[str]] = defaultdict(set)
    for case in accuracy.cases:
        families[case.run.family].add(comparable_set(case.run))
    rows = []
    for family, names in sorted(families.items()):
        if chosen := [each for each in accuracy.ranking if each.group in names]:
            mean = view.RankingMean.of(chosen)
            figures = (view.figure(mean.spearman), view.figure(mean.kendall), view.percent(mean.pairwise), view.percent(mean.regret))
            rows.append((family, str(mean.sets), str(sum(each.rows for each in chosen)), *figures))
    largest = sorted(accuracy.ranking, key=lambda each: (-each.rows, each.group))[:12]
    return [
        "## Ranking of strategies",
        "",
        *markdown(("family", "sets", "rows", "Spearman", "Kendall", "pairs right", "regret"), rows),
        "The largest sets:",
        "",
        *markdown(view.RANKING_COLUMNS, map(view.ranking_row, largest)),
    ]


def _published(accuracy: Accuracy) -> list[str]:
    rows = (each.cells for each in comparisons(shipped_runs()[0], accuracy))
    return ["## Figures people quote", "", *markdown(("figure", "published", "estimate", "error", "remark"), rows)]


def _peers(accuracy: Accuracy) -> list[str]:
    rows = []
    for name, family, others in PEERS:
        own = accuracy.step_time_groups["family"].get(family)
        rows.append(
            (
                name,
                view.percent(own.mean_absolute_error if own else None),
                ", ".join(f"{peer} {view.percent(error)}" for peer, error in others),
            )
        )
    note = (
        "Mean absolute error of step time. The peers ran on all 109 multi-node and 1,440 single-node rows of vTrain's tables, of which"
        " the shipped tables hold 73 and 926."
    )
    return ["## Beside other tools", "", note, "", *markdown(("rows", "autopar", "others"), rows)]


def _terms(accuracy: Accuracy) -> list[str]:
    rows = []
    for each in family_terms(accuracy):
        shares = (f"{max(each.shares[part], 0):.0%}" for part in PARTS)
        rows.append((each.family, str(each.rows), *shares, f"{each.suspect} ({each.correlation:+.2f})" if each.suspect else "-"))
    note = (
        "Mean share of each part in the predicted step, and the part whose share goes with the signed error from row to row"
        " (rank correlation; above 0: rows with more of it are predicted too long)."
    )
    return ["## Which term carries the error", "", note, "", *markdown(("family", "rows", *PARTS, "goes with the error"), rows)]


def _worst(accuracy: Accuracy) -> list[str]:
    rows = []
    for row in view.worst_times(accuracy, WORST):
        case, prediction = accuracy.cases[row], accuracy.predictions[row]
        run = case.run
        what = f"{run.model_name} on {run.num_gpus:,} x {run.device}, {case.strategy.describe()}, {case.problem.training.precision.name}"
        times = (format_seconds(prediction.measured_seconds or 0), format_seconds(prediction.predicted_seconds))
        known = "; ".join(part for part in (run.notes, *prediction.notes) if part)
        rows.append((run.run_id, what, *times, view.percent(prediction.time_error, signed=True), largest_terms(case), known))
    columns = ("row", "run", "measured", "predicted", "error", "largest terms", "what is known")
    return [f"## The {WORST} worst rows", "", *markdown(columns, rows, text=2)]


def _skipped(accuracy: Accuracy) -> list[str]:
    rows = ((reason.text, str(reason.rows), ", ".join(reason.examples)) for reason in view.reasons(accuracy.skipped))
    return ["## Rows that are not scored", "", *markdown(("reason", "rows", "such as"), rows)]


if __name__ == "__main__":
    main()
