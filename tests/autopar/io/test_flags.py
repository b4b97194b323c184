"""Words of the command line to fields and values."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, RecomputeModule, Strategy
from autopar.io.flags import (
    SHORT_NAMES,
    constraint_texts,
    make_strategy,
    parse_assignments,
    parse_layers,
    parse_limits,
    parse_names,
    short_name,
)


def test_short_names_are_fields_of_a_strategy() -> None:
    unnamed = {"shard_group_size", "pipeline_layers", "stage_recompute_layers", "recompute_modules"}
    assert set(SHORT_NAMES.values()) == {f.name for f in fields(Strategy)} - unnamed
    assert [short_name(field) for field in SHORT_NAMES.values()] == list(SHORT_NAMES)


def test_assignments_take_short_and_full_names_and_commas() -> None:
    given = ["tp=8,pp=4", "micro_batch_size=2", "recompute=full", "sp=off", "zero=0", "schedule=interleaved-1f1b"]
    assert parse_assignments(given, flag="--fix") == {
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 4,
        "micro_batch_size": 2,
        "recompute": "full",
        "sequence_parallel": False,
        "zero_stage": 0,
        "pipeline_schedule": "interleaved_1f1b",
    }


def test_every_fault_of_a_flag_is_told() -> None:
    words = ["tpp=8", "tp", "pp=four", "schedule=fast", "dp=0", "tp=2", "tp=4", "sp=perhaps"]
    with pytest.raises(InvalidInputError) as caught:
        parse_assignments(words, flag="--fix")
    message = str(caught.value)
    assert len(caught.value.faults) == 7
    assert "did you mean vpp" in message or "did you mean tp" in message
    assert "already given as 2" in message
    assert "gpipe, 1f1b, interleaved_1f1b, zero_bubble, dualpipe" in message


def test_only_sizes_have_bounds() -> None:
    assert parse_limits(["tp=8", "zero=1"], flag="--max") == {"tensor_parallel_size": 8, "zero_stage": 1}
    with pytest.raises(InvalidInputError, match="--fix schedule"):
        parse_limits(["schedule=1f1b"], flag="--max")


def test_names() -> None:
    assert parse_names(["cp,ep", "cp"], flag="--forbid") == ("context_parallel_size", "expert_parallel_size")
    with pytest.raises(InvalidInputError, match="known: tp, "):
        parse_names(["zebra-crossing"], flag="--forbid")


def test_layers() -> None:
    assert parse_layers("8,8,7,7") == (8, 8, 7, 7)
    assert parse_layers("8*3, 7") == (8, 8, 8, 7)
    for bad in ("", "8,", "8;7", "-1", "1e3", "8*x", "8*99999999"):
        with pytest.raises(InvalidInputError, match="number of layers"):
            parse_layers(bad)


def test_constraints_read_as_they_were_given() -> None:
    texts = constraint_texts({"tensor_parallel_size": 8, "sequence_parallel": True}, {"zero_stage": 1}, {}, ["context_parallel_size"])
    assert texts == ("tp=8", "sp=true", "max zero=1", "forbid cp")


@given(tp=st.integers(1, 16), pp=st.integers(1, 16), cp=st.integers(1, 4), dp=st.integers(1, 64))
def test_data_parallel_size_follows_from_the_world_size(tp: int, pp: int, cp: int, dp: int) -> None:
    strategy = make_strategy({"tp": tp, "pp": pp, "cp": cp}, world_size=tp * pp * cp * dp)
    assert strategy.data_parallel_size == dp
    assert strategy.sequence_parallel == (tp > 1)


def test_a_schedule_follows_from_virtual_stages() -> None:
    assert make_strategy({"pp": 4, "vpp": 2}).pipeline_schedule is PipelineSchedule.INTERLEAVED
    assert make_strategy({"pp": 4}).pipeline_schedule is PipelineSchedule.ONE_F_ONE_B
    assert make_strategy({"pp": 4, "schedule": "gpipe", "recompute": "full"}).recompute is Recompute.FULL


def test_sizes_that_do_not_make_the_world_size() -> None:
    with pytest.raises(InvalidInputError, match=r"gpus=100.*8 x 4 x 1.*nearest valid: 96 or 128"):
        make_strategy({"tp": 8, "pp": 4}, world_size=100)
    with pytest.raises(InvalidInputError, match=r"gpus=7.*nearest valid: 8$"):
        make_strategy({"tp": 8}, world_size=7)
    with pytest.raises(InvalidInputError, match=r"= 16 ranks.*gpus=16 or dp=4"):
        make_strategy({"tp": 8, "dp": 2}, world_size=32)
    with pytest.raises(InvalidInputError, match="no part of a strategy"):
        make_strategy({"tensor": 8})


def test_modules_are_named_in_one_word_or_in_a_list() -> None:
    wanted = (RecomputeModule.MLA_UP_PROJ, RecomputeModule.MLP)
    for text in ("mla_up_proj+mlp", ["mla_up_proj", "mlp"], wanted):
        found = make_strategy({"dp": 8, "recompute": "selective", "recompute_modules": text})
        assert found.recompute_modules == wanted
        assert "recompute=selective(mla_up_proj+mlp)" in found.describe()
    with pytest.raises(InvalidInputError, match="recompute_modules='mlps': one of core_attn, layernorm"):
        make_strategy({"dp": 8, "recompute": "selective", "recompute_modules": "mlps"})
