"""Rules about which axis to use, in which order, and how many GPUs that takes."""

from __future__ import annotations

from statistics import mean

from autopar.api import faults
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.spec.units import format_seconds
from autopar.search.rule import divisors

from .rule import Best, Bounds, Finding, Question, Rule, Verdict, join, percent


def tensor_parallel_inside_the_node() -> Finding:
    """The same model cut 8 x 8 and 16 x 4, where nodes hold 8 GPUs and where a domain holds 72."""
    rows, costs = [], {}
    for cluster in ("dgx-a100", "dgx-h100", "nvl72-gb200"):
        asked = Question(model="gpt-175b", gpus=128, batch=256, tokens=2048, cluster=cluster)
        inside = asked.estimate(tp=8, pp=8, mbs=1, recompute="full").step_time_seconds
        across = asked.estimate(tp=16, pp=4, mbs=1, recompute="full").step_time_seconds
        costs[cluster] = across / inside - 1
        domain = asked.problem().cluster.tiers[0].domain_size
        rows.append((cluster, str(domain), format_seconds(inside), format_seconds(across), percent(costs[cluster])))
    crossing = min(costs["dgx-a100"], costs["dgx-h100"])
    return Finding(
        verdict=Bounds(confirmed=0.10, refuted=0.0).judge(crossing),
        text=f"Tensor parallel 16 across two nodes costs {percent(costs['dgx-a100'])} on A100 and {percent(costs['dgx-h100'])} on H100."
        f" Inside an NVLink domain that holds all 16 it costs {percent(costs['nvl72-gb200'])}: twice the ranks send as much for half the"
        " work each, whatever the link.",
        columns=("cluster", "GPUs in the domain", "TP 8, PP 8", "TP 16, PP 4", "TP 16 over TP 8"),
        rows=tuple(rows),
        setting="GPT-3 175B on 128 GPUs, 256 sequences of 2,048 tokens, full recomputation, bf16, megatron-core",
    )


ORDERED = (
    Question(model="gpt3-13b", gpus=64, batch=512, tokens=2048),
    Question(model="llama3-70b", gpus=128, batch=512, tokens=8192),
    Question(model="gpt-175b", gpus=256, batch=1536, tokens=2048),
    Question(model="gpt-175b", gpus=1024, batch=1536, tokens=2048, cluster="dgx-a100"),
    Question(model="gpt-530b", gpus=2240, batch=1920, tokens=2048, cluster="dgx-a100"),
)


def tensor_then_pipeline_then_data(questions: tuple[Question, ...] = ORDERED) -> Finding:
    """Tensor parallel over the node, the shallowest pipeline that fits, replicas over the rest: against the best plan.

    "Fits" has two readings, with recomputation as needed and without any; the rule is judged by the better one of each model.
    """
    rows, losses = [], []
    for asked in questions:
        best, needed, without = asked.best(), _ordered(asked), _ordered(asked, recompute="none")
        if best is None or needed is None or without is None:
            continue
        costs = [found.seconds / best.seconds - 1 for found in (needed, without)]
        losses.append(min(costs))
        name = f"{asked.model} on {asked.gpus:,} ({asked.cluster})"
        rows.append((name, _grid(needed), _grid(without), _grid(best), *map(percent, costs)))
    return Finding(
        verdict=Bounds(confirmed=0.02, refuted=0.10).judge(mean(losses)),
        text=f"Following the order costs {percent(mean(losses))} on average and {percent(max(losses))} at most, in the better of two"
        " readings: the shallowest pipeline that fits with recomputation, or without.",
        columns=("model", "by the order", "without recomputation", "best plan", "first over best", "second over best"),
        rows=tuple(rows),
        setting="micro-batch and schedule chosen as well as can be in all cases; bf16, megatron-core",
        text_columns=4,
    )


def _ordered(asked: Question, **fix: str) -> Best | None:
    """Tensor parallel 8, and the fewest stages that fit."""
    for stages in divisors(asked.gpus // 8, limit=asked.problem().model.num_layers):
        sizes = {"tensor_parallel_size": 8, "pipeline_parallel_size": stages, "context_parallel_size": 1}
        if (found := asked.best(fix={**sizes, **fix})) is not None:
            return found
    return None


def _grid(found: Best) -> str:
    strategy = found.strategy
    chunks = f" x {strategy.virtual_pipeline_stages}" if strategy.virtual_pipeline_stages > 1 else ""
    sizes = f"TP {strategy.tensor_parallel_size} PP {strategy.pipeline_parallel_size}{chunks} DP {strategy.data_parallel_size}"
    return f"{sizes} mbs {strategy.micro_batch_size} {strategy.recompute.value}"


def expert_parallel_needs_gpus_of_its_own() -> Finding:
    """EP 16 x TP 8 x PP 8 x DP 32, taken as a product and as Megatron's folded grid."""
    strategy = Strategy(
        tensor_parallel_size=8, sequence_parallel=True, pipeline_parallel_size=8, data_parallel_size=32, expert_parallel_size=16
    )
    claimed, product = 4096, strategy.world_size * strategy.expert_parallel_size
    rows, accepted = [], []
    for gpus in (strategy.world_size, claimed, product):
        asked = Question(model="deepseek-v3", gpus=gpus, batch=2048, tokens=4096)
        refused = faults(asked.problem(), strategy)
        if not refused:
            accepted.append(gpus)
        rows.append((f"{gpus:,}", "runs" if not refused else "; ".join(map(str, refused))))
    verdict = Verdict.CONFIRMED if claimed in accepted else Verdict.REFUTED
    return Finding(
        verdict=verdict,
        text=f"It runs on {join([f'{gpus:,}' for gpus in accepted])} GPUs: experts are spread over the tensor- and data-parallel ranks of"
        f" a stage, of which there are {8 * 32} for 16 expert ranks, and add none.",
        columns=("GPUs", "what the planner says"),
        rows=tuple(rows),
        text_columns=2,
        setting="DeepSeek-V3 (256 experts) with TP 8, PP 8, DP 32, EP 16, megatron-core",
    )


def context_parallel_for_long_sequences(lengths: tuple[int, ...] = (4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144)) -> Finding:
    """The best plan with context parallelism against the best without it, by sequence length at 4M tokens a step."""
    rows, wins = [], {}
    for length in lengths:
        asked = Question(model="llama3-8b", gpus=64, batch=2**22 // length, tokens=length)
        without, split = asked.best(fix={"context_parallel_size": 1}), asked.best(at_least={"context_parallel_size": 2})
        if split is None:
            continue
        ratio = split.seconds / without.seconds - 1 if without else None
        wins[length] = ratio is None or ratio < 0
        size = f"CP {split.strategy.context_parallel_size} TP {split.strategy.tensor_parallel_size}"
        rows.append((f"{length:,}", "does not fit" if ratio is None else percent(ratio), size))
    first = next((length for length in wins if all(wins[later] for later in wins if later >= length)), None)
    short = [length for length, won in wins.items() if length <= 8192 and won]
    verdict = Verdict.CONFIRMED if first is not None and not short else Verdict.PARTLY if first is not None else Verdict.REFUTED
    since = f"pays from {first:,} tokens on" if first is not None else "never pays here"
    return Finding(
        verdict=verdict,
        text=f"Context parallelism {since}.",
        columns=("tokens a sequence", "best with it over best without", "strategy with it"),
        rows=tuple(rows),
        setting="llama3-8b on 64 GPUs (dgx-h100), 4M tokens a step, bf16, megatron-core",
    )


RULES = (
    Rule(name="tp-inside-node", claim="Keep tensor parallelism inside the node", examine=tensor_parallel_inside_the_node),
    Rule(name="tp-pp-dp", claim="Tensor parallel first, then pipeline, then data", examine=tensor_then_pipeline_then_data),
    Rule(
        name="expert-grid",
        claim='EP 16 x TP 8 x PP 8 x DP 32 "needs 4,096 GPUs"',
        examine=expert_parallel_needs_gpus_of_its_own,
    ),
    Rule(
        name="context-parallel",
        claim="Context parallelism is only for long sequences",
        examine=context_parallel_for_long_sequences,
    ),
)
