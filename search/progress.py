"""How far a search has come, and when it has to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autopar.costmodel.spec.errors import Fault, InvalidInputError


class Stopped(StrEnum):
    """Why a search ended before its end."""

    INTERRUPTED = "interrupted"
    TIME_LIMIT = "time limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a search can say while it runs."""

    evaluated: int
    rejected: Mapping[str, int]
    """Rule name -> strategies it refused."""
    best_seconds: float | None
    """Step time of the best so far, where something fits; may be a lower bound of it."""
    bound_seconds: float | None
    """No strategy is faster, where that is known yet."""


@dataclass(slots=True)
class Watch:
    """Asked between pieces of work whether to go on; told what was found. Not frozen: it remembers why it stopped.

    Args:
        time_limit_seconds: stop after this long; None: never.
        interrupted: stop once it is true.
        report: told of the progress at most every ``every_seconds``.
    """

    time_limit_seconds: float | None = None
    interrupted: Callable[[], bool] = lambda: False
    report: Callable[[Progress], None] | None = None
    every_seconds: float = 0.1
    stopped: Stopped | None = field(init=False, default=None)
    _started: float = field(init=False, default_factory=time.perf_counter)
    _told: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        limit = self.time_limit_seconds
        if limit is not None and not limit > 0:
            raise InvalidInputError(Fault(field="time_limit", given=f"{limit:g}", required="more than 0 seconds", fix="leave it out"))

    def stops(self) -> bool:
        """Whether the search has to end now."""
        if self.stopped is None and self.interrupted():
            self.stopped = Stopped.INTERRUPTED
        if self.stopped is None and self.time_limit_seconds is not None and self.seconds > self.time_limit_seconds:
            self.stopped = Stopped.TIME_LIMIT
        return self.stopped is not None

    def tell(self, progress: Callable[[], Progress]) -> None:
        """Report, if anyone listens and it is time."""
        if self.report is not None and self.seconds - self._told >= self.every_seconds:
            self._told = self.seconds
            self.report(progress())

    @property
    def seconds(self) -> float:
        """Wall time since the search began."""
        return time.perf_counter() - self._started
