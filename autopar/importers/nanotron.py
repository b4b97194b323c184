"""Reads nanotron's YAML."""

from __future__ import annotations

from autopar.costmodel.spec.errors import raise_if
from autopar.exporters import nanotron_settings as nt
from autopar.exporters.nanotron_rules import RULES, is_llama
from autopar.exporters.rule import Configuration
from autopar.exporters.settings import integer

from .imported import Imported, Source
from .yaml_file import read_yaml

_SECTIONS = frozenset({
    "general", "parallelism", "model", "tokenizer", "checkpoints", "logging", "tokens", "optimizer", "data", "data_stages", "profiler",
    "lighteval", "s3_upload", "metrics_logging",
})  # fmt: skip


class Nanotron:
    """Protocol :class:`~autopar.importers.imported.Importer`."""

    name = "nanotron"

    def read(self, source: Source) -> Imported:
        """The plan's fields in a YAML document; raises as the protocol says."""
        given = {name: value for name, value in read_yaml(source.text).items() if value is not None and value not in ({}, [])}
        settings, faults = nt.VOCABULARY.typed(given)
        raise_if(faults)
        sizes = [integer(settings, name, 1) for name in (nt.TENSOR, nt.PIPELINE, nt.DATA, nt.CONTEXT)]
        world = sizes[0] * sizes[1] * sizes[2] * sizes[3]
        unknown = sorted(name for name in settings if name.split(".")[0] not in _SECTIONS)
        ignored = sorted(name for name in settings if nt.VOCABULARY[name] is None and name not in unknown)
        model = nt.model_of(settings)
        other = [] if is_llama(settings) or model is None else ["the model is estimated as a Llama: give --model for another kind"]
        return Imported(
            name="nanotron",
            framework="nanotron",
            fields=nt.strategy_fields(settings),
            configuration=Configuration(settings=settings, world_size=world, model=model),
            rules=RULES,
            model=model,
            usual_numbers={field: usual.value for field, usual in nt.USUAL.items()},
            world_size=world if nt.DATA in settings else 0,
            unknown=tuple(unknown),
            ignored=tuple(ignored),
            remarks=tuple(other),
        )
