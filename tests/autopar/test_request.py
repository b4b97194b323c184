"""From what a user said to the problem: defaults are told, faults are gathered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autopar.catalog.hardware import cluster
from autopar.catalog.models import model
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.question import read_constraints
from autopar.request import build_problem, looks_like_path


def test_nothing_said_is_h100_and_the_models_usual_batch() -> None:
    spec = model("gpt-175b")
    problem, assumptions = build_problem("gpt-175b", gpus=16)
    assert problem.cluster.id == "dgx-h100"
    assert problem.cluster.device.id == "h100-sxm5-80gb"
    assert problem.training.global_batch_size == spec.default_global_batch_size
    assert problem.training.sequence_length == spec.default_sequence_length
    assert (problem.training.precision.name, problem.training.precision.master_weight_bytes) == ("bf16", 4)
    assert len(problem.links) == len(problem.cluster.tiers)
    assert len(assumptions) == 5


def test_specs_and_names_ask_the_same() -> None:
    by_spec, _ = build_problem(model("gpt-175b"), cluster=cluster("dgx-a100", 16), gpus=16, memory_reserve=4 * 2**30)
    by_name, _ = build_problem("gpt-175b", cluster="dgx-a100", gpus=16, memory_reserve="4GiB")
    assert by_spec == by_name
    assert by_name.memory_reserve_bytes == 4 * 2**30


def test_a_model_without_a_usual_batch_gets_one_that_is_told(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    problem, assumptions = build_problem(tmp_path, gpus=8)
    assert problem.training.sequence_length == 2048
    assert problem.training.tokens_per_step == 2**22
    assert sum("none is known for this model" in line for line in assumptions) == 2


def test_a_cluster_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"gpus=8: the cluster dgx-a100 has 16"):
        build_problem("gpt-175b", cluster=cluster("dgx-a100", 16), gpus=8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"sequence_length": -1}, "sequence_length=-1"),
        ({"memory_reserve": -1}, "0 bytes or more"),
        ({"memory_reserve": float("nan")}, "memory_reserve=nan: 0 bytes or more"),
        ({"precision": 16}, "precision='16'"),
        ({"gpus": -8}, "-8"),
        ({"gpu": "h100", "cluster": "dgx-h100"}, "not both"),
    ],
)
def test_what_cannot_be_asked(arguments: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        build_problem("gpt-175b", **{"gpus": 8, **arguments})


@pytest.mark.parametrize("given", [None, 8, object()])
def test_what_is_no_model(given: object) -> None:
    with pytest.raises(InvalidInputError, match=r"a catalog name.* is needed; autopar\.parallelize takes a PyTorch model"):
        build_problem(given, gpus=8)  # type: ignore[arg-type]


def test_one_word_stands_for_a_list_of_one() -> None:
    alone, listed = read_constraints("tp=8", "pp=4", "dp=2", "cp"), read_constraints(["tp=8"], ["pp=4"], ["dp=2"], ["cp"])
    assert alone == listed
    assert alone[1] == ("tp=8", "max pp=4", "min dp=2", "forbid cp")


def test_all_faults_at_once() -> None:
    with pytest.raises(InvalidInputError) as caught:
        build_problem(
            "no-such-model", gpus=8, gpu="no-such-gpu", precision="no-such", framework="no-such", memory_reserve="x", sequence_length=0
        )
    assert {fault.field for fault in caught.value.faults} >= {"model", "device", "precision", "framework", "memory_reserve"}


def test_paths_are_told_from_names() -> None:
    assert [looks_like_path(text) for text in ("gpt-175b", "llama3.1-8b", "./x", "a/b", "config.json", "..")] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]


def test_a_folder_does_not_hide_a_model_of_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("gpt-175b", "mine", "dgx-a100"):
        (tmp_path / name).mkdir()
    assert build_problem("gpt-175b", gpus=8, cluster="dgx-a100")[0].model == model("gpt-175b")
    for name in ("mine", "./gpt-175b"):
        with pytest.raises(InvalidInputError, match=r"config\.json"):
            build_problem(name, gpus=8)


@pytest.mark.parametrize("name", ["", " ", "x" * 5000, "a\0b", "../" * 2000])
def test_odd_names_are_unknown(name: str) -> None:
    with pytest.raises(InvalidInputError):
        build_problem(name, gpus=8, cluster=name, memory_reserve="9" * 500)
