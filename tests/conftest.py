"""What all tests share."""

from __future__ import annotations

import contextlib
import signal

from hypothesis import settings

# timings are benchmarks, never asserts
settings.register_profile("autopar", deadline=None)
settings.load_profile("autopar")

# a job in a shell's background ignores interrupts, and so would the programs that tests interrupt
with contextlib.suppress(ValueError):
    signal.signal(signal.SIGINT, signal.default_int_handler)
