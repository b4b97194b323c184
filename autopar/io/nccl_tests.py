"""The text that nccl-tests prints, as points of collectives."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.costmodel.spec.measured import Kind, Point, Series

COLLECTIVES = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}  # fmt: skip
"""Names of the programs, ``_perf`` apart -> variants."""
_PROGRAM = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv)_perf\b|Collective test starting: (\w+?)_perf")
_RANK = re.compile(r"^#\s+Rank\s+\d+\b.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)$", re.MULTILINE)
_ROW = re.compile(r"^\s*(\d+)\s+\d+\s+(\w+)\s+\S+\s+(?:-?\d+\s+)?([0-9.]+)\s+[0-9.]+\s+[0-9.]+", re.MULTILINE)
_LIBRARY = re.compile(r"nccl(?:-headers=\d+)?[\s_-]*(?:version|library)\s*=?\s*([0-9.+a-z]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTests:
    """One program's output; ``device_name`` is empty where the header names none."""

    series: Series
    ranks: int
    nodes: int
    device_name: str


def parse_nccl_tests(text: str, source: str) -> NcclTests | None:
    """The points in the output of one nccl-tests program; None where the text is no such output.

    Times are those out of place, in the text's microseconds. Ranks and nodes are counted in the header.

    Raises:
        InvalidInputError: it is such output and cannot be used: no ranks in the header, no rows, or a name that says no collective.
    """
    ranks = _RANK.findall(text)
    rows = _ROW.findall(text)
    if not ranks and "nccl-tests" not in text and "busbw" not in text:
        return None
    match = _PROGRAM.search(text) or _PROGRAM.search(source)
    name = (match[1] or match[2] or "") if match is not None else ""
    faults = []
    if name not in COLLECTIVES:
        fix = f"name the file after its program, for example all_reduce_perf.log; known: {', '.join(sorted(COLLECTIVES))}"
        faults.append(Fault(field=source, given=name, required="which collective ran is not told", fix=fix))
    if len(ranks) < 2:
        faults.append(Fault(field=source, given=f"{len(ranks)} ranks", required="the header with a line '#  Rank …' a rank is needed"))
    if not rows:
        faults.append(Fault(field=source, given="", required="no row of sizes and times"))
    raise_if(faults)
    hosts = {host for host, _ in ranks}
    if len(ranks) % len(hosts):
        given = f"{len(ranks)} ranks on {len(hosts)} hosts"
        raise InvalidInputError(Fault(field=source, given=given, required="as many ranks on each host"))
    return NcclTests(
        series=_series(COLLECTIVES[name], rows, len(ranks), len(hosts), text, source),
        ranks=len(ranks),
        nodes=len(hosts),
        device_name=ranks[0][1].strip(),
    )


def _series(variant: str, rows: list[tuple[str, str, str]], ranks: int, nodes: int, text: str, source: str) -> Series:
    size, members = (2, 1 if nodes > 1 else 2) if variant == "send_recv" else (ranks, ranks // nodes)
    times: dict[float, list[float]] = {}
    for message, _, microseconds in rows:
        if float(message) > 0 and float(microseconds) > 0:
            times.setdefault(float(message), []).append(float(microseconds) * 1e-6)
    library = _LIBRARY.search(text)
    return Series(
        kind=Kind.COLLECTIVE,
        variant=variant,
        dtype="fp32",
        library=f"NCCL {library[1]}" if library is not None else "NCCL, nccl-tests",
        source=f"nccl-tests: {source}",
        points=tuple(
            Point(shape=(message, float(size), float(members)), seconds=sorted(found)[len(found) // 2], repeats=len(found), spread=0.0)
            for message, found in sorted(times.items())
        ),
    )
