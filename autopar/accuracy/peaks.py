"""What a measured run's memory figure counts, and what its row says that it held."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum

from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.framework import ExecutionProfile

from .frameworks import TORCHTITAN


class MemoryCount(StrEnum):
    """What a measured peak counts."""

    TENSORS = "tensors"
    """The allocator's peak of what is allocated."""
    RESERVED = "reserved"
    """What the allocator holds, free blocks included."""
    DRIVER = "driver"
    """All that the driver sees of the process: context, communicators and libraries too."""


def memory_count(profile: ExecutionProfile) -> MemoryCount:
    """What the peaks count that a framework's users report: torchtitan logs what its allocator reserves."""
    if profile.id in ("pytorch-eager", "transformers", "autopar"):
        return MemoryCount.TENSORS
    return MemoryCount.RESERVED if profile.id.startswith(TORCHTITAN) else MemoryCount.DRIVER


def held_problem(problem: Problem, notes: str) -> Problem:
    """``problem`` with the widths that a row's notes state (``gradient_bytes=2``, ``optimizer_state_bytes=4``); itself without any."""
    widths = {name: float(value) for name, value in re.findall(r"\b(gradient_bytes|optimizer_state_bytes)=([\d.]+)", notes)}
    framework_held, training = problem.framework, problem.training
    if "gradient_bytes" in widths:
        framework_held = replace(framework_held, gradient_bytes=widths["gradient_bytes"])
    if "optimizer_state_bytes" in widths:
        precision = replace(training.precision, optimizer_state_bytes=widths["optimizer_state_bytes"])
        training = replace(training, precision=precision)
    return replace(problem, framework=framework_held, training=training) if widths else problem
