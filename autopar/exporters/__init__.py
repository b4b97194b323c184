"""Exporters: a plan becomes the files that a training framework reads."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from autopar.costmodel.spec.errors import UnknownNameError

from .exporter import Exporter

GROUP = "autopar.exporters"
"""Entry-point group in which others' exporters are found: each a class without arguments, of protocol :class:`Exporter`."""
_EXPORTERS = {
    "accelerate": "accelerate:Accelerate",
    "deepspeed": "deepspeed:DeepSpeed",
    "megatron-bridge": "megatron_bridge:MegatronBridge",
    "megatron-lm": "megatron_lm:MegatronLM",
    "nanotron": "nanotron:Nanotron",
    "slurm": "torchrun:Slurm",
    "torchrun": "torchrun:Torchrun",
    "torchtitan": "torchtitan:Torchtitan",
}


def exporter_names() -> tuple[str, ...]:
    """What ``--to`` takes, others' exporters included."""
    return tuple(sorted({*_EXPORTERS, *(point.name for point in entry_points(group=GROUP))}))


def exporter(name: str) -> Exporter:
    """The exporter called ``name``.

    Raises:
        UnknownNameError: there is none; names the close matches.
    """
    found: Exporter
    if name in _EXPORTERS:
        module, _, kind = _EXPORTERS[name].partition(":")
        found = getattr(import_module(f"{__name__}.{module}"), kind)()
        return found
    for point in entry_points(group=GROUP, name=name):
        found = point.load()()
        return found
    raise UnknownNameError("export format", name, exporter_names())
