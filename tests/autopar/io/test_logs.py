"""Training logs: samples written for these tests in the forms the frameworks print."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.io.logs import parse_log, read_log

ARGUMENTS = {
    "bf16": True, "context_parallel_size": 1, "data_parallel_size": 4, "expert_model_parallel_size": 1, "ffn_hidden_size": 14336,
    "fp16": False, "fp8": None, "global_batch_size": 256, "group_query_attention": True, "hidden_size": 4096, "kv_channels": 128,
    "micro_batch_size": 2, "num_attention_heads": 32, "num_experts": None, "num_layers": 32, "num_query_groups": 8,
    "padded_vocab_size": 128512, "pipeline_model_parallel_size": 2, "recompute_granularity": "selective", "recompute_method": None,
    "seq_length": 8192, "sequence_parallel": True, "swiglu": True, "tensor_model_parallel_size": 8,
    "transformer_impl": "transformer_engine", "untie_embeddings_and_output_weights": True, "use_distributed_optimizer": True,
    "virtual_pipeline_model_parallel_size": None, "vocab_size": 128256, "world_size": 64,
}  # fmt: skip


def megatron(seconds: Iterable[float], *, batches: Iterable[int] | None = None, **changes: object) -> str:
    arguments = ARGUMENTS | changes
    lines = ["using world size: 64, data-parallel size: 4", "------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    seconds = list(seconds)
    batches = list(batches or [256] * len(seconds))
    for number, (step, batch) in enumerate(zip(seconds, batches, strict=True), start=1):
        lines.append(
            f" [2025-04-13 23:41:{number:02d}] iteration {number * 10:8d}/    1000 | consumed samples: {number * 2560:12d} |"
            f" elapsed time per iteration (ms): {step * 1000:.1f} | throughput per GPU (TFLOP/s/GPU): 412.3 | learning rate: 1.5E-04 |"
            f" global batch size: {batch:5d} | lm loss: 7.399415E+00 | grad norm: 2.918 | number of nan iterations:   0 |"
        )
    lines.append(
        "[Rank 0] (after 10 iterations) memory (MB) | allocated: 30000.0 | max allocated: 50000.0 | reserved: 1 | max reserved: 61440.0"
    )
    return "\n".join(lines)


def torchtitan(rates: Iterable[float], *, announce: bool = True, mesh: str = "['dp_shard', 'tp'], [4, 2]") -> str:
    lines = [
        "[rank0]:2025-05-01 10:00:00,000 - root - INFO - Starting job: Llama 3 8B training",
        f"[rank0]:2025-05-01 10:00:01,000 - root - INFO - Building 2-D device mesh with {mesh}",
        "[rank0]:2025-05-01 10:00:02,000 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
        "[rank0]:2025-05-01 10:00:03,000 - root - INFO - Building llama3 8B with TransformerModelArgs(dim=4096, n_layers=32)",
        "[rank0]:2025-05-01 10:00:04,000 - root - INFO - Applied selective activation checkpointing to the model",
    ]
    if announce:
        lines.append(
            "[rank0]:2025-05-01 10:00:05,000 - root - INFO - Training starts at step 1, with local batch size 2, global batch size 8,"
            " sequence length 8192, total steps 100 (warmup 2)"
        )
    for number, rate in enumerate(rates):
        lines.append(
            f"[rank0]:2025-05-01 10:01:00,000 - root - INFO - \x1b[31mstep: {max(1, number * 10):2}  \x1b[32mloss:  8.1234  "
            f"\x1b[38;2;180;60;0mgrad_norm:  1.2345  \x1b[38;2;54;234;195mmemory: 40.50GiB(51.20%)  \x1b[34mtps: {round(rate):,}  "
            "\x1b[36mtflops: 300.12  \x1b[35mmfu: 30.35%\x1b[39m"
        )
    return "\n".join(lines)


CONFIG = """\
[2023-11-07 01:50:00,000] [INFO] [config.py:967:print] DeepSpeedEngine configuration:
[2023-11-07 01:50:00,001] [INFO] [config.py:971:print]   bfloat16_enabled ............. True
[2023-11-07 01:50:00,001] [INFO] [config.py:971:print]   fp16_enabled ................. False
[2023-11-07 01:50:00,001] [INFO] [config.py:971:print]   gradient_accumulation_steps .. 4
[2023-11-07 01:50:00,001] [INFO] [config.py:971:print]   train_batch_size ............. 64
[2023-11-07 01:50:00,001] [INFO] [config.py:971:print]   train_micro_batch_size_per_gpu  2
[2023-11-07 01:50:00,001] [INFO] [config.py:971:print]   world_size ................... 8
[2023-11-07 01:50:00,001] [INFO] [config.py:971:print]   zero_optimization_stage ...... 3
[2023-11-07 01:50:00,001] [INFO] [config.py:957:print_user_config]   json = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {
        "stage": 3
    },
    "bf16": {
        "enabled": true
    }
}
"""


def deepspeed(rates: Iterable[float], *, config: str = CONFIG) -> str:
    return config + "\n".join(
        f"[2023-11-07 01:55:23,714] [INFO] [timer.py:260:stop] epoch=0/micro_step={number * 40}/global_step={number * 10},"
        f" RunningAvgSamplesPerSec=25.02, CurrSamplesPerSec={rate}, MemAllocated=4.32GB, MaxMemAllocated=38.49GB"
        for number, rate in enumerate(rates, start=1)
    )


def test_megatron() -> None:
    found = parse_log(megatron([30.0, 12.0, 10.2, 10.0, 10.1, 10.0]))
    assert (found.kind, found.steps_logged, found.steps_used) == ("megatron", 6, 3)
    assert found.step_time_seconds == pytest.approx(10.0)
    assert found.peak_memory_bytes == 61440 * 2**20
    assert found.facts == {
        "framework": "megatron-core", "num_gpus": 64, "sequence_length": 8192, "global_batch_size": 256, "micro_batch_size": 2,
        "tensor_parallel_size": 8, "pipeline_parallel_size": 2, "context_parallel_size": 1, "data_parallel_size": 4,
        "sequence_parallel": True, "precision": "bf16", "sharding_as_stated": "1", "num_layers": 32, "hidden_size": 4096,
        "ffn_hidden_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
        "gated_mlp": True, "tied_embeddings": False, "recompute": "selective",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 5}, {"num_recompute_layers": 5}),
        ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}, {"recompute": "full"}),
        ({"recompute_granularity": None}, {"recompute": "none"}),
        ({"fp8": "hybrid"}, {"precision": "fp8"}),
        ({"use_distributed_optimizer": False}, {"sharding_as_stated": "0"}),
        ({"virtual_pipeline_model_parallel_size": 4}, {"virtual_pipeline_stages": 4}),
        (
            {"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 14336, "expert_model_parallel_size": 4},
            {"num_experts": 8, "experts_per_token": 2, "expert_parallel_size": 4},
        ),
        ({"deepspeed": True, "zero_stage": 1}, {"framework": "megatron-deepspeed", "sharding_as_stated": "1"}),
    ],
)
def test_arguments_of_megatron(changes: dict[str, object], expected: dict[str, object]) -> None:
    facts = parse_log(megatron([1.0] * 5, **changes)).facts
    assert expected.items() <= facts.items()


def test_a_batch_that_ramps_up_is_left_out() -> None:
    found = parse_log(megatron([1, 1, 2, 2, *[8.0] * 9], batches=[32, 32, 64, 64, *[256] * 9]))
    assert found.step_time_seconds == 8.0
    assert found.facts["global_batch_size"] == 256
    assert found.steps_logged == 9


def test_an_older_megatron_prints_no_date_and_no_throughput() -> None:
    lines = [
        f" iteration {n:8d}/  500000 | elapsed time per iteration (ms): 430.0 | learning rate: 1.3E-04 | lm loss: 7.39 |"
        for n in range(1, 8)
    ]
    found = parse_log("\n".join(lines))
    assert (found.kind, found.step_time_seconds, dict(found.facts)) == ("megatron", 0.43, {})


def test_torchtitan() -> None:
    found = parse_log(torchtitan([900, 5000, 7000, 8000, 8192, 8192]))
    assert (found.kind, found.steps_used) == ("torchtitan", 3)
    assert found.step_time_seconds == pytest.approx(8 * 8192 / 8 / 8192)
    assert found.peak_memory_bytes == 40.5 * 2**30
    assert found.facts == {
        "framework": "torchtitan", "pipeline_parallel_size": 1, "tensor_parallel_size": 2, "context_parallel_size": 1,
        "data_parallel_size": 4, "num_gpus": 8, "sharding_as_stated": "FSDP2", "micro_batch_size": 2, "global_batch_size": 8,
        "sequence_length": 8192, "device": "NVIDIA H100 80GB HBM3", "recompute": "selective", "model_name": "llama3-8b",
    }  # fmt: skip


def test_torchtitan_from_its_dumped_configuration() -> None:
    dump = (
        '[rank0]: INFO - Running with args: {"model": {"name": "llama3", "flavor": "70B", "converters": ["float8"]},'
        ' "training": {"seq_len": 4096, "local_batch_size": 1, "global_batch_size": 16}, "parallelism": {"data_parallel_shard_degree": -1,'
        ' "tensor_parallel_degree": 2}, "activation_checkpoint": {"mode": "full"}}\n'
    )
    found = parse_log(dump + torchtitan([1024.0] * 6, announce=False).replace("Building llama3", "Made llama3").replace("Applied", "Set"))
    assert found.step_time_seconds == pytest.approx(16 * 4096 / 8 / 1024)
    expected = {"precision": "fp8", "recompute": "full", "model_name": "llama3-70b", "micro_batch_size": 1, "sequence_length": 4096}
    assert expected.items() <= found.facts.items()


def test_torchtitan_without_its_start_cannot_be_timed() -> None:
    with pytest.raises(InvalidInputError, match="does not say its global batch size, sequence length"):
        parse_log(torchtitan([1000.0] * 6, announce=False))


def test_deepspeed() -> None:
    found = parse_log(deepspeed([20.0, 30.0, 31.0, 32.0, 32.0]))
    assert (found.kind, found.step_time_seconds, found.steps_used) == ("deepspeed", 2.0, 2)
    assert found.peak_memory_bytes == pytest.approx(38.49 * 2**30)
    assert found.facts == {
        "framework": "deepspeed", "global_batch_size": 64, "micro_batch_size": 2, "data_parallel_size": 8, "num_gpus": 8,
        "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "sharding_as_stated": "3", "precision": "bf16",
    }  # fmt: skip


def test_deepspeed_from_its_json_alone() -> None:
    only = CONFIG[CONFIG.index("[2023-11-07 01:50:00,001] [INFO] [config.py:957") :]
    found = parse_log(deepspeed([32.0] * 5, config=only))
    assert found.step_time_seconds == 2.0
    assert found.facts["sharding_as_stated"] == "3"
    assert found.facts["precision"] == "bf16"


def test_deepspeed_without_its_batch_cannot_be_timed() -> None:
    with pytest.raises(InvalidInputError, match="train_batch_size"):
        parse_log(deepspeed([32.0] * 5, config=""))


def test_deepspeed_pipeline_engine_and_timers() -> None:
    pipeline = "\n".join(f"steps: {n} loss: 10.1234 iter time (s): 1.500 samples/sec: 42.667" for n in range(1, 7))
    assert parse_log(pipeline).step_time_seconds == 1.5
    timers = "\n".join(
        "rank=0 time (ms) | fwd: 500.00 | bwd: 1000.00 | bwd_inner: 900.00 | bwd_allreduce: 99.00 | step: 250.00" for _ in range(6)
    )
    assert parse_log(timers).step_time_seconds == 1.75


def test_a_restarted_job_warms_up_again() -> None:
    first, second = megatron([9.0, 9.0, 9.0, 2.0]), megatron([50.0, 50.0, 50.0, 2.0])
    found = parse_log(first + "\n" + second)
    assert (found.steps_logged, found.steps_used, found.step_time_seconds) == (8, 2, 2.0)


@given(st.lists(st.floats(0.5, 2.0), min_size=4, max_size=60))
def test_the_step_time_is_within_the_steps_after_warm_up(seconds: list[float]) -> None:
    found = parse_log(megatron(seconds))
    dropped = max(3, -(-len(seconds) // 10))
    kept = [round(step, 4) for step in seconds[dropped:]]
    assert found.steps_used == len(kept)
    assert min(kept) - 1e-3 <= found.step_time_seconds <= max(kept) + 1e-3


@pytest.mark.parametrize("text", ["", "hello\n" * 9, "\x00\x01\x02", "{}", "epoch 3 loss 2.1 samples/sec 12"])
def test_foreign_files_are_told(text: str) -> None:
    with pytest.raises(InvalidInputError, match="no steps in the form"):
        parse_log(text)


def test_too_few_steps_are_told() -> None:
    with pytest.raises(InvalidInputError, match="3 logged; more than 3"):
        parse_log(megatron([1.0, 1.0, 1.0]))
    with pytest.raises(InvalidInputError, match="more than 3"):
        parse_log(deepspeed([0.0] * 9))


@given(st.text(max_size=400))
def test_no_text_breaks_the_reader(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_log(text)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_bytes(megatron([1.0] * 6).encode() + b"\xff\xfe")
    assert read_log(file).path == str(file)
    with pytest.raises(InvalidInputError, match="no such file"):
        read_log(tmp_path / "absent.log")
