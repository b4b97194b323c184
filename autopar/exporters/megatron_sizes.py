"""The sizes that Megatron's rules speak of, by their flags."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.costmodel.spec.errors import Fault, InvalidInputError

from . import megatron_layout as layout
from .rule import Configuration
from .settings import Settings, integer, is_on, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of one configuration; ``world`` is 0 where it is not known."""

    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    virtual: int
    world: int
    layers: int
    is_moe: bool

    @classmethod
    def of(cls, configuration: Configuration) -> Sizes:
        """The sizes in the flags, with Megatron's defaults."""
        given = configuration.settings
        tp, pp = (max(1, integer(given, name, 1)) for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size"))
        moe = integer(given, "num-experts", 0) > 0
        layers = integer(given, "num-layers", 0)
        return cls(
            tp=tp,
            pp=pp,
            cp=max(1, integer(given, "context-parallel-size", 1)),
            ep=max(1, integer(given, "expert-model-parallel-size", 1)),
            etp=max(1, integer(given, "expert-tensor-parallel-size", tp)),
            virtual=virtual_stages(given, layers, pp),
            world=configuration.world_size,
            layers=layers,
            is_moe=moe,
        )

    @property
    def dp(self) -> int:
        """Data-parallel size; 0 where the world size is not known or does not divide."""
        ranks = self.tp * self.pp * self.cp
        return self.world // ranks if self.world and self.world % ranks == 0 else 0

    @property
    def edp(self) -> int:
        """Expert data-parallel size; 0 as for :attr:`dp`."""
        ranks = self.etp * self.ep * self.pp
        return self.world // ranks if self.world and self.world % ranks == 0 else 0


def virtual_stages(settings: Settings, layers: int, pipeline: int) -> int:
    """Virtual stages of a pipeline rank; 1 where a layout cannot be read."""
    try:
        return layout.split_fields(settings, num_layers=layers, pipeline=pipeline)[0]
    except InvalidInputError:
        return 1


def microbatches(configuration: Configuration) -> int:
    """Micro-batches of a data-parallel rank; 0 where they are not known."""
    given, dp = configuration.settings, Sizes.of(configuration).dp
    batch, micro = integer(given, "global-batch-size", 0), integer(given, "micro-batch-size", 0)
    return batch // (micro * dp) if batch and micro and dp else 0


def uses_fsdp(settings: Settings) -> bool:
    """Megatron's or torch's FSDP is on."""
    return is_on(settings, "use-megatron-fsdp") or is_on(settings, "use-torch-fsdp2")


def flag_fault(settings: Settings, flag: str, required: str, fix: str = "") -> Fault:
    """A fault about one flag, with the value it has."""
    value = settings.get(flag, "")
    given = "" if value == "" else " ".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
    return Fault(field=f"--{flag}", given=given, required=required, fix=fix)


def is_full_recompute(settings: Settings) -> bool:
    """Full activation recomputation is asked for."""
    return text(settings, "recompute-granularity") == "full"
