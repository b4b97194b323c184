"""``autopar.parallelize`` on gloo ranks: against one process, and what it refuses."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import autopar
from autopar.api import write_plan
from autopar.catalog.cpu import cpu_cluster, kind_of
from autopar.catalog.hardware import device
from autopar.costmodel.spec.errors import InvalidInputError, NoPlanError, UnavailableError
from autopar.costmodel.spec.plan import Plan
from autopar.runtime.checkpoint import newest
from autopar.runtime.failures import TrainingFailedError
from autopar.runtime.reference_gpt import ReferenceGPT, ReferenceGPTConfig
from autopar.torch_models import spec_of
from autopar.training import choose_device
from tests.runtime.processes import run_ranks

CONFIG = ReferenceGPTConfig(num_layers=4, tied_embeddings=True)
BATCH, SEQUENCE = 8, 16


def model() -> ReferenceGPT:
    with torch.device("meta"):
        return ReferenceGPT(CONFIG)


def plan_of(ranks: int, **fix: int | str | bool) -> Plan:
    return autopar.plan(
        spec_of(model()),
        cluster=cpu_cluster(ranks, cores=4, memory_bytes=2**34),
        framework="autopar",
        precision="fp32",
        global_batch_size=BATCH,
        sequence_length=SEQUENCE,
        fix=fix,
    )


def adamw(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)  # type: ignore[arg-type]


def batch(step: int) -> torch.Tensor:
    return torch.randint(CONFIG.vocab_size, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(step))


def losses(rank: int, plan: Plan | str | None, steps: int = 3) -> tuple[list[float], str]:
    del rank
    engine = autopar.parallelize(model(), optimizer=adamw, global_batch_size=BATCH, sequence_length=SEQUENCE, plan=plan)
    return [engine.train_step(batch(step)) for step in range(steps)], engine.strategy.describe()


@pytest.fixture(scope="module")
def alone() -> list[float]:
    return run_ranks(1, losses, plan_of(1))[0][0]


def test_a_given_plan_trains_as_one_process_does(alone: list[float], tmp_path: Path) -> None:
    write_plan(plan_of(4, tp=2, pp=2), tmp_path / "plan.json")
    for found, strategy in run_ranks(4, losses, str(tmp_path / "plan.json")):
        assert strategy.startswith("TP2")
        assert found == pytest.approx(alone, rel=1e-5)


def test_without_a_plan_rank_0_plans_for_all(alone: list[float]) -> None:
    ranks = run_ranks(2, losses, None)
    assert len({strategy for _, strategy in ranks}) == 1
    assert ranks[0][0] == pytest.approx(alone, rel=1e-5)


def test_sequences_are_split_where_that_is_asked_for_and_not_under_a_users_loss(alone: list[float]) -> None:
    def train(rank: int) -> tuple[list[float], str]:
        del rank
        options = {"optimizer": adamw, "global_batch_size": BATCH, "sequence_length": SEQUENCE, "fix": {"cp": 2}}
        with pytest.raises(NoPlanError, match="loss_fn"):
            autopar.parallelize(model(), loss_fn=lambda output, _: output.mean(), **options)  # type: ignore[arg-type]
        engine = autopar.parallelize(model(), **options)  # type: ignore[arg-type]
        return [engine.train_step(batch(step)) for step in range(3)], engine.strategy.describe()

    for found, strategy in run_ranks(2, train):
        assert "CP2" in strategy
        assert found == pytest.approx(alone, rel=1e-5)


def test_planning_passes_over_what_the_model_cannot_do() -> None:
    def train(rank: int) -> str:
        del rank
        few_heads = ReferenceGPT(ReferenceGPTConfig(num_layers=2, num_attention_heads=1, num_key_value_heads=1))
        engine = autopar.parallelize(few_heads, optimizer=adamw, global_batch_size=4, sequence_length=8, fix={"dp": 1})
        return engine.strategy.describe()

    assert all(strategy.startswith("TP1 PP2") for strategy in run_ranks(2, train))


def faults_of(rank: int, plan: Plan, global_batch_size: int, config: ReferenceGPTConfig) -> list[str]:
    del rank
    with pytest.raises(InvalidInputError) as raised:
        autopar.parallelize(ReferenceGPT(config), optimizer=adamw, global_batch_size=global_batch_size, plan=plan)
    return [fault.field for fault in raised.value.faults]


def test_all_in_which_a_plan_is_for_another_run_is_told_at_once() -> None:
    other = ReferenceGPTConfig(num_layers=3, hidden_size=32, ffn_hidden_size=256)
    for fields in run_ranks(2, faults_of, plan_of(4), 16, other):
        assert fields == ["model.num_layers", "model.hidden_size", "model.tied_embeddings", "world_size", "global_batch_size"]


def test_without_a_plan_a_batch_is_needed() -> None:
    def train(rank: int) -> None:
        del rank
        autopar.parallelize(model(), optimizer=adamw)

    with pytest.raises(InvalidInputError, match="global_batch_size"):
        run_ranks(1, train)


def test_a_plan_for_gpus_needs_them_unless_the_cpu_is_asked_for() -> None:
    spec = spec_of(model())
    plan = autopar.plan(spec, gpus=1, framework="autopar", precision="fp32", global_batch_size=BATCH, sequence_length=SEQUENCE)

    def train(rank: int, device: str | None) -> float:
        del rank
        engine = autopar.parallelize(model(), optimizer=adamw, plan=plan, device=device)
        return engine.train_step(batch(0))

    if not torch.cuda.is_available():
        with pytest.raises(UnavailableError, match=r"1 GPU on this machine, which has none.*cpu"):
            run_ranks(1, train, None)
    assert run_ranks(1, train, "cpu")[0] > 0


def test_nothing_that_fits_is_told_on_every_rank() -> None:
    def train(rank: int) -> None:
        del rank
        with pytest.raises(NoPlanError):
            autopar.parallelize(model(), optimizer=adamw, global_batch_size=BATCH, sequence_length=SEQUENCE, fix={"mbs": 3})

    run_ranks(2, train)


def test_a_loss_that_is_no_number_ends_every_rank_with_the_reason() -> None:
    def train(rank: int) -> str:
        broken = int(os.environ["RANK"]) == 1

        def loss_fn(output: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
            del given
            return output.mean() * (float("nan") if broken else 1.0)

        engine = autopar.parallelize(model(), optimizer=adamw, loss_fn=loss_fn, plan=plan_of(2, dp=2))
        with pytest.raises(TrainingFailedError) as raised:
            engine.train_step({"input_ids": batch(rank)})
        return str(raised.value)

    assert all("the loss of step 1 is nan" in text for text in run_ranks(2, train))


def saved(rank: int, plan: Plan, folder: Path) -> list[float]:
    del rank
    engine = autopar.parallelize(model(), optimizer=adamw, plan=plan, seed=3)
    found = [engine.train_step(batch(step)) for step in range(2)]
    engine.save(folder)
    return [*found, engine.train_step(batch(2)), engine.train_step(batch(3))]


def resumed(rank: int, plan: Plan, folder: Path) -> tuple[int, list[float]]:
    del rank
    engine = autopar.parallelize(model(), optimizer=adamw, plan=plan, seed=99)
    engine.load(folder)
    return engine.step, [engine.train_step(batch(2)), engine.train_step(batch(3))]


@pytest.mark.parametrize(
    ("ranks", "fix"),
    [(1, {}), (4, {"dp": 4, "zero": 3}), (2, {"pp": 2, "vpp": 2, "schedule": "zero_bubble"})],
)
def test_training_goes_on_under_another_layout(tmp_path: Path, ranks: int, fix: dict[str, int | str]) -> None:
    going_on = run_ranks(4, saved, plan_of(4, tp=2, pp=2), tmp_path)[0]
    assert newest(tmp_path).name == "step-00000002"
    for step, found in run_ranks(ranks, resumed, plan_of(ranks, **fix), tmp_path):
        assert step == 2
        assert found[0] == pytest.approx(going_on[2], rel=1e-5)
        assert found[1] == pytest.approx(going_on[3], rel=1e-4)  # Adam's early steps enlarge the last bits


def test_measured_steps() -> None:
    def train(rank: int) -> None:
        del rank
        engine = autopar.parallelize(model(), optimizer=adamw, plan=plan_of(2, dp=2))
        measurement = engine.measure(batch(0), steps=3, warmup_steps=1)
        assert engine.step == 4
        assert len(measurement.step_seconds) == 3
        assert measurement.tokens_per_second == pytest.approx(BATCH * SEQUENCE / sorted(measurement.step_seconds)[1])
        assert len(measurement.peak_memory_bytes) == 2
        assert measurement.mfu(1e9, 1e9) == pytest.approx(0.5 / measurement.step_time_seconds)

    run_ranks(2, train)


def test_a_measured_processor_is_a_processor_under_any_name() -> None:
    measured = cpu_cluster(2)
    measured = replace(measured, device=replace(measured.device, id="cpu-some-maker-1t"))
    assert kind_of(measured.device) == "cpu"
    assert choose_device(None, kind_of(measured.device)) == torch.device("cpu")
    assert kind_of(device("h100-sxm5-80gb")) == "h100-sxm5-80gb"
