"""Laws of the rank layout for every order and both grids; frameworks' own construction as the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.strategy import RankOrder

SIZE = st.integers(1, 4)
ORDER = st.sampled_from(list(RankOrder))


@st.composite
def layouts(draw: st.DrawFn) -> RankLayout:
    """Every layout of up to 256 ranks whose expert grid divides the ranks of a stage."""
    tp, cp, dp, pp = (draw(SIZE) for _ in range(4))
    ranks = tp * cp * dp
    etp = draw(st.sampled_from([size for size in range(1, ranks + 1) if ranks % size == 0]))
    ep = draw(st.sampled_from([size for size in range(1, ranks + 1) if ranks % (size * etp) == 0]))
    return RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp, order=draw(ORDER))


LAYOUTS = layouts()


def groups_by_reshaping(sizes: dict[str, int], together: set[str]) -> set[tuple[int, ...]]:
    """The groups over the axes ``together`` of a grid given fastest axis first: Megatron's and torch's way to make them."""
    names = list(reversed(sizes))
    grid = np.arange(np.prod(list(sizes.values()))).reshape([sizes[name] for name in names])
    apart = [place for place, name in enumerate(names) if name not in together]
    within = [place for place, name in enumerate(names) if name in together]
    rows = grid.transpose(apart + within).reshape(-1, int(np.prod([sizes[name] for name in together])))
    return {tuple(sorted(row)) for row in rows.tolist()}


@given(layout=LAYOUTS, expert=st.booleans())
def test_every_grid_is_a_bijection(layout: RankLayout, expert: bool) -> None:
    places = [layout.coordinates(rank, expert=expert) for rank in range(layout.world_size)]
    assert len({tuple(place.items()) for place in places}) == layout.world_size
    assert [layout.rank(place, expert=expert) for place in places] == list(range(layout.world_size))
    table = layout.coordinates(np.arange(layout.world_size), expert=expert)
    assert all([place[axis] for place in places] == np.asarray(values).tolist() for axis, values in table.items())


@given(layout=LAYOUTS)
def test_a_rank_has_one_stage_in_both_grids(layout: RankLayout) -> None:
    for rank in range(layout.world_size):
        stage = layout.coordinates(rank)["pp"]
        assert stage == layout.coordinates(rank, expert=True)["pp"]
        assert rank in layout.stage_ranks(stage)
    assert sorted(rank for stage in range(layout.pp) for rank in layout.stage_ranks(stage)) == list(range(layout.world_size))


@given(layout=LAYOUTS, expert=st.booleans())
def test_groups_differ_on_their_axis_alone_and_part_the_ranks(layout: RankLayout, expert: bool) -> None:
    for axis in layout.coordinates(0, expert=expert):
        seen: list[int] = []
        for group in {layout.group(rank, axis, expert=expert) for rank in range(layout.world_size)}:
            places = [layout.coordinates(rank, expert=expert) for rank in group]
            assert [place.pop(axis) for place in places] == list(range(len(group)))
            assert all(place == places[0] for place in places)
            seen += group
        assert sorted(seen) == list(range(layout.world_size))


@given(layout=LAYOUTS, expert=st.booleans())
def test_strides_say_the_same_as_coordinates(layout: RankLayout, expert: bool) -> None:
    if expert and not layout.expert_grid_has_strides:
        with pytest.raises(ValueError, match="does not fold over"):
            layout.axes(expert=True)
        return
    axes = layout.axes(expert=expert)
    for rank in range(layout.world_size):
        place = layout.coordinates(rank, expert=expert)
        assert rank == sum(place[axis] * stride for axis, (_, stride) in axes.items())
    strides = [stride for size, stride in axes.values() if size > 1]
    assert strides == sorted(strides)


@given(layout=LAYOUTS)
def test_dense_groups_are_those_of_the_reshaped_ranks(layout: RankLayout) -> None:
    sizes = {"tp": layout.tp, "cp": layout.cp, "dp": layout.dp, "pp": layout.pp}
    named = {axis: sizes[axis] for axis in layout.order.value.split("-")}
    for axis in named:
        ours = {tuple(sorted(layout.group(rank, axis))) for rank in range(layout.world_size)}
        assert ours == groups_by_reshaping(named, {axis})


@given(tp=SIZE, cp=SIZE, dp=SIZE, pp=SIZE, order=ORDER)
def test_expert_groups_are_those_of_the_reshaped_ranks_where_the_grids_fold(tp: int, cp: int, dp: int, pp: int, order: RankOrder) -> None:
    layout = RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, ep=tp * cp, etp=1, order=order)
    sizes = {"etp": 1, "ep": layout.ep, "edp": layout.edp, "pp": pp}
    names = ("etp", "ep", "edp", "pp") if order is RankOrder.TP_CP_DP_PP else ("etp", "ep", "pp", "edp")
    assert layout.expert_grid_has_strides
    for axis in names:
        ours = {tuple(sorted(layout.group(rank, axis, expert=True))) for rank in range(layout.world_size)}
        assert ours == groups_by_reshaping({name: sizes[name] for name in names}, {axis})


def test_the_two_orders_on_sixteen_ranks() -> None:
    sizes = {"tp": 2, "cp": 1, "dp": 4, "pp": 2, "ep": 1, "etp": 1}
    usual, other = (RankLayout(**sizes, order=order) for order in RankOrder)
    assert usual.group(0, "dp") == (0, 2, 4, 6)
    assert usual.group(0, "pp") == (0, 8)
    assert other.group(0, "pp") == (0, 2)
    assert other.group(0, "dp") == (0, 4, 8, 12)
    assert list(other.axes()) == ["tp", "cp", "pp", "dp"]
    assert other.stage_ranks(1) == (2, 3, 6, 7, 10, 11, 14, 15)
