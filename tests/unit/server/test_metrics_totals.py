"""Running totals of a job's steps: what counts, as what, and when it is counted."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest
from tests.planner.sample_plans import frequency_plan
from tests.planner.samples import (
    MOMENT,
    job_record,
    one_microbatch,
    plan_record,
    profile,
    rank_record,
    step_record,
)
from tests.planner.stores import opened_store

from flyball_server.jobs.measurements import step_reading
from flyball_server.jobs.measurements.step_fold import NEWEST_STEPS, StepFold
from flyball_server.jobs.measurements.step_reading import (
    GIVE_UP_S,
    new_fold,
    read_settled,
)
from flyball_server.jobs.records import PlanRecord
from flyball_server.jobs.step_records import StepRecord
from flyball_server.jobs.store.contract import JobStore
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest, make_slowed_plan
from flyball_server.views.plan_facts import plan_facts
from flyball_wire.plan_options import Effort, PlanOptions
from flyball_wire.plans.plan import Plan, Slowdown, probe_of
from flyball_wire.read_models import StepClocks

NUM_RANKS = 2
NUM_STAGES = 2


@pytest.fixture
def store() -> JobStore:
    made = opened_store()
    with made.writing("job") as writer:
        writer.save_job(job_record())
        for rank in range(NUM_RANKS):
            writer.save_ranks([rank_record(rank)])
    return made


def post(store: JobStore, *steps: StepRecord, at_s: float = 0.0) -> None:
    with store.writing("job") as writer:
        writer.save_steps(steps, stored_at=MOMENT + timedelta(seconds=at_s))


def both(steps: Iterable[int], **changes: object) -> list[StepRecord]:
    """These steps as both ranks post them, 100 J each."""
    return [step_record(step, rank, **changes) for step in steps for rank in range(NUM_RANKS)]


def read(store: JobStore, totals: StepFold) -> list[int]:
    """Read on; the steps that are not settled."""
    with store.reading() as reader:
        return [step.step for step in read_settled(reader, job_record(), totals)]


def add_versions(store: JobStore, *records: PlanRecord) -> None:
    with store.writing("job") as writer:
        for record in records:
            writer.add_plan(record)
            writer.name_first_step("job", record.version, 0)


def test_a_step_that_one_rank_never_posts_is_given_up(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    most_later = 40
    monkeypatch.setattr(step_reading, "MOST_LATER", most_later)
    totals = new_fold(job_record())
    post(store, step_record(0, 0), *both([1]))
    post(store, *both([2]), at_s=GIVE_UP_S - 1)
    assert read(store, totals) == [0, 1, 2]
    post(store, *both([3]), at_s=GIVE_UP_S)
    assert read(store, totals) == []
    assert totals.num_incomplete == 1
    assert totals.sums[StepClocks.DEFAULT].num_steps == 3
    # And very many that are never whole, however short they are.
    post(store, *(step_record(step, 0) for step in range(4, most_later + 14)), at_s=GIVE_UP_S)
    assert len(read(store, totals)) == most_later
    assert totals.num_incomplete == 11


def test_steps_count_by_what_they_ran_at(store: JobStore) -> None:
    totals = new_fold(job_record())
    probe = probe_of(one_microbatch(2), (((1410,) * 2, (1410,) * 2),), 1.0)
    add_versions(store, plan_record(1, baseline_cycle=(False, True)), plan_record(2, plan=probe))
    post(store, *both(range(4), plan_version=1))
    post(store, *both([4], plan_version=2), *both([5]))
    post(store, step_record(6, 0, plan_version=1), step_record(6, 1, plan_version=2))
    read(store, totals)
    num_steps = {str(clocks): counted.num_steps for clocks, counted in totals.sums.items()}
    assert num_steps == {"plan": 2, "highest": 2, "profiling": 1, "default": 1, "mixed": 1}
    # Predicted energies are of the two steps on the plan alone.
    plan = frequency_plan()
    assert totals.predicted_j == 2 * plan.predicted.energy_j
    assert totals.predicted_baseline_j == 2 * plan.predicted.baseline_energy_j


def test_the_newest_steps_are_alike_and_a_few(store: JobStore) -> None:
    totals = new_fold(job_record())
    add_versions(store, plan_record(1))
    post(store, *both(range(10), time_s=5.0))
    post(store, *both(range(10, 14), plan_version=1, time_s=1.0))
    read(store, totals)
    newest = totals.newest
    assert newest is not None
    assert (newest.first_step, newest.last_step, newest.num_steps) == (10, 13, 4)
    assert (newest.iteration_time_s, newest.energy_j) == (1.0, 200.0)
    post(store, *both(range(14, 60), plan_version=1, energy_j=None))
    read(store, totals)
    newest = totals.newest
    assert newest is not None
    assert newest.num_steps == NEWEST_STEPS
    assert newest.energy_j is None


@pytest.mark.parametrize("slowdown", [None, 1.5])
@pytest.mark.parametrize("transition_ms", [None, 20.0])
def test_the_stages_of_a_plan_are_told_with_their_slowdowns(
    slowdown: float | None, transition_ms: float | None
) -> None:
    options = PlanOptions(blocking_power_w=(70.0,), effort=Effort.LOW, transition_ms=transition_ms)
    request = PlanRequest(profile=profile(), num_microbatches=2, options=options)
    plan: Plan = make_plan(request).plan
    if slowdown is not None:
        slowdowns = (Slowdown(stage=1, slowdown=slowdown),)
        plan = make_slowed_plan(SlowedRequest(request=request, slowdowns=slowdowns))
    record = plan_record(plan=plan)
    facts = plan_facts(record, profile(), NUM_STAGES)
    assert sum(stage.energy_j for stage in facts.stages) == pytest.approx(plan.predicted.energy_j)
    assert all(0 < stage.busy_s <= plan.iteration_time_s for stage in facts.stages)
    # Two forwards and two backwards at the highest clocks, on the last stage.
    assert facts.stages[-1].busy_s == pytest.approx((slowdown or 1.0) * 0.6)
    # They are those of the plan as it was made, whatever profile came later.
    for other in (profile(forward_energy_j=31.0), profile(3), None):
        num_ranks = NUM_STAGES if other is None else other.num_stages
        assert plan_facts(record, other, num_ranks).stages == facts.stages
    assert plan_facts(plan_record(plan=frequency_plan()), profile(), NUM_STAGES).stages == ()
