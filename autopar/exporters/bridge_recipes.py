"""Recipes of Megatron-Bridge 0.6.2 that a plan can start from: catalog name, module under ``megatron.bridge.recipes``, function."""

from __future__ import annotations

VANILLA = ("gpt.vanilla_gpt", "vanilla_gpt_pretrain_config")
"""A GPT with Megatron's own defaults: every shape is set on it."""
RECIPES: dict[str, tuple[str, str]] = {
    "deepseek-v2": ("deepseek.deepseek_v2", "deepseek_v2_pretrain_config"),
    "deepseek-v2-lite": ("deepseek.deepseek_v2", "deepseek_v2_lite_pretrain_config"),
    "deepseek-v3": ("deepseek.deepseek_v3", "deepseek_v3_pretrain_config"),
    "gpt-oss-20b": ("gpt_oss.gpt_oss", "gpt_oss_20b_pretrain_config"),
    "gpt-oss-120b": ("gpt_oss.gpt_oss", "gpt_oss_120b_pretrain_config"),
    "kimi-k2": ("kimi.kimi_k2", "kimi_k2_pretrain_config"),
    "llama2-7b": ("llama.llama2", "llama2_7b_pretrain_config"),
    "llama3-8b": ("llama.llama3", "llama3_8b_pretrain_config"),
    "llama3-70b": ("llama.llama3", "llama3_70b_pretrain_config"),
    "llama3.1-405b": ("llama.llama3", "llama31_405b_pretrain_config"),
    "llama3.2-1b": ("llama.llama3", "llama32_1b_pretrain_config"),
    "llama3.2-3b": ("llama.llama3", "llama32_3b_pretrain_config"),
    "moonlight-16b-a3b": ("moonlight.moonlight_16b", "moonlight_16b_pretrain_config"),
    "qwen3-1.7b": ("qwen.qwen3", "qwen3_1p7b_pretrain_config"),
    "qwen3-4b": ("qwen.qwen3", "qwen3_4b_pretrain_config"),
    "qwen3-8b": ("qwen.qwen3", "qwen3_8b_pretrain_config"),
    "qwen3-14b": ("qwen.qwen3", "qwen3_14b_pretrain_config"),
    "qwen3-32b": ("qwen.qwen3", "qwen3_32b_pretrain_config"),
    "qwen3-30b-a3b": ("qwen.qwen3_moe", "qwen3_30b_a3b_pretrain_config"),
    "qwen3-235b-a22b": ("qwen.qwen3_moe", "qwen3_235b_a22b_pretrain_config"),
}
_FAMILIES = {
    "deepseek_v2_lite": "deepseek-v2-lite", "deepseek_v2": "deepseek-v2", "deepseek_v3": "deepseek-v3", "gpt_oss_20b": "gpt-oss-20b",
    "gpt_oss_120b": "gpt-oss-120b", "kimi_k2": "kimi-k2", "llama2_7b": "llama2-7b", "llama31_8b": "llama3-8b",
    "llama31_70b": "llama3-70b", "llama31_405b": "llama3.1-405b", "llama32_1b": "llama3.2-1b", "llama32_3b": "llama3.2-3b",
    "llama3_8b": "llama3-8b", "llama3_70b": "llama3-70b", "moonlight_16b": "moonlight-16b-a3b", "qwen3_30b_a3b": "qwen3-30b-a3b",
    "qwen3_235b_a22b": "qwen3-235b-a22b", "qwen3_1p7b": "qwen3-1.7b", "qwen3_4b": "qwen3-4b", "qwen3_8b": "qwen3-8b",
    "qwen3_14b": "qwen3-14b", "qwen3_32b": "qwen3-32b", "gpt3_175b": "gpt-175b",
}  # fmt: skip
"""How the names of recipes begin, the longer ones decide."""


def model_of_recipe(recipe: str) -> str:
    """The catalog's name of the model that a recipe trains; empty where it has none (Mamba hybrids, vision, diffusion)."""
    found = [start for start in _FAMILIES if recipe.startswith(f"{start}_")]
    return _FAMILIES[max(found, key=len)] if found else ""
