"""The published recipes of Megatron-Bridge import and are estimated; those that cannot be right say why."""

from __future__ import annotations

import pytest

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.exporters.bridge_recipes import model_of_recipe
from autopar.importers import import_configuration, importer, source_of
from autopar.importers.complete import Given
from autopar.importers.megatron_bridge import _recipes

RECIPES = tuple(_recipes())
KNOWN = tuple(name for name in RECIPES if model_of_recipe(name))
TOO_FEW = {
    "deepseek_v3_pretrain_64gpu_h100_bf16_config": 512, "deepseek_v3_pretrain_64gpu_h100_fp8cs_config": 512,
    "qwen3_235b_a22b_pretrain_64gpu_gb200_fp8cs_config": 256, "qwen3_235b_a22b_pretrain_64gpu_gb200_fp8mx_config": 256,
    "qwen3_235b_a22b_pretrain_64gpu_gb200_nvfp4_config": 256, "qwen3_235b_a22b_pretrain_64gpu_gb300_bf16_config": 128,
    "qwen3_235b_a22b_pretrain_64gpu_gb300_fp8cs_config": 128, "qwen3_235b_a22b_pretrain_64gpu_gb300_fp8mx_config": 128,
    "qwen3_235b_a22b_pretrain_64gpu_gb300_nvfp4_config": 128,
}  # fmt: skip
"""Named for fewer GPUs than their pipeline times their expert parallelism needs, and how many that is."""
OTHERS = ("nemotron", "qwen35_vl", "qwen3_vl", "qwen3_next", "deepseek_v4", "glm5", "wan_")
"""Mamba hybrids, vision, linear attention, sparse attention, diffusion: no transformer that autopar models."""


def test_every_recipe_is_a_known_model_or_of_a_kind_that_is_not_modelled() -> None:
    assert len(RECIPES) == 382
    assert len(KNOWN) == 251
    assert all(name.startswith(OTHERS) for name in RECIPES if name not in KNOWN)


def test_recipes_import_and_are_estimated() -> None:
    for name in KNOWN:
        command = f"torchrun scripts/training/run_recipe.py --recipe {name}"
        if name in TOO_FEW:
            with pytest.raises(InvalidInputError, match=f"multiple of etp x ep x pp = .* = {TOO_FEW[name]} \\(rule ML-W2\\)"):
                import_configuration(command, "megatron-bridge", Given())
            continue
        plan = import_configuration(command, "megatron-bridge", Given())
        assert plan.estimate.step_time_seconds > 0
        assert plan.search.method == "imported"
        assert plan.inputs.imported_from == "megatron-bridge"
        assert f"_{plan.strategy.world_size}gpu_" in name


def test_too_few_gpus_are_mended_by_giving_enough() -> None:
    name = "qwen3_235b_a22b_pretrain_64gpu_gb300_bf16_config"
    plan = import_configuration(f"run.py --recipe {name}", "megatron-bridge", Given(gpus=128))
    assert (plan.strategy.expert_parallel_size, plan.strategy.pipeline_parallel_size) == (32, 4)


def test_overrides_go_over_the_recipe_and_unknown_ones_are_kept() -> None:
    command = "torchrun --nproc-per-node 8 --nnodes 8 run.py --recipe llama3_70b_pretrain_64gpu_h100_bf16_config"
    overrides = "model.tensor_model_parallel_size=8 train.global_batch_size=256 logger.log_interval=5"
    found = importer("megatron-bridge").read(source_of(f"{command} {overrides}"))
    assert found.fields["strategy.tensor_parallel_size"] == 8
    assert found.fields["training.global_batch_size"] == 256
    assert found.ignored == ("logger.log_interval",)
    assert found.kept == ("logger.log_interval=5",)
