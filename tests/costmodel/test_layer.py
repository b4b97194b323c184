"""One layer's seconds: the terms add up, and better hardware is never slower."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.layer import LayerTimes, PassTimes
from autopar.costmodel.layer_costs import layer_costs
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import ContextParallelKind, Strategy
from autopar.costmodel.topology import TierColumns

from .problems import DENSE, EXPERTS, GPT, MODELS, feasible, problem

NAMES = st.sampled_from(sorted(MODELS))


def layer(asked: Problem, strategy: Strategy, *, moe: bool = False) -> LayerTimes:
    costs = layer_costs(Inputs.of(asked), StrategyColumns.of([strategy]))
    return costs.moe if moe else costs.dense


def value(array: object) -> float:
    return float(np.ravel(np.asarray(array))[0])


@given(name=NAMES, index=st.integers(0, 10**6))
def test_terms_are_seconds_and_add_up(name: str, index: int) -> None:
    asked, strategies = feasible(name)
    times = layer(asked, strategies[index % len(strategies)], moe=asked.model.moe is not None)
    for each in (times.forward, times.backward, times.selective):
        terms = [value(getattr(each, field.name)) for field in fields(PassTimes)]
        assert min(terms) >= 0
        assert value(each.total) == pytest.approx(sum(terms), rel=1e-12)
        assert value((each + each).total) == pytest.approx(value(each.scaled(2.0).total), rel=1e-12)
    assert value(times.backward.matrix) > value(times.forward.matrix)
    assert 0 < value(times.weight_gradient) < value(times.backward.matrix)


def quicker(tier: TierColumns, factor: float) -> TierColumns:
    return replace(tier, bandwidth=tier.bandwidth * factor)


@given(name=NAMES, index=st.integers(0, 10**6), factor=st.floats(1.0, 10.0), where=st.sampled_from(["fast", "network", "memory", "peak"]))
def test_more_bandwidth_never_slows(name: str, index: int, factor: float, where: str) -> None:
    asked, strategies = feasible(name)
    columns = StrategyColumns.of([strategies[index % len(strategies)]])
    inputs = Inputs.of(asked)
    if where in ("fast", "network"):
        links = replace(inputs.links, **{where: quicker(getattr(inputs.links, where), factor)})
        better = replace(inputs, links=links)
    else:
        column = {"memory": "memory_bandwidth", "peak": "peak_flops"}[where]
        device, wide = (replace(d, **{column: getattr(d, column) * factor}) for d in (inputs.device, inputs.wide_device))
        better = replace(inputs, device=device, wide_device=wide)
    before, after = layer_costs(inputs, columns), layer_costs(better, columns)
    for kind in ("dense", "moe"):
        was, now = getattr(before, kind), getattr(after, kind)
        # a quicker kernel may leave more of a transfer exposed, never more than it saved
        assert value(now.forward.total) <= value(was.forward.total) * (1 + 1e-9)
        assert value(now.backward.total) <= value(was.backward.total) * (1 + 1e-9)


@given(overlap=st.floats(0, 1), more=st.floats(0, 1))
@pytest.mark.parametrize(
    ("field", "term"),
    [
        ("tensor_overlap_forward", "tensor"),
        ("expert_overlap", "expert"),
        ("context_overlap", "context"),
        ("sharded_overlap", "sharded"),
    ],
)
def test_overlap_hides_and_never_more_than_there_is(field: str, term: str, overlap: float, more: float) -> None:
    strategy = Strategy(
        tensor_parallel_size=2, sequence_parallel=True, context_parallel_size=2, expert_parallel_size=2, data_parallel_size=4, zero_stage=3
    )
    little, much = sorted((overlap, more))
    less, hidden = (value(getattr(layer(problem(EXPERTS, **{field: share}), strategy, moe=True).forward, term)) for share in (little, much))
    assert 0 <= hidden <= less


def test_a_group_of_one_says_nothing() -> None:
    times = layer(problem(DENSE, gpus=8), Strategy(data_parallel_size=8))
    assert [value(getattr(times.forward, term)) for term in ("tensor", "context", "expert", "sharded")] == [0, 0, 0, 0]


def test_parallel_residual_reduces_once() -> None:
    twice, once = (
        layer(problem(replace(DENSE, parallel_residual=flag), tensor_overlap_forward=0.0), Strategy(tensor_parallel_size=4))
        for flag in (False, True)
    )
    assert 2 * value(once.forward.tensor) == value(twice.forward.tensor) > 0


def test_the_slower_of_host_and_device_sets_the_pace() -> None:
    quick, slow = (layer(problem(GPT, gpus=8, host_launch_factor=factor), Strategy(data_parallel_size=8)).forward for factor in (1e-3, 1e3))
    assert value(quick.host) < 1e-6 * value(quick.matrix)
    launches = 1e3 * problem(GPT).framework.kernels_per_layer_forward * problem(GPT).hardware.launch_seconds
    assert value(slow.total) == pytest.approx(launches, rel=1e-3)


def test_kinds_of_context_parallelism_pay_for_what_they_send() -> None:
    ring, gathered, ulysses = (
        layer(problem(DENSE, length=8192, context_overlap=0.0), Strategy(context_parallel_size=4, context_parallel_kind=kind)).forward
        for kind in ContextParallelKind
    )
    assert min(value(ring.context), value(gathered.context), value(ulysses.context)) > 0
    # Ulysses sends a quarter of each of q, k, v and the output; the others all keys and values three times over
    assert value(ulysses.context) < value(ring.context)


def test_deduplicated_tokens_travel_less() -> None:
    model = replace(EXPERTS, moe=replace(EXPERTS.moe, num_experts=64, experts_per_token=8))  # type: ignore[arg-type]
    strategy = Strategy(expert_parallel_size=16, data_parallel_size=16)
    every, once = (layer(problem(model, expert_deduplicated=flag), strategy, moe=True).forward for flag in (False, True))
    assert value(once.expert) < 0.5 * value(every.expert)


@pytest.mark.parametrize(("framework", "wide"), [("megatron-core", 4.0), ("pytorch-eager", 2.0)])
def test_wider_gradients_take_longer_to_accumulate(framework: str, wide: float) -> None:
    base = {"framework": framework, "fused_gradient_accumulation": 0.0}
    few, many = (
        value(layer(problem(DENSE, gradient_bytes=width, **base), Strategy(data_parallel_size=16)).backward.accumulation)
        for width in (2.0, wide)
    )
    assert 0 < few <= many


def test_fused_accumulation_is_free() -> None:
    times = layer(problem(DENSE, fused_gradient_accumulation=1.0), Strategy(data_parallel_size=16))
    assert value(times.backward.accumulation) == 0


def test_fp8_products_are_quicker_and_their_casts_count() -> None:
    plain, low = (layer(problem(DENSE, precision=name), Strategy(data_parallel_size=16)) for name in ("bf16", "fp8"))
    assert 0.5 * value(plain.forward.matrix) < value(low.forward.matrix) < value(plain.forward.matrix)
    assert value(low.forward.attention) == value(plain.forward.attention)


def test_products_launched_one_by_one_go_with_the_experts_a_rank_holds() -> None:
    asked = problem(EXPERTS)
    only = {"kernels_per_layer_forward": 0.0, "kernels_per_layer_backward": 0.0, "kernels_per_expert_layer": 0.0}

    def host(per_expert: float, expert_parallel: int) -> tuple[float, float]:
        framework = replace(asked.framework, **only, kernels_per_local_expert=per_expert, host_launch_factor=1e4)  # the host alone counts
        times = layer(replace(asked, framework=framework), Strategy(data_parallel_size=8, expert_parallel_size=expert_parallel), moe=True)
        return value(times.forward.total), value(times.backward.total)

    few, many = host(10, 4), host(10, 2)
    assert many[0] == pytest.approx(2 * few[0], rel=0.01)
    assert few[1] == pytest.approx(2 * few[0], rel=0.01)
    assert host(0, 4)[0] < 0.1 * few[0]


def test_weights_are_cast_once_a_step_and_inputs_on_every_micro_batch() -> None:
    asked = problem(DENSE, precision="fp8")

    def seconds(batch: int) -> float:
        training = replace(asked.training, global_batch_size=batch)
        return value(layer(replace(asked, training=training), Strategy(data_parallel_size=8)).forward.matrix)

    one, two, many = seconds(8), seconds(16), seconds(8 * 1024)
    assert one > two > many
    assert one - two == pytest.approx(0.5 * (one - many), rel=0.01)


def test_biases_of_experts_cost_passes_and_nothing_where_there_are_none() -> None:
    asked = problem(EXPERTS)
    dear = replace(asked.framework, biased_expert_passes=20.0)
    cheap = replace(asked.framework, biased_expert_passes=1.0)
    assert asked.model.moe is not None
    biased = replace(asked.model, moe=replace(asked.model.moe, expert_bias=True))
    times = {
        (model.moe.expert_bias, framework.biased_expert_passes): value(
            layer(replace(asked, model=model, framework=framework), Strategy(data_parallel_size=8), moe=True).forward.elementwise
        )
        for model in (asked.model, biased)
        for framework in (cheap, dear)
        if model.moe is not None
    }
    assert times[False, 1.0] == times[False, 20.0] == times[True, 1.0] < times[True, 20.0]


def test_recomputation_by_operator_keeps_the_core_and_repeats_gathers_and_what_is_memory_bound() -> None:
    strategy = Strategy(tensor_parallel_size=4, sequence_parallel=True, data_parallel_size=16)
    asked = problem(DENSE, gpus=64, selective_recomputed=0.4, selective_by_operator=True, tensor_overlap_forward=0.0)
    times = layer(asked, strategy)
    assert value(times.selective.attention) == 0
    assert value(times.selective.matrix) == pytest.approx(0.4 * value(times.forward.matrix))
    assert value(times.selective.elementwise) == pytest.approx(value(times.forward.elementwise))
    assert value(times.selective.tensor) == pytest.approx(value(times.forward.tensor) / 2)
    alone = layer(asked, replace(strategy, sequence_parallel=False))
    assert value(alone.selective.tensor) == 0


def test_the_scores_traffic_is_the_softmaxs_beside_the_products_own() -> None:
    asked = problem(GPT)
    framework = replace(asked.framework, fused_attention=False, dropout=False, elementwise_forward_passes=1.0, score_passes=1.0)
    once, twice = (
        layer(replace(asked, framework=replace(framework, score_passes=passes)), Strategy(data_parallel_size=64)) for passes in (1.0, 2.0)
    )
    model, device = asked.model, asked.cluster.device
    scores = 2 * asked.training.sequence_length**2 * model.num_attention_heads
    softmax = 2 * scores / (device.memory_bandwidth * asked.hardware.memory_efficiency)
    assert value(twice.forward.elementwise) - value(once.forward.elementwise) == pytest.approx(softmax, rel=1e-6)
