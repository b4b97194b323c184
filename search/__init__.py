"""Finds the fastest strategy that the framework runs and the memory holds."""

from __future__ import annotations

from . import feasibility
from .among import search_among
from .constraints import Constraints
from .progress import Progress, Watch
from .result import Ranked, SearchResult
from .solve import Stages, search, smallest_cluster
from .space import enumerate_space

__all__ = [
    "Constraints", "Progress", "Ranked", "SearchResult", "Stages", "Watch", "enumerate_space", "feasibility", "search", "search_among",
    "smallest_cluster",
]  # fmt: skip
