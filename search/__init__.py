"""Finds the fastest strategy that the framework runs and the memory holds."""

from __future__ import annotations

from . import feasibility
from .constraints import Constraints
from .result import Ranked, SearchResult
from .solve import Stages, search, smallest_cluster
from .space import enumerate_space

__all__ = ["Constraints", "Ranked", "SearchResult", "Stages", "enumerate_space", "feasibility", "search", "smallest_cluster"]
