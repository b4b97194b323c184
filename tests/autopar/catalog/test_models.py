"""The model catalog against published parameter counts, and the loader against its files."""

from __future__ import annotations

import csv
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from autopar.catalog import models
from autopar.catalog.models import model, model_aliases, model_names, published_count
from autopar.costmodel.spec.errors import UnknownNameError
from autopar.costmodel.spec.model import Norm, PositionEmbedding

FOLDER = Path(models.__file__).with_name("models")
COUNTS = Path(__file__).parents[2] / "data" / "hf" / "parameters.csv"
"""Name, parameters and where that is from: counts of the reference implementations' modules, built without weights."""

ROUNDED = {
    # Billions as printed by the papers, which count no less than the digits shown.
    "gpt-1.7b": (1.7, "Narayanan 2021, table 1"),
    "gpt-3.6b": (3.6, "Narayanan 2021, table 1"),
    "gpt-7.5b": (7.5, "Narayanan 2021, table 1"),
    "gpt-18b": (18.4, "Narayanan 2021, table 1"),
    "gpt-39b": (39.1, "Narayanan 2021, table 1"),
    "gpt-76b": (76.1, "Narayanan 2021, table 1"),
    "gpt-145b": (145.6, "Narayanan 2021, table 1"),
    "gpt-310b": (310.1, "Narayanan 2021, table 1"),
    "gpt-530b": (529.6, "Narayanan 2021, table 1"),
    "gpt-1t": (1008.0, "Narayanan 2021, table 1"),
    "gpt-175b": (174.6, "Narayanan 2021, section 5.2"),
    "gpt-1.2b": (1.2, "Shoeybi 2019, table 1"),
    "gpt-2.5b": (2.5, "Shoeybi 2019, table 1"),
    "gpt-4.2b": (4.2, "Shoeybi 2019, table 1"),
    "gpt-8.3b": (8.3, "Shoeybi 2019, table 1"),
    "deepseek-v3": (671.0, "DeepSeek-V3, abstract"),
    "deepseek-v2": (235.7, "DeepSeek-V2, 236 in the abstract"),
    "qwen3-30b-a3b": (30.5, "model card"),
    "gpt-oss-20b": (20.9, "gpt-oss model card, table 1"),
    "gpt-oss-120b": (116.8, "gpt-oss model card, table 1"),
    "mixtral-8x7b": (46.7, "announcement"),
    "mixtral-8x22b": (140.6, "announcement"),
    "palm-540b": (540.4, "PaLM, table 1: 540.35"),
    "bloom-176b": (176.2, "BLOOM, table 3: 176,247M"),
    "gemma2-27b": (27.2, "Gemma 2, table 2"),
}

ACTIVE = {
    # Billions a token passes through, embeddings included, as announced.
    "deepseek-v3": (37, 38),
    "deepseek-v2": (21, 22),
    "mixtral-8x7b": (12.5, 13),
    "mixtral-8x22b": (39, 39.5),
    "qwen3-30b-a3b": (3.2, 3.5),
    "qwen3-235b-a22b": (22, 22.3),
    "qwen2-57b-a14b": (14, 14.5),
    "kimi-k2": (32, 33),
    "llama4-maverick": (17, 17.5),
    "moonlight-16b-a3b": (2.7, 3),
}


def counted() -> dict[str, int]:
    with COUNTS.open(encoding="utf-8") as stream:
        return {row["model"]: int(row["parameters"]) for row in csv.DictReader(stream)}


def test_every_model_has_a_count_of_its_own() -> None:
    assert set(counted()) == set(model_names())


@pytest.mark.parametrize("name", model_names())
def test_parameters_are_exact(name: str) -> None:
    assert model(name).num_parameters == counted()[name] == published_count(name).parameters


@pytest.mark.parametrize("name", sorted(ROUNDED))
def test_parameters_round_to_the_paper(name: str) -> None:
    assert model(name).num_parameters / 1e9 == pytest.approx(ROUNDED[name][0], abs=0.051)


@pytest.mark.parametrize("name", sorted(ACTIVE))
def test_active_parameters(name: str) -> None:
    low, high = ACTIVE[name]
    assert low <= model(name).num_active_parameters / 1e9 <= high


@pytest.mark.parametrize("name", model_names())
def test_entries_are_complete(name: str) -> None:
    spec = model(name)
    assert spec.name == name
    assert spec.source
    assert published_count(name).source
    assert spec.default_sequence_length > 0
    assert spec.default_global_batch_size > 0
    assert spec.default_sequence_length <= spec.max_position_embeddings or spec.position_embedding is not PositionEmbedding.LEARNED


@pytest.mark.parametrize("name", model_names())
def test_every_rotary_model_but_palm_says_its_base(name: str) -> None:
    spec = model(name)
    assert (spec.rotary_base > 0) == (spec.position_embedding is PositionEmbedding.ROTARY and name != "palm-540b")
    assert spec.rotary_base or not spec.rotary_scaling
    assert spec.norm_epsilon in (0.0, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("name", "base", "epsilon", "scaling"),
    [
        ("llama2-7b", 1e4, 1e-5, ""),
        ("llama3-8b", 5e5, 1e-5, ""),
        ("llama3.1-405b", 5e5, 1e-5, "llama3 x8"),
        ("mistral-7b", 1e4, 1e-5, ""),
        ("mistral-7b-v0.3", 1e6, 1e-5, ""),
        ("mixtral-8x7b", 1e6, 1e-5, ""),
        ("qwen2.5-7b", 1e6, 1e-6, ""),
        ("gemma2-9b", 1e4, 1e-6, ""),
        ("gemma3-27b", 1e6, 1e-6, "linear x8"),
        ("deepseek-v3", 1e4, 1e-6, "yarn x40"),
        ("gpt-oss-120b", 1.5e5, 1e-5, "yarn x32"),
        ("gpt-175b", 0.0, 0.0, ""),
    ],
)
def test_published_numbers(name: str, base: float, epsilon: float, scaling: str) -> None:
    spec = model(name)
    assert (spec.rotary_base, spec.norm_epsilon, spec.rotary_scaling) == (base, epsilon, scaling)


def test_headers_are_what_the_files_hold() -> None:
    parsed = [
        (name, tuple(table.get("aliases", ())))
        for file in sorted(FOLDER.glob("*.toml"))
        for name, table in tomllib.loads(file.read_text(encoding="utf-8"))["models"].items()
    ]
    scanned = [entry for file in sorted(FOLDER.glob("*.toml")) for entry in models._headers(file.read_text(encoding="utf-8"))]
    assert scanned == parsed
    spellings = Counter(spelling for name, aliases in parsed for spelling in (name, *aliases))
    assert [spelling for spelling, count in spellings.items() if count > 1] == []
    assert all(spelling == spelling.lower() and "_" not in spelling for spelling in spellings)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("gpt3-175b", "gpt-175b"),
        ("llama-3-8b", "llama3-8b"),
        ("llama3.1-8b", "llama3-8b"),
        ("llama3-405b", "llama3.1-405b"),
        ("GPT-175B", "gpt-175b"),
        ("mixtral_8x7b", "mixtral-8x7b"),
        ("mt-nlg-530b", "gpt-530b"),
        ("gpt3-small", "gpt3-125m"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert model(alias).name == name


def test_names_and_aliases_do_not_overlap() -> None:
    aliases = model_aliases()
    assert not set(aliases) & set(model_names())
    assert set(aliases.values()) <= set(model_names())


def test_an_unknown_name_shows_the_close_ones() -> None:
    with pytest.raises(UnknownNameError, match="not a known model") as caught:
        model("lama3-8b")
    assert "llama3-8b" in caught.value.matches


@pytest.mark.parametrize("name", ["", " ", "../devices/a10", "x" * 10_000, "\0", "llama3-8b.toml"])
def test_hostile_names_are_unknown(name: str) -> None:
    with pytest.raises(UnknownNameError):
        model(name)


def test_korthikanti_shapes() -> None:
    shapes = {n: model(f"gpt-{n}") for n in ("22b", "175b", "530b", "1t")}
    assert {n: (s.num_layers, s.hidden_size, s.num_attention_heads) for n, s in shapes.items()} == {
        "22b": (48, 6144, 64), "175b": (96, 12288, 96), "530b": (105, 20480, 128), "1t": (128, 25600, 160),
    }  # fmt: skip
    for spec in shapes.values():
        assert (spec.vocab_size, spec.default_sequence_length, spec.ffn_hidden_size) == (51200, 2048, 4 * spec.hidden_size)
        assert spec.tied_embeddings
        assert spec.norm is Norm.LAYER_NORM


def test_megatron_2019_heads_are_96_wide() -> None:
    assert {model(f"gpt-{size}").head_dim for size in ("1.2b", "2.5b", "4.2b", "8.3b")} == {96}


def test_only_the_wanted_file_is_parsed_and_nothing_heavy_imported() -> None:
    code = (
        "import sys; from autopar.catalog import models; models.model('gpt-175b');"
        "print(models._parsed.cache_info().currsize, *sorted({'torch', 'numpy', 'pydantic', 'transformers'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert run.stdout.split()[0] == "1"
    assert "torch" not in run.stdout
    assert "transformers" not in run.stdout
