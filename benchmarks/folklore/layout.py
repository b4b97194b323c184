"""Rules about which axis to use, in which order, and how many GPUs that takes."""

from __future__ import annotations

from statistics import mean

from autopar.api import faults
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.spec.units import format_seconds

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
        text=f"Crossing the node costs {percent(costs['dgx-a100'])} on A100 and {percent(costs['dgx-h100'])} on H100; where the NVLink domain is"
        f" larger than the node, {percent(costs['nvl72-gb200'])}: the domain is what counts.",
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
    """Tensor parallel over the node, the shallowest pipeline that fits, replicas over the rest: against the best plan."""
    rows, losses = [], []
    for asked in questions:
        best, ordered = asked.best(), _ordered(asked)
        if best is None or ordered is None:
            continue
        losses.append(ordered.seconds / best.seconds - 1)
        rows.append((f"{asked.model} on {asked.gpus:,} ({asked.cluster})", _grid(ordered), _grid(best), percent(losses[-1])))
    return Finding(
        verdict=Bounds(confirmed=0.02, refuted=0.10).judge(mean(losses)),
        text=f"Following the order costs {percent(mean(losses))} on average and {percent(max(losses))} at most.",
        columns=("model", "by the order", "best plan", "order over best"),
        rows=tuple(rows),
        setting="micro-batch, schedule and recomputation chosen as well as can be in both cases; bf16, megatron-core",
    )


def _ordered(asked: Question) -> Best | None:
    stages = 1
    while stages <= asked.gpus // 8:
        found = asked.best(fix={"tensor_parallel_size": 8, "pipeline_parallel_size": stages, "context_parallel_size": 1})
        if found is not None:
            return found
        stages *= 2
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
        text=f"It runs on {join([f'{gpus:,}' for gpus in accepted])} GPUs: experts are spread over the tensor- and data-parallel ranks of a stage,"
        f" of which there are {8 * 32} for 16 expert ranks, and add none.",
        columns=("GPUs", "what the planner says"),
        rows=tuple(rows),
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
        columns=("tokens a sequence", "best with it over best without", "with"),
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
