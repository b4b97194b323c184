"""``autopar profile`` as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from autopar.costmodel.spec.measured import AXES
from autopar.costmodel.spec.units import format_bytes, format_seconds

from .tables import field_table, plain_table
from .text import lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.costmodel.spec.cluster import ClusterSpec
    from autopar.costmodel.spec.measured import MeasuredProfile

MAX_FAILURES = 10


def profile_report(profile: MeasuredProfile, cluster: ClusterSpec, seconds: float) -> Iterator[RenderableType]:
    """The machine, its points by kernel, and what could not be measured."""
    machine, device = profile.machine, cluster.device
    table = field_table(f"profile of {profile.device}")
    table.add_row("machine", f"{machine.device_name} in {machine.host}")
    ranks = f"{machine.world_size} rank{'s' if machine.world_size > 1 else ''}, {machine.ranks_per_node} a node"
    table.add_row("ranks", f"{ranks}, {machine.threads_per_rank} host threads each")
    libraries = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    table.add_row("libraries", libraries or "not told")
    if machine.driver:
        table.add_row("driver", f"{machine.driver}; {machine.clocks}")
    rates = ", ".join(f"{dtype} {rate / 1e12:.3g} TFLOP/s" for dtype, rate in device.peak_flops.items())
    table.add_row("device", f"{rates}; {device.memory_bandwidth / 1e9:.3g} GB/s, {format_bytes(device.memory_bytes)}")
    table.add_row("links", ", ".join(f"{tier.name} {tier.bandwidth / 1e9:.3g} GB/s" for tier in cluster.tiers))
    table.add_row("points", f"{profile.num_points} in {seconds:.0f} s")
    yield table
    yield _series_table(profile)
    if profile.failures:
        more = [f"and {len(profile.failures) - MAX_FAILURES} more, in the file"] if len(profile.failures) > MAX_FAILURES else []
        yield from lines("not measured", [*profile.failures[:MAX_FAILURES], *more], style="yellow")


def _series_table(profile: MeasuredProfile) -> RenderableType:
    table = plain_table("measured", "kernel", "shapes", "points", "times", "spread", left=2)
    for one in profile.series:
        if not one.points:
            continue
        shapes = np.array([point.shape for point in one.points])
        ranges = (
            f"{name} {low:g}" if low == high else f"{name} {low:g}-{high:g}"
            for name, low, high in zip(AXES[one.kind], shapes.min(axis=0), shapes.max(axis=0), strict=True)
        )
        times = [point.seconds for point in one.points]
        spread = float(np.median([point.spread for point in one.points]))
        table.add_row(
            one.name,
            ", ".join(ranges),
            str(len(one.points)),
            f"{format_seconds(min(times))} to {format_seconds(max(times))}",
            f"{spread:.1%}",
        )
    return table
