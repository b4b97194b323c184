"""Every rule that frameworks put on a plan, and what an export does about it: the table of ``docs/frameworks.md``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .accelerate_rules import RULES as ACCELERATE_RULES
from .bridge_rules import BRIDGE_RULES
from .deepspeed_rules import RULES as DEEPSPEED_RULES
from .megatron_rules_pipeline import PIPELINE_RULES
from .megatron_rules_ranks import RANK_RULES
from .megatron_rules_states import STATE_RULES
from .nanotron_rules import RULES as NANOTRON_RULES
from .rule import FrameworkRule
from .torchtitan_rules import RULES as TORCHTITAN_RULES


class Action(StrEnum):
    """What an export, or an import, does about a rule."""

    REFUSED = "refused, with the nearest plan"
    WRITTEN = "always written, so that no default decides"
    NEVER_WRITTEN = "never written; refused on import"
    COUNTED = "no choice: counted in the estimate or in the order of ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEntry:
    """One row of the table."""

    id: str
    summary: str
    action: Action
    enforcement: str


CHECKED: tuple[FrameworkRule, ...] = (
    *RANK_RULES, *PIPELINE_RULES, *STATE_RULES, *BRIDGE_RULES, *TORCHTITAN_RULES, *DEEPSPEED_RULES, *NANOTRON_RULES, *ACCELERATE_RULES,
)  # fmt: skip
_FACTS: dict[str, str] = {
    "ML-W10": "Tied embeddings are reduced between the first and the last stage: both hold the table",
    "TT-13": "The mesh is pp, replicas, shards, cp, tp from the outside in: another order of ranks is refused",
    "DS-4": "The topology is pipe, data, model from the outside in: another order of ranks is refused",
    "DS-13": "ZeRO's states are 2 + 18/N bytes a parameter at stage 2, and 18/N at stage 3, beside activations",
    "DS-14": "With one rank ZeRO holds 20 bytes a parameter, Megatron in bf16 18",
}
_WRITTEN = frozenset({"ML-W6", "ML-P3", "ML-P8", "ML-B2", "ML-T14", "MB-8", "TT-12", "TT-14", "DS-5", "DS-15", "NT-7"})
_NEVER = frozenset({
    "ML-W8", "ML-T7", "ML-T8", "ML-T11", "ML-T13", "ML-C2", "ML-C3", "ML-C6", "ML-P7", "ML-P10", "ML-P11", "ML-P12", "ML-P13",
    "ML-P14", "ML-B3", "ML-B4", "ML-E5", "ML-E6", "ML-E8", "ML-D2", "ML-D3", "ML-D4", "ML-D5", "ML-D7", "ML-D9", "ML-D11", "MB-2", "MB-3",
    "MB-4", "MB-6", "MB-7", "MB-9", "MB-12", "TT-15", "DS-9", "DS-12", "AC-2", "AC-5", "AC-6", "TR-1", "TR-2", "TR-5", "TR-6",
    "ML-T5", "ML-P1", "ML-P2", "MB-10",
})  # fmt: skip
_COUNTED = frozenset({"ML-T4", "NT-3"})


def rule_entries() -> tuple[RuleEntry, ...]:
    """The table, in the order of the rules' ids within a framework."""
    facts = [RuleEntry(id=name, summary=text, action=Action.COUNTED, enforcement="documented") for name, text in _FACTS.items()]
    checked = [RuleEntry(id=rule.id, summary=rule.summary, action=_action(rule.id), enforcement=rule.enforcement.value) for rule in CHECKED]
    order = ("ML-W", "ML-T", "ML-C", "ML-P", "ML-B", "ML-E", "ML-D", "MB", "TT", "DS", "NT", "AC", "TR")
    return tuple(sorted((*checked, *facts), key=lambda entry: (_place(entry.id, order), _number(entry.id))))


def _action(name: str) -> Action:
    if name in _WRITTEN:
        return Action.WRITTEN
    if name in _COUNTED:
        return Action.COUNTED
    return Action.NEVER_WRITTEN if name in _NEVER else Action.REFUSED


def _place(name: str, order: tuple[str, ...]) -> int:
    return next(place for place, start in enumerate(order) if name.startswith(start))


def _number(name: str) -> int:
    return int("".join(char for char in name if char.isdigit()))
