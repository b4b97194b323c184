"""Rules about micro-batches, pipelines and the global batch."""

from __future__ import annotations

from itertools import count

from autopar.costmodel.spec.units import format_seconds

from .rule import Bounds, Finding, Question, Rule, percent

WANTED_EFFICIENCY = 0.85
RATIO = 4
LARGEST_RATIO = 16


def four_microbatches_a_stage(sizes: tuple[int, ...] = (2, 4, 8, 16)) -> Finding:
    """Busy share of a 1F1B pipeline at four micro-batches a stage, and what 85 % takes."""
    rows, least = [], []
    for stages in sizes:
        plain = {ratio: _busy(stages, ratio) for ratio in (1, 2, RATIO, 8)}
        needed = next((ratio for ratio in count(1) if ratio > LARGEST_RATIO or _busy(stages, ratio) >= WANTED_EFFICIENCY), 0)
        interleaved = _busy(stages, RATIO, chunks=2)
        least.append(plain[RATIO])
        cells = (f"{busy:.1%}".replace("%", " %") for busy in (*plain.values(), interleaved))
        rows.append((str(stages), *cells, f"{needed} x" if needed <= LARGEST_RATIO else f"over {LARGEST_RATIO} x"))
    worst = min(least)
    return Finding(
        verdict=Bounds(confirmed=WANTED_EFFICIENCY, refuted=WANTED_EFFICIENCY - 0.10).judge(worst),
        text=f"With {RATIO} micro-batches a stage plain 1F1B is busy {worst:.0%} to {max(least):.0%} of the time, by the number of stages;"
        f" two virtual stages a rank do better with the same micro-batches.",
        columns=("stages", "1 x", "2 x", "4 x", "8 x", "4 x, interleaved by 2", "85 % from"),
        rows=tuple(rows),
        setting="GPT-3 175B, tensor parallel 8, one replica, dgx-h100; busy: 1 minus the idle share of the step",
    )


def _busy(stages: int, ratio: int, *, chunks: int = 1) -> float:
    asked = Question(model="gpt-175b", gpus=8 * stages, batch=ratio * stages, tokens=2048)
    return 1 - asked.estimate(tp=8, pp=stages, vpp=chunks, mbs=1, recompute="full").bubble_fraction


def larger_microbatches(sizes: tuple[int, ...] = (1, 2, 4, 8, 16)) -> Finding:
    """Step time by micro-batch under a pipeline, where larger ones also leave fewer to fill it."""
    asked = Question(model="gpt-22b", gpus=64, batch=256, tokens=2048)
    steps = {size: asked.estimate(tp=2, pp=8, mbs=size, recompute="full") for size in sizes}
    best = min(sizes, key=lambda size: steps[size].step_time_seconds)
    ratio = steps[max(sizes)].step_time_seconds / steps[best].step_time_seconds - 1
    rows = tuple(
        (
            str(size),
            format_seconds(found.step_time_seconds),
            f"{found.bubble_fraction:.0%}".replace("%", " %"),
            f"{found.mfu:.0%}".replace("%", " %"),
        )
        for size, found in steps.items()
    )
    return Finding(
        verdict=Bounds(confirmed=0.0, refuted=0.05).judge(ratio),
        text=f"The fastest micro-batch is {best}"
        + (
            f"; the largest costs {percent(ratio)} over it, and is idle {steps[max(sizes)].bubble_fraction:.0%} of the time."
            if ratio
            else "."
        ),
        columns=("micro-batch", "step", "idle", "MFU"),
        rows=rows,
        setting=f"{asked.setting}; TP 2, PP 8, DP 4, full recomputation",
    )


def doubling_gpus(sizes: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)) -> Finding:
    """Best plans at a fixed and at a growing batch."""
    fixed: dict[int, float] = {}
    growing: dict[int, float] = {}
    for gpus in sizes:
        small = Question(model="llama3-70b", gpus=gpus, batch=sizes[-1] // 4, tokens=8192)
        large = Question(model="llama3-70b", gpus=gpus, batch=sizes[-1] // 4 * gpus // sizes[0], tokens=8192)
        for table, asked in ((fixed, small), (growing, large)):
            if (found := asked.best()) is not None:
                table[gpus] = asked.batch / found.seconds / gpus
    first, last = min(fixed), max(fixed)
    kept, grown = fixed[last] / fixed[first], growing[last] / growing[first]
    rows = tuple((f"{gpus:,}", *(f"{table[gpus] / table[first]:.0%}".replace("%", " %") for table in (fixed, growing))) for gpus in fixed)
    return Finding(
        verdict=Bounds(confirmed=0.95, refuted=0.80).judge(kept),
        text=f"From {first:,} to {last:,} GPUs each keeps {kept:.0%} of its throughput when the batch stays, and {grown:.0%} when it"
        " grows with them: it is the batch that has to grow.",
        columns=("GPUs", "throughput a GPU, fixed batch", "growing batch"),
        rows=rows,
        setting=f"best plans of llama3-70b on dgx-h100, {sizes[-1] // 4:,} sequences of 8,192 tokens at {first:,} GPUs, bf16,"
        " megatron-core",
    )


RULES = (
    Rule(
        name="four-microbatches",
        claim="Micro-batches at least four times the stages give 85 % efficiency",
        examine=four_microbatches_a_stage,
    ),
    Rule(name="larger-microbatches", claim="Take the largest micro-batch that fits", examine=larger_microbatches),
    Rule(name="doubling-gpus", claim="Twice the GPUs halve the step at the same batch", examine=doubling_gpus),
)
