"""The JobStore contract on measured steps added up by stage."""

from __future__ import annotations

import pytest
from tests.planner.samples import job_record, rank_record, step_record

from flyball_server.jobs.bounds import MAX_COUNT
from flyball_server.jobs.step_records import StageTotals, StepRecord
from flyball_server.jobs.store.contract import JobStore

# Stage 0 has ranks 0 and 1, stage 1 has ranks 2 and 3.
STAGE_OF = (0, 0, 1, 1)


@pytest.fixture
def ranks(store: JobStore) -> JobStore:
    """Every store, with two jobs of two ranks a stage."""
    for job_id in ("job", "other"):
        with store.writing(job_id) as writer:
            writer.save_job(job_record(job_id))
            for rank, stage in enumerate(STAGE_OF):
                writer.save_ranks([rank_record(rank, job_id=job_id, stage=stage)])
    return store


def post(store: JobStore, *steps: StepRecord) -> None:
    with store.writing("job") as writer:
        writer.save_steps(steps)


def totals(
    store: JobStore, *, after_step: int = -1, num_steps: int = 100, job_id: str = "job"
) -> tuple[StageTotals, ...]:
    with store.reading() as reader:
        return reader.list_stage_totals(job_id, after_step=after_step, num_steps=num_steps)


def test_of_a_stage_the_longest_time_and_the_sum_of_energies_and_counts(ranks: JobStore) -> None:
    post(
        ranks,
        step_record(7, 2, time_s=0.1, energy_j=4.0),
        step_record(7, 0, time_s=0.5, energy_j=10.0, num_clock_misses=2, num_power_capped=1),
        step_record(7, 1, time_s=0.75, energy_j=20.5, num_clock_misses=1, num_thermally_capped=1),
        step_record(7, 3, time_s=0.25, energy_j=None),
    )
    first = StageTotals(
        step=7,
        stage=0,
        plan_version=None,
        num_ranks=2,
        time_s=0.75,
        energy_j=30.5,
        num_clock_misses=3,
        num_power_capped=1,
        num_thermally_capped=1,
    )
    second = StageTotals(
        step=7,
        stage=1,
        plan_version=None,
        num_ranks=2,
        time_s=0.25,
        energy_j=None,
        num_clock_misses=0,
        num_power_capped=0,
        num_thermally_capped=0,
    )
    assert totals(ranks) == (first, second)
    assert totals(ranks, job_id="other") == ()
    assert totals(ranks, job_id="unknown") == ()


def test_the_clock_of_a_stage_is_the_mean_over_its_ranks_that_have_read_theirs(
    ranks: JobStore,
) -> None:
    post(ranks, step_record(0, 2, sm_clock_mhz=1200.0))
    post(
        ranks,
        step_record(0, 0, sm_clock_mhz=1200.0),
        step_record(0, 1, sm_clock_mhz=1302.5),
        step_record(0, 2),  # posted again, without a clock
        step_record(0, 3, sm_clock_mhz=990.0),
        step_record(1, 0),
        step_record(1, 2, sm_clock_mhz=0.0),
    )
    found = [(each.place[:2], each.num_with_clock, each.sm_clock_mhz) for each in totals(ranks)]
    assert found == [
        ((0, 0), 2, 1251.25),
        ((0, 1), 1, 990.0),
        ((1, 0), 0, None),
        ((1, 1), 1, 0.0),
    ]
    with ranks.reading() as reader:
        kept = [each.sm_clock_mhz for each in reader.list_steps("job", 0, 2)]
    assert kept == [1200.0, 1302.5, None, 990.0, None, 0.0]


def test_plan_versions_are_told_apart_no_version_first(ranks: JobStore) -> None:
    post(
        ranks,
        step_record(0, 0, plan_version=2),
        step_record(0, 1),
        step_record(0, 2, plan_version=2),
        step_record(0, 3, plan_version=1),
    )
    found = [(each.stage, each.plan_version, each.num_ranks) for each in totals(ranks)]
    assert found == [(0, None, 1), (0, 2, 1), (1, 1, 1), (1, 2, 1)]


def test_the_newest_steps_after_one_rising(ranks: JobStore) -> None:
    # Step 4 is missing: steps are counted, not numbers.
    post(ranks, *(step_record(step, rank) for step in (1, 2, 3, 5, 6) for rank in (2, 0)))

    def steps(after_step: int, num_steps: int) -> list[tuple[int, int]]:
        found = totals(ranks, after_step=after_step, num_steps=num_steps)
        return [(each.step, each.stage) for each in found]

    assert steps(-1, 3) == [(3, 0), (3, 1), (5, 0), (5, 1), (6, 0), (6, 1)]
    assert steps(5, 3) == [(6, 0), (6, 1)]
    assert steps(6, 3) == steps(MAX_COUNT, 3) == []
    assert [step for step, stage in steps(-1, 100) if stage == 0] == [1, 2, 3, 5, 6]


def test_a_rank_that_has_registered_for_another_stage_counts_there(ranks: JobStore) -> None:
    post(ranks, step_record(0, 0), step_record(0, 2))
    with ranks.writing("job") as writer:
        writer.save_ranks([rank_record(0, stage=1)])
    assert [(each.stage, each.num_ranks) for each in totals(ranks)] == [(1, 2)]
