"""Placement of layers on stages by CP-SAT, where stages share a rank's memory and layers differ: needs OR-Tools.

Identical layers are counted, not named: the variables are the cut points, the layers of each kind between two of them (looked up in the
prefix counts of the model), and how many of them each rank recomputes. One boolean a layer and stage is hopeless at a hundred layers;
with counts the optimum of 96 layers on 16 stages takes a tenth of a second to some seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from autopar.costmodel.columns import Floats, Ints
from autopar.costmodel.spec.errors import UnavailableError
from autopar.costmodel.stage_budget import StageBudget

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver, IntVar, LinearExpr

    Whole = LinearExpr | IntVar | int

_UNITS = 1_000_000
"""Seconds and bytes are whole numbers of the largest over this; rounded such that nothing that fits is excluded and no time overstated."""
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the solver found within its time."""

    layers: tuple[int, ...]
    """Of each stage; empty where it found none."""
    slowest_seconds: float
    """Of a micro-batch on the busiest rank of ``layers``; infinite where there are none."""
    bound_seconds: float
    """No placement has a faster busiest rank; infinite where none fits."""
    proven: bool


def require() -> None:
    """Raises:
    UnavailableError: OR-Tools is not installed.
    """
    if find_spec("ortools") is None:
        raise UnavailableError("exact placement of layers needs OR-Tools: pip install 'autopar[search]', or ask for uneven stages instead")


def least_busy(budget: StageBudget, *, effort: float = 1.0) -> Answer:
    """Cut points such that the busiest rank is as little busy as can be; every rank recomputes as many layers of each kind as it likes.

    Args:
        budget: of one strategy (N = 1).
        effort: the solver's deterministic time, about seconds: the same effort gives the same answer on every machine.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    placement = _Placement(model, budget)
    for rank in range(budget.num_holders):
        placement.bound_rank(rank)
    model.minimize(placement.slowest)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = effort
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = _SEED
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Answer(layers=(), slowest_seconds=np.inf, bound_seconds=np.inf, proven=True)
    bound = float(solver.best_objective_bound) * placement.second
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Answer(layers=(), slowest_seconds=np.inf, bound_seconds=bound, proven=False)
    return Answer(
        layers=placement.layers(solver),
        slowest_seconds=float(solver.objective_value) * placement.second,
        bound_seconds=bound,
        proven=status == cp_model.OPTIMAL,
    )


class _Placement:
    """The variables: cuts, layers by kind on each stage, the busiest rank's seconds."""

    def __init__(self, model: CpModel, budget: StageBudget) -> None:
        self._model, self._budget = model, budget
        stages, layers = budget.num_stages, budget.num_layers
        before = budget.kinds_before()
        cuts: list[IntVar | int] = [0, *(model.new_int_var(1, layers - 1, f"cut{stage}") for stage in range(1, stages)), layers]
        self._cuts = cuts
        self._by_kind: list[list[Whole]] = []
        until: list[list[IntVar | int]] = [self._kinds_until(cut, before) for cut in cuts]
        for stage in range(stages):
            model.add(cuts[stage + 1] >= cuts[stage] + 1)
            self._by_kind.append([until[stage + 1][kind] - until[stage][kind] for kind in (0, 1)])
        busiest = budget.on_holders(budget.recomputed_seconds.base)[0].max() + layers * budget.recomputed_seconds.slope[0].max()
        self.second = float(busiest) / _UNITS
        self.slowest = model.new_int_var(0, _UNITS, "slowest")

    def _kinds_until(self, cut: IntVar | int, before: Ints) -> list[IntVar | int]:
        """Dense and expert layers before a cut."""
        if isinstance(cut, int):
            return [int(before[cut, kind]) for kind in (0, 1)]
        found: list[IntVar | int] = []
        for kind in (0, 1):
            count = self._model.new_int_var(0, int(before[-1, kind]), f"kind{kind}_{cut}")
            self._model.add_element(cut, before[:, kind].tolist(), count)
            found.append(count)
        return found

    def bound_rank(self, rank: int) -> None:
        """Seconds of ``rank`` within the slowest, bytes within the capacity."""
        budget, model = self._budget, self._model
        own = np.flatnonzero(budget.holder == rank).tolist()
        layers: list[Whole] = [sum(self._by_kind[stage][kind] for stage in own) for kind in (0, 1)]
        again = [model.new_int_var(0, int(budget.kinds_before()[-1, kind]), f"again{kind}_{rank}") for kind in (0, 1)]
        for kind in (0, 1):
            model.add(again[kind] <= layers[kind])
        of_a_layer = budget.seconds.slope[0][own].min(axis=0)
        added = (budget.recomputed_seconds.slope[0] - budget.seconds.slope[0])[own].min(axis=0)
        base = budget.seconds.base[0][own].sum()
        model.add(_floored(base, of_a_layer, layers, added, again, self.second) <= self.slowest)
        byte = budget.capacity_bytes / _UNITS
        saved = budget.bytes.slope[0, rank] - budget.recomputed_bytes.slope[0, rank]
        room = int(np.ceil((budget.capacity_bytes - budget.least_base_bytes[0, rank]) / byte))
        held = [int(np.floor(each / byte)) for each in budget.bytes.slope[0, rank]]
        freed = [int(np.ceil(each / byte)) for each in saved]
        model.add(sum(held[kind] * layers[kind] - freed[kind] * again[kind] for kind in (0, 1)) <= room)

    def layers(self, solver: CpSolver) -> tuple[int, ...]:
        """The solution's layers on each stage."""
        places = [cut if isinstance(cut, int) else solver.value(cut) for cut in self._cuts]
        return tuple(np.diff(places).tolist())


def _floored(base: float, slope: Floats, layers: list[Whole], added: Floats, again: list[IntVar], unit: float) -> Whole:
    """``base + slope . layers + added . again`` in whole units, rounded down."""
    terms = (int(np.floor(slope[kind] / unit)) * layers[kind] + int(np.floor(added[kind] / unit)) * again[kind] for kind in (0, 1))
    return int(np.floor(base / unit)) + sum(terms)
