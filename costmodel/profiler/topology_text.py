"""The matrix that ``nvidia-smi topo -m`` prints: which GPUs reach each other over NVLink, and which over PCIe or the host."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU(\d+)")
_LINKS = re.compile(r"NV(\d+)")
_WAYS = ("X", "SYS", "NODE", "PHB", "PXB", "PIX")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """``links[i][j]`` NVLinks between two GPUs (0: none), ``ways[i][j]`` the word of the matrix (``NV18``, ``PIX``, ``SYS``, …)."""

    links: tuple[tuple[int, ...], ...]
    ways: tuple[tuple[str, ...], ...]
    adapters: int
    """Network adapters in the matrix."""

    @property
    def num_gpus(self) -> int:
        return len(self.links)

    @property
    def domain_size(self) -> int:
        """GPUs of the largest group from GPU 0 on in which every pair has NVLinks; 1 where GPU 0 has none."""
        size = 1
        while size < self.num_gpus and all(self.links[size][other] > 0 for other in range(size)):
            size += 1
        return size

    @property
    def is_switched(self) -> bool:
        """Every pair of the domain has as many links: NVSwitch, or a single bridge."""
        size = self.domain_size
        return size > 1 and len({self.links[i][j] for i in range(size) for j in range(size) if i != j}) == 1


def parse_topology(text: str) -> Topology | None:
    """The topology in the text of ``nvidia-smi topo -m``; None where it has no matrix of GPUs."""
    lines = [_ESCAPES.sub("", line) for line in text.splitlines()]
    header = next((line.split() for line in lines if _GPU.search(line) and "X" not in line.split()), None)
    if header is None:
        return None
    gpus = [place for place, name in enumerate(header) if _GPU.fullmatch(name)]
    adapters = sum(bool(re.fullmatch(r"NIC\d+|mlx5_\d+", name)) for name in header)
    rows = [cells[1:] for line in lines if (cells := line.split()) and _GPU.fullmatch(cells[0]) and "X" in cells]
    ways = tuple(tuple(row[place] for place in gpus) for row in rows if len(row) > max(gpus))
    if len(ways) != len(gpus) or any(not (_LINKS.fullmatch(word) or word in _WAYS) for row in ways for word in row):
        return None
    links = tuple(tuple(int(match[1]) if (match := _LINKS.fullmatch(word)) else 0 for word in row) for row in ways)
    return Topology(links=links, ways=ways, adapters=adapters)
