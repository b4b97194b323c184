"""The constants that a user's measured steps may refine, and how they enter a problem.

A constant belongs to a device, to a link tier of a cluster or to a framework, never to a row, a run or a model. Fields
that measurement cannot tell apart in whole steps (forward and backward attention) move together, in proportion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .calibrate import Predict, Prior, sensitivity
from .columns import Bools, Floats, Ints, StrategyColumns, gather
from .compute import DeviceColumns
from .inputs import Inputs
from .problem import Problem
from .spec.calibration import CalibratedConstant, Calibration, Owner
from .spec.framework import ExecutionProfile
from .spec.hardware import HardwareProfile, LinkProfile
from .spec.strategy import Strategy
from .step import evaluate
from .topology import LinkColumns, TierColumns

SILENT = 2e-4
"""A constant that moves no row's time by this share, one plausible deviation either way, is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One kind of constant.

    ``deviation`` is how far a cluster plausibly lies from the catalog: the spread of the shipped values between devices of one
    generation and between frameworks, rounded; relative where ``logarithmic``.
    """

    owner: Owner
    field: str
    companions: tuple[str, ...] = ()
    """Fields that keep their ratio to it."""
    deviation: float
    low: float
    high: float
    logarithmic: bool


def _rate(owner: Owner, field: str, *companions: str, deviation: float, high: float = 1.0) -> Fitted:
    return Fitted(owner=owner, field=field, companions=companions, deviation=deviation, low=0.02, high=high, logarithmic=True)


def _share(field: str, *, deviation: float = 0.25, high: float = 1.0) -> Fitted:
    return Fitted(owner=Owner.FRAMEWORK, field=field, deviation=deviation, low=0.0, high=high, logarithmic=False)


FITTED: tuple[Fitted, ...] = (
    _rate(Owner.DEVICE, "gemm_efficiency", "gemm_small_efficiency", deviation=0.12),
    _rate(Owner.DEVICE, "fp8_efficiency", deviation=0.15),
    _rate(Owner.DEVICE, "attention_forward_efficiency", "attention_backward_efficiency", deviation=0.15, high=0.9),
    _rate(Owner.DEVICE, "memory_efficiency", "optimizer_memory_efficiency", deviation=0.1),
    Fitted(owner=Owner.DEVICE, field="launch_seconds", deviation=0.4, low=2e-7, high=1e-4, logarithmic=True),
    _rate(Owner.LINK, "efficiency", "p2p_efficiency", "all_to_all_efficiency", "in_network_efficiency", deviation=0.25),
    *(
        _share(name)
        for name in (
            "tensor_overlap_forward",
            "tensor_overlap_backward",
            "data_overlap",
            "param_gather_overlap",
            "sharded_overlap",
            "pipeline_overlap",
            "expert_overlap",
            "context_overlap",
        )
    ),
    _share("step_overhead_fraction", deviation=0.02, high=0.5),
    _share("step_overhead_seconds", deviation=0.02, high=10.0),
)
_BY_FIELD = {(kind.owner, kind.field): kind for kind in FITTED}


def link_name(problem: Problem, tier: int) -> str:
    """How a calibration calls a tier of the problem's cluster."""
    return f"{problem.cluster.id}/{problem.cluster.tiers[tier].name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A constant of one owner, with the rows that it bears on."""

    kind: Fitted
    name: str
    start: float
    high: float
    """Its own limit, or where the first of its companions reaches theirs."""
    rows: Bools


class Rows:
    """Measured rows: what each was, and the cost model over all of them as a function of the constants."""

    def __init__(self, problems: Sequence[Problem], strategies: Sequence[Strategy]) -> None:
        self.problems = tuple(problems)
        self.strategies = StrategyColumns.of(strategies)
        self.inputs = Inputs.stacked(self.problems)
        bound = evaluate(self.inputs, self.strategies, simulate=False)
        exact = bound if bool(np.all(bound.exact)) else evaluate(self.inputs, self.strategies, simulate=True)
        # schedules without a closed form are simulated once; their ratio to the lower bound hardly depends on the constants
        self._simulated = np.log(exact.step_time_seconds / bound.step_time_seconds)
        kinds: dict[tuple[str, Strategy], int] = {}
        self.groups: Ints = np.array([_index(kinds, key) for key in zip(map(repr, problems), strategies, strict=True)])
        self.targets: tuple[Target, ...] = _targets(self.problems)
        heard = sensitivity(self.predict(), self.prior()) > SILENT
        self.targets = tuple(target for target, hears in zip(self.targets, heard, strict=True) if hears)

    def prior(self) -> Prior:
        """What is known of the targets before any row."""
        kinds = [target.kind for target in self.targets]
        starts = np.array([target.start for target in self.targets])
        return Prior(
            start=starts,
            deviation=np.array([kind.deviation for kind in kinds]),
            low=np.minimum(starts, np.array([kind.low for kind in kinds])),
            high=np.maximum(starts, np.array([target.high for target in self.targets])),
            logarithmic=np.array([kind.logarithmic for kind in kinds]),
        )

    def predict(self) -> Predict:
        """Log seconds of every row for each setting of the targets, in one evaluation.

        Rows that no target bears on in which a setting differs from the first take the first's: most of them, where the rows
        are of many owners.
        """
        bears = np.array([target.rows for target in self.targets]).reshape(len(self.targets), len(self.problems))

        def predicted(settings: Floats) -> Floats:
            differs = (settings != settings[0]).astype(np.float64) @ bears > 0
            differs[0] = True
            setting, row = np.nonzero(differs)
            found = evaluate(self._with(row, settings[setting]), self.strategies.take(row), simulate=False)
            first = np.log(found.step_time_seconds[: len(self.problems)])
            logs = np.tile(first, (len(settings), 1))
            logs[setting, row] = np.log(found.step_time_seconds)
            total: Floats = logs + self._simulated
            return total

        return predicted

    def _with(self, row: Ints, settings: Floats) -> Inputs:
        """The inputs of each row in ``row``, with the targets that bear on it as its line of ``settings`` has them."""
        inputs = gather(self.inputs, row)
        device, wide, links, framework = inputs.device, inputs.wide_device, inputs.links, inputs.framework
        low_precision = inputs.training.low_precision_linear > 0
        for target, value in zip(self.targets, settings.T, strict=True):
            bears = target.rows[row]
            factor = np.where(bears, value / target.start, 1.0) if target.start else np.ones_like(value)
            match target.kind.owner:
                case Owner.FRAMEWORK:
                    column = np.where(bears, value, getattr(framework, target.kind.field))
                    framework = replace(framework, **{target.kind.field: column})
                case Owner.LINK:
                    links = _scaled_links(links, target, self.problems, row, factor)
                case Owner.DEVICE:
                    device = _scaled_device(device, target.kind, factor, low_precision)
                    wide = _scaled_device(wide, target.kind, factor, np.zeros_like(low_precision))
        return replace(inputs, device=device, wide_device=wide, links=links, framework=framework)


def _index(kinds: dict[tuple[str, Strategy], int], key: tuple[str, Strategy]) -> int:
    return kinds.setdefault(key, len(kinds))


def _targets(problems: Sequence[Problem]) -> tuple[Target, ...]:
    """Every constant of every owner among ``problems``."""
    found: list[Target] = []
    owners: dict[tuple[Owner, str], HardwareProfile | LinkProfile | ExecutionProfile] = {}
    for problem in problems:
        owners.setdefault((Owner.DEVICE, problem.hardware.device), problem.hardware)
        for tier in range(len(problem.cluster.tiers)):
            owners.setdefault((Owner.LINK, link_name(problem, tier)), problem.links[tier])
        owners.setdefault((Owner.FRAMEWORK, problem.framework.id), problem.framework)
    for (owner, name), source in owners.items():
        rows = np.array([name in _names(problem, owner) for problem in problems])
        found += [_target(kind, name, source, rows) for kind in FITTED if kind.owner is owner]
    return tuple(found)


def _target(kind: Fitted, name: str, source: HardwareProfile | LinkProfile | ExecutionProfile, rows: Bools) -> Target:
    start = float(getattr(source, kind.field))
    room = [start / value for other in kind.companions if (value := float(getattr(source, other))) > 0]
    return Target(kind=kind, name=name, start=start, high=min([kind.high, *room]), rows=rows)


def _names(problem: Problem, owner: Owner) -> tuple[str, ...]:
    match owner:
        case Owner.DEVICE:
            return (problem.hardware.device,)
        case Owner.FRAMEWORK:
            return (problem.framework.id,)
        case Owner.LINK:
            return tuple(link_name(problem, tier) for tier in range(len(problem.cluster.tiers)))


def _scaled_device(device: DeviceColumns, kind: Fitted, factor: Floats, low_precision: Bools) -> DeviceColumns:
    """FP8 rows have their own sustained rate; the GEMM rates of the others scale with theirs."""
    if kind.field in ("gemm_efficiency", "fp8_efficiency"):
        mine = low_precision if kind.field == "fp8_efficiency" else ~low_precision
        scale = np.where(mine, factor, 1.0)
        return replace(device, gemm_efficiency=device.gemm_efficiency * scale, gemm_small_efficiency=device.gemm_small_efficiency * scale)
    return replace(device, **{name: getattr(device, name) * factor for name in (kind.field, *kind.companions)})


def _scaled_links(links: LinkColumns, target: Target, problems: Sequence[Problem], index: Ints, factor: Floats) -> LinkColumns:
    """A single-tier cluster has its tier in the first two places."""

    def is_target(problem: Problem, place: int) -> bool:
        tiers = len(problem.cluster.tiers)
        place = 0 if tiers == 1 and place == 1 else place
        return place < tiers and link_name(problem, place) == target.name

    def tier(columns: TierColumns, place: int) -> TierColumns:
        mine = np.array([is_target(problem, place) for problem in problems])[index]
        scale = np.where(mine, factor, 1.0)
        return replace(columns, **{name: getattr(columns, name) * scale for name in (target.kind.field, *target.kind.companions)})

    beyond = tuple(replace(far, link=tier(far.link, place)) for place, far in enumerate(links.beyond, start=2))
    return replace(links, fast=tier(links.fast, 0), network=tier(links.network, 1), beyond=beyond)


# -- the constants of a calibration in a problem ---------------------------------------------------------


def concerns(problem: Problem, constant: CalibratedConstant) -> bool:
    """Whether the owner of ``constant`` is part of ``problem``."""
    return constant.name in _names(problem, constant.owner)


def calibrated(problem: Problem, calibration: Calibration) -> Problem:
    """``problem`` with the constants of ``calibration`` that concern it, which also stays with it for its provenance."""
    hardware, links, framework = problem.hardware, list(problem.links), problem.framework
    for constant in calibration.constants:
        if not concerns(problem, constant):
            continue
        kind = _BY_FIELD[constant.owner, constant.field]
        match constant.owner:
            case Owner.DEVICE:
                hardware = replace(hardware, **_moved(hardware, kind, constant.value))
            case Owner.FRAMEWORK:
                framework = replace(framework, **_moved(framework, kind, constant.value))
            case Owner.LINK:
                links = [
                    replace(link, **_moved(link, kind, constant.value)) if link_name(problem, place) == constant.name else link
                    for place, link in enumerate(links)
                ]
    return replace(problem, hardware=hardware, links=tuple(links), framework=framework, calibration=calibration)


def _moved(source: HardwareProfile | LinkProfile | ExecutionProfile, kind: Fitted, value: float) -> dict[str, Any]:
    start = float(getattr(source, kind.field))
    factor = value / start if start else 1.0
    return {kind.field: value} | {name: float(getattr(source, name)) * factor for name in kind.companions}


def unknown_constants(constants: Iterable[CalibratedConstant]) -> tuple[CalibratedConstant, ...]:
    """Those that no release fits, or whose value is out of the range physics allows."""
    return tuple(
        constant
        for constant in constants
        if (kind := _BY_FIELD.get((constant.owner, constant.field))) is None or not kind.low <= constant.value <= kind.high
    )


__all__ = ["FITTED", "Fitted", "Rows", "Target", "calibrated", "concerns", "link_name", "unknown_constants"]
