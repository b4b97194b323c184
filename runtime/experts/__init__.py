"""Expert parallelism: the experts of a layer split over ranks, to which tokens travel and from which they return."""

from .dispatch import balanced_routes
from .faults import expert_faults, grid_faults
from .grid import ExpertGrid, build_expert_grid, on_expert_grid
from .modules import expert_parallelize, stacked_experts

__all__ = [
    "ExpertGrid",
    "balanced_routes",
    "build_expert_grid",
    "expert_faults",
    "expert_parallelize",
    "grid_faults",
    "on_expert_grid",
    "stacked_experts",
]
