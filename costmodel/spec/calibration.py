"""What ``autopar calibrate`` found: constants of one cluster and framework, refined by a user's own measured steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

CALIBRATION_SCHEMA_VERSION = "1.0"


class Owner(StrEnum):
    """What a constant is a property of; never a row, a run or a model."""

    DEVICE = "device"
    LINK = "link"
    """One tier of one cluster, named ``cluster/tier``."""
    FRAMEWORK = "framework"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedConstant:
    """One constant with its value before and after.

    ``field`` names the constant; fields that move with it (:data:`autopar.costmodel.calibrate.FITTED`) keep their ratio to it.
    """

    owner: Owner
    name: str
    """Catalog id of the device or framework; ``cluster/tier`` for a link."""
    field: str
    catalog_value: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The content of a profile file. Errors are mean absolute relative errors of step time on rows left out of the fit.

    ``constants`` is empty where the rows left out were predicted no better: the catalog's values then stand.
    """

    kind: str = "calibration"
    devices: tuple[str, ...]
    clusters: tuple[str, ...]
    frameworks: tuple[str, ...]
    constants: tuple[CalibratedConstant, ...]
    rows: int
    error_before: float
    error_after: float
    validation: str
    """How the rows were left out, e.g. ``leave one out``."""
    sources: tuple[str, ...]
    """Names of the files the rows came from."""
    autopar_version: str
    residuals: tuple[float, ...] = ()
    """log(measured / predicted) of each row, left out of the fit: the ground of intervals under this profile."""
    schema_version: str = CALIBRATION_SCHEMA_VERSION
