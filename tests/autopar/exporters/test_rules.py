"""Every rule of every framework: sound settings break none, and the smallest wrong change breaks the rule it is about."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from autopar.catalog.models import model as model_named
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.strategy import Recompute, Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.exporters.accelerate import Accelerate
from autopar.exporters.accelerate_rules import RULES as ACCELERATE_RULES
from autopar.exporters.bridge_rules import BRIDGE_RULES
from autopar.exporters.deepspeed import DeepSpeed
from autopar.exporters.deepspeed_rules import RULES as DEEPSPEED_RULES
from autopar.exporters.megatron_bridge import MegatronBridge
from autopar.exporters.megatron_lm import RULES as MEGATRON_RULES
from autopar.exporters.nanotron import Nanotron
from autopar.exporters.nanotron_rules import RULES as NANOTRON_RULES
from autopar.exporters.question import Question
from autopar.exporters.rule import Configuration, Enforcement, FrameworkRule, broken
from autopar.exporters.rule_table import Action, rule_entries
from autopar.exporters.torchtitan import Torchtitan
from autopar.exporters.torchtitan_rules import RULES as TORCHTITAN_RULES

from . import breaking
from .questions import question

COUNTS = {"ML": 67, "MB": 13, "TT": 15, "DS": 15, "NT": 7, "AC": 7, "TR": 6}
"""Rules that each framework is known to have."""


def _mixtral(**changes: Any) -> Question:
    values: dict[str, Any] = {
        "tensor_parallel_size": 4, "sequence_parallel": True, "pipeline_parallel_size": 2, "data_parallel_size": 8,
        "expert_parallel_size": 4,
    }  # fmt: skip
    return question(Strategy(**values | changes), "mixtral-8x7b")


SOUND: dict[str, tuple[Any, Question, tuple[FrameworkRule, ...], dict[str, breaking.Change]]] = {
    "megatron": (MegatronBridge(), _mixtral(), (*MEGATRON_RULES, *BRIDGE_RULES), breaking.MEGATRON),
    "torchtitan": (
        Torchtitan(),
        question(
            Strategy(
                tensor_parallel_size=4, sequence_parallel=True, pipeline_parallel_size=2, data_parallel_size=4, expert_parallel_size=4
            ),
            "qwen3-30b-a3b",
        ),
        TORCHTITAN_RULES,
        breaking.TORCHTITAN,
    ),
    "deepspeed": (
        DeepSpeed(),
        question(Strategy(tensor_parallel_size=2, data_parallel_size=32, expert_parallel_size=4, zero_stage=2), "mixtral-8x7b"),
        DEEPSPEED_RULES,
        breaking.DEEPSPEED,
    ),
    "nanotron": (
        Nanotron(),
        question(Strategy(tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=4, data_parallel_size=4)),
        NANOTRON_RULES,
        breaking.NANOTRON,
    ),
    "accelerate": (
        Accelerate(),
        question(Strategy(tensor_parallel_size=2, data_parallel_size=16, zero_stage=3)),
        ACCELERATE_RULES,
        breaking.ACCELERATE,
    ),
}
BREAKS = [(framework, rule, change) for framework, (_, _, _, changes) in SOUND.items() for rule, change in changes.items()]


def _changed(configuration: Configuration, change: breaking.Change) -> Configuration:
    settings = dict(configuration.settings)
    environment = dict(configuration.environment)
    world, model = configuration.world_size, configuration.model
    for name, value in change.items():
        if name == "world":
            world = int(str(value))
        elif name == "model":
            model = model_named(str(value))
        elif name.startswith("env:"):
            environment[name.removeprefix("env:")] = str(value)
        elif value is None:
            settings.pop(name, None)
        else:
            settings[name] = value
    return replace(configuration, settings=settings, environment=environment, world_size=world, model=model)


@pytest.mark.parametrize("framework", SOUND)
def test_sound_settings_break_no_rule(framework: str) -> None:
    target, asked, rules, _ = SOUND[framework]
    assert target.broken_rules(asked) == ()
    assert [str(rule) for rule in broken(rules, target.configuration(asked)) if rule.enforcement is not Enforcement.SILENT] == []


@pytest.mark.parametrize(("framework", "rule", "change"), BREAKS, ids=[rule for _, rule, _ in BREAKS])
def test_a_wrong_setting_breaks_its_rule(framework: str, rule: str, change: breaking.Change) -> None:
    target, asked, rules, _ = SOUND[framework]
    sound = target.configuration(asked)
    assert rule not in {found.rule for found in broken(rules, sound)}
    found = [each for each in broken(rules, _changed(sound, change)) if each.rule == rule]
    assert found, f"{change} breaks nothing"
    for each in found:
        assert each.fault.field
        assert each.fault.required
        assert str(each).startswith(f"{rule}: ")


def test_every_rule_has_an_entry_and_every_checked_one_a_breaking_change() -> None:
    entries = rule_entries()
    assert Counter(entry.id.split("-")[0] for entry in entries) == COUNTS
    assert len({entry.id for entry in entries}) == len(entries) == 130
    assert all(entry.summary for entry in entries)
    facts = {"ML-W10", "TT-13", "DS-4", "DS-13", "DS-14"}
    assert {rule for _, rule, _ in BREAKS} == {entry.id for entry in entries} - facts


def test_settings_that_are_never_written_are_never_written() -> None:
    """What breaks such a rule names a setting that no export of a whole range of plans has, or gives it another value."""
    never = {entry.id for entry in rule_entries() if entry.action is Action.NEVER_WRITTEN}
    for framework, (target, asked, _, changes) in SOUND.items():
        written = target.configuration(asked).settings
        for rule, change in changes.items():
            if rule in never:
                assert any(written.get(name) != value for name, value in change.items()), (framework, rule)


# -- rules that state a fact ------------------------------------------------------------------------------------------------


def test_the_first_and_the_last_stage_both_hold_a_tied_table() -> None:
    """ML-W10."""
    from autopar.costmodel.estimate import estimate

    asked = question(Strategy(pipeline_parallel_size=2), "llama3.2-1b")
    assert MegatronBridge().broken_rules(asked) == ()
    stages = estimate(asked.problem, asked.strategy).stages
    table = asked.model.vocab_size * asked.model.hidden_size
    assert min(stage.num_parameters for stage in stages) > table


def test_ranks_are_numbered_as_torchtitan_and_deepspeed_number_theirs() -> None:
    """TT-13 and DS-4: pipeline outermost, then data, then context, then tensor; both grids put a rank in the same stage (ML-W3)."""
    layout = RankLayout.of(Strategy(tensor_parallel_size=4, context_parallel_size=2, data_parallel_size=4, pipeline_parallel_size=2,
                                    expert_parallel_size=8))  # fmt: skip
    assert list(layout.axes()) == ["tp", "cp", "dp", "pp"]
    for rank in range(layout.world_size):
        assert layout.coordinates(rank)["pp"] == layout.coordinates(rank, expert=True)["pp"]


@pytest.mark.parametrize("stage", [2, 3])
def test_states_take_what_deepspeed_says_they_take(stage: int) -> None:
    """DS-13 and DS-14: 2P + 18P/N at stage 2 and 18P/N at stage 3, of which 2 bytes are DeepSpeed's second copy of gradients."""
    from autopar.costmodel.estimate import estimate

    asked = question(Strategy(data_parallel_size=64, zero_stage=stage, recompute=Recompute.FULL))
    under = replace(asked.problem, framework=DeepSpeed().profile(asked))
    memory = estimate(under, asked.strategy).stages[0].memory
    held = memory.parameters + memory.gradients + memory.master_weights + memory.optimizer_states
    parameters = asked.model.num_parameters
    said = (2 if stage == 2 else 0) * parameters + 18 * parameters / 64
    assert held == pytest.approx(said, rel=0.35)
    assert PRECISIONS["bf16"].bytes_per_parameter == 18


# -- always written ---------------------------------------------------------------------------------------------------------


def test_expert_tensor_parallel_size_and_batch_and_split_are_always_written() -> None:
    """ML-W6, ML-B2, ML-P3."""
    settings = MegatronBridge().configuration(_mixtral()).settings
    assert settings["expert-tensor-parallel-size"] == 1
    assert settings["global-batch-size"] == 512
    dense = MegatronBridge().configuration(question(Strategy(tensor_parallel_size=2, sequence_parallel=True))).settings
    assert dense["expert-tensor-parallel-size"] == 1
    uneven = _mixtral(pipeline_layers=(17, 15))
    assert MegatronBridge().configuration(uneven).settings["pipeline-model-parallel-layout"] == "Et*17|t*15L"


def test_environment_follows_the_plan_and_the_device() -> None:
    """ML-T14, ML-D6: one connection for tensor parallelism before Blackwell, never with FSDP; the allocator's segments always grow."""
    hopper = MegatronBridge().configuration(_mixtral()).environment
    assert hopper["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert hopper["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    sharded = MegatronBridge().configuration(_mixtral(zero_stage=3)).environment
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in sharded
    blackwell = Question.of(question(Strategy(tensor_parallel_size=4), gpu="b200").problem, Strategy(tensor_parallel_size=4))
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in MegatronBridge().configuration(blackwell).environment
    plain = MegatronBridge().configuration(question(Strategy(data_parallel_size=8))).environment
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in plain


def test_experts_on_volta_are_not_grouped() -> None:
    """ML-E7 is repaired: the flag is left out where the device has no such kernels."""
    asked = question(Strategy(data_parallel_size=8, expert_parallel_size=8), "mixtral-8x7b", gpu="v100-sxm2-32gb", precision="fp16")
    assert "moe-grouped-gemm" not in MegatronBridge().configuration(asked).settings
    assert MegatronBridge().broken_rules(asked) == ()
