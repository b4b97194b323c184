"""Where the ranks sit, as a person reads it: nothing on two tiers without named hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autopar.costmodel.spec.units import format_seconds

from .tables import field_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.costmodel.spec.cluster import ClusterSpec
    from autopar.costmodel.spec.plan import AxisPlacement, Placement

SHOWN_HOSTS = 4


def placement_parts(cluster: ClusterSpec, placement: Placement | None, step_time_seconds: float) -> Iterator[RenderableType]:
    """The section, where there is something to say."""
    if placement is None:
        return
    table = field_table("placement")
    for name, text in placement_rows(cluster, placement, step_time_seconds):
        table.add_row(name, text)
    yield table


def placement_rows(cluster: ClusterSpec, placement: Placement, step_time_seconds: float) -> Iterator[tuple[str, str]]:
    """Axis by axis what is crossed, then the hosts and what their order is worth."""
    for axis in placement.axes:
        yield f"{axis.axis} parallel", _crossings(cluster, axis)
    names = cluster.hosts.names if cluster.hosts is not None else ()
    if names:
        yield "hosts in rank order", _shortened(names)
    listed = placement.listed_step_time_seconds
    if listed is not None and step_time_seconds > 0:
        slower = listed / step_time_seconds - 1
        changed = f"{abs(slower):.1%} {'slower' if slower > 0 else 'faster'}" if abs(slower) >= 0.0005 else "as fast"
        yield "hosts as listed", f"{format_seconds(listed)} a step, {changed}"


def _crossings(cluster: ClusterSpec, axis: AxisPlacement) -> str:
    if not axis.tiers:
        return f"{axis.size} ranks within {cluster.fast_tier.name}"
    told = (f"{use.tier}: {use.domains} domains, {use.sharing} message{'s' * (use.sharing != 1)} at once out of each" for use in axis.tiers)
    return f"{axis.size} ranks; {'; '.join(told)}"


def _shortened(names: tuple[str, ...]) -> str:
    if len(names) <= 2 * SHOWN_HOSTS:
        return ", ".join(names)
    return f"{', '.join(names[:SHOWN_HOSTS])}, …, {names[-1]} ({len(names):,}; the plan file has them all)"
