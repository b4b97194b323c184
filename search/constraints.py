"""What the user asks of the strategy besides being fast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

from autopar.costmodel.spec.errors import Fault, raise_if
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, RankOrder, Recompute, Strategy

CHOICES: Mapping[str, type[StrEnum]] = {
    "pipeline_schedule": PipelineSchedule,
    "recompute": Recompute,
    "context_parallel_kind": ContextParallelKind,
    "rank_order": RankOrder,
}
_SWITCH = "sequence_parallel"
FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Strategy) if f.name not in ("pipeline_layers", "stage_recompute_layers"))
_LEAST = {
    "zero_stage": 0,
    "num_recompute_layers": 0,
    "shard_group_size": 0,
    "recompute": "none",
    _SWITCH: False,
    "pipeline_schedule": "1f1b",
    "rank_order": RankOrder.TP_CP_DP_PP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Bounds on the fields of a :class:`Strategy`, by their names there.

    Args:
        fixed: the field has this value (a name for schedules, recomputation and context kinds).
        maximum: sizes, largest allowed.
        minimum: sizes, smallest allowed.
        forbidden: techniques that stay unused: size 1, ZeRO stage 0, no recomputation, no sequence parallelism.

    Raises:
        InvalidInputError: a field that no strategy has, a value it cannot take, or bounds that leave it no value.
    """

    fixed: Mapping[str, bool | int | str] = field(default_factory=dict)
    maximum: Mapping[str, int] = field(default_factory=dict)
    minimum: Mapping[str, int] = field(default_factory=dict)
    forbidden: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        named = (("fixed", self.fixed), ("maximum", self.maximum), ("minimum", self.minimum), ("forbidden", self.forbidden))
        raise_if(
            [
                Fault(field=f"constraints.{kind}", given=name, required="not a field of a strategy", fix=f"known: {', '.join(FIELDS)}")
                for kind, names in named
                for name in names
                if name not in FIELDS
            ]
        )
        raise_if([*self._value_faults(), *self._order_faults()])

    def _value_faults(self) -> Iterable[Fault]:
        for name, value in self.fixed.items():
            if name in CHOICES and value not in list(CHOICES[name]):
                yield Fault(field=name, given=str(value), required=f"one of {', '.join(CHOICES[name])}")
            elif name not in CHOICES and not isinstance(value, int):
                yield Fault(field=name, given=repr(value), required="a whole number is needed" if name != _SWITCH else "true or false")
        for name in (*self.maximum, *self.minimum):
            if name in CHOICES or name == _SWITCH:
                yield Fault(field=name, given=name, required="only a size has a bound", fix="fix or forbid it")
        if "context_parallel_kind" in self.forbidden:
            yield Fault(field="context_parallel_kind", given="forbidden", required="a kind is fixed, not forbidden", fix="forbid cp")

    def _order_faults(self) -> Iterable[Fault]:
        for name in FIELDS:
            low, high = self.minimum.get(name), self.maximum.get(name)
            if low is not None and high is not None and low > high:
                fix = f"a minimum of {high} or a maximum of {low} would do"
                yield Fault(field=name, given=f"minimum {low}, maximum {high}", required="the minimum is above the maximum", fix=fix)
            if name in self.fixed and not self.allows(name, self.fixed[name]):
                yield self._contradiction(name, self.fixed[name])

    def _contradiction(self, name: str, value: bool | int | str) -> Fault:
        """A fixed value that another constraint rules out: both, and what either could be instead."""
        if name in self.forbidden and value != _LEAST.get(name, 1):
            other, least = "is forbidden", _LEAST.get(name, 1)
            return Fault(
                field=name, given=str(value), required=f"is fixed, and its technique {other}", fix=f"fix {least}, or do not forbid it"
            )
        high = self.maximum.get(name)
        kind, bound = ("maximum", high) if high is not None and value > high else ("minimum", self.minimum[name])  # type: ignore[operator]
        required = f"is fixed, and a {kind} of {bound} rules it out"
        return Fault(field=name, given=str(value), required=required, fix=f"a {kind} of {value} allows it, or fix {bound}")

    def is_asked(self, name: str) -> bool:
        """Whether the user fixed ``name`` or set a minimum of it: preferences about it then give way."""
        return name in self.fixed or name in self.minimum

    def allows(self, name: str, value: bool | int | str) -> bool:
        """Whether ``value`` of field ``name`` meets every constraint."""
        if name in self.fixed and value != self.fixed[name]:
            return False
        if name in self.forbidden and value != _LEAST.get(name, 1):
            return False
        if isinstance(value, str):
            return True
        return self.minimum.get(name, value) <= value <= self.maximum.get(name, value)

    def choose(self, name: str, values: Iterable[int]) -> tuple[int, ...]:
        """Those of ``values`` that are allowed; a fixed value is the only one, whether or not it is among them."""
        if name in self.fixed:
            return (int(self.fixed[name]),)
        return tuple(value for value in values if self.allows(name, value))


NO_CONSTRAINTS = Constraints()
