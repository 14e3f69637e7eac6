"""Rows of deleted and renamed jobs in the SQL stores."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, Engine, Table, func, select, text
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.samples import job_record, plan_record, profile, rank_record, step_record

from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.step_records import StepDetail
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.databases import make_job_store
from flyball_server.jobs.store.sql import sql_forgetting
from flyball_server.jobs.store.sql.sql_tables import RANKS, STEPS, TABLES_OF_JOBS

NUM_STEPS = 1_200  # more than one statement removes


@pytest.fixture
def store(database_url: str) -> Iterator[JobStore]:
    opened = make_job_store(database_url)
    opened.open()
    yield opened
    opened.close()


def fill(store: JobStore, job_id: str, num_steps: int = NUM_STEPS) -> None:
    with store.writing(job_id) as writer:
        writer.save_job(job_record(job_id))
        writer.save_profile(job_id, profile())
        for version in (1, 2, 3):
            writer.add_plan(plan_record(version, job_id=job_id))
        writer.save_ranks([rank_record(0, job_id=job_id)])
        writer.save_steps(tuple(step_record(number, job_id=job_id) for number in range(num_steps)))
        writer.save_step_details((StepDetail(job_id=job_id, rank=0, step=5),))
        writer.save_loop_state(JobLoopState(job_id=job_id))


def delete(store: JobStore, job_id: str) -> None:
    with store.writing(job_id) as writer:
        writer.delete_job(job_id)


def remove_all(store: JobStore) -> None:
    while store.forget_some():
        pass


def num_rows(engine: Engine) -> list[int]:
    """Of each table, what belongs to jobs first."""
    with engine.connect() as connection:
        counts = (select(func.count()).select_from(table) for table in TABLES_OF_JOBS)
        return [connection.execute(count).scalar_one() for count in counts]


def test_all_rows_of_a_deleted_job_go_and_those_of_others_stay(
    store: JobStore, engine: Engine
) -> None:
    class InterruptionError(Exception):
        pass

    fill(store, "other", 3)
    of_other = num_rows(engine)
    fill(store, "job")
    of_both = num_rows(engine)
    with pytest.raises(InterruptionError), store.writing("job") as writer:
        writer.delete_job("job")
        raise InterruptionError
    assert num_rows(engine) == of_both
    delete(store, "job")
    remove_all(store)
    assert num_rows(engine) == of_other
    with store.reading() as reader:
        assert len(reader.list_steps("other", 0, 9)) == 3


def test_the_name_is_free_at_once_and_what_goes_by_it_then_stays(
    store: JobStore, engine: Engine
) -> None:
    for num_steps in (3, NUM_STEPS, 3):
        fill(store, "job", num_steps)
        delete(store, "job")
    fill(store, "job", 2)
    remove_all(store)
    assert num_rows(engine)[-1] == 1
    with store.reading() as reader:
        assert [step.step for step in reader.list_steps("job", 0, NUM_STEPS)] == [0, 1]
        assert len(reader.list_plans("job")) == 3


def test_what_a_planner_has_left_of_a_deleted_job_the_next_one_removes(
    database_url: str, engine: Engine
) -> None:
    first = make_job_store(database_url)
    first.open()
    fill(first, "job")
    before = num_rows(engine)
    delete(first, "job")
    first.close()
    assert num_rows(engine) == before
    second = make_job_store(database_url)
    second.open()
    try:
        with second.reading() as reader:
            assert reader.list_jobs() == ()
        remove_all(second)
        assert not any(num_rows(engine))
    finally:
        second.close()


def test_a_slice_removes_a_few_rows_and_says_whether_more_are_left(
    store: JobStore, engine: Engine
) -> None:
    fill(store, "job")
    delete(store, "job")
    with engine.begin() as connection:
        assert sql_forgetting.has_forgotten_jobs(connection)
        assert sql_forgetting.remove_some(connection, slice_s=-1.0)
    # One statement each time: first the details, then steps.
    assert num_rows(engine)[:2] == [0, NUM_STEPS]
    with engine.begin() as connection:
        assert sql_forgetting.remove_some(connection, slice_s=-1.0)
    assert 0 < num_rows(engine)[1] < NUM_STEPS
    with engine.begin() as connection:
        while sql_forgetting.remove_some(connection, slice_s=-1.0):
            pass
        assert not sql_forgetting.has_forgotten_jobs(connection)
    assert not any(num_rows(engine))


def test_another_job_takes_the_name_just_after_and_its_rows_stay(
    store: JobStore, engine: Engine
) -> None:
    fill(store, "job", 3)
    of_job = num_rows(engine)
    fill(store, "gone", 5)
    with store.writing("job") as writer:
        writer.delete_job("gone")
        writer.rename_job("job", "gone")
        assert [step.step for step in writer.list_steps("gone", 0, 9)] == [0, 1, 2]
        writer.save_job(job_record("gone", run="another"))
    remove_all(store)
    assert num_rows(engine) == of_job
    with store.reading() as reader:
        assert reader.list_jobs() == (job_record("gone", run="another"),)
        assert len(reader.list_steps("gone", 0, 9)) == 3


# ------------------------------------------------------------------ writers of another subject


def is_any_waiting(engine: Engine) -> bool:
    """Return whether a transaction waits for another one of its subject."""
    waiting = text(
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
        " WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
    )
    with engine.connect() as connection:
        return bool(connection.execute(waiting).scalar_one())


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_job_is_deleted_after_writers_that_have_read_it(store: JobStore, engine: Engine) -> None:
    fill(store, "job@1", 3)

    def delete_kept_run() -> None:
        with store.writing("job") as other:
            other.delete_job("job@1")

    with ThreadPoolExecutor(1) as others:
        with store.writing("job@1") as writer:
            found = writer.require_job("job@1")
            deletion = others.submit(delete_kept_run)
            wait_until(lambda: deletion.done() or is_any_waiting(engine))
            remove_all(store)
            writer.save_job(found)
            writer.save_steps((step_record(7, job_id="job@1"),))
        deletion.result(PATIENCE_S)
    remove_all(store)
    assert not any(num_rows(engine))


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_rows_that_come_while_the_others_go_are_removed_too(
    store: JobStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_rows = sql_forgetting._remove_rows
    late: list[str] = []

    def with_a_late_step(connection: Connection, table: Table, key: str) -> int:
        if table is RANKS and not late:
            late.append(key)
            with engine.begin() as other:
                other.execute(STEPS.insert().values(**vars(step_record(77)) | {"job_id": key}))
        return remove_rows(connection, table, key)

    monkeypatch.setattr(sql_forgetting, "_remove_rows", with_a_late_step)
    fill(store, "job", 3)
    delete(store, "job")
    remove_all(store)
    assert late
    assert not any(num_rows(engine))
