"""A strategy's unsaid fields follow the framework."""

from __future__ import annotations

import pytest

from autopar.catalog.frameworks import framework, framework_names
from autopar.io.flags import make_strategy


@pytest.mark.parametrize("name", framework_names())
@pytest.mark.parametrize("sizes", [{"tp": 2}, {"tp": 2, "pp": 2}])
def test_unsaid_zero_stage_and_sequence_parallelism_are_what_the_framework_has(name: str, sizes: dict[str, int]) -> None:
    profile = framework(name)
    strategy = make_strategy(sizes, framework=profile)
    stages = profile.zero_stages_with_pipeline if "pp" in sizes else profile.zero_stages
    assert strategy.zero_stage in stages
    assert strategy.sequence_parallel == profile.sequence_parallel
