"""What a result was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine, the software, and how busy it was: a load above the ranks' own says that the figures are not to be trusted."""

    processor: str
    cores: int
    memory_bytes: int
    python: str
    torch: str
    commit: str
    date: str
    load_before: float
    """Processes that ran or waited to, over the minute before the measurement."""


def this_machine() -> Machine:
    import torch

    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        python=platform.python_version(),
        torch=torch.__version__,
        commit=_commit(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        load_before=os.getloadavg()[0],
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str:
    answer = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"
