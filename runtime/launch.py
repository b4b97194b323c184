"""Starts the ranks of one machine, and ends them all when one fails, when it is interrupted, and when it dies itself.

Needs no torch. Ranks meet over a file, so no port can be taken. Each holds the end of a pipe whose other end only the
launcher has: when the launcher is gone, however it went, the pipe closes and the ranks leave (:func:`leave_with_launcher`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from .failures import FOLDER_VARIABLE, Failure, first_cause, of_exit, recorded

PIPE_VARIABLE = "AUTOPAR_LAUNCHER_PIPE"
RENDEZVOUS_VARIABLE = "AUTOPAR_RENDEZVOUS"
EXIT_INTERRUPTED = 130

CAUSE_SECONDS = 5.0
"""Wait after a first failure that is a consequence, for the rank that is the cause to say so."""
TERM_SECONDS = 3.0
"""Wait after the request to end, before the ranks are killed."""
_POLL_SECONDS = 0.02


def launch(command: Sequence[str], *, world_size: int, environment: Mapping[str, str] | None = None) -> Failure | None:
    """Run ``command`` as ranks 0 to ``world_size`` - 1 of this machine until all have ended; returns the first cause of failure.

    Each rank finds RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE in its environment and shares the launcher's streams.

    Raises:
        KeyboardInterrupt: interrupted or asked to end; every rank has ended by then.
    """
    with tempfile.TemporaryDirectory(prefix="autopar-") as folder, _interrupted_by_termination():
        reader, writer = os.pipe()
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(world_size):
                variables = _environment(rank, world_size, Path(folder), reader) | dict(environment or {})
                ranks.append(subprocess.Popen(command, env={**os.environ, **variables}, pass_fds=(reader,), start_new_session=True))
            return _wait(ranks, Path(folder))
        finally:
            end(ranks)
            os.close(writer)
            os.close(reader)


def leave_with_launcher() -> None:
    """In a rank: end this process at once when its launcher is gone, and let a request to end do so even inside a collective."""
    pipe = os.environ.get(PIPE_VARIABLE)
    if pipe is None:
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(int(pipe), 1)
        os._exit(EXIT_INTERRUPTED)

    threading.Thread(target=wait, name="launcher", daemon=True).start()


def end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask every rank that still runs to end, then make it."""
    for number, wait in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, TERM_SECONDS)):
        running = [rank for rank in ranks if rank.poll() is None]
        for rank in running:
            with contextlib.suppress(ProcessLookupError):
                rank.send_signal(number)
        deadline = time.monotonic() + wait
        while any(rank.poll() is None for rank in running) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)


def _wait(ranks: Sequence[subprocess.Popen[bytes]], folder: Path) -> Failure | None:
    """Until all ranks ended well, or one failed and the cause is known."""
    deadline: float | None = None
    while True:
        codes = [rank.poll() for rank in ranks]
        if any(codes):
            found = _failures(codes, folder)
            cause = first_cause(found)
            deadline = deadline or time.monotonic() + CAUSE_SECONDS
            if cause and (not cause.consequence or time.monotonic() > deadline or None not in codes):
                return cause
        elif None not in codes:
            return None
        time.sleep(_POLL_SECONDS)


def _failures(codes: Sequence[int | None], folder: Path) -> list[Failure]:
    found = recorded(folder)
    told = {failure.rank for failure in found}
    return found + [of_exit(rank, code) for rank, code in enumerate(codes) if code and rank not in told]


def _environment(rank: int, world_size: int, folder: Path, pipe: int) -> dict[str, str]:
    cores = os.cpu_count() or 1
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        FOLDER_VARIABLE: str(folder),
        RENDEZVOUS_VARIABLE: str(folder / "rendezvous"),
        PIPE_VARIABLE: str(pipe),
    }
    if "OMP_NUM_THREADS" not in os.environ:
        variables["OMP_NUM_THREADS"] = str(max(1, cores // world_size))
    return variables


@contextlib.contextmanager
def _interrupted_by_termination() -> Iterator[None]:
    """A request to end (SIGTERM) ends as Ctrl-C does; in the main thread alone, where handlers can be set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the handler's signature
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
