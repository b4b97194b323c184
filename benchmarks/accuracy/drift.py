"""What a change does to predictions: a snapshot over fixed scenarios, compared with what they are now.

python -m benchmarks.accuracy.drift            what moved by more than 1e-4; exit 1 only where what worked before fails now
python -m benchmarks.accuracy.drift --update   write the snapshot anew, so that the pull request's diff shows the change
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autopar.accuracy.view import percent
from autopar.costmodel.spec.errors import AutoparError
from autopar.costmodel.spec.units import format_bytes, format_seconds
from autopar.io.files import write_text

from .scenarios import Scenario, scenarios
from .tables import FOLDER

SNAPSHOT = FOLDER / "snapshot.json"
SNAPSHOT_SCHEMA_VERSION = "1.0"
TOLERANCE = 1e-4
"""Relative change of a figure that is shown."""

Answer = Mapping[str, float | str]
"""Figures by name, or the reason under ``fails``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One scenario whose answer is not what the snapshot holds."""

    scenario: str
    text: str
    breaks: bool = False
    """It worked before and fails now."""


def answers(questions: Iterable[Scenario]) -> dict[str, Answer]:
    """What each scenario gives now."""
    return {question.name: _answer(question) for question in questions}


def _answer(question: Scenario) -> Answer:
    try:
        return {name: float(f"{value:.7g}") for name, value in question.answer().items()}
    except AutoparError as error:
        return {"fails": str(error)}


def changes(before: Mapping[str, Answer], now: Mapping[str, Answer]) -> tuple[Change, ...]:
    """What differs: figures beyond the tolerance, answers that come or go, scenarios that are new or gone."""
    found = []
    for name in [*now, *(name for name in before if name not in now)]:
        if name not in now or name not in before:
            found.append(Change(scenario=name, text="new scenario" if name in now else "scenario removed"))
        elif text := _difference(before[name], now[name]):
            found.append(Change(scenario=name, text=text, breaks="fails" in now[name] and "fails" not in before[name]))
    return tuple(found)


def _difference(before: Answer, now: Answer) -> str:
    if "fails" in now:
        return "" if "fails" in before else f"worked before, fails now: {now['fails']}"
    if "fails" in before:
        return "failed before, works now"
    parts = []
    for name, show in (("step_time_seconds", format_seconds), ("peak_memory_bytes", format_bytes)):
        old, new = float(before[name]), float(now[name])
        if abs(new - old) > TOLERANCE * abs(old):
            parts.append(f"{name.split('_')[0]} {show(old)} -> {show(new)} ({percent(new / old - 1, signed=True)})")
    return ", ".join(parts)


def main(arguments: list[str] | None = None) -> int:
    """Compare, or update; returns the exit code."""
    parser = argparse.ArgumentParser(description="Changes of predictions against the snapshot.")
    parser.add_argument("--update", action="store_true", help="write the snapshot anew")
    update = parser.parse_args(arguments).update
    now = answers(scenarios())
    before = json.loads(SNAPSHOT.read_text())["scenarios"] if SNAPSHOT.exists() else {}
    found = changes(before, now)
    for change in found:
        print(f"{'FAILS  ' if change.breaks else 'changed'} {change.scenario}\n        {change.text}")
    print(f"{len(found)} of {len(now)} scenarios changed by more than {TOLERANCE:g}")
    if update:
        moved = {change.scenario for change in found}
        kept = {name: now[name] if name in moved else before[name] for name in now}  # no line of the diff for what did not move
        text = json.dumps({"schema_version": SNAPSHOT_SCHEMA_VERSION, "scenarios": kept}, indent=1)
        write_text(SNAPSHOT, text + "\n")
        return 0
    return 1 if any(change.breaks for change in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
