"""Plan files: what is written is what is read, and what cannot be read says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costmodel.spec.cluster import ClusterSpec, DeviceSpec, LinkKind, LinkTier
from autopar.costmodel.spec.errors import AutoparError, InvalidInputError, UnsupportedVersionError
from autopar.costmodel.spec.estimate import Estimate, Interval, StageEstimate, StageMemory, TimeBreakdown
from autopar.costmodel.spec.model import LatentAttention, MixtureOfExperts, ModelSpec, Norm, PositionEmbedding
from autopar.costmodel.spec.plan import PLAN_SCHEMA_VERSION, Alternative, Plan, PlanInputs, SearchSummary
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, RankOrder, Recompute, RecomputeModule, Strategy
from autopar.costmodel.spec.training import PRECISIONS, Optimizer, TrainingSpec
from autopar.io.measured_file import read_measured
from autopar.io.plan_file import dump_plan, parse_plan, read_plan, write_plan
from autopar.io.profile_file import read_calibration, read_profile

size = st.integers(1, 10**6)
amount = st.floats(0, 1e30, allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def records(kind: type, **fields: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.builds(kind, **fields)


def filled(kind: type, value: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """A ``kind`` whose fields are all drawn from ``value``."""
    return st.builds(kind, **dict.fromkeys(kind.__annotations__, value))


strategies = st.builds(
    Strategy,
    tensor_parallel_size=size,
    sequence_parallel=st.booleans(),
    pipeline_parallel_size=size,
    virtual_pipeline_stages=size,
    pipeline_schedule=st.sampled_from(PipelineSchedule),
    context_parallel_size=size,
    context_parallel_kind=st.sampled_from(ContextParallelKind),
    data_parallel_size=size,
    zero_stage=st.integers(0, 3),
    recompute=st.sampled_from(Recompute),
    num_recompute_layers=st.integers(0, 99),
    pipeline_layers=st.lists(size, max_size=4).map(tuple),
    rank_order=st.sampled_from(RankOrder),
    recompute_modules=st.lists(st.sampled_from(RecomputeModule), unique=True, max_size=2).map(tuple),
)
devices = st.builds(
    DeviceSpec,
    id=text,
    name=text,
    architecture=text,
    memory_bytes=size,
    memory_bandwidth=amount,
    peak_flops=st.dictionaries(text, amount, max_size=3),
    num_compute_units=size,
    l2_cache_bytes=size,
    power_watts=amount,
    default_cluster=text,
    sources=st.dictionaries(text, text, max_size=3),
)
tiers = st.builds(
    LinkTier,
    name=text,
    kind=st.sampled_from(LinkKind),
    domain_size=size,
    bandwidth=st.floats(1, 1e12),
    latency_seconds=amount,
    ports_per_domain=size,
    oversubscription=st.floats(1, 16),
)
clusters = st.builds(
    ClusterSpec,
    id=text,
    device=devices,
    gpus_per_node=size,
    num_gpus=size,
    tiers=st.lists(tiers, min_size=1, max_size=3).map(tuple),
    sources=st.dictionaries(text, text, max_size=2),
)
models = st.builds(
    ModelSpec,
    name=text,
    num_layers=st.integers(1, 10_000),
    hidden_size=size,
    num_attention_heads=st.sampled_from((8, 16, 64)),
    num_key_value_heads=st.sampled_from((1, 4, 8)),
    head_dim=size,
    ffn_hidden_size=size,
    vocab_size=size,
    max_position_embeddings=size,
    gated_mlp=st.booleans(),
    norm=st.sampled_from(Norm),
    position_embedding=st.sampled_from(PositionEmbedding),
    rotary_base=st.floats(0, 1e12),
    rotary_scaling=st.sampled_from(("", "yarn", "llama3 x8", "linear x2.5")),
    norm_epsilon=st.floats(0, 0.1),
    latent_attention=st.none() | filled(LatentAttention, size),
    moe=st.none() | st.builds(MixtureOfExperts, num_experts=st.just(64), experts_per_token=st.integers(1, 64), ffn_hidden_size=size),
)
training = st.builds(
    TrainingSpec,
    global_batch_size=size,
    sequence_length=size,
    precision=st.sampled_from(list(PRECISIONS.values())),
    optimizer=st.sampled_from(Optimizer),
)
stages = st.builds(
    StageEstimate,
    pipeline_rank=size,
    layers=st.lists(st.tuples(size, size), max_size=3).map(tuple),
    num_layers=size,
    holds_embedding=st.booleans(),
    holds_head=st.booleans(),
    num_parameters=size,
    forward_seconds=amount,
    backward_seconds=amount,
    microbatches_in_flight=amount,
    memory=filled(StageMemory, amount),
    peak_memory_bytes=amount,
)
estimates = st.builds(
    Estimate,
    fits=st.booleans(),
    step_time_seconds=amount,
    step_time_interval=st.none() | st.builds(Interval, low=amount, high=amount, coverage=amount, basis=text),
    tokens_per_second_per_gpu=amount,
    model_flops_per_second_per_gpu=amount,
    mfu=amount,
    hfu=amount,
    bubble_fraction=amount,
    peak_memory_bytes=amount,
    memory_capacity_bytes=amount,
    fit_probability=st.none() | st.floats(0, 1),
    time=filled(TimeBreakdown, amount),
    stages=st.lists(stages, max_size=3).map(tuple),
    warnings=st.lists(text, max_size=2).map(tuple),
    provenance=st.dictionaries(text, text, max_size=3),
)
alternatives = st.builds(Alternative, strategy=strategies, step_time_seconds=amount, peak_memory_bytes=amount, tie=st.booleans())
plans = st.builds(
    Plan,
    strategy=strategies,
    estimate=estimates,
    inputs=st.builds(
        PlanInputs,
        model=models,
        cluster=clusters,
        training=training,
        framework=text,
        memory_reserve_bytes=st.none() | amount,
        constraints=st.lists(text, max_size=2).map(tuple),
        assumptions=st.lists(text, max_size=2).map(tuple),
    ),
    search=st.builds(SearchSummary, evaluated=size, rejected=st.dictionaries(text, size, max_size=3), method=text, optimality=text),
    alternatives=st.lists(alternatives, max_size=2).map(tuple),
    autopar_version=text,
)


@settings(max_examples=60, deadline=None)
@given(plans)
def test_parse_of_dump_is_identity(plan: Plan) -> None:
    written = dump_plan(plan)
    assert parse_plan(written) == plan
    assert dump_plan(parse_plan(written.encode())) == written


@pytest.fixture(scope="module")
def plan() -> Plan:
    """One valid plan; every test below spoils its text in some way."""
    device = DeviceSpec(
        id="d", name="Device", architecture="a", memory_bytes=1, memory_bandwidth=1.0, peak_flops={"bf16": 1.0}, num_compute_units=1,
        l2_cache_bytes=1, power_watts=1.0, default_cluster="c", sources={},
    )  # fmt: skip
    tier = LinkTier(name="nvlink", kind=LinkKind.NVLINK, domain_size=8, bandwidth=1e9, latency_seconds=1e-6)
    model = ModelSpec(
        name="m", num_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=4, head_dim=16, ffn_hidden_size=256,
        vocab_size=1000, max_position_embeddings=128, gated_mlp=False,
    )  # fmt: skip
    return Plan(
        strategy=Strategy(tensor_parallel_size=2),
        estimate=Estimate(
            fits=True, step_time_seconds=1.0, step_time_interval=None, tokens_per_second_per_gpu=1.0, model_flops_per_second_per_gpu=1.0,
            mfu=0.5, hfu=0.5, bubble_fraction=0.0, peak_memory_bytes=1.0, memory_capacity_bytes=2.0, fit_probability=None,
            time=TimeBreakdown(**dict.fromkeys(TimeBreakdown.__annotations__, 0.0)), stages=(), warnings=(), provenance={},
        ),
        inputs=PlanInputs(
            model=model,
            cluster=ClusterSpec(id="c", device=device, gpus_per_node=8, num_gpus=2, tiers=(tier,), sources={}),
            training=TrainingSpec(global_batch_size=8, sequence_length=128),
            framework="megatron-core", memory_reserve_bytes=None, constraints=(), assumptions=(),
        ),
        search=SearchSummary(evaluated=1, rejected={}, method="exhaustive", optimality="proven over the enumerated space"),
        alternatives=(),
        autopar_version="0.1.0",
    )  # fmt: skip


def document(plan: Plan) -> dict:
    return json.loads(dump_plan(plan))


def test_the_usual_order_of_ranks_is_left_out_and_another_is_kept(plan: Plan) -> None:
    assert "rank_order" not in document(plan)["strategy"]
    assert not {"rotary_base", "rotary_scaling", "norm_epsilon"} & set(document(plan)["inputs"]["model"])
    other = replace(plan, strategy=replace(plan.strategy, rank_order=RankOrder.TP_CP_PP_DP))
    assert document(other)["strategy"]["rank_order"] == "tp-cp-pp-dp"
    assert parse_plan(dump_plan(other)) == other
    said = document(plan)
    said["strategy"]["rank_order"] = "tp-cp-dp-pp"
    assert parse_plan(json.dumps(said)) == plan


def test_version_comes_first(plan: Plan) -> None:
    assert next(iter(document(plan))) == "schema_version"


def test_all_faults_come_at_once_with_their_paths(plan: Plan) -> None:
    spoiled = document(plan)
    spoiled["strategy"]["tensor_parallel_size"] = 0
    spoiled["inputs"]["training"]["global_batch_size"] = "eight"
    spoiled["estimate"]["mfu"] = None
    spoiled["estimate"]["mfuu"] = 1
    del spoiled["search"]["method"]
    with pytest.raises(InvalidInputError) as caught:
        parse_plan(json.dumps(spoiled))
    assert {fault.field for fault in caught.value.faults} == {
        "$.strategy.tensor_parallel_size",
        "$.inputs.training.global_batch_size",
        "$.estimate.mfu",
        "$.estimate.mfuu",
        "$.search.method",
    }


@pytest.mark.parametrize("version", ["2.0", "0.9", "99.1"])
def test_another_major_version_is_refused(plan: Plan, version: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=rf"{version}.*version 1\.0 to {PLAN_SCHEMA_VERSION}"):
        parse_plan(json.dumps({**document(plan), "schema_version": version, "anything": {"else": 1}}))


def test_a_newer_minor_version_is_read_while_its_fields_are_known(plan: Plan) -> None:
    newer = {**document(plan), "schema_version": "1.9"}
    assert parse_plan(json.dumps(newer)) == replace(plan, schema_version="1.9")
    with pytest.raises(UnsupportedVersionError, match=r"\$\.colour"):
        parse_plan(json.dumps({**newer, "colour": "red"}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "not valid JSON"),
        ('{"schema_version": "1.0"', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"schema_version": "1.0", "x": NaN}', "not valid JSON"),
        ("[]", "one JSON object"),
        ("{}", "major.minor"),
        ('{"schema_version": 1.0}', "major.minor"),
        ('{"schema_version": "' + "9" * 5000 + '.0"}', "major.minor"),
        ('{"schema_version": "1.0"}', r"\$\.strategy: is missing"),
    ],
)
def test_what_is_no_plan_says_so(given: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse_plan(given)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_spoiled_plan_raises_only_our_errors(plan: Plan, data: st.DataObject) -> None:
    written = dump_plan(plan)
    start = data.draw(st.integers(0, len(written) - 1))
    stop = data.draw(st.integers(start, min(len(written), start + 40)))
    spoiled = written[:start] + data.draw(st.text(max_size=5)) + written[stop:]
    try:
        read = parse_plan(spoiled.encode("utf-8", "surrogatepass"))
    except InvalidInputError as error:
        message = str(error)
    else:
        message = dump_plan(read)
    assert message


def test_infinity_is_never_written(plan: Plan) -> None:
    endless = replace(plan, estimate=replace(plan.estimate, step_time_seconds=float("inf")))
    with pytest.raises(AutoparError, match=r"\$\.estimate\.step_time_seconds is inf"):
        dump_plan(endless)


def test_write_then_read(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    write_plan(plan, file)
    assert read_plan(file) == plan
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("read", [read_plan, read_profile, read_measured, read_calibration])
def test_faults_of_a_file_name_the_file(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "cut short.json"
    path.write_text('{"schema_version": ')
    with pytest.raises(InvalidInputError) as caught:
        read(path)
    assert caught.value.faults[0].field == f"{path}: $"
