"""The JobStore contract on jobs that are renamed or forgotten, heartbeats, and tokens."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.planner.samples import (
    MOMENT,
    job_record,
    plan_record,
    profile,
    rank_record,
    step_record,
)

from flyball_server.jobs.bounds import MAX_COUNT
from flyball_server.jobs.loop_state import JobLoopState, RankSlowdown
from flyball_server.jobs.records import TokenRecord
from flyball_server.jobs.step_records import StepDetail
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
