"""Fit the link constants of autopar/catalog/links to published nccl-tests rows.

    python -m benchmarks.calibration.links [--write]

Reads benchmarks/data/published_collectives.csv (every row names its source), prints for each link class its constants,
its error on the rows it was fitted to, and its error on each source when that source is left out of the fit. ``--write``
rewrites the catalog files. The fit minimises a soft-L1 loss of log(predicted / measured seconds); errors are
|predicted / measured - 1|. Rows that are not used are counted and named with the reason.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from autopar.costmodel import communication
from autopar.costmodel.spec.cluster import ClusterSpec, DeviceSpec, LinkKind, LinkTier
from autopar.costmodel.spec.hardware import LinkProfile, Origin
from autopar.costmodel.topology import LinkColumns, place

from .link_classes import CLASSES, SYSTEMS, LinkClass, System

DATA = Path(__file__).parents[1] / "data" / "published_collectives.csv"
CATALOG = Path(__file__).parents[2] / "autopar" / "catalog" / "links"
SMALL_BYTES = 2**20
MAX_EFFICIENCY = 0.97
"""Packet headers take a few percent of the rated bandwidth of any link."""
WARM_UP_BYTES, WARM_UP_SECONDS = 64, 0.5e-3
_FITTED = ("efficiency", "half_bytes", "latency_seconds", "base_seconds", "in_network_efficiency")

Constants = dict[str, float]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured all-reduce."""

    system: System
    source: str
    num_gpus: int
    message_bytes: float
    seconds: float
    ring_only: bool


def read_rows() -> tuple[list[Row], Counter[str]]:
    """The rows that can be scored, and how many were left out for which reason."""
    rows, skipped = [], Counter[str]()
    with DATA.open(newline="") as file:
        for record in csv.DictReader(file):
            row = _row(record)
            if isinstance(row, Row):
                rows.append(row)
            else:
                skipped[row] += 1
    return rows, skipped


def _row(record: Mapping[str, str]) -> Row | str:
    if record["collective"] != "all_reduce":
        return f"collective {record['collective']}: not part of the fit"
    system = next((s for s in SYSTEMS if s.matches(record)), None)
    if system is None:
        return "hardware not stated, or no rated bandwidth known"
    if not record["message_bytes"]:
        return "message size not stated"
    size, gpus = float(record["message_bytes"]), int(record["n_gpus"] or system.num_gpus)
    seconds = float(record["time_us"]) * 1e-6 if record["time_us"] else 0.0
    if not seconds:
        bandwidth = float(record["busbw_GBps"] or 0)
        if bandwidth < 0.5:
            return "bus bandwidth printed with fewer than two digits"
        seconds = 2 * (gpus - 1) / gpus * size / (bandwidth * 1e9)
    if size <= WARM_UP_BYTES and seconds > WARM_UP_SECONDS:
        return "first row of a run, warm-up included"
    source = record["source"].removeprefix("https://github.com/").split("@")[0].split(":")[0] + f" [{system.name}]"
    ring_only = system.ring or "NVLS_ENABLE=0" in record["notes"]
    return Row(system=system, source=source, num_gpus=gpus, message_bytes=size, seconds=seconds, ring_only=ring_only)


def profile(link: LinkClass, constants: Constants) -> LinkProfile:
    return LinkProfile(tier=link.id, origin=Origin.MEASURED, source="fit", **{**link.defaults, **constants})


def columns(system: System, num_gpus: int, fast: LinkProfile, network: LinkProfile | None) -> LinkColumns:
    """The interconnect of a published system."""
    device = DeviceSpec(
        id="d", name="d", architecture="", memory_bytes=1, memory_bandwidth=1, peak_flops={}, num_compute_units=1, l2_cache_bytes=1,
        power_watts=1, default_cluster="", sources={},
    )  # fmt: skip
    kind = LinkKind.NVLINK_MESH if "mesh" in system.fast else LinkKind.NVLINK
    tiers = [LinkTier(name="fast", kind=kind, domain_size=system.domain_size, bandwidth=system.fast_bandwidth, latency_seconds=0)]
    profiles = [fast]
    if network is not None:
        tiers.append(
            LinkTier(
                name="net",
                kind=LinkKind.NETWORK,
                domain_size=0,
                bandwidth=system.network_bandwidth,
                latency_seconds=0,
                ports_per_domain=system.ports,
            )
        )
        profiles.append(network)
    cluster = ClusterSpec(id="c", device=device, gpus_per_node=system.domain_size, num_gpus=num_gpus, tiers=tuple(tiers), sources={})
    return LinkColumns.of(cluster, profiles)


def predict(rows: Sequence[Row], constants: Mapping[str, Constants]) -> Floats:
    """Model seconds of ``rows``."""
    seconds = np.empty(len(rows))
    keys = [(row.system, row.num_gpus, row.ring_only) for row in rows]
    for key in dict.fromkeys(keys):
        system, gpus, ring_only = key
        index = [i for i, other in enumerate(keys) if other == key]
        fast = profile(CLASSES[system.fast], constants[system.fast])
        network = profile(CLASSES[system.network], constants[system.network]) if system.network else None
        links = columns(system, gpus, fast, network)
        size = np.array([rows[i].message_bytes for i in index])
        group = place(gpus, 1, links)
        if ring_only:
            start = network.base_seconds if network and group.crosses else fast.base_seconds
            seconds[index] = 2 * communication.all_gather_seconds(size, group, links) - start
        else:
            seconds[index] = communication.all_reduce_seconds(size, group, links)
    return seconds


def fit(link: LinkClass, rows: Sequence[Row], known: Mapping[str, Constants]) -> Constants:
    """Constants of ``link`` that fit ``rows`` best, those of the other classes being ``known``."""
    names = [name for name in _FITTED if name in link.start]
    measured = np.array([row.seconds for row in rows])
    weight = np.where([row.message_bytes >= SMALL_BYTES for row in rows], 1.0, 0.5)
    start = np.log([link.start[name] for name in names])

    def residuals(logs: Floats) -> Floats:
        trial = {**known, link.id: dict(zip(names, np.exp(logs), strict=True))}
        errors = weight * np.log(predict(rows, trial) / measured)
        return np.concatenate([errors, 0.03 * (logs - start)])

    upper = np.where(["efficiency" in name for name in names], np.log(MAX_EFFICIENCY), np.inf)
    result = least_squares(residuals, start, loss="soft_l1", f_scale=0.1, bounds=(-np.inf, upper))
    return {name: float(f"{value:.3g}") for name, value in zip(names, np.exp(result.x), strict=True)}


def rows_of(link: LinkClass, rows: Sequence[Row]) -> list[Row]:
    """The rows that tell about ``link``: on one domain for a fast tier, across domains for a network."""
    return [row for row in rows if link.id == (row.system.network or row.system.fast)]


def fitted_rows(link: LinkClass, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows_of(link, rows) if not row.system.only_reported]


def fit_all(rows: Sequence[Row]) -> dict[str, Constants]:
    """Constants of every class that has rows. Fast tiers first: the networks are fitted on top of them."""
    constants: dict[str, Constants] = {name: dict(link.start) for name, link in CLASSES.items()}
    for link in sorted(CLASSES.values(), key=lambda link: link.is_network):
        own = fitted_rows(link, rows)
        if own:
            constants[link.id] = fit(link, own, constants)
    return constants


def errors(rows: Sequence[Row], constants: Mapping[str, Constants], keep: Callable[[Row], bool]) -> str:
    """``n  median  mean  bias`` in percent over the rows that ``keep`` selects."""
    chosen = [row for row in rows if keep(row)]
    if not chosen:
        return f"{0:4d}" + " " * 25
    ratio = predict(chosen, constants) / np.array([row.seconds for row in chosen])
    error = np.abs(ratio - 1)
    bias = np.exp(np.median(np.log(ratio))) - 1
    return f"{len(chosen):4d} {np.median(error):7.1%} {error.mean():7.1%} {bias:+8.1%}"


def report(rows: Sequence[Row], constants: Mapping[str, Constants]) -> None:
    """Print fitted and held-out errors of every class."""

    def large(row: Row) -> bool:
        return row.message_bytes >= SMALL_BYTES

    def small(row: Row) -> bool:
        return not large(row)

    heading = f"{'':62s}|    n  median    mean     bias (>= 1 MiB) |    n  median    mean     bias (smaller)"
    _print(heading)
    for link in CLASSES.values():
        own = rows_of(link, rows)
        if not own:
            continue
        _print(f"{link.id:20s} {constants[link.id]}")
        fitted = fitted_rows(link, rows)
        _print(f"  {'all fitted':60s}| {errors(fitted, constants, large)}      | {errors(fitted, constants, small)}")
        for source in dict.fromkeys(row.source for row in own):
            held = [row for row in own if row.source == source]
            label = ("not fitted: " if held[0].system.only_reported else "fitted: ") + source
            _print(f"    {label:58s}| {errors(held, constants, large)}      | {errors(held, constants, small)}")
            rest = [row for row in fitted_rows(link, rows) if row.source != source]
            if rest and not held[0].system.only_reported:
                without = {**constants, link.id: fit(link, rest, constants)}
                _print(f"    {'held out: ' + source:58s}| {errors(held, without, large)}      | {errors(held, without, small)}")


def write(rows: Sequence[Row], constants: Mapping[str, Constants]) -> None:
    """Rewrite the numbers of the fitted classes' catalog files, leaving the rest of each file alone."""
    for link in CLASSES.values():
        if not fitted_rows(link, rows):
            continue
        path = CATALOG / f"{link.id}.toml"
        lines = []
        for line in path.read_text().splitlines():
            name = line.split("=")[0].strip()
            lines.append(f"{name} = {constants[link.id][name]:g}" if name in constants[link.id] else line)
        path.write_text("\n".join(lines) + "\n")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit link constants to published collectives.")
    parser.add_argument("--write", action="store_true", help="rewrite autopar/catalog/links")
    arguments = parser.parse_args()
    rows, skipped = read_rows()
    constants = fit_all(rows)
    report(rows, constants)
    for reason, count in skipped.most_common():
        _print(f"not used: {count:4d} rows, {reason}")
    if arguments.write:
        write(rows, constants)


if __name__ == "__main__":
    main()
