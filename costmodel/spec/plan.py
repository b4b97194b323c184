"""A plan: the strategy chosen, what it was asked for, and how the choice was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .calibration import Calibration
from .cluster import ClusterSpec
from .economics import Economics, Objective
from .estimate import Estimate
from .goodput import Goodput
from .measured import MeasuredProfile
from .mixed import Lane, MixedPlan
from .model import ModelSpec
from .strategy import Strategy
from .training import TrainingSpec

PLAN_SCHEMA_VERSION = "1.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """Everything that went in, whole: a plan file stands alone."""

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    framework: str
    memory_reserve_bytes: float | None
    """Asked for by the user; None leaves the framework's own."""
    constraints: tuple[str, ...]
    """``tp=8``, ``max tp=8``, ``forbid cp``: as the user gave them."""
    assumptions: tuple[str, ...]
    """What the user left unsaid and autopar filled in."""
    calibration: Calibration | None = None
    """The profile file that was asked for, whole."""
    objective: Objective = Objective.STEP_TIME
    imported_from: str = ""
    """Framework whose configuration the plan was read from; empty for a plan that was searched. Since 1.1."""
    kept_settings: tuple[str, ...] = ()
    """Settings of that configuration that make no difference to the plan, as they stood: an export to the same framework
    writes them again. Since 1.1."""
    measured: MeasuredProfile | None = None
    """The same where it holds measured times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """What the search looked at."""

    evaluated: int
    """Strategies whose time and memory were computed."""
    rejected: Mapping[str, int]
    """Rule name -> strategies it refused."""
    method: str
    optimality: str
    """``proven over the enumerated space``, or how far the search got."""
    interrupted: bool = False
    """Cut short: the best is the best of what was seen."""
    bound_seconds: float | None = None
    """No strategy of the space, stages placed evenly or not, has a shorter step; where that was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A runner-up."""

    strategy: Strategy
    step_time_seconds: float
    peak_memory_bytes: float
    tie: bool
    """Closer to the best than the model orders published pairs of runs reliably."""
    separated_by: str = ""
    """Of a tie: the measurement that would tell the two apart."""
    lanes: tuple[Lane, ...] = ()
    """Of a mixed cluster: who carries it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUse:
    """One link tier that the groups of an axis cross, by the worst of them."""

    tier: str
    domains: int
    """That a group lies over, of those that the tier joins; where hosts lie unevenly, the passages of a ring between them."""
    sharing: int
    """Messages of the axis that leave one such domain at the same time, and so share its way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisPlacement:
    """The tiers outside the innermost one that a parallel axis crosses, from the inside out; none where it stays inside."""

    axis: str
    size: int
    tiers: tuple[TierUse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the ranks sit, on a network of several levels or on named hosts (in rank order: ``inputs.cluster.hosts``). Since 1.2."""

    axes: tuple[AxisPlacement, ...]
    listed_step_time_seconds: float | None = None
    """Of the same strategy with the hosts in the order in which they were listed, where that is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer to ``autopar plan``, or what ``autopar import`` read."""

    strategy: Strategy
    estimate: Estimate
    inputs: PlanInputs
    search: SearchSummary
    alternatives: tuple[Alternative, ...]
    autopar_version: str
    economics: Economics | None = None
    """Money and energy, where a price was given or either is the objective."""
    goodput: Goodput | None = None
    """What failures leave, where their rate was given."""
    placement: Placement | None = None
    """Where there is something to say: named hosts, or more than two link tiers."""
    mixed: MixedPlan | None = None
    """Of a cluster of several device types; ``inputs.cluster`` is then its first pool's. Since 1.2."""
    schema_version: str = PLAN_SCHEMA_VERSION
