"""The order of ranks in exports: a flag where there is one, a refusal with the nearest plan where there is none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.strategy import RankOrder, Strategy
from autopar.exporters import exporter
from autopar.exporters.megatron_lm import RULES, MegatronLM
from autopar.exporters.nearest import nearest_plan
from autopar.exporters.question import Question
from autopar.exporters.rule import INEXPRESSIBLE, broken
from autopar.importers import importer
from autopar.importers.imported import Source

from .questions import question

USUAL, OTHER = RankOrder
STRATEGY = Strategy(
    tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=2, data_parallel_size=4, zero_stage=1, rank_order=OTHER
)  # fmt: skip
HEADER = ["a header"]


def asked(model: str = "llama3-8b", **changes: object) -> Question:
    return question(replace(STRATEGY, **changes), model)  # type: ignore[arg-type]


def text(name: str, which: Question) -> str:
    return "\n".join(file.text for file in exporter(name).files(which, HEADER))


def rules(name: str, which: Question) -> list[str]:
    return [broken.rule for broken in exporter(name).broken_rules(which)]


def test_megatron_has_a_flag_for_it() -> None:
    assert rules("megatron-lm", asked()) == rules("megatron-bridge", asked()) == []
    assert "--use-tp-pp-dp-mapping" in text("megatron-lm", asked())
    assert "--use-tp-pp-dp-mapping" not in text("megatron-lm", asked(rank_order=USUAL))
    assert "config.dist.use_tp_pp_dp_mapping = True" in text("megatron-bridge", asked())
    assert "config.dist.use_tp_pp_dp_mapping = False" in text("megatron-bridge", asked(rank_order=USUAL))


def test_the_flag_is_read_back() -> None:
    script = "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32"
    script += " --pipeline-model-parallel-size 2 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1"
    script += " --global-batch-size 64 --vocab-size 32000 --bf16"
    read = importer("megatron-lm").read
    found = [read(Source(text=f"{script} {flag}", name="train.sh", folder=None)) for flag in ("", "--use-tp-pp-dp-mapping")]
    assert [each.fields.get("strategy.rank_order") for each in found] == [None, "tp-cp-pp-dp"]


@pytest.mark.parametrize("name", ["torchtitan", "deepspeed", "nanotron"])
def test_frameworks_with_one_order_refuse_it_and_take_the_usual_one(name: str) -> None:
    plain = {"sequence_parallel": False} if name == "deepspeed" else {}
    which = asked(**plain)
    (refused,) = exporter(name).broken_rules(which)
    assert refused.rule == INEXPRESSIBLE
    assert "rank_order=tp-cp-pp-dp" in str(refused)
    assert "always numbers ranks tp-cp-dp-pp" in str(refused)
    assert rules(name, asked(rank_order=USUAL, **plain)) == []
    nearest = nearest_plan(exporter(name), which, [refused])
    assert nearest is not None
    assert nearest.strategy.rank_order is USUAL


def test_accelerate_has_no_pipeline_to_order() -> None:
    which = asked(pipeline_parallel_size=1, tensor_parallel_size=1, sequence_parallel=False, zero_stage=3)
    assert which.strategy.rank_order is USUAL
    assert rules("accelerate", which) == []


def test_what_does_not_go_with_the_flag_is_refused_by_its_rule() -> None:
    assert {"ML-W9"} == set(rules("megatron-lm", asked(zero_stage=3)))
    assert {"MB-13"} == set(rules("megatron-bridge", asked(context_parallel_size=2)))
    assert rules("megatron-lm", asked(context_parallel_size=2)) == []
    experts = {"model": "mixtral-8x7b", "expert_parallel_size": 4}
    assert {"ML-W3", "ML-W4"} <= set(rules("megatron-lm", asked(**experts)))  # type: ignore[arg-type]
    assert rules("megatron-lm", asked(**{**experts, "expert_parallel_size": 2})) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [{}, {"context_parallel_size": 2}])
def test_a_dense_models_unused_expert_grid_is_laid_over_its_stages(sizes: dict[str, int]) -> None:
    """Megatron lays it out whatever the model, and stops where its stages are not the dense grid's: one rank wide by default."""
    which = asked(**sizes)
    ranks = which.strategy.tensor_parallel_size * which.strategy.context_parallel_size
    assert f"--expert-tensor-parallel-size {ranks}" in text("megatron-lm", which)
    assert "--expert-tensor-parallel-size 1" in text("megatron-lm", asked(rank_order=USUAL, **sizes))
    read = importer("megatron-lm").read(Source(text=text("megatron-lm", which), name="train.sh", folder=None))
    assert read.fields["strategy.expert_tensor_parallel_size"] == 1
    configuration = MegatronLM().configuration(which)
    wrong = replace(configuration, settings={**configuration.settings, "expert-tensor-parallel-size": 1})
    found = {each.rule: each for each in broken(RULES, wrong)}
    assert {"ML-W3", "ML-W4"} <= set(found)
    assert f"--expert-tensor-parallel-size {ranks}" in str(found["ML-W4"])


def test_launchers_number_ranks_in_the_plans_order() -> None:
    target = exporter("torchrun")
    files = {file.path: file.text for file in target.files(asked(), HEADER)}
    ranks = json.loads(files["ranks.json"])
    assert [axis["axis"] for axis in ranks["dense"]] == ["tp", "cp", "pp", "dp"]
    assert "expert" not in ranks  # experts of one rank would fold over tp alone, and there are none
    layout = RankLayout.of(STRATEGY)
    for rank in range(layout.world_size):
        place = layout.coordinates(rank)
        assert rank == sum(place[axis["axis"]] * axis["stride"] for axis in ranks["dense"])
    assert "Ranks are numbered tp 2, cp 1, pp 2, dp 4, fastest first." in target.notes(asked())
    assert "AUTOPAR_RANK_ORDER=tp-cp-pp-dp" in files["launch.sh"].replace('"', "").replace("'", "")
    assert "RANK_ORDER" not in text("torchrun", asked(rank_order=USUAL))
