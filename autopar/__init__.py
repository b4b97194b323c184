"""autopar: an automatic parallelism planner and cost model for training large models."""

from __future__ import annotations

__version__ = "0.1.0"
