"""Tensor and sequence parallelism: a model's modules split over a group, with DTensor parameters and local arithmetic."""

from .faults import tensor_parallel_faults
from .fused import FusedLayout, fused_layouts
from .local import partial_gradient_parameters
from .parallelize import tensor_parallelize
from .region import Extent, Region, current_region
from .styles import sequence_faults

__all__ = [
    "Extent",
    "FusedLayout",
    "Region",
    "current_region",
    "fused_layouts",
    "partial_gradient_parameters",
    "sequence_faults",
    "tensor_parallel_faults",
    "tensor_parallelize",
]
