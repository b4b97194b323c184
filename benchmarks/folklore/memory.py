"""Rules about what saves memory and what that costs."""

from __future__ import annotations

from statistics import mean

from autopar.costmodel.spec.units import format_seconds

from .rule import Bounds, Finding, Question, Rule, gibibytes, percent

NEARLY_FREE = 0.05


def selective_recompute() -> Finding:
    """Time and memory of the three choices where attention keeps its scores and where it does not."""
    rows, costs, saved = [], [], {}
    for framework, cluster in (("megatron-2022", "dgx-a100"), ("megatron-core", "dgx-h100")):
        asked = Question(model="gpt-22b", gpus=8, batch=4, tokens=2048, cluster=cluster, framework=framework)
        steps = {kind: asked.estimate(tp=8, mbs=4, recompute=kind) for kind in ("none", "selective", "full")}
        base = steps["none"]
        activations = {kind: found.stages[0].memory.activations for kind, found in steps.items()}
        for kind, found in steps.items():
            cost = found.step_time_seconds / base.step_time_seconds - 1
            rows.append((framework, kind, format_seconds(found.step_time_seconds), percent(cost), gibibytes(activations[kind])))
        costs.append(steps["selective"].step_time_seconds / base.step_time_seconds - 1)
        saved[framework] = 1 - activations["selective"] / activations["none"]
    unfused, fused = saved.values()
    return Finding(
        verdict=Bounds(confirmed=NEARLY_FREE, refuted=3 * NEARLY_FREE).judge(costs[0]),
        text=f"Where attention keeps its scores it costs {costs[0]:.1%} and saves {unfused:.0%} of the activations; under fused attention"
        f" it costs {costs[1]:.1%} and saves {fused:.0%}.",
        columns=("framework", "recompute", "step", "over none", "activations"),
        rows=tuple(rows),
        text_columns=2,
        setting="GPT 22B, tensor parallel 8, micro-batch 4, sequences of 2,048, A100 with unfused and H100 with fused attention",
    )


def fp8_halves_memory(names: tuple[tuple[str, int, int], ...] = (("llama3-8b", 1, 1), ("llama3-70b", 8, 4), ("gpt-175b", 8, 8))) -> Finding:
    """Peak memory of the same strategy in BF16 and FP8."""
    rows, ratios = [], []
    for name, tensor, stages in names:
        found = {}
        for precision in ("bf16", "fp8"):
            asked = Question(model=name, gpus=64, batch=64, tokens=4096, precision=precision)
            found[precision] = asked.estimate(tp=tensor, pp=stages, mbs=1)
        wide, narrow = (found[precision] for precision in ("bf16", "fp8"))
        ratios.append(narrow.peak_memory_bytes / wide.peak_memory_bytes)
        faster = wide.step_time_seconds / narrow.step_time_seconds
        sizes = (gibibytes(wide.peak_memory_bytes), gibibytes(narrow.peak_memory_bytes))
        rows.append((name, f"TP {tensor}, PP {stages}", *sizes, percent(ratios[-1] - 1), f"{faster:.2f} x"))
    return Finding(
        verdict=Bounds(confirmed=0.55, refuted=0.75).judge(mean(ratios)),
        text=f"The peak changes by {percent(mean(ratios) - 1)} on average: weights, gradients and states stay as wide, only the inputs of"
        " linear layers are kept in a byte. It is speed that FP8 brings.",
        columns=("model", "strategy", "BF16", "FP8", "memory", "faster"),
        rows=tuple(rows),
        text_columns=2,
        setting="64 GPUs (dgx-h100), 64 sequences of 4,096 tokens, no recomputation, megatron-core",
    )


SIZES = ("gpt3-1.3b", "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt3-20b", "gpt-39b", "gpt-76b", "gpt-175b")


def sharding_beats_layouts(names: tuple[str, ...] = SIZES, gpus: tuple[int, ...] = (64, 512)) -> Finding:
    """The fastest fully sharded strategy against the fastest layout, under one and the same framework profile."""
    rows = []
    largest: dict[int, str] = {}
    alone = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "context_parallel_size": 1, "zero_stage": 3}
    for name in names:
        cells = []
        for size in gpus:
            asked = Question(model=name, gpus=size, batch=1024, tokens=2048)
            sharded, layout = asked.best(fix=alone, zero_stages=(0, 1, 2, 3)), asked.best()
            if sharded is None or layout is None:
                cells.append("does not fit" if sharded is None else "only it fits")
                continue
            ratio = sharded.seconds / layout.seconds - 1
            if ratio <= 0.01:
                largest[size] = name
            cells.append(f"{percent(ratio)} against TP {layout.strategy.tensor_parallel_size} PP {layout.strategy.pipeline_parallel_size}")
        rows.append((name, *cells))
    bounds = [f"{largest[size]} at {size} GPUs" if size in largest else f"no model at {size} GPUs" for size in gpus]
    known = [names.index(largest[size]) if size in largest else -1 for size in gpus]
    spread = max(known) - min(known) if min(known) >= 0 else len(names)
    return Finding(
        verdict=Bounds(confirmed=0.5, refuted=len(names) - 0.5).judge(spread),
        text=f"ZeRO-3 alone is within 1 % of the best layout up to {' and '.join(bounds)}: the size depends on the batch each GPU is left"
        " with as much as on the model.",
        columns=("model", *(f"{size} GPUs" for size in gpus)),
        rows=tuple(rows),
        setting="step of ZeRO-3 alone over the best layout, 1,024 sequences of 2,048 tokens, dgx-h100, bf16, megatron-core with sharding"
        " added",
    )


def padding_pays(name: str = "gpt2-large") -> Finding:
    """Vocabulary padded to a multiple of 128 x tensor parallel, against the least that divides."""
    rows, steps, peaks = [], [], []
    for size in (1, 2, 4):
        asked = Question(model=name, gpus=8, batch=64, tokens=1024)
        padded, plain = (asked.estimate(profile={"vocab_padding_multiple": multiple}, tp=size, mbs=4) for multiple in (128, 1))
        steps.append(padded.step_time_seconds / plain.step_time_seconds - 1)
        peaks.append(padded.peak_memory_bytes / plain.peak_memory_bytes - 1)
        rows.append((str(size), percent(steps[-1]), percent(peaks[-1])))
    return Finding(
        verdict=Bounds(confirmed=0.005, refuted=0.02).judge(max(*steps, *peaks)),
        text=f"Padding changes the step by {percent(min(steps))} to {percent(max(steps))} and the peak by at most {percent(max(peaks))}:"
        " products whose size is no multiple of the tensor cores' tiles are slow, and a tensor-parallel size then always divides the"
        " vocabulary.",
        columns=("tensor parallel", "step", "peak memory"),
        rows=tuple(rows),
        setting=f"{name} (50,257 tokens) on 8 H100, megatron-core; padded to a multiple of 128 x tensor parallel over padded to one of"
        " tensor parallel",
    )


RULES = (
    Rule(name="selective-recompute", claim="Selective recomputation is nearly free", examine=selective_recompute),
    Rule(name="fp8-memory", claim="FP8 halves memory", examine=fp8_halves_memory),
    Rule(name="zero3-below-n", claim="ZeRO-3 beats 3D parallelism below a certain number of parameters", examine=sharding_beats_layouts),
    Rule(name="vocabulary-padding", claim="Pad the vocabulary: it costs nothing", examine=padding_pays),
)
