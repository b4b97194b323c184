"""What a rank receives and sends around its actions: laws of every schedule."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.spec.schedule import Schedule, build_schedule, schedule_faults
from autopar.costmodel.spec.schedule_action import ActionKind
from autopar.costmodel.spec.strategy import PipelineSchedule
from autopar.runtime.pipeline.plan import Message, RankPlan, forward_plan, rank_plan
from autopar.runtime.pipeline.transport import channel_pairs


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    sizes = st.tuples(st.sampled_from(list(PipelineSchedule)), st.integers(1, 6), st.integers(1, 3), st.integers(1, 14))
    return build_schedule(*draw(sizes.filter(lambda sizes: not schedule_faults(*sizes))))


def plans_of(schedule: Schedule) -> list[RankPlan]:
    return [rank_plan(schedule, rank) for rank in range(schedule.pipeline_parallel_size)]


@given(schedules())
def test_a_plan_has_the_schedules_actions_in_their_order(schedule: Schedule) -> None:
    for plan in plans_of(schedule):
        assert tuple(step.action for step in plan.steps) == schedule.actions[plan.rank]


@given(schedules())
def test_what_is_sent_is_what_is_needed_and_channels_list_it_in_order(schedule: Schedule) -> None:
    plans = plans_of(schedule)
    needed = Counter((step.source, plan.rank, step.needs) for plan in plans for step in plan.steps if step.needs)
    made = Counter((plan.rank, step.target, step.makes) for plan in plans for step in plan.steps if step.makes)
    assert needed == made
    assert not made or max(made.values()) == 1
    for plan in plans:
        for source, messages in plan.incoming.items():
            assert messages == tuple(step.makes for step in plans[source].steps if step.makes and step.target == plan.rank)
    assert channel_pairs(plans) == {(source, target) for source, target, _ in made if source != target}


@given(schedules())
def test_one_micro_batch_a_stage_is_the_last(schedule: Schedule) -> None:
    for plan in plans_of(schedule):
        ends = [step for step in plan.steps if step.action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)]
        for stage in schedule.rank_stages(plan.rank):
            mine = [step for step in ends if step.action.stage == stage]
            assert [step.is_last for step in mine] == [False] * (len(mine) - 1) + [True]


@given(schedules(), st.integers(1, 5))
def test_an_evaluation_runs_to_its_end_on_the_stages_of_the_model(schedule: Schedule, microbatches: int) -> None:
    plans = [forward_plan(schedule, rank, microbatches) for rank in range(schedule.pipeline_parallel_size)]
    assert finishes(plans)
    done = Counter((step.action.microbatch, schedule.model_stage(step.action.stage)) for plan in plans for step in plan.steps)
    assert done == Counter((index, stage) for index in range(microbatches) for stage in range(schedule.num_model_stages))


@given(schedules())
def test_a_step_runs_to_its_end(schedule: Schedule) -> None:
    assert finishes(plans_of(schedule))


def finishes(plans: list[RankPlan]) -> bool:
    """Whether no rank waits forever, where one that asks for a message has to ask for those sent before it first."""
    sent: dict[tuple[int, int], list[Message]] = {}
    queues = {plan.rank: deque(plan.steps) for plan in plans}
    progress = True
    while progress:
        progress = False
        for rank, queue in queues.items():
            while queue:
                step = queue[0]
                if step.needs is not None and step.needs not in sent.get((step.source, rank), []):
                    break
                queue.popleft()
                progress = True
                if step.makes is not None:
                    sent.setdefault((rank, step.target), []).append(step.makes)
    return not any(queues.values())
