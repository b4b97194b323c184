"""What a plan is asked to be good at besides fitting: the objective, prices, and how often nodes fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from autopar.costmodel.spec.economics import Objective, Price
from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnknownNameError, raise_if
from autopar.costmodel.spec.goodput import Reliability
from autopar.io.quantities import DAY, format_duration, parse_duration, parse_prices
from autopar.request import gather

if TYPE_CHECKING:
    from autopar.costmodel.spec.cluster import ClusterSpec

Prices = Iterable[str] | Mapping[str, str | float] | str | float
"""``2.5``, ``"2.5 USD"``, ``{"h100-sxm5-80gb": 2.5}`` or ``["h100-sxm5-80gb=2.5"]``: of one GPU for one hour."""

REPAIR_SECONDS = DAY


class Failures(TypedDict, total=False):
    """How often nodes fail and what that costs: seconds, or text such as ``"4000h"`` or ``"2 min"``."""

    mtbf_node: str | float | None
    checkpoint_seconds: str | float | None
    restart_seconds: str | float | None
    repair_time: str | float | None


FAILURE_NAMES = tuple(Failures.__annotations__)
_FLAGS = {name: f"--{name.replace('_', '-')}" for name in FAILURE_NAMES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aims:
    """The objective, the prices by device or cluster, how often nodes fail, and what was assumed of that."""

    objective: Objective
    prices: Mapping[str, Price]
    reliability: Reliability | None
    assumptions: tuple[str, ...] = ()

    def price_of(self, cluster: ClusterSpec) -> Price | None:
        """The price of a GPU of ``cluster``: by the cluster's name, its device's, or the one for all; None where there is none."""
        return next((self.prices[name] for name in (cluster.id, cluster.device.id, "") if name in self.prices), None)

    def needs_price(self, cluster: ClusterSpec) -> None:
        """Raises:
        InvalidInputError: cost is asked for (the objective or an axis), and no price is of ``cluster``.
        """
        if self.price_of(cluster) is None:
            given = f"prices of {', '.join(self.prices)}" if self.prices else ""
            required = f"cost needs the price of a GPU-hour of {cluster.device.id}"
            raise InvalidInputError(Fault(field="--price", given=given, required=required, fix=f"--price {cluster.device.id}=2.5"))


def read_aims(
    objective: str = "step-time", price: Prices | None = None, failures: Failures | None = None, *, own: Iterable[str] = ()
) -> Aims:
    """Aims from what was asked; ``own`` are names of the user's cluster and device, which may have prices beside the catalog's.

    Raises:
        InvalidInputError: with all faults at once: an objective that is none, a price or a time that cannot be read or is not above
            zero, a name with a price that the catalog does not have, failures without what they cost.
    """
    faults: list[Fault] = []
    chosen = gather(faults, lambda: _objective(objective))
    prices = gather(faults, lambda: _prices(price, frozenset(own)))
    notes: list[str] = []
    reliability = gather(faults, lambda: read_reliability(failures or {}, notes))
    raise_if(faults)
    return Aims(objective=chosen or Objective.STEP_TIME, prices=prices or {}, reliability=reliability, assumptions=tuple(notes))


def read_reliability(failures: Failures, notes: list[str]) -> Reliability | None:
    """The failure model from what was given, with a note for what was not; None where nothing was.

    Raises:
        InvalidInputError: with all faults at once.
    """
    given = {name: value for name, value in failures.items() if value is not None}
    if not given:
        return None
    faults: list[Fault] = []
    for name, why, example in (
        ("mtbf_node", "the mean time between failures of a node", "4000h"),
        ("checkpoint_seconds", "what training waits for while a checkpoint is written", "60"),
    ):
        if name not in given:
            others = " and ".join(_FLAGS[each] for each in given)
            fix = f"for example {_FLAGS[name]} {example}"
            faults.append(Fault(field=_FLAGS[name], given="", required=f"{others} needs {why}", fix=fix))
    seconds = {name: gather(faults, lambda name=name: _time(name, given[name])) for name in given}  # type: ignore[misc]
    raise_if(faults)
    checkpoint = seconds["checkpoint_seconds"] or 0.0
    restart, repair = seconds.get("restart_seconds"), seconds.get("repair_time")
    if restart is None:
        notes.append(
            f"restart after a failure: {format_duration(checkpoint)}, as long as a checkpoint takes to write"
            " (--restart-seconds counts detection, a new node and start-up in)"
        )
    if repair is None:
        notes.append(f"repair of a node: {format_duration(REPAIR_SECONDS)} (--repair-time says otherwise)")
    return Reliability(
        mtbf_node_seconds=seconds["mtbf_node"] or 0.0,
        checkpoint_seconds=checkpoint,
        restart_seconds=checkpoint if restart is None else restart,
        repair_seconds=REPAIR_SECONDS if repair is None else repair,
    )


def _time(name: str, value: object) -> float:
    text = value if isinstance(value, str | int | float) else str(value)
    if name == "restart_seconds" and str(text).strip() in ("0", "0s", "0.0"):
        return 0.0
    return parse_duration(text, field=_FLAGS[name], bare=name.endswith("_seconds"))


def _objective(name: str) -> Objective:
    try:
        return Objective(str(name).strip().lower().replace("_", "-"))
    except ValueError:
        raise UnknownNameError("objective", str(name), list(Objective)) from None


def _prices(price: Prices | None, own: frozenset[str]) -> dict[str, Price]:
    """By catalog id; the bare price, for all, stays under the empty name."""
    if price is None:
        return {}
    faults: list[Fault] = []
    prices: dict[str, Price] = {}
    for name, each in parse_prices(price).items():
        known = gather(faults, lambda name=name: name if not name or name in own else _catalog_id(name))  # type: ignore[misc]
        if known is not None:
            prices[known] = each
    raise_if(faults)
    return prices


def _catalog_id(name: str) -> str:
    """The device, or else the node type, that ``name`` means."""
    from autopar.catalog import hardware
    from autopar.catalog_view import entry

    try:
        return hardware.device(name).id
    except UnknownNameError as error:
        try:
            cluster = entry("clusters", name)
        except UnknownNameError:
            raise error from None
        return str(getattr(cluster, "id", name))
