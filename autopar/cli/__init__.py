"""The command line.

Standard output carries the result and nothing else; messages go to standard error. Exit codes: 0 done, 1 the answer
is no (nothing fits, a strategy is refused or does not fit), 2 bad input, 3 hardware or data absent, 4 a bug in
autopar, 130 interrupted.
"""

from __future__ import annotations

from .app import main

__all__ = ["main"]
