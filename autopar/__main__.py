"""``python -m autopar``."""

from __future__ import annotations

from autopar.cli import main

main()
