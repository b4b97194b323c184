"""Context parallelism: sequences split over ranks, whose attention sees the keys and values of all."""

from .attention import context_parallelize
from .faults import batch_faults, context_faults, kind_faults, loss_faults, sequence_faults
from .split import MASK, ContextGroup, context_group

__all__ = [
    "MASK",
    "ContextGroup",
    "batch_faults",
    "context_faults",
    "context_group",
    "context_parallelize",
    "kind_faults",
    "loss_faults",
    "sequence_faults",
]
