"""What a calibration found, as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from .tables import bullet_list, plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.costmodel.spec.calibration import Calibration


def calibration_report(calibration: Calibration, assumptions: Sequence[str], skipped: Sequence[str]) -> Iterator[RenderableType]:
    """The constants before and after, the error on rows left out, what was assumed, and the rows that were not used."""
    if calibration.constants:
        table = plain_table("constants", "owner", "constant", "catalog", "fitted", "change")
        for constant in calibration.constants:
            change = f"{constant.value / constant.catalog_value - 1:+.1%}" if constant.catalog_value else ""
            table.add_row(constant.name, constant.field, f"{constant.catalog_value:.4g}", f"{constant.value:.4g}", change)
        yield table
    yield Text(_verdict(calibration))
    if assumptions:
        yield bullet_list("assumed", assumptions)
    if skipped:
        yield bullet_list("not used", skipped, style="yellow")


def _verdict(calibration: Calibration) -> str:
    before, after = f"{calibration.error_before:.1%}", f"{calibration.error_after:.1%}"
    errors = f"mean absolute error of step time on {calibration.rows} rows ({calibration.validation}): {before} before, {after} after"
    if calibration.constants:
        return errors
    return f"{errors}\nthe rows do not improve on the catalog, whose constants are kept: the profile has none of its own"
