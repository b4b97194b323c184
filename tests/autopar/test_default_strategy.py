"""A strategy's unsaid fields follow the framework."""

from __future__ import annotations

import pytest

from autopar.catalog.frameworks import framework, framework_names
from autopar.costmodel.spec.strategy import ContextParallelKind
from autopar.io.flags import make_strategy


@pytest.mark.parametrize("name", framework_names())
@pytest.mark.parametrize("sizes", [{"tp": 2}, {"tp": 2, "pp": 2}])
def test_unsaid_zero_stage_and_sequence_parallelism_are_what_the_framework_has(name: str, sizes: dict[str, int]) -> None:
    profile = framework(name)
    strategy = make_strategy(sizes, framework=profile)
    stages = profile.zero_stages_with_pipeline if "pp" in sizes else profile.zero_stages
    assert strategy.zero_stage in stages
    assert strategy.sequence_parallel == profile.sequence_parallel


@pytest.mark.parametrize("name", framework_names())
def test_unsaid_context_parallelism_is_the_framework_s(name: str) -> None:
    kinds = framework(name).context_parallel_kinds
    assert make_strategy({"tp": 2}, framework=framework(name)).context_parallel_kind is ContextParallelKind.RING
    if kinds:
        assert make_strategy({"cp": 2}, framework=framework(name)).context_parallel_kind is kinds[0]
        assert (
            make_strategy({"cp": 2, "cp_kind": "ulysses"}, framework=framework(name)).context_parallel_kind is ContextParallelKind.ULYSSES
        )
