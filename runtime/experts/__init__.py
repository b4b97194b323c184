"""Expert parallelism: the experts of a layer split over ranks, to which tokens travel and from which they return."""

from .dispatch import Routing, balanced_routes, exchanged_routes
from .faults import expert_faults, grid_faults
from .grid import ExpertGrid, build_expert_grid, on_expert_grid
from .modules import expert_parallelize, stacked_experts

__all__ = [
    "ExpertGrid",
    "Routing",
    "balanced_routes",
    "build_expert_grid",
    "exchanged_routes",
    "expert_faults",
    "expert_parallelize",
    "grid_faults",
    "on_expert_grid",
    "stacked_experts",
]
