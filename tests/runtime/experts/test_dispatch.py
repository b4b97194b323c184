"""Tokens find their experts on other ranks and come back, whatever the router says: outputs and all gradients of one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from autopar.runtime.experts.modules import expert_parallelize
from autopar.runtime.families.reference import REFERENCE_GPT
from autopar.runtime.reference_gpt import Experts, ReferenceGPT, ReferenceGPTConfig
from autopar.runtime.tensor.local import local_parameter
from tests.runtime.processes import run_ranks

EXPERTS, TOKENS, HIDDEN = 4, 6, 8
ROUTINGS = ("any", "one expert", "the last rank's", "to itself")


def routing(name: str, rank: int, ranks: int) -> Tensor:
    """Two experts for each token of ``rank``."""
    generator = torch.Generator().manual_seed(10 + rank)
    two = torch.stack([torch.randperm(EXPERTS, generator=generator)[:2] for _ in range(TOKENS)])
    local = EXPERTS // ranks
    first = {"one expert": 0, "the last rank's": EXPERTS - local, "to itself": rank * local}.get(name)
    if first is None:
        return two
    return torch.full_like(two, first) if name == "one expert" else first + two % local


def model() -> ReferenceGPT:
    torch.manual_seed(3)
    config = ReferenceGPTConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=2, num_key_value_heads=2, ffn_hidden_size=12, num_experts=4
    )
    built = ReferenceGPT(config)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_()
    return built


def tokens(rank: int) -> tuple[Tensor, Tensor]:
    """Hidden states and routing weights of ``rank``, the same at every call."""
    generator = torch.Generator().manual_seed(rank)
    states = torch.randn(TOKENS, HIDDEN, generator=generator).requires_grad_()
    return states, torch.rand(TOKENS, 2, generator=generator).requires_grad_()


def experts_of(built: ReferenceGPT) -> Experts:
    experts = built.get_submodule("blocks.0.feed_forward.experts")
    assert isinstance(experts, Experts)
    return experts


def on_a_rank(rank: int, ranks: int, name: str) -> dict[str, Tensor]:
    built = model()
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    expert_parallelize(built, REFERENCE_GPT, mesh)
    experts = experts_of(built)
    (states, weights), index = tokens(rank), routing(name, rank, ranks)
    output = experts(states, index, weights)
    output.square().sum().backward()
    found = {"output": output.detach(), "states": states.grad, "weights": weights.grad}
    for label in ("gate_up_proj", "down_proj"):
        gradient = experts.get_parameter(label).grad
        assert gradient is not None
        found[label] = gradient.to_local()  # type: ignore[attr-defined]
        held = local_parameter(experts, label)
        assert held is not None
        assert held.shape[0] == EXPERTS // ranks
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("ranks", [2, 4])
def test_outputs_and_gradients_are_those_of_whole_experts(ranks: int) -> None:
    results = {name: run_ranks(ranks, lambda rank, name=name: on_a_rank(rank, ranks, name)) for name in ROUTINGS}
    for name, of_ranks in results.items():
        experts = experts_of(model())
        for rank, found in enumerate(of_ranks):
            states, weights = tokens(rank)
            output = experts(states, routing(name, rank, ranks), weights)
            output.square().sum().backward()
            torch.testing.assert_close(found["output"], output.detach(), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(found["states"], states.grad, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(found["weights"], weights.grad, rtol=1e-4, atol=1e-4)
        for label in ("gate_up_proj", "down_proj"):
            together = torch.cat([found[label] for found in of_ranks])
            torch.testing.assert_close(together, experts.get_parameter(label).grad, rtol=1e-4, atol=1e-3)
