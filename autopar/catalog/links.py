"""Link profiles by link kind and device generation: what each tier of a cluster really reaches.

One TOML file a link class in ``autopar/catalog/links/``; the fitted ones are written by benchmarks/calibration/links.py.
A class fits a tier by its kind, then by the device's architecture (NVLink generations, EFA generations) and, for networks,
by the technology the cluster file names.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from autopar.costmodel.spec.cluster import ClusterSpec, LinkKind, LinkTier
from autopar.costmodel.spec.hardware import LinkProfile, Origin

_FOLDER = Path(__file__).parent / "links"
_SAME_RATING = 1.2
"""A tier rated within this factor of a measured one is the measured one; beyond it, the constants are interpolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkClass:
    """One file: the profile, and the tiers it speaks for."""

    id: str
    kind: LinkKind
    architectures: tuple[str, ...]
    names: tuple[str, ...]
    """Words for the technology, lower case; networks only."""
    rated_bandwidths: tuple[float, ...]
    """Bytes/s per GPU of the measured machines."""
    profile: LinkProfile

    def is_of(self, architecture: str) -> bool:
        """Whether the class was made for devices of ``architecture`` (``blackwell`` also stands for ``blackwell-ultra``)."""
        return any(architecture.lower().startswith(known) for known in self.architectures)

    def rating_distance(self, bandwidth: float) -> float:
        """Factor between ``bandwidth`` and the nearest measured rating; infinite where nothing was measured."""
        return min((max(bandwidth / rated, rated / bandwidth) for rated in self.rated_bandwidths), default=float("inf"))


def link_profiles(cluster: ClusterSpec) -> tuple[LinkProfile, ...]:
    """One profile for each tier of ``cluster``, in order.

    The origin is ``measured`` only where rows of that link class at that rating were fitted; another generation or another rating
    of the same technology is ``interpolated``, and a technology without published rows ``analytic``. Analytic
    profiles take the step latency that the cluster states; fitted ones keep their own, which belongs with their start.
    """
    return tuple(_profile(cluster, tier) for tier in cluster.tiers)


@cache
def link_classes() -> tuple[LinkClass, ...]:
    """Every class of the catalog, by file name."""
    return tuple(_read(path) for path in sorted(_FOLDER.glob("*.toml")))


def _read(path: Path) -> LinkClass:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    selectors = {key: tuple(data.pop(key, ())) for key in ("architectures", "names", "rated_bandwidths")}
    kind, origin = LinkKind(data.pop("kind")), Origin(data.pop("origin"))
    return LinkClass(id=data["id"], kind=kind, profile=LinkProfile(tier=data.pop("id"), origin=origin, **data), **selectors)


def _profile(cluster: ClusterSpec, tier: LinkTier) -> LinkProfile:
    link, exact = _choose(cluster, tier)
    profile = replace(link.profile, tier=tier.name, source=f"{link.id}: {link.profile.source}")
    if profile.origin is Origin.MEASURED and (not exact or link.rating_distance(tier.bandwidth) > _SAME_RATING):
        return replace(profile, origin=Origin.INTERPOLATED)
    if profile.origin is Origin.ANALYTIC and tier.latency_seconds > 0:
        return replace(profile, latency_seconds=tier.latency_seconds)
    return profile


def _choose(cluster: ClusterSpec, tier: LinkTier) -> tuple[LinkClass, bool]:
    """The class for ``tier``, and whether it was made for this device's generation."""
    candidates = [link for link in link_classes() if link.kind is tier.kind]
    if tier.kind is LinkKind.NETWORK:
        candidates = _of_technology(cluster, tier, candidates)
    generation = [link for link in candidates if link.is_of(cluster.device.architecture)]
    neutral = [link for link in candidates if not link.architectures]
    chosen = min(generation or neutral or candidates, key=lambda link: link.rating_distance(tier.bandwidth))
    return chosen, bool(generation or neutral)


def _of_technology(cluster: ClusterSpec, tier: LinkTier, networks: Sequence[LinkClass]) -> list[LinkClass]:
    """The networks of the first technology named by the tier, the cluster or their sources; else the unnamed network."""
    texts = [tier.name, cluster.id]
    texts += [cluster.sources.get(f"tiers.{tier.name}.{field}", "") for field in ("bandwidth", "latency_seconds")]
    for word in re.findall(r"[a-z0-9]+", " ".join(texts).lower()):
        named = [link for link in networks if word in link.names]
        if named:
            return named
    return [link for link in networks if not link.names]
