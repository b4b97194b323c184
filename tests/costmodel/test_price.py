"""Money and energy of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.costmodel.price import cost, economics, energy_joules, rated_power_watts
from autopar.costmodel.spec.economics import Price
from autopar.costmodel.spec.errors import InvalidInputError, UnavailableError
from tests.costmodel.problems import problem


def test_an_hour_on_one_gpu_costs_its_price() -> None:
    assert cost(3600, 1, Price(per_gpu_hour=2.5)) == pytest.approx(2.5)
    assert cost(1.8, 1000, Price(per_gpu_hour=2)) == pytest.approx(1.0)
    assert energy_joules(2, 8, 700) == 11_200


def test_a_step_says_what_its_tokens_cost() -> None:
    asked = problem(gpus=16, batch=32, length=4096)
    found = economics(asked, 2.0, Price(per_gpu_hour=3, currency="EUR"))
    tokens = asked.training.tokens_per_step
    assert found.cost_per_step == pytest.approx(16 * 2 / 3600 * 3)
    assert found.cost_per_million_tokens == pytest.approx(found.cost_per_step / tokens * 1e6)
    assert found.energy_joules_per_step == 16 * 2 * 700
    assert found.energy_joules_per_token == pytest.approx(16 * 2 * 700 / tokens)
    assert "upper bound" in found.energy_basis
    assert "data sheet" in found.energy_basis


def test_without_a_price_there_is_energy_alone() -> None:
    found = economics(problem(), 2.0, None)
    assert (found.price, found.cost_per_step, found.cost_per_million_tokens) == (None, None, None)
    assert found.energy_joules_per_step > 0


@pytest.mark.parametrize("amount", [0.0, -2.5, float("nan"), float("inf")])
def test_a_price_is_above_zero(amount: float) -> None:
    with pytest.raises(InvalidInputError, match="above zero"):
        Price(per_gpu_hour=amount)


def test_a_device_without_power_has_no_energy() -> None:
    device = replace(problem().cluster.device, power_watts=0.0)
    with pytest.raises(UnavailableError, match=r"h100-sxm5-80gb has no power figure.*power_watts"):
        rated_power_watts(device)
