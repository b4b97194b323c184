"""``autopar catalog``, ``schema`` and ``doctor``."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.catalog_view import KINDS, entry, names
from autopar.cli import doctor
from autopar.cli.catalog import KINDS as KINDS_OF_THE_COMMAND
from autopar.cli.options import SCHEDULES
from autopar.costmodel.spec.strategy import PipelineSchedule
from autopar.io.codec import from_json_as, to_json
from autopar.no_plan import NoPlan
from autopar.report.catalog import entry_report


def test_choices_spelled_out_for_a_fast_start_are_those_of_the_types() -> None:
    assert tuple(PipelineSchedule) == SCHEDULES
    assert KINDS_OF_THE_COMMAND == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_list_has_every_name(autopar, kind: str) -> None:
    document = autopar("catalog", "list", kind, "--json").document
    assert document[kind] == list(names(kind))
    first_words = {line.split()[0] for line in autopar("catalog", "list", kind).out.splitlines() if line.strip()}
    assert set(names(kind)) <= first_words


@pytest.mark.parametrize(("kind", "name"), [("devices", "h100-sxm5-80gb"), ("clusters", "dgx-h100"), ("models", "gpt-175b")])
def test_show_has_the_sources(autopar, kind: str, name: str) -> None:
    outcome = autopar("catalog", "show", kind, name)
    assert outcome.code == 0
    assert "source" in outcome.out
    assert autopar("catalog", "show", name).out == outcome.out
    assert name in str(autopar("catalog", "show", kind, name, "--json").document[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_can_be_shown(kind: str) -> None:
    for name in names(kind):
        assert list(entry_report(kind, entry(kind, name)))


@pytest.mark.parametrize("words", [("devices", "h100-sxm5-80bg"), ("h100-sxm5-80bg",)])
def test_an_unknown_name_brings_the_close_ones(autopar, words: tuple[str, ...]) -> None:
    outcome = autopar("catalog", "show", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert "h100-sxm5-80gb" in outcome.err


def test_show_takes_one_entry(autopar) -> None:
    assert autopar("catalog", "show", "models").code == 2
    assert autopar("catalog", "show", "models", "gpt-175b", "gpt-22b").code == 2
    assert "kind of catalog entry" in autopar("catalog", "show", "planets", "earth").err


def test_schema_is_closed_and_complete(autopar) -> None:
    schema = autopar("schema", "plan").document
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"strategy", "estimate", "inputs", "search", "alternatives", "autopar_version"}
    assert all(kind.get("additionalProperties") is False for kind in schema["$defs"].values() if kind["type"] == "object")
    assert "step_time_seconds" in autopar("schema", "estimate").document["required"]


def test_the_no_plan_document_is_the_one_of_its_schema(autopar) -> None:
    schema = autopar("schema", "no-plan").document
    answer = autopar("plan", "--model", "mixtral-8x7b", "--gpus", "1", "--json")
    assert answer.code == 1
    assert set(answer.document) == set(schema["properties"])
    read = from_json_as(NoPlan, answer.out)
    assert to_json(read) == answer.out
    assert read.smallest_cluster is not None
    assert read.smallest_cluster.num_gpus > 1


def test_doctor_is_ready_here(autopar) -> None:
    outcome = autopar("doctor", "--json")
    assert outcome.code == 0
    assert outcome.document["ready"] is True
    assert all(outcome.document["required"].values())
    assert all(count > 0 for count in outcome.document["catalog"].values())
    assert "ready to plan" in autopar("doctor").out


def test_doctor_knows_every_extra(autopar) -> None:
    """Each package of the extras that a command of autopar imports."""
    assert {"ortools", "networkx", "deap", "matplotlib", "pyyaml", "torch", "cupy"} <= set(autopar("doctor", "--json").document["optional"])


def test_doctor_says_what_is_absent(autopar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "REQUIRED", ("numpy", "no-such-distribution-of-ours"))
    outcome = autopar("doctor")
    assert outcome.code == 3
    assert "absent, and needed for planning" in outcome.out


def test_gpus_are_read_from_the_driver(tmp_path: Path) -> None:
    for index in range(2):
        card = tmp_path / f"0000:0{index}:00.0"
        card.mkdir()
        (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    assert doctor.visible_gpus(tmp_path) == ["NVIDIA H200", "NVIDIA H200"]
    assert doctor.visible_gpus(tmp_path / "absent", tools=(("echo", "GPU 0: NVIDIA H100"),)) == ["GPU 0: NVIDIA H100"]
    assert doctor.visible_gpus(tmp_path / "absent", tools=(("no-such-tool-of-ours",),)) == []


def test_unknown_names_say_how_to_list_what_there_is(autopar) -> None:
    assert "`autopar catalog list` names them" in autopar("catalog", "show", "zzzz").err
    assert "`autopar catalog list models` names them" in autopar("catalog", "show", "models", "zzzz").err
    assert "known: clusters, devices, frameworks, models" in autopar("catalog", "show", "qqq", "x").err


def test_a_device_without_bf16_shows_fp16_and_says_so(autopar) -> None:
    lines = autopar("catalog", "list", "devices").out.splitlines()
    assert "125 (fp16)" in next(line for line in lines if line.startswith("v100-sxm2-32gb"))
    assert "fp16" not in next(line for line in lines if line.startswith("h100-sxm5-80gb"))


def test_the_range_of_gpus_is_what_is_checked(autopar) -> None:
    assert "1<=x<=10000000]" in autopar("plan", "--help").out.replace(",", "")
    outcome = autopar("plan", "--model", "gpt-1.2b", "--gpus", 10_000_001)
    assert (outcome.code, outcome.out) == (2, "")
