"""The page of rules is the one that the rules make."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_has_the_rules_as_they_are() -> None:
    spec = importlib.util.spec_from_file_location("exporters_page", ROOT / "docs" / "exporters_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
