"""What people already have, as points: nccl-tests, torch traces."""

from __future__ import annotations

import json

import pytest

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.measured import Kind
from autopar.io.nccl_tests import parse_nccl_tests
from autopar.io.torch_trace import parse_torch_trace


def nccl_tests(ranks: int, per_host: int, program: str = "all_reduce_perf") -> str:
    header = [
        f"# Collective test starting: {program}",
        "# nThread 1 nGpus 1 minBytes 1024 maxBytes 4194304 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validate: 1 graph: 0",
        "# Using devices",
        *(f"#  Rank {r:2d} Group  0 Pid {9000 + r} on node{r // per_host} device {r % per_host} [0000:0f:00] NVIDIA H100 80GB HBM3"
          for r in range(ranks)),
        "#",
        "#                                                              out-of-place                       in-place",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]  # fmt: skip
    redop = "none" if program != "all_reduce_perf" else "sum"
    rows = [
        f"{size:12d}  {size // 4:12d}     float  {redop:>6}      -1  {time:7.2f}  12.34   0.1      0  {time:7.2f}   0.1   0.1  0"
        for size, time in ((1024, 25.11), (4096, 26.3), (4194304, 61.7))
    ]
    return "\n".join([*header, *rows, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 41.2"])


def test_one_node_of_nccl_tests() -> None:
    found = parse_nccl_tests(nccl_tests(8, 8), "run.log")
    assert found is not None
    assert (found.ranks, found.nodes, found.device_name) == (8, 1, "NVIDIA H100 80GB HBM3")
    assert found.series.variant == "all_reduce"
    assert [(point.shape, point.seconds) for point in found.series.points] == [
        ((1024.0, 8.0, 8.0), pytest.approx(25.11e-6)),
        ((4096.0, 8.0, 8.0), pytest.approx(26.3e-6)),
        ((4194304.0, 8.0, 8.0), pytest.approx(61.7e-6)),
    ]


@pytest.mark.parametrize(
    ("program", "variant", "group"),
    [
        ("all_gather_perf", "all_gather", (16, 8)),
        ("reduce_scatter_perf", "reduce_scatter", (16, 8)),
        ("alltoall_perf", "all_to_all", (16, 8)),
        ("sendrecv_perf", "send_recv", (2, 1)),
    ],
)
def test_two_nodes_of_every_collective(program: str, variant: str, group: tuple[int, int]) -> None:
    found = parse_nccl_tests(nccl_tests(16, 8, program), "run.log")
    assert found is not None
    assert found.series.variant == variant
    assert {point.shape[1:] for point in found.series.points} == {group}


def test_output_that_does_not_say_enough_is_told() -> None:
    text = nccl_tests(8, 8).replace("# Collective test starting: all_reduce_perf\n", "")
    with pytest.raises(InvalidInputError, match="which collective ran is not told"):
        parse_nccl_tests(text, "run.log")
    found = parse_nccl_tests(text, "all_reduce_perf.log")
    assert found is not None
    assert found.series.variant == "all_reduce"
    with pytest.raises(InvalidInputError) as caught:
        parse_nccl_tests("#  nccl-tests\n# algbw busbw", "x.log")
    assert len(caught.value.faults) == 3
    assert parse_nccl_tests("something else", "x.log") is None


def trace(*events: dict) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name"}, *events]})


def operator(name: str, dims: list, types: list, identifier: int, *, dur: float = 50.0, strides: list | None = None) -> dict:
    args = {"External id": identifier, "Input Dims": dims, "Input type": types}
    return {"ph": "X", "cat": "cpu_op", "name": name, "dur": dur, "args": args | ({"Input Strides": strides} if strides else {})}


def kernel(identifier: int, dur: float) -> dict:
    return {"ph": "X", "cat": "kernel", "name": "sm90_gemm", "dur": dur, "args": {"External id": identifier}}


def test_products_of_a_trace_take_their_kernels_times() -> None:
    bf16 = ["c10::BFloat16", "c10::BFloat16"]
    read = parse_torch_trace(
        trace(
            operator("aten::mm", [[64, 32], [32, 16]], bf16, 1, strides=[[32, 1], [1, 32]]),
            operator("aten::mm", [[64, 32], [32, 16]], bf16, 2, strides=[[32, 1], [1, 32]]),
            operator("aten::mm", [[64, 32], [32, 16]], bf16, 3, strides=[[1, 64], [16, 1]]),
            operator("aten::addmm", [[16], [64, 32], [32, 16]], ["float", "float", "float"], 4, strides=[[1], [32, 1], [16, 1]]),
            operator("aten::mm", [[64, 32], [32, 16]], ["long int", "long int"], 5),
            operator("aten::relu", [[64, 32]], ["float"], 6),
            kernel(1, 10.0), kernel(1, 2.0), kernel(2, 14.0), kernel(3, 20.0), kernel(4, 30.0), kernel(6, 1.0),
        ),
        "t.json",
    )  # fmt: skip
    assert read is not None
    series, notes = read
    assert {one.name: [(p.shape, round(p.seconds * 1e6, 6), p.repeats) for p in one.points] for one in series} == {
        "gemm nt bf16": [((64.0, 16.0, 32.0), 13.0, 2)],
        "gemm tn bf16": [((64.0, 16.0, 32.0), 20.0, 1)],
        "gemm nn fp32": [((64.0, 16.0, 32.0), 30.0, 1)],
    }
    assert notes == ()


def test_a_trace_of_a_processor_has_the_operators_own_times_and_attention() -> None:
    name = "aten::_scaled_dot_product_flash_attention_for_cpu"
    read = parse_torch_trace(
        trace(
            operator(name, [[2, 8, 128, 64], [2, 4, 128, 64], [2, 4, 128, 64]], ["float"] * 3, 1, dur=70),
            operator("aten::mm", [[64, 32], [32, 16]], ["float", "float"], 2, dur=5),
        ),
        "t.json",
    )
    assert read is not None
    (attention, product), notes = sorted(read[0], key=lambda one: one.kind is Kind.GEMM), read[1]
    assert attention.points[0].shape == (2, 8, 4, 128, 64)
    assert attention.points[0].seconds == pytest.approx(70e-6)
    assert product.name == "gemm nt fp32"
    assert "1 products without strides" in notes[0]


def test_a_trace_without_shapes_is_told_and_other_text_is_none() -> None:
    with pytest.raises(InvalidInputError, match="record_shapes=True"):
        parse_torch_trace(trace({"cat": "cpu_op", "name": "aten::mm", "args": {}}), "t.json")
    assert parse_torch_trace("not JSON", "t.json") is None
    assert parse_torch_trace('{"kind": "plan"}', "t.json") is None
