"""Names of modules and parameters without what wrappers put into them."""

from __future__ import annotations

_WRAPPERS = ("_checkpoint_wrapped_module", "_orig_mod")


def clean_name(name: str) -> str:
    """``name`` as the unwrapped model has it: without the parts that activation checkpointing and compilation add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)
