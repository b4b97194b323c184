"""A small table of public runs, and variations of it."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
if str(ROOT) not in sys.path:  # the benchmarks are not installed with the package
    sys.path.append(str(ROOT))
TABLE = ROOT / "tests" / "data" / "accuracy" / "runs.csv"
Rows = list[dict[str, str]]


@pytest.fixture(scope="session")
def table() -> Rows:
    """Twelve rows: one table of Korthikanti 2022, five strategies of one vTrain grid, three own steps on an H200."""
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Iterable[Mapping[str, str]]], Path]:
    """Writes rows to a CSV file."""

    def to_file(rows: Iterable[Mapping[str, str]]) -> Path:
        return write_rows(tmp_path / "runs.csv", rows)

    return to_file


def write_rows(path: Path, rows: Iterable[Mapping[str, str]]) -> Path:
    listed = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(listed[0]), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(listed)
    return path
