"""The fixed questions whose answers are watched for drift: catalog models on catalog clusters, strategy by strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import autopar


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One question to :func:`autopar.estimate`; ``strategy`` by short names, as ``tp=8 pp=4``."""

    model: str
    cluster: str
    gpus: int
    batch: int
    tokens: int
    precision: str
    framework: str
    strategy: str

    @property
    def name(self) -> str:
        """The question in one line; the key of the snapshot."""
        batch = f"{self.batch}x{self.tokens}"
        return f"{self.model} on {self.gpus} {self.cluster}, {batch}, {self.precision}, {self.framework}: {self.strategy}"

    def answer(self) -> dict[str, float]:
        """Seconds of a step and bytes at the peak."""
        pairs = (assignment.split("=") for assignment in self.strategy.split())
        found = autopar.estimate(
            self.model,
            cluster=self.cluster,
            gpus=self.gpus,
            global_batch_size=self.batch,
            sequence_length=self.tokens,
            precision=self.precision,
            framework=self.framework,
            strategy={name: _value(value) for name, value in pairs},
        )
        return {"step_time_seconds": found.step_time_seconds, "peak_memory_bytes": found.peak_memory_bytes}


def _value(text: str) -> int | bool | str:
    """A size, a flag or a name."""
    return int(text) if text.isdecimal() else {"true": True, "false": False}.get(text, text)


_QUESTIONS: tuple[tuple[str, str, int, int, int, str, str, tuple[str, ...]], ...] = (
    ("gpt-1.2b", "dgx-2h", 64, 512, 1024, "fp16", "megatron-2019", ("tp=1 zero=0 mbs=8", "tp=2 sp=false zero=0 mbs=8", "tp=8 sp=false zero=0 mbs=8")),
    ("gpt-22b", "selene", 8, 4, 2048, "fp16", "megatron-2022", ("tp=8 mbs=4 recompute=full", "tp=8 mbs=4 recompute=selective", "tp=4 pp=2 mbs=1")),
    (
        "gpt-175b", "selene", 64, 64, 2048, "fp16", "megatron-2022",
        ("tp=8 pp=8 vpp=3 mbs=1 recompute=full", "tp=8 pp=8 vpp=3 mbs=1 recompute=selective", "tp=8 pp=8 mbs=1 recompute=full"),
    ),
    (
        "gpt-175b", "dgx-h100", 256, 1536, 2048, "bf16", "megatron-core",
        ("tp=8 pp=4 mbs=1", "tp=4 pp=8 mbs=1", "tp=8 pp=8 vpp=3 mbs=1", "tp=8 pp=4 mbs=2 recompute=full", "tp=8 pp=16 vpp=2 mbs=1"),
    ),
    ("gpt-530b", "selene", 280, 280, 2048, "fp16", "megatron-2022", ("tp=8 pp=35 vpp=3 mbs=1 recompute=full", "tp=8 pp=35 mbs=1 recompute=full")),
    (
        "llama3-8b", "dgx-h100", 8, 128, 8192, "bf16", "torchtitan",
        ("tp=1 zero=3 mbs=1 recompute=full", "tp=2 zero=3 mbs=1 recompute=full", "tp=8 zero=2 mbs=1", "tp=1 pp=4 zero=2 mbs=1 schedule=zero_bubble"),
    ),
    ("llama3-8b", "dgx-h100", 64, 256, 8192, "fp8", "megatron-core", ("tp=1 cp=2 mbs=1", "tp=2 mbs=1", "tp=4 mbs=2", "tp=2 cp=2 mbs=1")),
    ("llama2-7b", "dgx-a100", 64, 512, 4096, "bf16", "megatron-core", ("tp=1 mbs=1", "tp=2 mbs=1", "tp=1 pp=2 mbs=1", "tp=1 pp=4 vpp=2 mbs=1")),
    ("llama2-7b", "aws-p4d", 64, 512, 4096, "bf16", "fsdp", ("tp=1 zero=3 mbs=1 recompute=full", "tp=1 zero=3 mbs=2 recompute=full")),
    ("llama2-70b", "dgx-h100", 64, 128, 4096, "fp8", "megatron-core", ("tp=4 pp=4 vpp=5 mbs=1", "tp=8 pp=2 mbs=1", "tp=4 pp=4 mbs=1")),
    (
        "llama3-70b", "dgx-h200", 128, 512, 8192, "bf16", "megatron-core",
        ("tp=8 pp=4 mbs=1", "tp=4 pp=4 vpp=5 mbs=1", "tp=4 pp=4 cp=2 mbs=1", "tp=8 mbs=1 recompute=full"),
    ),
    ("llama3-70b", "dgx-b200", 64, 256, 8192, "mxfp8", "megatron-core", ("tp=2 pp=4 mbs=1", "tp=4 pp=2 mbs=1")),
    ("llama3.1-405b", "nvl72-gb200", 288, 576, 8192, "fp8", "megatron-core", ("tp=4 pp=9 mbs=1", "tp=8 pp=9 mbs=1", "tp=4 pp=18 vpp=7 mbs=1")),
    ("llama3.1-405b", "grand-teton-h100", 16384, 2048, 8192, "bf16", "megatron-core", ("tp=8 pp=16 mbs=1", "tp=8 pp=16 cp=2 mbs=1")),
    ("mixtral-8x7b", "dgx-h100", 64, 256, 4096, "bf16", "megatron-core", ("tp=1 ep=8 pp=4 mbs=1", "tp=2 ep=8 pp=4 mbs=1", "tp=4 pp=4 ep=2 mbs=1")),
    ("mixtral-8x22b", "dgx-h200", 128, 256, 4096, "bf16", "megatron-core", ("tp=2 pp=8 ep=8 mbs=1", "tp=4 pp=4 ep=8 mbs=1", "tp=2 pp=8 vpp=7 ep=8 mbs=1")),
    ("deepseek-v3", "h800-8", 2048, 15360, 4096, "fp8", "megatron-core", ("tp=1 pp=16 ep=64 mbs=1", "tp=1 pp=16 ep=64 mbs=1 recompute=full")),
    ("qwen3-30b-a3b", "dgx-h100", 16, 512, 4096, "bf16", "megatron-core", ("tp=1 pp=2 ep=8 mbs=1", "tp=1 ep=16 mbs=1", "tp=2 ep=8 mbs=1")),
    ("qwen2.5-7b", "l40s-box", 8, 64, 4096, "bf16", "deepspeed", ("tp=1 zero=3 mbs=1 recompute=full", "tp=1 zero=2 mbs=1 recompute=full")),
    ("gemma2-9b", "gcp-a3-mega", 32, 128, 4096, "bf16", "megatron-core", ("tp=2 mbs=1", "tp=4 mbs=1", "tp=8 mbs=1")),
    ("bloom-176b", "jean-zay-a100", 384, 2048, 2048, "bf16", "megatron-deepspeed", ("tp=4 pp=12 sp=false mbs=2 recompute=full", "tp=8 pp=12 sp=false mbs=4 recompute=full")),
    ("llama2-13b", "mi300x-8", 64, 512, 4096, "bf16", "megatron-core", ("tp=1 mbs=1 recompute=full", "tp=8 mbs=1")),
    ("gpt2-xl", "rtx4090-box", 8, 64, 1024, "fp16", "deepspeed", ("tp=1 zero=2 mbs=4", "tp=1 zero=3 mbs=4 recompute=full")),
    ("gpt-1.2b", "dgx-h200", 1, 16, 2048, "bf16", "pytorch-eager", ("mbs=4", "mbs=4 recompute=full", "mbs=16")),
)  # fmt: skip


def scenarios() -> Iterator[Scenario]:
    """Every scenario, in a fixed order."""
    for model, cluster, gpus, batch, tokens, precision, framework, strategies in _QUESTIONS:
        for strategy in strategies:
            yield Scenario(
                model=model,
                cluster=cluster,
                gpus=gpus,
                batch=batch,
                tokens=tokens,
                precision=precision,
                framework=framework,
                strategy=strategy,
            )
