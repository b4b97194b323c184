"""``autopar compare``: forms of output, exit codes, and what it says of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import autopar as package
from autopar.comparison import Comparison
from autopar.io.codec import from_json_as

MODEL = ("--model", "gpt-1.2b", "--gpus", 8)
STRATEGIES = ("--strategies", "tp=1", "tp=2,mbs=2", "pp=4 mbs=2")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("plans")
    for name, fixed in (("old", {"tp": 1}), ("new", {"tp": 8})):
        package.write_plan(package.plan("gpt-1.2b", gpus=8, fix=fixed, top=1), folder / f"{name}.json")
    return folder / "old.json", folder / "new.json"


def test_files_side_by_side(autopar, plans: tuple[Path, Path]) -> None:
    outcome = autopar("compare", *plans)
    assert (outcome.code, outcome.err) == (0, "")
    for part in (
        "side by side",
        "what differs",
        "where the time moved (of a step)",
        "where the memory moved",
        "A is the fastest",
    ):
        assert part in outcome.out
    assert "old.json" in "".join(outcome.out.split())  # a long path is folded
    assert max(map(len, outcome.out.splitlines())) <= 100
    assert "cost" not in outcome.out


def test_the_json_is_what_the_python_interface_returns(autopar, plans: tuple[Path, Path]) -> None:
    outcome = autopar("compare", *plans, "--json", "--price", "2.5", "--tokens", "1T")
    assert outcome.code == 0
    assert next(iter(outcome.document)) == "schema_version"
    expected = package.compare(plans, price_per_gpu_hour=2.5, tokens=1e12)
    assert from_json_as(Comparison, outcome.out) == expected


def test_the_schema_describes_the_json(autopar) -> None:
    schema = autopar("schema", "comparison").document
    document = autopar("compare", *MODEL, *STRATEGIES, "--json").document
    assert set(document) == set(schema["properties"])
    assert set(schema["required"]) <= set(document)


def test_strategies_of_a_model_or_of_a_file(autopar, plans: tuple[Path, Path]) -> None:
    of_model = autopar("compare", *MODEL, *STRATEGIES, "--json").document
    assert [plan["label"] for plan in of_model["plans"]] == ["A", "B", "C"]
    assert of_model["plans"][1]["strategy"]["micro_batch_size"] == 2
    of_file = autopar("compare", plans[0], *STRATEGIES, "--json").document
    assert len(of_file["plans"]) == 4
    assert of_file["plans"][1]["model"] == "gpt-1.2b"


def test_markdown_has_whole_tables(autopar) -> None:
    outcome = autopar("compare", *MODEL, *STRATEGIES, "--markdown", "--tokens", "1T", "--price", 2)
    assert outcome.code == 0
    tables = [block.splitlines() for block in outcome.out.split("\n\n") if block.startswith("|")]
    assert len(tables) == 5
    for table in tables:
        assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert "| days for 1T |" in outcome.out.replace("  ", " ")


def test_slower_than_allowed_answers_no(autopar) -> None:
    found = package.compare([(problem, strategy) for problem, strategy in _pairs()])
    assert found.plans[1].slower_than_first > 0.001
    asked = ("compare", *MODEL, *STRATEGIES[:3])
    assert autopar(*asked).code == 0
    assert autopar(*asked, "--fail-if-slower", "900%").code == 0
    outcome = autopar(*asked, "--fail-if-slower", "0.01%", "--json")
    assert outcome.code == 1
    assert "more time for a token than" in outcome.err
    assert outcome.document["plans"]


def _pairs() -> list[tuple]:
    from autopar.api import build_problem
    from autopar.io.flags import make_strategy

    problem, _ = build_problem("gpt-1.2b", gpus=8)
    return [(problem, make_strategy(values, world_size=8)) for values in ({"tp": 1}, {"tp": 2, "mbs": 2})]


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ((), ["2 to 26 plans are put side by side"]),
        (("absent.json", "gone.json"), ["absent.json", "gone.json", "no such file"]),
        ((*MODEL,), ["--model and its flags are for --strategies"]),
        (("--gpus", 8, "--strategies", "tp=1", "tp=2"), ["--gpus is for --model"]),
        (("--strategies", "tp=1", "tp=2"), ["give --model, or a plan file"]),
        ((*MODEL, "--strategies", "tp=1"), ["plans=1"]),
        ((*MODEL, "--strategies", "tp=one", "speed=2", "tp=3"), ["tp='one'", "'speed'", "--strategies 'tp=3': gpus=8"]),
        ((*MODEL, *STRATEGIES, "--json", "--markdown"), ["not both"]),
        ((*MODEL, *STRATEGIES, "--price", "cheap"), ["--price='cheap'"]),
        ((*MODEL, *STRATEGIES, "--price", 1, "--price", 2), ["one for each of the 3"]),
        ((*MODEL, *STRATEGIES, "--tokens", "lots", "--price", "nan"), ["--tokens='lots'", "--price='nan'"]),
        ((*MODEL, *STRATEGIES, "--fail-if-slower", "0.02"), ["--fail-if-slower='0.02'", "2%"]),
    ],
)
def test_bad_input_is_code_2(autopar, arguments: tuple[object, ...], messages: list[str]) -> None:
    outcome = autopar("compare", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    for message in messages:
        assert message in outcome.err


def test_files_that_are_no_plans_are_all_named(autopar, plans: tuple[Path, Path], tmp_path: Path) -> None:
    document = json.loads(plans[0].read_text())
    wrong = {
        "text.json": "not json",
        "list.json": "[]",
        "old.json": json.dumps({**document, "schema_version": "0.9"}),
        "new.json": json.dumps({**document, "schema_version": "2.0"}),
        "part.json": json.dumps({**document, "strategy": {**document["strategy"], "tensor_parallel_size": "8"}}),
    }
    for name, text in wrong.items():
        (tmp_path / name).write_text(text)
    outcome = autopar("compare", plans[0], *(tmp_path / name for name in wrong))
    assert (outcome.code, outcome.out) == (2, "")
    assert all(f"{tmp_path / name}: $" in outcome.err for name in wrong)
    assert "plan again with this release" in outcome.err
    assert "upgrade autopar" in outcome.err


def test_a_refused_strategy_answers_no_with_its_rule(autopar) -> None:
    outcome = autopar("compare", *MODEL, "--gbs", 64, "--strategies", "tp=1", "mbs=5", "--json")
    assert outcome.code == 1
    assert "this strategy is refused" in outcome.err
    assert outcome.document["faults"]
