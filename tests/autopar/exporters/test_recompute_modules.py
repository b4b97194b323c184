"""Modules that selective recomputation repeats in exports: Megatron names them, others refuse them."""

from __future__ import annotations

from dataclasses import replace

from autopar.costmodel.spec.strategy import Recompute, RecomputeModule, Strategy
from autopar.exporters import exporter
from autopar.exporters.question import Question
from autopar.exporters.rule import INEXPRESSIBLE
from autopar.importers import importer
from autopar.importers.imported import Source

from .questions import question

NAMED = Strategy(
    data_parallel_size=16,
    zero_stage=1,
    recompute=Recompute.SELECTIVE,
    recompute_modules=(RecomputeModule.LAYERNORM, RecomputeModule.MLP),
)


def asked(**changes: object) -> Question:
    return question(replace(NAMED, **changes), "llama3-8b")  # type: ignore[arg-type]


def text(name: str, which: Question) -> str:
    return "\n".join(file.text for file in exporter(name).files(which, ["a header"]))


def test_megatron_has_a_flag_for_them() -> None:
    assert [broken.rule for broken in exporter("megatron-lm").broken_rules(asked())] == []
    assert "--recompute-modules layernorm mlp" in " ".join(text("megatron-lm", asked()).split())
    assert "core_attn" in text("megatron-lm", asked(recompute_modules=()))


def test_launchers_say_them_where_a_plan_names_any() -> None:
    said = text("torchrun", asked()).replace('"', "").replace("'", "")
    assert "AUTOPAR_RECOMPUTE_MODULES=layernorm,mlp" in said
    assert "RECOMPUTE_MODULES" not in text("torchrun", asked(recompute_modules=()))


def test_torchtitan_chooses_itself() -> None:
    (broken,) = exporter("torchtitan").broken_rules(asked(zero_stage=3))
    assert broken.rule == INEXPRESSIBLE
    assert "layernorm+mlp" in str(broken)


def test_the_flag_is_read_back() -> None:
    script = "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32"
    script += " --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --bf16"
    script += " --recompute-granularity selective --recompute-modules"
    read = importer("megatron-lm").read
    for flags, named in (("mlp layernorm", ("layernorm", "mlp")), ("core_attn", None), ("mhc", None)):
        fields = read(Source(text=f"{script} {flags}", name="train.sh", folder=None)).fields
        assert fields.get("strategy.recompute_modules") == named
        assert fields["strategy.recompute"] == ("none" if flags == "mhc" else "selective")
