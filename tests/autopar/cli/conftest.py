"""The command line, run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from autopar.cli.app import run


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as JSON that has no NaN and no infinity."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} in the JSON")

        return json.loads(self.out, parse_constant=refuse)


Run = Callable[..., Outcome]


@pytest.fixture
def autopar(capsys: pytest.CaptureFixture[str]) -> Run:
    """``autopar("plan", "--gpus", 8)``: runs a command and returns its exit code and both streams."""

    def call(*arguments: object) -> Outcome:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return Outcome(code, captured.out, captured.err)

    return call
