"""The JobStore contract on renamed and forgotten jobs, heartbeats, tokens, stages and turns."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import Engine, event
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.samples import (
    MOMENT,
    job_record,
    plan_record,
    profile,
    rank_record,
    step_record,
)

from flyball_server.jobs.bounds import MAX_COUNT
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.planning_inputs import RankSlowdown
from flyball_server.jobs.records import TokenRecord
from flyball_server.jobs.step_records import StageTotals, StepDetail, StepRecord
from flyball_server.jobs.store.contract import TOKENS, JobStore
from flyball_server.jobs.store.sql.job_reader import JobReader

SLOW = RankSlowdown(rank=1, slowdown=1.5)
LATER = MOMENT + timedelta(seconds=7)


def fill(store: JobStore, job_id: str) -> None:
    """A job with one of each thing that can belong to it."""
    with store.writing(job_id) as writer:
        writer.save_job(job_record(job_id))
        writer.save_profile(job_id, profile())
        writer.add_plan(plan_record(1, job_id=job_id, first_step=3))
        writer.add_plan(plan_record(2, job_id=job_id))
        for rank in (0, 1):
            writer.save_ranks([rank_record(rank, job_id=job_id, last_seen_at=MOMENT)])
            writer.save_steps((step_record(5, rank, job_id=job_id),))
        writer.save_step_details((StepDetail(job_id=job_id, rank=1, step=5),))
        writer.save_loop_state(JobLoopState(job_id=job_id, detected=(SLOW,)))


def everything(reader: JobReader, job_id: str) -> tuple[object, ...]:
    """All that belongs to a job."""
    return (
        reader.find_job(job_id),
        reader.find_profile(job_id),
        reader.list_plans(job_id),
        reader.list_ranks(job_id),
        reader.list_steps(job_id, 0, 99),
        reader.list_step_details(job_id, 0),
        reader.find_loop_state(job_id),
    )


def nothing(job_id: str) -> tuple[object, ...]:
    """Return what a store has of a job that there is not."""
    return (None, None, (), (), (), (), JobLoopState(job_id=job_id))


def token(token_id: str = "t1", **changes: object) -> TokenRecord:  # noqa: S107 - its public part
    """An operator's token."""
    record = TokenRecord(
        token_id=token_id, digest="ab" * 32, job_id=None, created_at=MOMENT, note="Ada's"
    )
    return record.evolve(**changes)


def test_saving_a_job_again_does_not_set_its_key(store_with_job: JobStore) -> None:
    """SQLite checks all rows that refer to a key in SET, and a job may have millions."""
    updates: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        updates.extend([statement] if statement.startswith("UPDATE") else [])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        with store_with_job.writing("job") as writer:
            writer.save_job(job_record())
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    [update] = updates
    assert "job_id" not in update.partition("WHERE")[0]


def test_a_renamed_job_keeps_all_that_belongs_to_it(store: JobStore) -> None:
    fill(store, "job")
    fill(store, "other")
    fill(store, "new")  # what it is to look like
    with store.reading() as reader:
        expected, others = everything(reader, "new"), everything(reader, "other")
    with store.writing("new") as writer:
        writer.delete_job("new")
    with store.writing("job") as writer:
        writer.rename_job("job", "new")
        assert everything(writer, "new") == expected
    with store.reading() as reader:
        assert everything(reader, "new") == expected
        assert everything(reader, "job") == nothing("job")
        assert everything(reader, "other") == others
    fill(store, "job")  # the old name is free


def test_a_job_takes_no_name_that_another_has_and_no_unknown_job_takes_one(
    store: JobStore,
) -> None:
    fill(store, "job")
    fill(store, "other")
    with store.reading() as reader:
        before = everything(reader, "job"), everything(reader, "other")
    with pytest.raises(ValueError), store.writing("job") as writer:
        writer.rename_job("job", "other")
    with pytest.raises(ValueError), store.writing("unknown") as writer:
        writer.rename_job("unknown", "new")
    with store.reading() as reader:
        assert (everything(reader, "job"), everything(reader, "other")) == before


def test_ranks_that_were_heard_of_say_when_and_nothing_else_of_them_changes(
    store: JobStore,
) -> None:
    fill(store, "job")
    fill(store, "other")
    with store.writing("job") as writer:
        writer.touch_ranks("job", (), LATER)
        assert writer.find_ranks("job", [0]) == (rank_record(0, last_seen_at=MOMENT),)
        writer.touch_ranks("job", range(1, 70_000), LATER)  # more than a statement has values
    with store.reading() as reader:
        assert reader.list_ranks("job") == (
            rank_record(0, last_seen_at=MOMENT),
            rank_record(1, last_seen_at=LATER),
        )
        assert {rank.last_seen_at for rank in reader.list_ranks("other")} == {MOMENT}


def test_why_ranks_set_no_clocks_is_kept_until_they_do(store: JobStore) -> None:
    with store.writing("job") as writer:
        writer.save_job(job_record())
        writer.save_ranks([rank_record(rank) for rank in range(3)])
        writer.note_clocks("job", {0: "a reason", 1: "another", 2: None, 9: "a reason"})
    with store.writing("job") as writer:
        writer.note_clocks("job", {1: None, 2: "a reason"})
        writer.note_clocks("other", {0: None})
    with store.reading() as reader:
        whys = [rank.no_clocks for rank in reader.list_ranks("job")]
    assert whys == ["a reason", None, "a reason"]


def test_whole_numbers_up_to_the_largest_are_asked_for_and_kept(store: JobStore) -> None:
    job = job_record(inputs_revision=MAX_COUNT)
    with store.writing("job") as writer:
        writer.save_job(job)
        writer.save_ranks([rank_record(0, acknowledged_version=MAX_COUNT, current_step=MAX_COUNT)])
        writer.save_steps((step_record(MAX_COUNT, plan_version=MAX_COUNT, num_overruns=MAX_COUNT),))
    with store.reading() as reader:
        assert reader.find_job("job") == job
        assert reader.find_plan("job", MAX_COUNT) is None
        assert not reader.find_ranks("job", [MAX_COUNT])
        assert reader.count_ranks_holding("job", MAX_COUNT) == 1
        assert reader.newest_step("job", version=MAX_COUNT) == MAX_COUNT
        assert reader.list_steps("job", MAX_COUNT, MAX_COUNT + 1)[0].num_overruns == MAX_COUNT


def test_tokens_come_out_as_they_went_in_are_replaced_listed_and_forgotten(
    store: JobStore,
) -> None:
    narrow = token("t2", job_id="job", note="ä")
    later = token("A", created_at=LATER, is_read_only=True)
    with store.writing(TOKENS) as writer:
        for each in (later, narrow, token(), token(note="changed"), token("gone")):
            writer.save_token(each)
        writer.delete_token("gone")
        writer.delete_token("gone")
    with store.reading() as reader:
        assert reader.find_token("t2") == narrow
        assert reader.find_token("gone") is None
        assert reader.list_tokens() == (token(note="changed"), narrow, later)


# ------------------------------------------------------------------ job store stages


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
    counts = {"num_clock_misses": 0, "num_power_capped": 0, "num_thermally_capped": 0}
    second = first.evolve(stage=1, time_s=0.25, energy_j=None, **counts)
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


# ------------------------------------------------------------------ job store coordination


def is_free(store: JobStore, name: str) -> bool:
    """Return whether another thread would get this turn now."""

    def ask() -> bool:
        with store.lock(name, waits=False) as is_mine:
            return is_mine

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(ask).result(PATIENCE_S)


def test_a_turn_belongs_to_one_thread_at_a_time_and_goes_to_the_next_who_waits(
    store: JobStore,
) -> None:
    inside: list[int] = []

    def take_turns() -> None:
        for _ in range(5):
            with store.lock("plan job") as is_mine:
                assert is_mine
                inside.append(1)
                assert len(inside) == 1
                inside.pop()

    with ThreadPoolExecutor(4) as threads:
        with store.lock("plan job"):
            waiting = [threads.submit(take_turns) for _ in range(4)]
            assert not is_free(store, "plan job")
            assert not any(each.done() for each in waiting)
        for ended in waiting:
            ended.result(PATIENCE_S)


def test_without_waiting_a_turn_is_not_had_while_another_has_it(store: JobStore) -> None:
    class InterruptionError(Exception):
        pass

    with pytest.raises(InterruptionError), store.lock("plan job") as is_mine:
        assert is_mine
        assert not is_free(store, "plan job")
        assert is_free(store, "plan other")
        raise InterruptionError
    assert is_free(store, "plan job")
    assert is_free(store, "plan job")


def test_a_signal_reaches_who_listens_also_before_the_store_is_opened(store: JobStore) -> None:
    heard: list[str | None] = []
    store.signal("unheard")
    store.close()
    store.listen(heard.append)
    store.open()
    names = [f"job-{number}" for number in range(200)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(store.signal, names))
    wait_until(lambda: set(names) <= set(heard))
    assert set(heard) <= {*names, "unheard", None}


@pytest.mark.parametrize("job_ids", ["abcd", "aaaa"])
def test_writers_of_the_same_and_of_different_jobs_lose_no_change(
    store: JobStore, job_ids: str
) -> None:
    for job_id in set(job_ids):
        with store.writing(job_id) as writer:
            writer.save_job(job_record(job_id))
    start = threading.Barrier(4)

    def count_up(job_id: str) -> None:
        start.wait(PATIENCE_S)
        for _ in range(5):
            with store.writing(job_id) as writer:
                job = writer.find_job(job_id)
                assert job is not None
                writer.save_job(job.evolve(inputs_revision=job.inputs_revision + 1))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count_up, job_ids, timeout=PATIENCE_S))
    with store.reading() as reader:
        counts = {job.job_id: job.inputs_revision for job in reader.list_jobs()}
    assert counts == {job_id: 5 * job_ids.count(job_id) for job_id in job_ids}
