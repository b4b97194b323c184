"""The Hugging Face config reader: every family, hostile files, and arbitrary values under every key."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autopar.catalog.models import model
from autopar.costmodel.spec.errors import Fault, InvalidInputError
from autopar.costmodel.spec.model import ModelSpec, PositionEmbedding
from autopar.io.hf_config import MAX_CONFIG_BYTES, model_from_config, read_model, supported_model_types

DATA = Path(__file__).parents[2] / "data" / "hf"
FAMILIES = sorted(DATA.glob("*.json"))
ABOUT = {"name", "source", "default_sequence_length", "default_global_batch_size", "max_position_embeddings"}

CONFIGS: dict[str, dict[str, object]] = {file.stem: json.loads(file.read_text()) for file in FAMILIES}
LLAMA = CONFIGS["llama"]


def shape(spec: ModelSpec) -> dict[str, object]:
    return {f.name: getattr(spec, f.name) for f in dataclass_fields(spec) if f.name not in ABOUT}


def faults_of(config: Mapping[str, object]) -> tuple[Fault, ...]:
    with pytest.raises(InvalidInputError) as caught:
        model_from_config(config, name="x")
    return caught.value.faults


def write(folder: Path, content: str | bytes) -> Path:
    file = folder / "config.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


# -- families -----------------------------------------------------------------------------------------


def test_every_family_has_a_config() -> None:
    assert [file.stem for file in FAMILIES] == sorted(supported_model_types())


@pytest.mark.parametrize("file", FAMILIES, ids=lambda file: file.stem)
def test_config_and_catalog_agree(file: Path) -> None:
    known = model(str(CONFIGS[file.stem]["_name_or_path"]))
    read = read_model(file)
    assert read.num_parameters == known.num_parameters
    assert shape(read) == shape(known)


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_an_unknown_key_is_named(family: str) -> None:
    (fault,) = faults_of({**CONFIGS[family], "num_secret_layers": 7})
    assert fault.field == "$.num_secret_layers"
    assert fault.given == "7"


@pytest.mark.parametrize("family", ["gemma3", "llama4"])
def test_an_unknown_key_of_the_text_model_is_named(family: str) -> None:
    text = CONFIGS[family]["text_config"]
    assert isinstance(text, dict)
    (fault,) = faults_of({**CONFIGS[family], "text_config": {**text, "num_secret_layers": 7}})
    assert fault.field == "$.text_config.num_secret_layers"


def test_all_faults_at_once() -> None:
    config = {**LLAMA, "hidden_size": "4096", "vocab_size": True, "secret": 1, "other": 2}
    assert {fault.field for fault in faults_of(config)} == {"$.hidden_size", "$.vocab_size", "$.secret", "$.other"}


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"])
def test_sizes_are_required(key: str) -> None:
    (fault,) = faults_of({k: v for k, v in LLAMA.items() if k != key})
    assert fault.field == f"$.{key}"
    assert "required" in fault.required


# -- defaults of the reference implementations ------------------------------------------------------------


def without(family: str, *keys: str) -> ModelSpec:
    return model_from_config({k: v for k, v in CONFIGS[family].items() if k not in keys}, name="x")


@pytest.mark.parametrize(
    ("family", "key", "field", "value"),
    [
        ("llama", "num_key_value_heads", "num_key_value_heads", 32),
        ("mistral", "num_key_value_heads", "num_key_value_heads", 8),
        ("mistral", "sliding_window", "sliding_window", 4096),
        ("phi3", "num_key_value_heads", "num_key_value_heads", 40),
        ("qwen3", "head_dim", "head_dim", 128),
        ("qwen3_moe", "head_dim", "head_dim", 64),
        ("gemma", "head_dim", "head_dim", 256),
        ("gemma", "tie_word_embeddings", "tied_embeddings", True),
        ("llama", "tie_word_embeddings", "tied_embeddings", False),
        ("gpt2", "tie_word_embeddings", "tied_embeddings", True),
        ("gpt_neox", "attention_bias", "qkv_bias", True),
        ("falcon", "multi_query", "num_key_value_heads", 8),
        ("gpt_oss", "layer_types", "num_sliding_layers", 18),
        ("gemma3_text", "sliding_window_pattern", "num_sliding_layers", 22),
        ("llama4_text", "no_rope_layers", "num_sliding_layers", 36),
        ("opt", "word_embed_proj_dim", "embedding_projection_size", 0),
    ],
)
def test_defaults_of_absent_keys(family: str, key: str, field: str, value: object) -> None:
    assert getattr(without(family, key), field) == value


def test_null_is_absent() -> None:
    assert model_from_config({**LLAMA, "num_key_value_heads": None, "head_dim": None}, name="x").num_key_value_heads == 32


# Counted from the modules of transformers 5.24 built without weights, for two layers of 64.
SMALL_LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
}
SMALL_FALCON = {"model_type": "falcon", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
SMALL_OPT = {"model_type": "opt", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_dim": 96, "vocab_size": 100}
SMALL_QWEN = {
    **SMALL_LLAMA,
    "model_type": "qwen2_moe",
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 40,
    "num_experts": 4,
    "num_key_value_heads": 2,
}


COUNTED: list[tuple[dict[str, object], int]] = [
    (SMALL_LLAMA, 82752),
    ({**SMALL_LLAMA, "attention_bias": True}, 83264),
    ({**SMALL_LLAMA, "mlp_bias": True}, 83264),
    ({**SMALL_LLAMA, "tie_word_embeddings": True}, 76352),
    ({**SMALL_LLAMA, "head_dim": 32, "num_key_value_heads": 2}, 99136),
    ({**SMALL_LLAMA, "model_type": "nemotron", "num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}, 63296),
    ({**SMALL_LLAMA, "model_type": "qwen3", "attention_bias": True, "num_key_value_heads": 2}, 249280),
    ({**SMALL_LLAMA, "model_type": "gemma2", "attention_bias": True, "num_key_value_heads": 2}, 441280),
    ({**SMALL_LLAMA, "model_type": "gpt_neox", "attention_bias": False}, 71104),
    ({**SMALL_LLAMA, "model_type": "phi", "num_key_value_heads": 2}, 63140),
    (SMALL_FALCON, 92800),
    ({**SMALL_FALCON, "multi_query": False, "parallel_attn": False, "bias": True, "alibi": True}, 106496),
    ({**SMALL_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}, 97152),
    ({**SMALL_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}, 96896),
    ({**SMALL_FALCON, "ffn_hidden_size": 100, "tie_word_embeddings": False}, 59264),
    ({**SMALL_OPT, "word_embed_proj_dim": 64}, 196416),
    ({**SMALL_OPT, "word_embed_proj_dim": 64, "enable_bias": False}, 195584),
    ({**SMALL_OPT, "word_embed_proj_dim": 64, "layer_norm_elementwise_affine": False}, 195776),
    ({**SMALL_OPT, "word_embed_proj_dim": 64, "_remove_final_layer_norm": True}, 196288),
    ({**SMALL_OPT, "word_embed_proj_dim": 64, "do_layer_norm_before": False}, 196288),
    ({**SMALL_OPT, "word_embed_proj_dim": 32}, 197312),
    (SMALL_QWEN, 78528),
    ({**SMALL_QWEN, "decoder_sparse_step": 2}, 76672),
    ({**SMALL_QWEN, "mlp_only_layers": [0]}, 76672),
    ({**SMALL_QWEN, "qkv_bias": False}, 78272),
]


@pytest.mark.parametrize(("config", "parameters"), COUNTED)
def test_variations_count_as_the_reference_implementation(config: dict[str, object], parameters: int) -> None:
    assert model_from_config(config, name="x").num_parameters == parameters


def test_mpt_with_learned_positions_and_biases_is_the_benchmarked_one() -> None:
    config = {**CONFIGS["mpt"], "no_bias": False, "vocab_size": 50368, "attn_config": {"alibi": False}}
    spec = model_from_config(config, name="x")
    assert spec.position_embedding is PositionEmbedding.LEARNED
    assert spec.num_parameters == model("mpt-7b-foundry").num_parameters == 6_658_859_008


@pytest.mark.parametrize(
    ("family", "change", "field"),
    [
        ("deepseek_v3", {"moe_layer_freq": 2}, "$.moe_layer_freq"),
        ("deepseek_v3", {"attention_bias": True}, "$.attention_bias"),
        ("deepseek_v3", {"topk_method": "greedy"}, "$.topk_method"),
        ("phi", {"qk_layernorm": True}, "$.qk_layernorm"),
        ("qwen3_moe", {"mlp_only_layers": [3]}, "$.mlp_only_layers"),
        ("gpt2", {"pruned_heads": {"0": [1]}}, "$.pruned_heads"),
        ("gpt2", {"is_encoder_decoder": True}, "$.is_encoder_decoder"),
        ("gpt2", {"add_cross_attention": True}, "$.add_cross_attention"),
        ("gpt_oss", {"layer_types": ["linear_attention"] * 36}, "$.layer_types"),
        ("gpt_oss", {"layer_types": ["full_attention"]}, "$.layer_types"),
        ("mpt", {"attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 8}}, "$.attn_config.attn_type"),
        ("mpt", {"ffn_config": {"ffn_type": "mptglu"}}, "$.ffn_config.ffn_type"),
        ("bloom", {"n_inner": 100}, "$.n_inner"),
        ("llama4_text", {"moe_layers": [0, 2]}, "$.moe_layers"),
        ("llama4_text", {"no_rope_layers": [1]}, "$.no_rope_layers"),
        ("gemma3", {"text_config": {"model_type": "gemma2"}}, "$.text_config.model_type"),
        ("gemma3", {"text_config": 3}, "$.text_config"),
        ("bloom", {"num_hidden_layers": 71}, "$.n_layer"),
        ("llama", {"num_attention_heads": 3}, "$.num_attention_heads"),
        ("llama", {"num_key_value_heads": 5}, "$ (num_key_value_heads)"),
        ("deepseek_v3", {"num_experts_per_tok": 300}, "$ (experts_per_token)"),
    ],
)
def test_what_is_not_counted_is_refused(family: str, change: dict[str, object], field: str) -> None:
    assert field in {fault.field for fault in faults_of({**CONFIGS[family], **change})}


# -- numbers that change no shape ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "change", "base", "scaling"),
    [
        ("llama", {"rope_theta": None}, 10_000.0, ""),
        ("llama", {"rope_theta": 7}, 7.0, ""),
        ("llama", {"rope_theta": None, "rope_parameters": {"rope_theta": 25e3, "rope_type": "default"}}, 25e3, ""),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}}, 500_000.0, "llama3 x8"),
        ("llama", {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 32.0}}, 500_000.0, "llama3 x32"),
        ("llama", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, 500_000.0, "longrope"),
        ("llama", {"rope_scaling": {"type": "yarn", "factor": 1e300}}, 500_000.0, "yarn"),
        ("llama", {"rope_scaling": {"type": "Unheard Of", "factor": 2}}, 500_000.0, ""),
        ("gemma3_text", {"rope_theta": None}, 1_000_000.0, ""),
        ("gemma3_text", {"rope_theta": None, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        }}, 1_000_000.0, "linear x8"),
        ("deepseek_v3", {}, 10_000.0, "yarn x40"),
        ("gpt_oss", {"rope_theta": None}, 150_000.0, "yarn x32"),
        ("gpt_neox", {"rotary_emb_base": 25_000}, 25_000.0, ""),
        ("mpt", {"attn_config": {"alibi": False, "rope": True, "rope_theta": 20_000}}, 20_000.0, ""),
        ("gpt2", {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 2.0}}, 0.0, ""),
    ],
)  # fmt: skip
def test_rotary_positions(family: str, change: dict[str, object], base: float, scaling: str) -> None:
    read = model_from_config({**CONFIGS[family], **change}, name="x")
    assert (read.rotary_base, read.rotary_scaling) == (base, scaling)


@pytest.mark.parametrize(
    ("family", "key", "usual"),
    [
        ("llama", "rms_norm_eps", 1e-6),
        ("gpt2", "layer_norm_epsilon", 1e-5),
        ("phi", "layer_norm_eps", 1e-5),
        ("nemotron", "norm_eps", 1e-5),
    ],
)
def test_norm_epsilon(family: str, key: str, usual: float) -> None:
    assert model_from_config({**CONFIGS[family], key: 3e-4}, name="x").norm_epsilon == 3e-4
    assert model_from_config({**CONFIGS[family], key: None}, name="x").norm_epsilon == usual


@pytest.mark.parametrize("value", ["10000", True, 0, -1.0, 1e300, float("nan"), float("inf"), 10**5000, [1], {"a": 1}], ids=range(10))
@pytest.mark.parametrize("key", ["rope_theta", "rms_norm_eps"])
def test_bad_numbers_without_a_shape(key: str, value: object) -> None:
    (fault,) = faults_of({**LLAMA, key: value})
    assert fault.field == f"$.{key}"


@pytest.mark.parametrize(("key", "value"), [("rope_parameters", 3), ("rope_scaling", "yarn"), ("rope_parameters", {"full_attention": 3})])
def test_what_is_no_table_of_rotary_positions_is_refused(key: str, value: object) -> None:
    (fault,) = faults_of({**LLAMA, "rope_theta": None, key: value})
    assert fault.field.startswith(f"$.{key}")
    assert fault.required == "must be an object"


@pytest.mark.parametrize(
    "family", ["llama", "mixtral", "phi3", "qwen3", "gpt_oss", "deepseek_v3", "nemotron", "falcon", "gemma3_text", "llama4_text"]
)
def test_absent_numbers_are_the_reference_implementations(family: str) -> None:
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    stated = mapping[family]().to_dict()
    dropped = ("rope_theta", "rope_scaling", "rms_norm_eps", "norm_eps", "layer_norm_epsilon")
    read = model_from_config({key: value for key, value in CONFIGS[family].items() if key not in dropped}, name="x")
    rotary = stated["rope_parameters"].get("full_attention", stated["rope_parameters"])
    epsilon = next(value for key, value in stated.items() if key in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"))
    assert (read.rotary_base, read.norm_epsilon) == (rotary["rope_theta"], epsilon)


# -- hostile input ----------------------------------------------------------------------------------------

BAD_NUMBERS = ["4096", "", True, False, 4096.0, 1e300, -1, 0, 10**9, 10**5000, [4096], {"a": 1}, float("nan"), float("inf")]


@pytest.mark.parametrize(
    "value", BAD_NUMBERS, ids=lambda value: str(value)[:12] if not isinstance(value, int) else f"int{value.bit_length()}"
)
@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size"])
def test_bad_numbers(key: str, value: object) -> None:
    assert f"$.{key}" in {fault.field for fault in faults_of({**LLAMA, key: value})}


@pytest.mark.parametrize("model_type", [None, 5, "t5", "", [], {}, True])
def test_model_type_must_be_supported(model_type: object) -> None:
    (fault,) = faults_of({**LLAMA, "model_type": model_type})
    assert fault.field == "$.model_type"
    assert "deepseek_v3" in fault.required


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not JSON"),
        ('{"model_type": "llama", "hidden', "not JSON"),
        ("[1, 2]", "must be a JSON object"),
        ("3", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ('{"hidden_size": NaN}', "not a JSON number"),
        ('{"hidden_size": -Infinity}', "not a JSON number"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "more than 100 digits"),
        ('{"hidden_size": 1, "hidden_size": 2}', "given more than once"),
        ('{"rope_scaling": {"a": 1, "a": 2}}', "given more than once"),
        ("{}", "must be one of"),
        (b"\xff\xfe\x00\x01", "must be JSON text"),
        (b"\x00" * 100, "not JSON"),
        (b" " * (MAX_CONFIG_BYTES + 1), "too large"),
    ],
    ids=[str(index) for index in range(16)],
)
def test_hostile_files(tmp_path: Path, content: str | bytes, said: str) -> None:
    file = write(tmp_path, content)
    with pytest.raises(InvalidInputError) as caught:
        read_model(file)
    assert said in str(caught.value)
    assert all(fault.field.startswith(str(file)) for fault in caught.value.faults)


def test_a_truncated_config_never_reads(tmp_path: Path) -> None:
    text = json.dumps(LLAMA)
    for length in range(0, len(text), 7):
        with pytest.raises(InvalidInputError):
            read_model(write(tmp_path, text[:length]))


def test_no_such_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.json", tmp_path / ("x" * 5000), Path("\0")):
        with pytest.raises(InvalidInputError, match=r"no such file|cannot be read"):
            read_model(path)


@pytest.mark.parametrize(("text", "message"), [("[1]", "[1]: must be a JSON object"), ("{,", "line 1 column 2: not JSON: ")])
def test_a_fault_of_the_whole_file_names_the_file_alone(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        read_model(file)
    assert str(caught.value).startswith(f"{file}: {message}")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_what_is_not_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InvalidInputError, match="no such file"):
        read_model(tmp_path)


def test_a_folder_names_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    write(folder, "\ufeff" + json.dumps(LLAMA))
    assert read_model(folder).name == "My-Llama"
    assert read_model(folder / "config.json").name == "My-Llama"
    assert read_model(folder).num_parameters == 8_030_261_248


# -- arbitrary values ---------------------------------------------------------------------------------------

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, 300) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["full_attention", "sliding_attention", "llama", 10**400]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@st.composite
def changed_configs(draw: st.DrawFn) -> dict[str, object]:
    config = CONFIGS[draw(st.sampled_from(sorted(CONFIGS)))]
    changes = draw(st.dictionaries(st.sampled_from(sorted(config)) | st.text(max_size=8), ANY_JSON, min_size=1, max_size=4))
    nested = config.get("text_config")
    if isinstance(nested, dict) and draw(st.booleans()):
        inner = draw(st.dictionaries(st.sampled_from(sorted(nested)), ANY_JSON, max_size=3))
        return {**config, "text_config": {**nested, **inner}, **changes}
    removed = draw(st.sets(st.sampled_from(sorted(config)), max_size=2))
    return {key: value for key, value in {**config, **changes}.items() if key not in removed}


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changed_configs())
def test_any_value_under_any_key_reads_or_is_refused(config: dict[str, object]) -> None:
    faults: tuple[Fault, ...] = ()
    try:
        assert model_from_config(config, name="x").num_parameters > 0
        return
    except InvalidInputError as error:
        faults = error.faults
    assert faults
    assert all(str(fault) for fault in faults)


NASTY: list[object] = [
    None, True, 0, 1, -1, 10**9, 10**5000, 1.0, float("nan"), "", "x", [], [0], [1], ["full_attention"], [[[]]], {}, {"a": 1}, "\ud800",
]  # fmt: skip


def nested_changes(config: Mapping[str, object], value: object) -> list[dict[str, object]]:
    """``config`` with ``value`` under one key at a time, of its own and of the objects inside."""
    changed = [{**config, key: value} for key in config]
    for key in ("text_config", "attn_config"):
        inner = config.get(key)
        if isinstance(inner, dict):
            changed += [{**config, key: {**inner, name: value}} for name in inner]
    return changed


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_each_key_with_each_nasty_value_reads_or_is_refused(family: str) -> None:
    refused = 0
    for config in (change for value in NASTY for change in nested_changes(CONFIGS[family], value)):
        try:
            assert model_from_config(config, name="x").num_parameters > 0
        except InvalidInputError as error:
            refused += bool(str(error))
    assert refused > 5 * len(NASTY)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    with pytest.raises(InvalidInputError):
        read_model(write(tmp_path_factory.getbasetemp(), content))
