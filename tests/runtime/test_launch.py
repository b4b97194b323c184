"""The launcher, with real processes: who is told to have failed, and that nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autopar.runtime.failures import Failure, first_cause, is_consequence
from autopar.runtime.launch import launch

RANK = """
import os, sys, time, json
from pathlib import Path
from autopar.runtime.failures import Failure, record
from autopar.runtime.launch import leave_with_launcher
leave_with_launcher()
rank = int(os.environ["RANK"])
Path(sys.argv[1], f"pid-{rank}").write_text(str(os.getpid()))
def fail(message, code=1, consequence=False):
    record(Failure(rank=rank, exit_code=code, message=message, time=time.time(), consequence=consequence))
    sys.exit(code)
"""


def ranks(body: str, folder: Path) -> list[str]:
    return [sys.executable, "-c", RANK + body, str(folder)]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def pids(folder: Path, count: int, seconds: float = 20) -> list[int]:
    """Process ids of ``count`` ranks, once all have started."""
    deadline = time.monotonic() + seconds
    while len(files := [f for f in folder.glob("pid-*") if f.read_text()]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(file.read_text()) for file in files]


def wait_until_gone(processes: list[int], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline, "a rank is left behind"
        time.sleep(0.02)


def test_all_ranks_end_well(tmp_path: Path) -> None:
    body = "Path(sys.argv[1], f'out-{rank}').write_text(os.environ['WORLD_SIZE'] + os.environ['LOCAL_RANK'])"
    assert launch(ranks(body, tmp_path), world_size=3) is None
    assert sorted(file.read_text() for file in tmp_path.glob("out-*")) == ["30", "31", "32"]


def test_the_first_failure_is_told_and_the_rest_are_ended(tmp_path: Path) -> None:
    body = "time.sleep(60) if rank != 1 else fail('the loss is nan', 1)"
    failure = launch(ranks(body, tmp_path), world_size=3)
    assert failure is not None
    assert (failure.rank, failure.exit_code, failure.message) == (1, 1, "the loss is nan")
    wait_until_gone(pids(tmp_path, 1))


def test_a_lost_connection_is_not_the_cause(tmp_path: Path) -> None:
    body = "fail('connection closed', 4, consequence=True) if rank == 0 else (time.sleep(0.5), fail('bad batch', 2))"
    failure = launch(ranks(body, tmp_path), world_size=2)
    assert failure is not None
    assert (failure.rank, failure.exit_code, failure.message) == (1, 2, "bad batch")


def test_a_killed_rank_is_told_by_its_signal(tmp_path: Path) -> None:
    body = "os.kill(os.getpid(), 9) if rank == 1 else (time.sleep(0.5), fail('connection closed', 4, consequence=True))"
    failure = launch(ranks(body, tmp_path), world_size=2)
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (1, 4)
    assert "SIGKILL" in failure.message


LAUNCHER = """
import sys
from autopar.runtime.launch import launch
try:
    launch(sys.argv[1:], world_size=2)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_no_rank_outlives_the_launcher(tmp_path: Path, number: signal.Signals, code: int) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, *ranks("time.sleep(60)", tmp_path)])
    started = pids(tmp_path, 2)
    launcher.send_signal(number)
    assert launcher.wait(15) == code
    wait_until_gone(started)


def test_the_cause_is_the_earliest_that_is_no_consequence() -> None:
    def failure(rank: int, time: float, *, consequence: bool) -> Failure:
        return Failure(rank=rank, exit_code=1, message="", time=time, consequence=consequence)

    late, early = failure(0, 2, consequence=False), failure(1, 1, consequence=True)
    assert first_cause([early, late]) == late
    assert first_cause([early]) == early
    assert first_cause([]) is None
    assert is_consequence(RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:30"))
    assert not is_consequence(ValueError("connection closed by peer"))
