"""What keeps experts from lying on the ranks of a strategy."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.strategy import Strategy
from autopar.runtime.structure import ModelStructure

from .grid import expert_grid_differs, expert_shard_size
from .modules import COUNT, stacked_experts

SPREAD, CUT = "expert_parallel_size", "expert_tensor_parallel_size"


def grid_faults(strategy: Strategy) -> list[Fault]:
    """What no model's experts can lie on."""
    spread, cut, tensor = strategy.expert_parallel_size, strategy.expert_tensor_parallel_size, strategy.tensor_parallel_size
    faults = []
    if cut not in (1, tensor):
        fixes = "1" if tensor == 1 else f"1 or {tensor}"
        required = f"experts are whole, or cut as the dense layers are over tensor_parallel_size={tensor}"
        faults.append(Fault(field=CUT, given=str(cut), required=required, fix=f"use {CUT}={fixes}"))
    elif cut > 1 and spread > 1:
        required = "this runtime does not cut experts that are spread over ranks"
        faults.append(Fault(field=CUT, given=str(cut), required=required, fix=f"use {CUT}=1, or {SPREAD}=1"))
    ranks = RankLayout.of(strategy).ranks_per_stage
    if ranks % spread:
        valid = ", ".join(str(size) for size in range(1, ranks + 1) if ranks % size == 0)
        required = f"must divide tp x cp x dp = {ranks}"
        faults.append(Fault(field=SPREAD, given=str(spread), required=required, fix=f"nearest valid: {valid}"))
    return faults


def expert_faults(model: nn.Module, structure: ModelStructure, strategy: Strategy) -> list[Fault]:
    """Why the experts of ``model`` cannot lie as ``strategy`` says; it has none of :func:`grid_faults`."""
    spread, cut = strategy.expert_parallel_size, strategy.expert_tensor_parallel_size
    experts = dict(stacked_experts(model, structure.layout))
    if not experts:
        asked = [(field, size) for field, size in ((SPREAD, spread), (CUT, cut)) if size > 1]
        required = f"no experts are found in {type(model).__name__}; this runtime knows Hugging Face's stacked ones and the reference GPT's"
        return [Fault(field=field, given=str(size), required=required, fix=f"use {field}=1") for field, size in asked]
    if not expert_grid_differs(strategy):
        return []
    return [*_number_faults(experts, spread), *_token_faults(strategy), *_shard_faults(strategy)]


def _number_faults(experts: dict[str, nn.Module], spread: int) -> Iterator[Fault]:
    """All of a module's own parameters hold one slice an expert, and ranks get as many each."""
    for path, module in experts.items():
        number = int(getattr(module, COUNT, 0))
        odd = [name for name, parameter in module.named_parameters() if "." in name or parameter.shape[0] != number]
        if odd:
            required = f"{path}.{odd[0]} is not one slice for each of {COUNT}={number}"
            yield Fault(field=SPREAD, given=str(spread), required=required, fix=f"use {SPREAD}=1")
            return
        if number % spread:
            valid = ", ".join(str(size) for size in range(1, number + 1) if number % size == 0)
            yield Fault(field=SPREAD, given=str(spread), required=f"must divide num_experts={number}", fix=f"nearest valid: {valid}")
            return


def _token_faults(strategy: Strategy) -> Iterator[Fault]:
    tensor = strategy.tensor_parallel_size
    if tensor > 1 and not strategy.sequence_parallel:
        required = f"whole experts under tensor_parallel_size={tensor} need each rank to have tokens of its own"
        fix = "use sequence_parallel=True" + ("" if strategy.expert_parallel_size > 1 else f", or {CUT}={tensor}")
        yield Fault(field="sequence_parallel", given="False", required=required, fix=fix)


def _shard_faults(strategy: Strategy) -> Iterator[Fault]:
    copies, shard = RankLayout.of(strategy).edp, expert_shard_size(strategy)
    if copies % shard:
        required = f"must divide the {copies} ranks that hold the same experts, or be more"
        yield Fault(field="shard_group_size", given=str(shard), required=required, fix="leave it out, or use zero_stage=0")
