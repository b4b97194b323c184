"""What all tests share."""

from __future__ import annotations

import contextlib
import signal

from hypothesis import settings

# timings are benchmarks, never asserts; the same examples for everyone, so that a change fails for what it changed
settings.register_profile("autopar", deadline=None, derandomize=True, max_examples=50)
# new examples each time: `make explore`
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=200)
settings.load_profile("autopar")

# a job in a shell's background ignores interrupts, and so would the programs that tests interrupt
with contextlib.suppress(ValueError):
    signal.signal(signal.SIGINT, signal.default_int_handler)
