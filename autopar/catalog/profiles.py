"""Hardware profiles by device: what each GPU of the catalog really reaches, one TOML file a device.

A file has a table for each constant of :class:`HardwareProfile`: its value, its origin and its source. A device without
a file takes the constants of its architecture's reference device, each flagged interpolated.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from autopar.costmodel.spec.cluster import DeviceSpec
from autopar.costmodel.spec.errors import UnavailableError
from autopar.costmodel.spec.hardware import HardwareProfile, Origin

from .hardware import device as catalog_device

CONSTANTS: tuple[str, ...] = tuple(f.name for f in fields(HardwareProfile) if f.name not in ("device", "origin", "sources"))
POWER_EXPONENT = 0.8
"""Sustained rate over (watts a peak FLOP) to this power, where power limits it.

Frequency goes with the root of the power that clocks move, and that is some 0.6 of the whole: memory, links and leakage take the
rest. Steps on an H100 at 500 W in place of 700 show 0.95, on GB300 beside GB200 0.9.
"""
ATTENTION_RATES = ("attention_forward_efficiency", "attention_backward_efficiency")
POWER_LIMITED = ("fp8_efficiency", *ATTENTION_RATES)
FOLDER = Path(__file__).parent / "profiles"


def hardware_profile(device: DeviceSpec) -> HardwareProfile:
    """The shipped profile of ``device``, or one interpolated from its architecture's reference device.

    Interpolated rates of products and of fused attention are scaled to the device's power budget: sustained = reference x ((W/peak) /
    (W/peak of the reference))^0.8, and products no faster than at full clocks, attention no faster than the reference. Analytic;
    wrong for parts whose tensor cores are slowed by firmware, which have a file of their own.

    Raises:
        UnavailableError: no profile of the device or of its architecture is known.
    """
    own = _read(device.id) if (FOLDER / f"{device.id}.toml").is_file() else {}
    if all(constant in own for constant in CONSTANTS):
        return _profile(device.id)
    reference = _references().get(device.architecture.lower())
    if reference is None:
        known = ", ".join(sorted(_references()))
        raise UnavailableError(
            f"device={device.id}: no kernel constants for architecture {device.architecture!r} (known: {known}); "
            f"measure them on the device with `autopar profile` and pass the file"
        )
    return _overlaid(_interpolated(device, catalog_device(reference), _profile(reference)), own)


def _overlaid(profile: HardwareProfile, own: Mapping[str, Any]) -> HardwareProfile:
    """``profile`` with the constants that the device's own file has.

    A rate of products that it has shows what power the device works at: rates of FP8 and of attention that it lacks follow in proportion.
    """
    named = [constant for constant in CONSTANTS if constant in own]
    values: dict[str, Any] = {constant: float(own[constant]["value"]) for constant in named}
    share = values.get("gemm_efficiency", profile.gemm_efficiency) / profile.gemm_efficiency
    following = {constant: getattr(profile, constant) * share for constant in POWER_LIMITED if constant not in own}
    return replace(
        profile,
        **values,
        **following,
        origin={**profile.origin, **{constant: Origin(own[constant]["origin"]) for constant in named}},
        sources={**profile.sources, **{constant: own[constant]["source"] for constant in named}},
    )


@cache
def profiled_devices() -> tuple[str, ...]:
    """Ids of the devices that have constants of their own, some or all, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@cache
def _references() -> Mapping[str, str]:
    """Architecture -> the device others of it are interpolated from."""
    raws = (_read(name) for name in profiled_devices())
    return {raw["architecture"]: raw["device"] for raw in raws if raw.get("reference")}


@cache
def _read(name: str) -> Mapping[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def _profile(name: str) -> HardwareProfile:
    raw = _read(name)
    return HardwareProfile(
        device=raw["device"],
        **{constant: float(raw[constant]["value"]) for constant in CONSTANTS},
        origin={constant: Origin(raw[constant]["origin"]) for constant in CONSTANTS},
        sources={constant: raw[constant]["source"] for constant in CONSTANTS},
    )


def _interpolated(device: DeviceSpec, reference: DeviceSpec, profile: HardwareProfile) -> HardwareProfile:
    power = (_watts_per_flop(device) / _watts_per_flop(reference)) ** POWER_EXPONENT
    values = {constant: getattr(profile, constant) for constant in CONSTANTS}
    full_clock = values["gemm_small_efficiency"]
    for constant in ("gemm_efficiency", "fp8_efficiency"):
        values[constant] = min(values[constant] * power, max(full_clock, values[constant]))
    for constant in ATTENTION_RATES:
        values[constant] *= min(power, 1.0)
    values["memory_half_bytes"] *= device.memory_bandwidth / reference.memory_bandwidth
    scaled = {"gemm_efficiency", "fp8_efficiency", "memory_half_bytes", *ATTENTION_RATES}
    return HardwareProfile(
        device=device.id,
        **values,
        # a judgement does not become better founded by being carried over to a relative
        origin={c: Origin.ANALYTIC if profile.origin[c] is Origin.ANALYTIC else Origin.INTERPOLATED for c in CONSTANTS},
        sources={c: f"{reference.id}{' scaled' if c in scaled else ''}: {profile.sources[c]}" for c in CONSTANTS},
    )


def _watts_per_flop(device: DeviceSpec) -> float:
    peak = device.peak_flops.get("bf16") or device.peak_flops.get("fp16") or max(device.peak_flops.values())
    return device.power_watts / peak
