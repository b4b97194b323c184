"""Logs of DeepSpeed: the throughput timer, the pipeline engine's steps, the wall-clock breakdown, and the dumped configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.units import GIB

from .codec import load_json
from .logs import Fact, Parsed, Step, dotted_settings, flag, known, whole

_THROUGHPUT = re.compile(r"(?:global_step=|\b\d+/)(\d+),? RunningAvgSamplesPerSec=[0-9.]+,\s*CurrSamplesPerSec=([0-9.]+)")
_PIPELINE = re.compile(r"steps:\s*(\d+)\s+loss:.*?iter time \(s\):\s*([0-9.]+)\s+samples/sec:\s*([0-9.]+)")
_TIMERS = re.compile(r"time \(ms\)\s*\|\s*(.*)")
_PEAK = re.compile(r"MaxMemAllocated=([0-9.]+)\s*GB")


def read(lines: Sequence[str]) -> Parsed | None:
    """The run, or None where no step is in one of the forms that DeepSpeed prints.

    Raises:
        InvalidInputError: samples a second are there, and nothing that says how many samples one step is.
    """
    settings = dotted_settings(lines) | _json(lines)
    facts = _facts(settings)
    steps = _pipeline_steps(lines) or _throughput_steps(lines, whole(settings.get("train_batch_size"))) or _timed_steps(lines)
    if not steps:
        return None
    peak = [float(match[1]) * GIB for line in lines if (match := _PEAK.search(line))]
    return Parsed(facts=facts, steps=steps, peak_memory_bytes=max(peak, default=None))


def _pipeline_steps(lines: Sequence[str]) -> tuple[Step, ...]:
    found = (match for line in lines if (match := _PIPELINE.search(line)))
    return tuple(Step(number=int(match[1]), seconds=float(match[2])) for match in found)


def _throughput_steps(lines: Sequence[str], batch: int | None) -> tuple[Step, ...]:
    """Seconds from the rate of the last step and the samples of one: the timer's batch is the global one."""
    found = [match for line in lines if (match := _THROUGHPUT.search(line))]
    if found and batch is None:
        required = "DeepSpeed's log does not say train_batch_size, which turns its samples a second into seconds"
        raise InvalidInputError(f"{required}: keep the lines where it prints its configuration")
    return tuple(Step(number=int(match[1]), seconds=_ratio(batch or 0, float(match[2]))) for match in found)


def _timed_steps(lines: Sequence[str]) -> tuple[Step, ...]:
    """``time (ms) | fwd: … | bwd: … | step: …``: the timers of a whole step add up to it; their parts are left out."""
    steps: list[Step] = []
    for line in lines:
        if match := _TIMERS.search(line):
            timers = {name: float(value) for name, value in re.findall(r"(\w+):\s*([0-9.]+)", match[1])}
            if forward := timers.get("fwd", timers.get("forward")):
                total = forward + timers.get("bwd", timers.get("backward", 0.0)) + timers.get("step", 0.0)
                steps.append(Step(number=len(steps) + 1, seconds=total / 1000))
    return tuple(steps)


def _ratio(samples: int, rate: float) -> float:
    return samples / rate if rate > 0 else math.inf


def _facts(given: Mapping[str, str]) -> dict[str, Fact]:
    stage = whole(given.get("zero_optimization_stage"))
    batch, micro, accumulation = (
        whole(given.get(name)) for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    ranks = batch // (micro * accumulation) if batch and micro and accumulation else None
    return known(
        framework="deepspeed",
        global_batch_size=batch,
        micro_batch_size=micro,
        data_parallel_size=ranks,
        num_gpus=whole(given.get("world_size")) or ranks,
        tensor_parallel_size=1 if ranks and whole(given.get("world_size")) in (None, ranks) else None,
        pipeline_parallel_size=1 if ranks and whole(given.get("world_size")) in (None, ranks) else None,
        sharding_as_stated=None if stage is None else str(stage),
        precision=_precision(given),
    )


def _precision(given: Mapping[str, str]) -> str | None:
    if flag(given.get("bfloat16_enabled")):
        return "bf16"
    if flag(given.get("fp16_enabled") or given.get("float16_enabled")):
        return "fp16"
    return "fp32" if "bfloat16_enabled" in given else None


def _json(lines: Sequence[str]) -> dict[str, str]:
    """The ``json = {…}`` block that ends the dump, flattened to the names of the dump."""
    start = next((index for index, line in enumerate(lines) if re.search(r"\bjson = \{", line)), None)
    if start is None:
        return {}
    block = "{" + lines[start].split("json = {", 1)[1]
    for line in lines[start + 1 : start + 500]:
        if block.count("{") <= block.count("}"):
            break
        block += "\n" + line
    try:
        document: Any = load_json(block)
    except InvalidInputError:
        return {}
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    found = {name: str(document[name]) for name in names if isinstance(document.get(name), int)}
    for section, name, field in (
        ("zero_optimization", "stage", "zero_optimization_stage"),
        ("bf16", "enabled", "bfloat16_enabled"),
        ("fp16", "enabled", "fp16_enabled"),
    ):
        inner = document.get(section)
        if isinstance(inner, dict) and name in inner:
            found[field] = str(inner[name])
    return found
