"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# timings are benchmarks, never asserts
settings.register_profile("autopar", deadline=None)
settings.load_profile("autopar")
