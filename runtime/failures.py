"""How a rank that fails says so: one record a rank, of which whoever started the ranks tells the first.

When one rank fails, the others fail a moment later for want of it. Each writes what went wrong and when;
a lost connection counts as a consequence, and is told only where nothing else is.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from autopar.costmodel.spec.errors import AutoparError

FOLDER_VARIABLE = "AUTOPAR_FAILURES"
"""Folder for the records, set by the launcher."""

_LOST_PEER = (
    "connection closed by peer", "connection reset by peer", "broken pipe", "timed out waiting", "socket closed", "connection refused",
    "remote process exited", "nccl communicator was aborted", "watchdog", "connection was likely closed",
)  # fmt: skip


class TrainingFailedError(AutoparError):
    """Training cannot go on with this plan and data: memory ran out, or the loss is no number (exit code 1)."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one rank ended."""

    rank: int
    exit_code: int
    message: str
    time: float
    consequence: bool = False
    """Another rank's failure was the cause."""


def is_consequence(error: BaseException) -> bool:
    """Whether ``error`` is what a rank sees when another one went away."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _LOST_PEER)


def understood(error: Exception) -> Exception:
    """``error`` as one of autopar's where its cause is plain: memory that ran out; else itself."""
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        first = str(error).splitlines()[0]
        return TrainingFailedError(f"out of memory: {first}\nthis plan does not fit: more recomputation or sharding needs less")
    return error


def record(failure: Failure, folder: str | None = None) -> bool:
    """Write ``failure`` where the launcher looks; False where there is no launcher."""
    folder = folder or os.environ.get(FOLDER_VARIABLE)
    if not folder or not Path(folder).is_dir():
        return False
    handle, temporary = tempfile.mkstemp(dir=folder)
    with open(handle, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor, not a path
        json.dump(asdict(failure), stream)
    Path(temporary).replace(Path(folder) / f"{failure.rank}.json")
    return True


def tells(rank: int, *, consequence: bool) -> bool:
    """Whether this rank is the one that speaks, in a job that another launcher than autopar's started.

    Ranks agree through the job's store, which torchrun keeps for as long as it runs. A consequence waits a moment for its cause;
    before the ranks have met, the first rank of each machine speaks.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        return os.environ.get("LOCAL_RANK", "0") == "0"
    try:
        store = dist.distributed_c10d._get_default_store()
        if consequence:
            time.sleep(_CAUSE_SECONDS)
        return bool(store.compare_set(_FIRST, "", str(rank)) == str(rank).encode())
    except RuntimeError:  # the store went with the rank that kept it
        return not consequence


_FIRST = "autopar/first-failure"
_CAUSE_SECONDS = 1.0


def recorded(folder: Path) -> list[Failure]:
    """The records of ``folder``, earliest first."""
    found = [Failure(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("*.json")]
    return sorted(found, key=lambda failure: failure.time)


def of_exit(rank: int, code: int) -> Failure:
    """What is known of a rank that ended with ``code`` and wrote no record; below 0 a signal's number, as in subprocess."""
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        hint = " (the system may have run out of memory)" if -code == signal.SIGKILL else ""
        return Failure(rank=rank, exit_code=4, message=f"killed by {name}{hint}", time=time.time())
    return Failure(rank=rank, exit_code=code, message=f"ended with exit code {code} and no message", time=time.time())


def first_cause(failures: list[Failure]) -> Failure | None:
    """The failure that the others follow from."""
    causes = [failure for failure in failures if not failure.consequence]
    return min(causes or failures, key=lambda failure: failure.time, default=None)
