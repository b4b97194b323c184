"""The fixed questions whose answers are watched for drift: catalog models on catalog clusters, strategy by strategy."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import autopar

FILE = Path(__file__).parent / "scenarios.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One question to :func:`autopar.estimate`; ``strategy`` by short names, as ``tp=8 pp=4``."""

    model: str
    cluster: str
    gpus: int
    batch: int
    tokens: int
    precision: str
    framework: str
    strategy: str

    @property
    def name(self) -> str:
        """The question in one line; the key of the snapshot."""
        batch = f"{self.batch}x{self.tokens}"
        return f"{self.model} on {self.gpus} {self.cluster}, {batch}, {self.precision}, {self.framework}: {self.strategy}"

    def answer(self) -> dict[str, float]:
        """Seconds of a step and bytes at the peak."""
        pairs = (assignment.split("=") for assignment in self.strategy.split())
        found = autopar.estimate(
            self.model,
            cluster=self.cluster,
            gpus=self.gpus,
            global_batch_size=self.batch,
            sequence_length=self.tokens,
            precision=self.precision,
            framework=self.framework,
            strategy={name: _value(value) for name, value in pairs},
        )
        return {"step_time_seconds": found.step_time_seconds, "peak_memory_bytes": found.peak_memory_bytes}


def _value(text: str) -> int | bool | str:
    """A size, a flag or a name."""
    return int(text) if text.isdecimal() else {"true": True, "false": False}.get(text, text)


def scenarios() -> Iterator[Scenario]:
    """Every scenario of ``scenarios.toml``, in order."""
    for question in tomllib.loads(FILE.read_text())["questions"]:
        for strategy in question.pop("strategies"):
            yield Scenario(**question, strategy=strategy)
