"""What the cost model was off by on measured runs, by regime: the ground its error bars stand on."""

from __future__ import annotations

from dataclasses import dataclass

RESIDUALS_SCHEMA_VERSION = "1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """The properties of a problem that its error depends on."""

    device_measured: bool
    """The device has a kernel profile fitted to measurements of it; else one carried over from a relative."""
    mixture_of_experts: bool
    low_precision: bool
    """Linear layers in 8 bits or fewer."""
    many_nodes: bool

    def __str__(self) -> str:
        return ", ".join(_WORDS[name][getattr(self, name)] for name in FIELDS)

    def shares(self, other: Regime, fields: tuple[str, ...]) -> bool:
        """Whether both agree in ``fields``."""
        return all(getattr(self, name) == getattr(other, name) for name in fields)


FIELDS: tuple[str, ...] = ("device_measured", "mixture_of_experts", "low_precision", "many_nodes")
"""The most telling first: a regime with too few rows gives up the last ones."""
_WORDS = {
    "device_measured": ("device interpolated", "device measured"),
    "mixture_of_experts": ("dense", "MoE"),
    "low_precision": ("16-bit", "8-bit"),
    "many_nodes": ("one node", "several nodes"),
}


def words(regime: Regime, fields: tuple[str, ...]) -> str:
    """``device measured, dense``: what ``fields`` say of ``regime``; "all runs" for none."""
    return ", ".join(_WORDS[name][getattr(regime, name)] for name in fields) or "all runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualGroup:
    """Residuals of one family of runs (one publication, one script) in one regime."""

    family: str
    regime: Regime
    values: tuple[float, ...]
    """log(measured / predicted) of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualTable:
    """Residuals of all public measured runs that can be scored."""

    step_time: tuple[ResidualGroup, ...]
    memory: tuple[ResidualGroup, ...]
    resolvable_gap: float
    """Relative difference of predicted step times below which published pairs of strategies are ordered wrong more often than
    one time in ten."""
    left_out: str
    """What was left out of the fit that a row's residual is of: ``family``, or ``nothing``."""
    schema_version: str = RESIDUALS_SCHEMA_VERSION
