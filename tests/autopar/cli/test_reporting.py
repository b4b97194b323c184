"""``--report``, ``--figures``, ``--trace`` and ``--html``: what is written, and what is refused before anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = ("plan", "--model", "gpt-1.2b", "--gpus", 8, "--fix", "pp=2")
ESTIMATE = ("estimate", "--model", "gpt-1.2b", "--gpus", 8, "--pp", 2)
COMPARE = ("compare", "--model", "gpt-1.2b", "--gpus", 8, "--strategies", "tp=1", "tp=2")


@pytest.mark.parametrize("command", [PLAN, ESTIMATE], ids=["plan", "estimate"])
def test_files_beside_the_answer(autopar, tmp_path: Path, command: tuple[object, ...]) -> None:
    page, trace = tmp_path / "out.html", tmp_path / "step.json"
    plain = autopar(*command, "--json")
    outcome = autopar(*command, "--json", "--report", page, "--trace", trace)
    assert outcome.code == 0
    assert outcome.out == plain.out
    assert outcome.err.splitlines() == [f"wrote {trace}", f"wrote {page}"]
    assert page.read_text().rstrip().endswith("</html>")
    assert json.loads(trace.read_text())["traceEvents"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "step.json"]


def test_a_plan_file_brings_its_runners_up(autopar, tmp_path: Path) -> None:
    plan, page = tmp_path / "plan.json", tmp_path / "plan.html"
    assert autopar(*PLAN, "-o", plan).code == 0
    outcome = autopar("estimate", plan, "--report", page)
    assert outcome.code == 0
    assert "Runners-up" in page.read_text()
    assert "Strategies refused" in page.read_text()


def test_a_strategy_that_does_not_fit_has_its_report_all_the_same(autopar, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    outcome = autopar("estimate", "--model", "gpt-175b", "--gpus", 8, "--tp", 8, "--report", page)
    assert outcome.code == 1
    assert "does not fit" in page.read_text()


def test_a_comparison_is_written(autopar, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    outcome = autopar(*COMPARE, "--html", page)
    assert (outcome.code, outcome.err) == (0, f"wrote {page}\n")
    assert "plans side by side" in page.read_text()


def test_figures_are_written_into_a_folder(autopar, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in autopar[report]")
    folder = tmp_path / "figures"
    outcome = autopar(*COMPARE, "--figures", folder)
    assert outcome.code == 0
    names = sorted(path.name for path in folder.iterdir())
    assert outcome.err == f"wrote {len(names)} files to {folder}\n"
    assert "plans.svg" in names
    assert not [name for name in names if name.startswith(".")]


@pytest.mark.parametrize("command", [PLAN, ESTIMATE, COMPARE], ids=["plan", "estimate", "compare"])
def test_what_cannot_be_written_is_refused_before_anything_is_computed(autopar, tmp_path: Path, command: tuple[object, ...]) -> None:
    (tmp_path / "file").write_text("")
    outcome = autopar(*command, "--report", tmp_path / "absent" / "out.html", "--figures", tmp_path / "file")
    assert (outcome.code, outcome.out) == (2, "")
    assert "absent does not exist" in outcome.err
    assert "is a file, a folder is needed" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_to(autopar, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert autopar(*ESTIMATE, "--report", tmp_path / "out.html").code == 2


def test_a_trace_of_too_many_passes_is_refused(autopar, tmp_path: Path) -> None:
    outcome = autopar("estimate", "--model", "gpt-1.2b", "--gpus", 1, "--gbs", 10**6, "--trace", tmp_path / "t.json", "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "at most 1,000,000 passes" in outcome.err
    assert not list(tmp_path.iterdir())


def test_a_page_needs_no_template_engine_and_no_plotting(tmp_path: Path) -> None:
    arguments = [str(argument) for argument in (*ESTIMATE, "--report", tmp_path / "out.html", "--trace", tmp_path / "out.json")]
    heavy = ("matplotlib", "jinja2", "pandas", "scipy", "torch")
    code = f"import sys; from autopar.cli.app import run; assert run({arguments}) == 0; assert not set(sys.modules) & set({heavy})"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)


def test_figures_without_matplotlib_are_absent_not_a_bug(autopar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = autopar(*ESTIMATE, "--figures", tmp_path / "figures")
    assert (outcome.code, outcome.out) == (3, "")
    assert "pip install 'autopar[report]'" in outcome.err
    assert not list(tmp_path.iterdir())
