"""The models that torchtitan 0.3.0 has: catalog name, module, flavor, and the configuration function a plan starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TitanModel:
    """``torchtitan.models.<module>``: ``model_registry(flavor)``; ``base`` is a function of its ``config_registry``."""

    module: str
    flavor: str
    base: str
    multi_token: bool = False
    """``model_registry`` takes ``num_mtp_layers``."""

    @property
    def numbers(self) -> Mapping[str, float]:
        """Rotary base and norm epsilon that the flavor has."""
        base, epsilon, _ = _NUMBERS.get(self.flavor) or _NUMBERS[self.module]
        return {"rotary_base": base, "norm_epsilon": epsilon}

    @property
    def rotary_scaling(self) -> str:
        """How the flavor stretches its rotary positions, as a model says it."""
        return (_NUMBERS.get(self.flavor) or _NUMBERS[self.module])[2]


_NUMBERS = {
    "llama3": (500_000.0, 1e-5, "llama3 x8"), "deepseek_v3": (10_000.0, 1e-5, "yarn x40"), "qwen3": (1_000_000.0, 1e-6, ""),
    "235B-A22B": (5_000_000.0, 1e-6, ""), "gpt_oss": (150_000.0, 1e-5, "yarn x32"), "kimi_k2_7": (50_000.0, 1e-5, ""),
}  # fmt: skip
"""Of a flavor, or of all other flavors below of a module: rotary base, norm epsilon, scaling."""

TITAN_MODELS: dict[str, TitanModel] = {
    name: TitanModel(module=module, flavor=flavor, base=base, multi_token=module == "deepseek_v3")
    for name, module, flavor, base in (
        ("llama3.2-1b", "llama3", "1B", "llama3_8b"),
        ("llama3.2-3b", "llama3", "3B", "llama3_8b"),
        ("llama3-8b", "llama3", "8B", "llama3_8b"),
        ("llama3-70b", "llama3", "70B", "llama3_70b"),
        ("llama3.1-405b", "llama3", "405B", "llama3_70b"),  # its own function trains in float8, and fails before Hopper
        ("deepseek-v2-lite", "deepseek_v3", "16B", "deepseek_v3_16b"),
        ("deepseek-v2", "deepseek_v3", "236B", "deepseek_v3_16b"),
        ("deepseek-v3", "deepseek_v3", "671B", "deepseek_v3_671b"),
        ("qwen3-0.6b", "qwen3", "0.6B", "qwen3_0_6b"),
        ("qwen3-1.7b", "qwen3", "1.7B", "qwen3_1_7b"),
        ("qwen3-4b", "qwen3", "4B", "qwen3_1_7b"),
        ("qwen3-8b", "qwen3", "8B", "qwen3_14b"),
        ("qwen3-14b", "qwen3", "14B", "qwen3_14b"),
        ("qwen3-32b", "qwen3", "32B", "qwen3_32b"),
        ("qwen3-30b-a3b", "qwen3", "30B-A3B", "qwen3_30b_a3b"),
        ("qwen3-235b-a22b", "qwen3", "235B-A22B", "qwen3_30b_a3b"),
        ("gpt-oss-20b", "gpt_oss", "20b", "gpt_oss_20b"),
        ("gpt-oss-120b", "gpt_oss", "120b", "gpt_oss_120b"),
        ("moonlight-16b-a3b", "kimi_k2_7", "moonlight-16B-A3B", "moonlight_16b_a3b"),
    )
}


def catalog_name(module: str, flavor: str) -> str:
    """The catalog's name of a flavor; empty where it has none."""
    return next((name for name, known in TITAN_MODELS.items() if (known.module, known.flavor) == (module, flavor)), "")


def name_of_base(module: str, config: str) -> str:
    """The catalog's name of the model that the configuration function ``config`` trains; empty where its name does not tell."""
    plain = config.lower().replace("_", "")
    flavors = {
        known.flavor.lower().replace("-", "").replace(".", ""): name for name, known in TITAN_MODELS.items() if known.module == module
    }
    found = [flavor for flavor in flavors if flavor in plain]
    return flavors[max(found, key=len)] if found else ""
