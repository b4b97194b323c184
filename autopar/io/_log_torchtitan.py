"""Logs of torchtitan: a line a logged step, the device mesh, and the job's configuration as far as it was printed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.units import GIB

from .codec import load_json
from .logs import Fact, Parsed, Step, known

_STEP = re.compile(r"\bstep:\s*(\d+)\s.*?\b(?:tps|wps):\s*([0-9,.]+)")
_MEMORY = re.compile(r"\bmemory:\s*([0-9.]+)GiB")
_MESH = re.compile(r"Building \d+-D device mesh with \[([^\]]*)\],\s*\[([^\]]*)\]")
_START = re.compile(r"Training starts at step \d+,? with (.*)")
_NUMBER_AFTER = r"{}:?\s+([0-9,]+)"
_DEVICE = re.compile(r"(?:CUDA|HIP|GPU) capacity:\s*(.+?)(?:\s*\(\d+\))? with [0-9.]+GiB")
_CHECKPOINTING = re.compile(r"Applied (full|selective|none) activation checkpointing")
_MODEL = re.compile(r"Building (llama3|llama4|deepseek_v3|qwen3) (\S+) with")
_DUMP = re.compile(r"Running with (?:args|configs?):\s*(\{.*)")
_AXES = {"pp": "pipeline_parallel_size", "tp": "tensor_parallel_size", "cp": "context_parallel_size", "ep": "expert_parallel_size"}
_DEGREES = {
    "pipeline_parallel_degree": "pipeline_parallel_size",
    "tensor_parallel_degree": "tensor_parallel_size",
    "context_parallel_degree": "context_parallel_size",
    "expert_parallel_degree": "expert_parallel_size",
}
_FAMILIES = {"llama3": "llama3", "llama4": "llama4", "deepseek_v3": "deepseek-v3", "qwen3": "qwen3"}


def read(lines: Sequence[str]) -> Parsed | None:
    """The run, or None where no step is in the form that torchtitan prints.

    It prints tokens a second of one GPU; a step's seconds need the tokens of a step and the number of GPUs, from the mesh, the
    line that announces the start, or the dumped configuration.

    Raises:
        InvalidInputError: the steps are there, and nothing that says how many tokens one of them is.
    """
    found = [match for line in lines if (match := _STEP.search(line))]
    if not found:
        return None
    facts = _configuration(lines) | _mesh(lines) | _start(lines) | _others(lines)
    tokens = _tokens_per_gpu(facts)
    steps = tuple(Step(number=int(match[1]), seconds=_seconds(tokens, match[2])) for match in found)
    memory = [float(match[1]) * GIB for line in lines if (match := _MEMORY.search(line))]
    return Parsed(facts={"framework": "torchtitan"} | facts, steps=steps, peak_memory_bytes=max(memory, default=None))


def _seconds(tokens: float, rate: str) -> float:
    try:
        return tokens / float(rate.replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return math.inf


def _tokens_per_gpu(facts: Mapping[str, Fact]) -> float:
    sizes = [facts.get(name) for name in ("global_batch_size", "sequence_length", "num_gpus")]
    batch, sequence, gpus = (size if isinstance(size, int) else 0 for size in sizes)
    if not batch or not sequence or not gpus:
        missing = [name for name, size in zip(("global batch size", "sequence length", "device mesh"), sizes, strict=True) if not size]
        raise InvalidInputError(f"torchtitan's log does not say its {', '.join(missing)}: keep the lines before the first step")
    return batch * sequence / gpus


def _mesh(lines: Iterable[str]) -> dict[str, Fact]:
    """Sizes of the axes, from the line that builds the mesh; axes of 1 are not printed."""
    match = _last(_MESH, lines)
    if match is None:
        return {}
    names = re.findall(r"[a-z_]+", match[1])
    sizes = [int(size) for size in re.findall(r"\d+", match[2])]
    mesh = dict(zip(names, sizes, strict=False))
    facts: dict[str, Fact] = {field: mesh.get(axis, 1) for axis, field in _AXES.items() if axis != "ep"}
    shards = math.prod(size for name, size in mesh.items() if name.startswith("dp"))
    facts |= {"data_parallel_size": shards, "num_gpus": math.prod(sizes)}
    sharded = any(name.startswith("dp_shard") and size > 1 for name, size in mesh.items())
    return facts | {"sharding_as_stated": "FSDP2" if sharded else "0"}


def _start(lines: Iterable[str]) -> dict[str, Fact]:
    match = _last(_START, lines)
    if match is None:
        return {}
    words = {"global_batch_size": "global batch size", "sequence_length": "sequence length", "micro_batch_size": "local batch size"}
    found = {field: re.search(_NUMBER_AFTER.format(text), match[1]) for field, text in words.items()}
    return {field: int(value[1].replace(",", "")) for field, value in found.items() if value}


def _others(lines: Sequence[str]) -> dict[str, Fact]:
    device, kept, model = _last(_DEVICE, lines), _last(_CHECKPOINTING, lines), _last(_MODEL, lines)
    return known(
        device=device[1] if device else None,
        recompute=kept[1] if kept else None,
        model_name=f"{_FAMILIES[model[1]]}-{model[2].lower()}" if model else None,
    )


def _configuration(lines: Iterable[str]) -> dict[str, Fact]:
    """The dumped configuration, one line of JSON; what is not known by name is passed over."""
    match = _last(_DUMP, lines)
    try:
        dump = load_json(match[1]) if match else None
    except InvalidInputError:
        return {}
    if not isinstance(dump, dict):
        return {}
    parallel, training, model = (_section(dump, name) for name in ("parallelism", "training", "model"))
    facts = known(
        sequence_length=_size(training, "seq_len"),
        micro_batch_size=_size(training, "local_batch_size") or _size(training, "batch_size"),
        global_batch_size=_size(training, "global_batch_size"),
        recompute=_text(_section(dump, "activation_checkpoint"), "mode"),
        **{field: _size(parallel, degree) for degree, field in _DEGREES.items()},
    )
    name, flavor = _text(model, "name"), _text(model, "flavor")
    if name in _FAMILIES and flavor:
        facts["model_name"] = f"{_FAMILIES[name]}-{flavor.lower()}"
    return facts | {"precision": "fp8" if "float8" in str(model.get("converters", "")) else "bf16"}


def _section(dump: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = dump.get(name)
    return found if isinstance(found, dict) else {}


def _size(section: Mapping[str, Any], name: str) -> int | None:
    """A positive number; -1 means "work it out" in torchtitan, and is not known here."""
    value = section.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(section: Mapping[str, Any], name: str) -> str | None:
    value = section.get(name)
    return value if isinstance(value, str) and value else None


def _last(pattern: re.Pattern[str], lines: Iterable[str]) -> re.Match[str] | None:
    found = None
    for line in lines:
        found = pattern.search(line) or found
    return found
