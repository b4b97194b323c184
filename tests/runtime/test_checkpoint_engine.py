"""Checkpoints of whole engines: fused and tied parameters of Hugging Face models, and a save that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from autopar.costmodel.spec.strategy import RankOrder, Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.runtime.checkpoint import newest
from autopar.runtime.checkpoint_index import read_index
from autopar.runtime.engine import Engine, EngineOptions, build_engine

from .processes import run_ranks

transformers = pytest.importorskip("transformers")

BATCH = torch.arange(4 * 8).reshape(4, 8) % 50


def gpt2() -> torch.nn.Module:
    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=4, vocab_size=51, n_positions=16, use_cache=False)
    with torch.device("meta"):
        model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return model.eval()


def engine(strategy: Strategy) -> Engine:
    def adamw(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.01)  # type: ignore[arg-type]

    options = EngineOptions(precision=PRECISIONS["fp32"], seed=1)
    return build_engine(gpt2(), strategy, optimizer=adamw, global_batch_size=4, options=options)


def whole(built: Engine) -> dict[str, torch.Tensor]:
    """Parameters and the two moments of a single process, by name."""
    found = {}
    for name, parameter in built.model_parts[0].named_parameters():
        found[name] = parameter.detach().clone()
        found[f"{name}/exp_avg"] = built.optimizer.state[parameter]["exp_avg"].clone()
    return found


def train_and_save(rank: int, strategy: Strategy, folder: Path) -> dict[str, torch.Tensor]:
    del rank
    built = engine(strategy)
    built.train_step(BATCH)
    built.eval_step(BATCH)  # leaves parameters gathered where ZeRO does not reshard
    built.save(folder)
    return whole(built) if strategy.world_size == 1 else {}


def load_alone(rank: int, folder: Path) -> dict[str, torch.Tensor]:
    del rank
    built = engine(Strategy())
    built.load(folder)
    return whole(built)


def load_and_go_on(rank: int, strategy: Strategy, folder: Path) -> float:
    del rank
    built = engine(strategy)
    built.load(folder)
    return built.train_step(BATCH)


TP = Strategy(tensor_parallel_size=2)
LAYOUTS = (
    TP,
    Strategy(tensor_parallel_size=2, data_parallel_size=2, zero_stage=1),
    Strategy(tensor_parallel_size=2, pipeline_parallel_size=2),
    Strategy(pipeline_parallel_size=2, data_parallel_size=2, zero_stage=1, rank_order=RankOrder.TP_CP_PP_DP),
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], Path]:
    folder = tmp_path_factory.mktemp("alone")
    return run_ranks(1, train_and_save, Strategy(), folder)[0], folder


@pytest.mark.parametrize("strategy", LAYOUTS, ids=Strategy.describe)
def test_fused_and_tied_parameters_land_where_the_users_model_has_them(
    strategy: Strategy, tmp_path: Path, alone: tuple[dict[str, torch.Tensor], Path]
) -> None:
    truth, _ = alone
    run_ranks(strategy.world_size, train_and_save, strategy, tmp_path)
    found = run_ranks(1, load_alone, tmp_path)[0]
    assert set(found) == set(truth)
    for name, value in truth.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    names = {name.removeprefix("model.") for name in read_index(newest(tmp_path)).tensors if name.startswith("model.")}
    assert names == set(gpt2().state_dict())


@pytest.mark.parametrize("strategy", LAYOUTS, ids=Strategy.describe)
def test_a_single_process_is_gone_on_with_under_other_layouts(strategy: Strategy, alone: tuple[dict[str, torch.Tensor], Path]) -> None:
    _, folder = alone
    expected = run_ranks(1, load_and_go_on, Strategy(), folder)[0]
    assert run_ranks(strategy.world_size, load_and_go_on, strategy, folder) == pytest.approx([expected] * strategy.world_size, rel=1e-5)


SAVER = """
import sys, torch
from autopar.runtime.checkpoint import TrainState, save
model = torch.nn.Linear(2000, 2000)
state = TrainState(model_parts=[model], optimizers=[], step=1, seed=0)
save(state, sys.argv[1])
print("saved", flush=True)
while True:
    state.step += 1
    model.weight.data.fill_(state.step)
    save(state, sys.argv[1])
"""


def test_a_save_that_is_killed_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    from autopar.runtime.checkpoint import TrainState, load

    # killed at whatever moment of a save it is in, three times over
    for pause in (0.0, 0.015, 0.04):
        process = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE, env={**os.environ})
        assert process.stdout is not None
        assert process.stdout.readline() == b"saved\n"
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        process.stdout.close()
        model = torch.nn.Linear(2000, 2000)
        state = TrainState(model_parts=[model], optimizers=[], step=0, seed=0)
        load(state, tmp_path)
        assert state.step >= 1
        if state.step > 1:
            assert bool((model.weight == state.step).all())
