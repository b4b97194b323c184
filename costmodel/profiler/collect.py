"""The run: requests in passes until the budget ends, every result kept whatever fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from autopar.costmodel.spec.measured import Kind, Series

from .ranks import Ranks
from .request import Backend, CannotMeasureError, Request
from .timing import Samples, sample

PASSES = 3
"""Times that the run comes back to each shape."""
MAX_FAILURES = 200


@dataclass(slots=True)
class Budget:
    """Seconds that the run may take, by the clock of rank 0."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def spent(self) -> float:
        return self.clock() - self.started

    def reached(self, share: float) -> bool:
        """Whether ``share`` of the budget is gone."""
        return self.spent >= share * self.seconds


@dataclass(slots=True)
class Results:
    """What a run has found so far."""

    source: str
    samples: dict[Request, Samples] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Request -> why it was not measured."""

    def series(self) -> tuple[Series, ...]:
        """The points, by kernel, in order of shape."""
        by_kernel: dict[tuple[Kind, str, str], list[Request]] = {}
        for request in self.samples:
            by_kernel.setdefault((request.kind, request.variant, request.dtype), []).append(request)
        return tuple(
            Series(
                kind=kind,
                variant=variant,
                dtype=dtype,
                library=self.samples[requests[0]].library,
                source=self.source,
                points=tuple(self.samples[each].point(each.shape) for each in sorted(requests, key=lambda each: each.shape)),
            )
            for (kind, variant, dtype), requests in sorted(by_kernel.items())
        )

    def failure_lines(self) -> tuple[str, ...]:
        """One line a request that was not measured."""
        return tuple(f"{name}: {why}" for name, why in sorted(self.failures.items())[:MAX_FAILURES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One rank's pass over one request."""

    request: Request
    seconds: tuple[float, ...]
    library: str
    reason: str
    """Why there are no seconds; empty where there are."""


class Run:
    """Measures requests on one backend, on all ranks in step.

    Kernels are timed on every rank at once, as they run in training, and count with the median rank's time; collectives with the slowest's.
    Ranks agree before each request, and exchange their times after each pass.
    """

    def __init__(
        self, ranks: Ranks, budget: Budget, results: Results, *, watch: Callable[[Request, float], None] = lambda *_: None
    ) -> None:
        self.ranks = ranks
        self.budget = budget
        self.results = results
        self._watch = watch
        self._pending: list[Timed] = []

    def passes(self, backend: Backend, requests: Iterable[Request], *, until: float, count: int = PASSES) -> None:
        """Up to ``count`` passes over ``requests``, ended when the share ``until`` of the budget is gone.

        Raises:
            DeviceLostError, RankLostError: the run is over; this rank's own times are kept.
        """
        wanted = list(requests)
        try:
            for _ in range(count):
                for request in wanted:
                    if str(request) not in self.results.failures and not self._measure(backend, request, until):
                        break
                self._exchange()
                if self.ranks.decide(self.budget.reached(until)):
                    return
        except BaseException:
            self._keep([self._pending])
            raise

    def _measure(self, backend: Backend, request: Request, until: float) -> bool:
        """One pass over one request; False, and nothing measured, where the time is up.

        A request that cannot be measured on some rank is noted, and left out on all.
        """
        self._watch(request, self.budget.spent)
        prepared, reason = None, ""
        try:
            prepared = backend.prepare(request)
        except CannotMeasureError as error:
            reason = str(error)
        states = self.ranks.gathered((reason, self.budget.reached(until)))
        if states[0][1]:
            backend.release()
            return False
        reasons = [each for each, _ in states if each]
        found: list[float] = []
        if prepared is not None and not reasons:
            try:
                found = sample(prepared, self._slowest)
            except CannotMeasureError as error:
                reason = str(error)
        library = "" if prepared is None else prepared.library
        why = reasons[0] if reasons else reason
        if why:
            self.results.failures[str(request)] = why
        self._pending.append(Timed(request=request, seconds=tuple(found), library=library, reason=why))
        del prepared
        backend.release()
        return True

    def _slowest(self, seconds: float) -> float:
        """The slowest rank's."""
        return max(self.ranks.gathered(seconds))

    def _exchange(self) -> None:
        """Every rank's times of the pass, kept on all."""
        mine, self._pending = self._pending, []
        self._keep(self.ranks.gathered(mine))

    def _keep(self, by_rank: Sequence[Sequence[Timed]]) -> None:
        for timed in zip(*by_rank, strict=False):
            request = timed[0].request
            reasons = [each.reason for each in timed if each.reason]
            if reasons:
                self.results.failures[str(request)] = reasons[0]
                continue
            samples = self.results.samples.setdefault(request, Samples())
            samples.library = timed[0].library
            samples.seconds += _over_ranks([each.seconds for each in timed], slowest=request.kind is Kind.COLLECTIVE)
        self._pending = []


def _over_ranks(times: Sequence[Sequence[float]], *, slowest: bool) -> list[float]:
    """One value a sample: the slowest rank's, or the median rank's."""
    count = min(len(each) for each in times)
    found = []
    for place in range(count):
        values = sorted(each[place] for each in times)
        found.append(values[-1] if slowest else values[len(values) // 2])
    return found
