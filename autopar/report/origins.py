"""What a report assumes, what it warns of, and where each of its numbers comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from autopar.costmodel.separation import CONSTANT_BEHIND
from autopar.costmodel.spec.hardware import HardwareProfile, LinkProfile, Origin
from autopar.costmodel.spec.units import format_bytes, format_seconds

from .page import Markup, Section, bullets, details, paragraph, table
from .subject import Subject


def origin_sections(subject: Subject) -> Iterator[Section]:
    """Assumptions and warnings; then the origin of the numbers."""
    yield Section(
        id="assumptions",
        title="Assumed, and to be careful with",
        parts=(bullets(subject.assumptions), bullets(subject.estimate.warnings, "warning")),
    )
    yield Section(id="origin", title="Where the numbers come from", parts=tuple(_origins(subject)))


def _origins(subject: Subject) -> Iterator[Markup]:
    estimate, problem = subject.estimate, subject.problem
    yield table(("part", "origin"), estimate.provenance.items(), words=(0, 1))
    if estimate.step_time_interval is not None:
        yield paragraph(f"The interval of the step time rests on {estimate.step_time_interval.basis}.", "note")
    yield paragraph(f"Peak rates of {problem.cluster.device.name} are the vendor's, dense; MFU is counted against them.", "note")
    named = [(f.name, getattr(estimate.time, f.name)) for f in fields(estimate.time)]
    terms = [(name.replace("_", " "), format_seconds(value), CONSTANT_BEHIND[name]) for name, value in named if value > 0]
    yield details("The constant behind each term", table(("term", "time", "rests most on"), terms, words=(0, 2)))
    yield details("Constants of the device", table(("constant", "value", "origin", "source"), _hardware(problem.hardware), words=(0, 2, 3)))
    yield details("Constants of the links", *(_link(link) for link in problem.links))
    yield details("Rated figures", _rated(subject))


def _hardware(profile: HardwareProfile) -> Iterator[tuple[str, ...]]:
    for field in fields(profile):
        value = getattr(profile, field.name)
        if isinstance(value, float):
            origin = profile.origin.get(field.name, Origin.ANALYTIC)
            yield field.name, f"{value:.4g}", str(origin), profile.sources.get(field.name, "")


def _link(link: LinkProfile) -> Markup:
    rows = [(f.name, f"{value:.4g}") for f in fields(link) if isinstance(value := getattr(link, f.name), float)]
    return table(("constant", "value"), rows, caption=f"{link.tier}: {link.origin}, {link.source}")


def _rated(subject: Subject) -> Markup:
    cluster = subject.problem.cluster
    device, said = cluster.device, cluster.device.sources
    peak = said.get("peak_flops", "")
    rows = [
        ("memory", format_bytes(device.memory_bytes), said.get("memory_bytes", "")),
        ("memory bandwidth", f"{device.memory_bandwidth / 1e9:,.0f} GB/s", said.get("memory_bandwidth", "")),
        *(
            (f"peak {kind}", f"{rate / 1e12:,.0f} TFLOP/s", said.get(f"peak_flops.{kind}", peak))
            for kind, rate in device.peak_flops.items()
        ),
        *(
            (f"{tier.name} a GPU, one direction", f"{tier.bandwidth / 1e9:,.1f} GB/s", cluster.sources.get(tier.name, ""))
            for tier in cluster.tiers
        ),
    ]
    return table(("figure", "value", "source"), rows, words=(0, 2), caption=f"{device.name}, {cluster.id}")
