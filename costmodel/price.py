"""Money and energy of a step: GPU-hours times a price, GPU-seconds times a power.

Every GPU of the job is paid for and powered for as long as the step lasts, whether it computes, waits or idles in a bubble. So on a
given number of GPUs both are the step time times a constant: the fastest strategy is the cheapest and, by rated power, the one
that takes least energy. They order strategies differently only across numbers or kinds of GPUs.
"""

from __future__ import annotations

from .problem import Problem
from .spec.cluster import DeviceSpec
from .spec.economics import Economics, Price
from .spec.errors import UnavailableError

HOUR_SECONDS = 3600.0
MILLION = 1e6
RATED = "rated power of the GPU ({source}): an upper bound; host, network and cooling are not in it"


def cost(seconds: float, num_gpus: int, price: Price) -> float:
    """Money for ``num_gpus`` GPUs over ``seconds``: GPUs x hours x price of a GPU-hour."""
    return num_gpus * seconds / HOUR_SECONDS * price.per_gpu_hour


def energy_joules(seconds: float, num_gpus: int, power_watts: float) -> float:
    """Energy of ``num_gpus`` GPUs over ``seconds``: GPUs x seconds x watts.

    With rated power (the board's limit) an upper bound: a GPU that waits for a transfer or stands in a bubble draws less.
    """
    return num_gpus * seconds * power_watts


def rated_power_watts(device: DeviceSpec) -> float:
    """The device's power limit as its data sheet has it, watts.

    Raises:
        UnavailableError: the device has no power figure.
    """
    if not device.power_watts > 0:
        raise UnavailableError(f"{device.id} has no power figure: energy needs power_watts in its entry (watts, with the source)")
    return device.power_watts


def economics(problem: Problem, step_seconds: float, price: Price | None) -> Economics:
    """Money and energy of a step of ``step_seconds`` on the problem's GPUs; expected seconds where failures are counted in.

    Raises:
        UnavailableError: the device has no power figure.
    """
    device, gpus, tokens = problem.cluster.device, problem.cluster.num_gpus, problem.training.tokens_per_step
    power = rated_power_watts(device)
    joules = energy_joules(step_seconds, gpus, power)
    money = None if price is None else cost(step_seconds, gpus, price)
    return Economics(
        num_gpus=gpus,
        price=price,
        cost_per_step=money,
        cost_per_million_tokens=None if money is None else money / tokens * MILLION,
        power_watts_per_gpu=power,
        energy_joules_per_step=joules,
        energy_joules_per_token=joules / tokens,
        energy_basis=RATED.format(source=device.sources.get("power_watts", "source not given")),
    )
