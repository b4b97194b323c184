"""What a search says while it runs: one line on standard error, on a terminal, once it takes longer than a moment."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autopar.search import Progress

PATIENCE_SECONDS = 0.7
"""Searches that end sooner say nothing."""
MOST_RULES = 3


@contextlib.contextmanager
def searching() -> Iterator[Callable[[Progress], None] | None]:
    """Yields what to tell of a search's progress; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    started = time.perf_counter()
    status = Console(stderr=True).status("searching", spinner="line")

    def tell(progress: Progress) -> None:
        if time.perf_counter() - started >= PATIENCE_SECONDS:
            status.update(progress_text(progress))
            status.start()

    try:
        yield tell
    finally:
        status.stop()


def progress_text(progress: Progress) -> str:
    """``searching: 12,345 evaluated, best 24.3 s, bound 23.9 s (gap 1.6%), refused by memory 3,021, ...``."""
    parts = [f"{progress.evaluated:,} evaluated"]
    best, bound = progress.best_seconds, progress.bound_seconds
    if best is not None and best < float("inf"):
        parts.append(f"best {best:.4g} s")
    if bound is not None and bound < float("inf"):
        gap = f" (gap {max(1 - bound / best, 0):.1%})" if best is not None and best < float("inf") else ""
        parts.append(f"bound {bound:.4g} s{gap}")
    if refused := _most(progress.rejected):
        parts.append(f"refused by {refused}")
    return f"searching: {', '.join(parts)}"


def _most(rejected: Mapping[str, int]) -> str:
    largest = sorted(rejected.items(), key=lambda rule: -rule[1])[:MOST_RULES]
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in largest if count)
