"""The words of the command line: short names of a strategy's fields, and ``tp=8`` to a field and a value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from enum import StrEnum

from autopar.costmodel.spec.errors import Fault, raise_if
from autopar.costmodel.spec.framework import ExecutionProfile
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, RankOrder, Recompute, RecomputeModule, Strategy

SHORT_NAMES: dict[str, str] = {
    "tp": "tensor_parallel_size",
    "sp": "sequence_parallel",
    "pp": "pipeline_parallel_size",
    "vpp": "virtual_pipeline_stages",
    "schedule": "pipeline_schedule",
    "cp": "context_parallel_size",
    "cp_kind": "context_parallel_kind",
    "ep": "expert_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "dp": "data_parallel_size",
    "mbs": "micro_batch_size",
    "zero": "zero_stage",
    "recompute": "recompute",
    "recompute_layers": "num_recompute_layers",
    "order": "rank_order",
}

CHOICES: dict[str, type[StrEnum]] = {
    "pipeline_schedule": PipelineSchedule,
    "context_parallel_kind": ContextParallelKind,
    "recompute": Recompute,
    "rank_order": RankOrder,
}

_FIELDS = {**SHORT_NAMES, **{name: name for name in SHORT_NAMES.values()}}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_FROM_ZERO = ("zero_stage", "num_recompute_layers")


def short_name(field: str) -> str:
    """``tp`` for ``tensor_parallel_size``; the field itself where it has no short form."""
    return next((short for short, name in SHORT_NAMES.items() if name == field), field)


def parse_names(texts: Iterable[str], *, flag: str) -> tuple[str, ...]:
    """Fields named by ``cp`` or ``cp,ep``, in order.

    Raises:
        InvalidInputError: naming every word that is no field.
    """
    faults: list[Fault] = []
    names = [_field(word, flag, faults) for word in _words(texts)]
    raise_if(faults)
    return tuple(dict.fromkeys(names))


def parse_assignments(texts: Iterable[str], *, flag: str) -> dict[str, bool | int | str]:
    """``{field: value}`` of ``tp=8`` or ``tp=8,recompute=full``.

    Raises:
        InvalidInputError: with a fault for every word that is not a known field and a value it takes.
    """
    values: dict[str, bool | int | str] = {}
    faults: list[Fault] = []
    for word in _words(texts):
        key, equals, text = word.partition("=")
        if not equals:
            faults.append(Fault(field=flag, given=repr(word), required="name=value is needed", fix=f"for example {flag} tp=8"))
            continue
        field = _field(key, flag, faults)
        value = _value(field, text, f"{flag} {key}", faults) if field else 0
        if values.get(field, value) != value:
            faults.append(Fault(field=f"{flag} {key}", given=repr(text), required=f"was already given as {values[field]}"))
        values[field] = value
    raise_if(faults)
    return values


def parse_limits(texts: Iterable[str], *, flag: str) -> dict[str, int]:
    """Like :func:`parse_assignments` for bounds, which are whole numbers.

    Raises:
        InvalidInputError: also where a field has no order to bound, such as ``schedule``.
    """
    values = parse_assignments(texts, flag=flag)
    faults = [
        Fault(
            field=f"{flag} {short_name(field)}",
            given=repr(value),
            required="only a size has a bound",
            fix=f"use --fix {short_name(field)}=…",
        )
        for field, value in values.items()
        if isinstance(value, bool | str)
    ]
    raise_if(faults)
    return {field: int(value) for field, value in values.items()}


def parse_layers(text: str, *, flag: str = "--pipeline-layers") -> tuple[int, ...]:
    """Decoder layers of each virtual stage from ``8,8,7,7``, or ``8*3,7`` for ``8,8,8,7``.

    Raises:
        InvalidInputError: a part is not a number of layers.
    """
    layers: list[int] = []
    for part in text.split(","):
        count, star, times = part.strip().partition("*")
        if not _is_number(count) or (star and not _is_number(times)) or (star and int(times) > 10_000):
            raise_if([Fault(field=flag, given=repr(part), required="a number of layers is needed", fix=f"for example {flag} 8,8,7,7")])
        layers += [int(count)] * (int(times) if star else 1)
    return tuple(layers)


def constraint_texts(
    fixed: Mapping[str, object], maximum: Mapping[str, int], minimum: Mapping[str, int], forbidden: Iterable[str]
) -> tuple[str, ...]:
    """Constraints as a plan file and a report name them: ``tp=8``, ``max tp=8``, ``forbid cp``."""
    texts = [f"{short_name(field)}={_text(value)}" for field, value in fixed.items()]
    texts += [f"max {short_name(field)}={value}" for field, value in maximum.items()]
    texts += [f"min {short_name(field)}={value}" for field, value in minimum.items()]
    return (*texts, *(f"forbid {short_name(field)}" for field in forbidden))


def make_strategy(values: Mapping[str, object], *, world_size: int | None = None, framework: ExecutionProfile | None = None) -> Strategy:
    """A strategy from fields by their short or full names.

    ``data_parallel_size`` is ``world_size`` over the other sizes where it is absent; sequence parallelism is on where
    tensor parallelism is, and a schedule follows from the virtual stages, unless they are given. A ``framework`` without
    sequence parallelism, ZeRO-1 or rings gets what it has instead: none, its lowest stage, its own context parallelism.

    Raises:
        InvalidInputError: an unknown field, a value out of range, or sizes that do not make ``world_size``.
    """
    faults: list[Fault] = []
    named: dict[str, object] = {}
    for key, value in values.items():
        if key == "recompute_modules":
            named[key] = _modules(value, faults)
            continue
        field = key if key in ("pipeline_layers", "stage_recompute_layers", "shard_group_size") else _field(key, "strategy", faults)
        is_choice_text = field in CHOICES and isinstance(value, str)
        named[field] = CHOICES[field](str(_value(field, str(value), key, faults))) if is_choice_text and not faults else value
    raise_if(faults)
    tensor, virtual = named.get("tensor_parallel_size", 1), named.get("virtual_pipeline_stages", 1)
    named.setdefault("sequence_parallel", tensor != 1 and (framework is None or framework.sequence_parallel))
    if framework is not None:
        pipelined = named.get("pipeline_parallel_size", 1) != 1
        stages = framework.zero_stages_with_pipeline if pipelined else framework.zero_stages
        named.setdefault("zero_stage", 1 if 1 in stages else min(stages))
        if named.get("context_parallel_size", 1) != 1 and framework.context_parallel_kinds:
            named.setdefault("context_parallel_kind", framework.context_parallel_kinds[0])
    named.setdefault("pipeline_schedule", PipelineSchedule.ONE_F_ONE_B if virtual == 1 else PipelineSchedule.INTERLEAVED)
    derived = "data_parallel_size" not in named
    strategy = Strategy(**named)  # type: ignore[arg-type]
    if world_size is None or world_size == strategy.world_size:
        return strategy
    return _fill_data_parallel(strategy, named, world_size) if derived else _refuse_world_size(strategy, world_size)


def _modules(value: object, faults: list[Fault]) -> tuple[RecomputeModule, ...]:
    """Modules from their names, or from ``mla_up_proj+mlp``."""
    names = [str(name) for name in value] if isinstance(value, tuple | list) else [name for name in str(value).split("+") if name]
    known = {module.value: module for module in RecomputeModule}
    faults += [
        Fault(field="recompute_modules", given=repr(name), required=f"one of {', '.join(known)}") for name in names if name not in known
    ]
    return tuple(known[name] for name in names if name in known)


def _fill_data_parallel(strategy: Strategy, named: Mapping[str, object], world_size: int) -> Strategy:
    model_parallel = strategy.world_size
    if world_size % model_parallel:
        raise_if(
            [
                Fault(
                    field="gpus",
                    given=str(world_size),
                    required=f"tp x pp x cp = {_product(strategy)} does not divide it, so no data-parallel size is left",
                    fix=_sizes_that_divide(strategy, world_size) or _nearest_multiples(world_size, model_parallel),
                )
            ]
        )
    return Strategy(**{**named, "data_parallel_size": world_size // model_parallel})  # type: ignore[arg-type]


def _refuse_world_size(strategy: Strategy, world_size: int) -> Strategy:
    required = f"tp x pp x cp x dp = {_product(strategy)} x {strategy.data_parallel_size} = {strategy.world_size} ranks were asked for"
    model_parallel = strategy.world_size // strategy.data_parallel_size
    fix = f"nearest valid: gpus={strategy.world_size}"
    if world_size % model_parallel == 0:
        fix += f" or dp={world_size // model_parallel}"
    raise_if([Fault(field="gpus", given=str(world_size), required=required, fix=fix)])
    return strategy


def _product(strategy: Strategy) -> str:
    return f"{strategy.tensor_parallel_size} x {strategy.pipeline_parallel_size} x {strategy.context_parallel_size}"


def _sizes_that_divide(strategy: Strategy, world_size: int) -> str:
    """Values of one of the sizes, on either side of the one given, with which all divide; and the numbers of GPUs as it is.

    Of tensor parallelism powers of two alone, which heads divide by; nothing where only leaving the technique out would do.
    """
    fixes = []
    for short in ("tp", "pp", "cp"):
        size = getattr(strategy, _FIELDS[short])
        others = strategy.world_size // strategy.data_parallel_size // size
        if size == 1 or world_size % others:
            continue
        left = world_size // others
        valid = [n for n in range(2, min(left, 4096) + 1) if left % n == 0 and (short != "tp" or n.bit_count() == 1)]
        if nearest := [*[n for n in valid if n < size][-1:], *[n for n in valid if n > size][:1]]:
            fixes.append(f"{short}={' or '.join(map(str, nearest))}")
    gpus = _nearest_multiples(world_size, strategy.world_size // strategy.data_parallel_size)
    return f"nearest valid: {', or '.join(fixes)}, or gpus={gpus.removeprefix('nearest valid: ')}" if fixes else ""


def _nearest_multiples(value: int, step: int) -> str:
    below = value // step * step
    return f"nearest valid: {f'{below} or ' if below else ''}{below + step}"


def _words(texts: Iterable[str]) -> list[str]:
    return [word for text in texts for word in text.replace(",", " ").split()]


def _field(word: str, flag: str, faults: list[Fault]) -> str:
    key = word.strip().lower().lstrip("-").replace("-", "_")
    if key in _FIELDS:
        return _FIELDS[key]
    close = difflib.get_close_matches(key, _FIELDS, n=2, cutoff=0.6)
    fix = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(SHORT_NAMES)}"
    faults.append(Fault(field=flag, given=repr(word), required="no part of a strategy has this name", fix=fix))
    return ""


def _value(field: str, text: str, where: str, faults: list[Fault]) -> bool | int | str:
    lowered = text.strip().lower()
    if (choice := CHOICES.get(field)) is not None:
        allowed = [member.value for member in choice]
        spelled = {member.replace("-", "_"): member for member in allowed}
        if (value := lowered.replace("-", "_")) in spelled:
            return spelled[value]
        faults.append(Fault(field=where, given=repr(text), required=f"one of {', '.join(allowed)}"))
        return ""
    if field == "sequence_parallel":
        if lowered in _TRUE or lowered in _FALSE:
            return lowered in _TRUE
        faults.append(Fault(field=where, given=repr(text), required="true or false"))
        return False
    least = 0 if field in _FROM_ZERO else 1
    if _is_number(lowered) and int(lowered) >= least:
        return int(lowered)
    faults.append(Fault(field=where, given=repr(text), required=f"a whole number of at least {least} is needed"))
    return least


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
