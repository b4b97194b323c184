"""The command line.

Standard output carries the result and nothing else; messages go to standard error. Exit codes: 0 done, 1 the answer
is no (nothing fits, a strategy is refused or does not fit), 2 bad input, 3 hardware or data absent, 4 a bug in
autopar, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code; an interrupt while it still loads leaves like a later one."""
    try:
        from . import app
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)
    app.main(arguments)
