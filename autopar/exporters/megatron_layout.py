"""Megatron's ways to split layers over pipeline stages: evenly, first and last stage apart, or a layout string.

A layout string names what each virtual stage holds, in model order: ``E`` embedding, ``t`` decoder layer, ``m`` multi-token
prediction layer, ``L`` loss; ``|`` ends a stage and ``*n`` repeats the letter or the bracketed part before it
(Megatron-LM ``pipeline_parallel_layer_layout.py``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from autopar.costmodel.spec.errors import Fault, raise_if

from .settings import Settings, Value, integer, is_on, text

LAYOUT = "pipeline-model-parallel-layout"
VIRTUAL_STAGES = "num-virtual-stages-per-pipeline-rank"
LAYERS_PER_VIRTUAL = "num-layers-per-virtual-pipeline-stage"
FIRST, LAST = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
FOR_EMBEDDING, FOR_LOSS = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"
MAX_STAGES = 10_000

_TOKEN = re.compile(r"[Etm L|()]|\*\d{1,5}")


def split_settings(layers: Sequence[int], *, uneven: bool, virtual_stages: int, mtp_layers: int) -> dict[str, Value]:
    """The flags that make Megatron build ``layers`` in its virtual stages: nothing but their number where they are equal."""
    if uneven:
        return {LAYOUT: layout_string(layers, mtp_layers=mtp_layers)}
    return {VIRTUAL_STAGES: virtual_stages} if virtual_stages > 1 else {}


def layout_string(layers: Sequence[int], *, mtp_layers: int = 0) -> str:
    """``Et*2|(t*3|)*6t*2L`` for 2, six times 3, and 2 decoder layers."""
    last = len(layers) - 1
    stages = [f"{'E' if index == 0 else ''}{_repeated('t', count)}" for index, count in enumerate(layers)]
    stages[last] += _repeated("m", mtp_layers) + "L"
    runs = [(stage, len(list(run))) for stage, run in groupby(stages)]
    return "".join(f"({stage}|)*{count}" if count > 1 else f"{stage}|" for stage, count in runs).removesuffix("|")


def _repeated(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 1 else letter * count


def layout_stages(layout: str) -> tuple[str, ...]:
    """The letters of each virtual stage of a layout string, in model order.

    Raises:
        InvalidInputError: the string is not a layout.
    """
    plain = layout.replace(",", "").replace(" ", "")
    if "".join(_TOKEN.findall(plain)) != plain or plain.count("(") != plain.count(")"):
        raise_if([_unreadable(layout)])
    expanded, rest = _expanded(_TOKEN.findall(plain))
    stages = tuple(expanded.split("|"))
    if rest or len(stages) > MAX_STAGES:
        raise_if([_unreadable(layout)])
    return stages


def _unreadable(layout: str) -> Fault:
    required = "a layout is made of E, t, m, L, | between stages, brackets and *n"
    return Fault(field=f"--{LAYOUT}", given=repr(layout[:80]), required=required, fix="for example 'Et*2|(t*3|)*6t*2L'")


def _expanded(tokens: list[str]) -> tuple[str, list[str]]:
    """The text that ``tokens`` stand for up to a closing bracket, and the tokens after it."""
    out: list[str] = []
    while tokens:
        token, *tokens = tokens
        if token == ")":
            return "".join(out), tokens
        if token == "(":
            inner, tokens = _expanded(tokens)
            out.append(inner)
        elif token.startswith("*") and out:
            out[-1] = (out[-1] * int(token[1:]))[: 100 * MAX_STAGES]
        else:
            out.append(token)
    return "".join(out), []


def split_fields(settings: Settings, *, num_layers: int, pipeline: int) -> tuple[int, tuple[int, ...]]:
    """Virtual stages of a pipeline rank, and the decoder layers of each virtual stage; () where they are equal.

    Where the flags leave no whole split, the parts come back as they are: the rules say what is wrong with them.

    Raises:
        InvalidInputError: a layout that cannot be read.
    """
    if layout := text(settings, LAYOUT):
        stages = [stage.count("t") for stage in layout_stages(layout)]
        return max(1, len(stages) // pipeline), _unless_equal(stages)
    accounted = num_layers + is_on(settings, FOR_EMBEDDING) + is_on(settings, FOR_LOSS)
    virtual = integer(settings, VIRTUAL_STAGES, 1)
    if (per_stage := integer(settings, LAYERS_PER_VIRTUAL, 0)) > 0:
        virtual = max(1, accounted // pipeline // per_stage)
    count = max(1, pipeline * virtual)
    if FIRST in settings or LAST in settings:
        return virtual, _unless_equal(_apart(settings, num_layers, pipeline, virtual))
    split = [accounted // count] * count
    split[0] -= is_on(settings, FOR_EMBEDDING)
    split[-1] -= is_on(settings, FOR_LOSS)
    return virtual, _unless_equal(split)


def _apart(settings: Settings, num_layers: int, pipeline: int, virtual: int) -> list[int]:
    """Layers of the stages where the first or last pipeline rank has its own number of them."""
    named = {0: integer(settings, FIRST, 0), pipeline - 1: integer(settings, LAST, 0)}
    fixed = {rank: layers for rank, layers in named.items() if layers}
    middle = pipeline - len(fixed)
    of_rank = (num_layers - sum(fixed.values())) // middle if middle else 0
    return [fixed.get(stage % pipeline, of_rank) // virtual for stage in range(pipeline * virtual)]


def _unless_equal(split: Sequence[int]) -> tuple[int, ...]:
    return () if len(set(split)) <= 1 else tuple(split)
