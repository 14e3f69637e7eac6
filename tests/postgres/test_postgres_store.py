"""Features and failures of PostgreSQL alone: several planners, and a server that goes away."""

from __future__ import annotations

import logging
import random
import selectors
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from tests.planner.disks import small_disk_at
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.samples import job_record, rank_record
from tests.postgres.server import PASSWORD, PostgresServer

from flyball_server.http.readiness import WritingCheck
from flyball_server.jobs.errors import (
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    StoreUnreachableError,
)
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.postgres import postgres_engine
from flyball_server.jobs.store.postgres.postgres_store import PostgresJobStore
from flyball_server.prometheus.process_metrics import MeasuredStore, ProcessMetrics

HOLDER = """
import sys, time
from flyball_server.jobs.store.postgres.postgres_store import PostgresJobStore
store = PostgresJobStore(sys.argv[1])
store.open()
with store.lock("plan job") as is_mine, store.writing("job"):
    print(is_mine, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def stores(postgres_database: str) -> Iterator[tuple[PostgresJobStore, PostgresJobStore]]:
    """Two planners' stores on one database; to each other they are as of other processes."""
    pair = PostgresJobStore(postgres_database), PostgresJobStore(postgres_database)
    for store in pair:
        store.open()
    yield pair
    for store in pair:
        store.close()


def is_free(store: JobStore, name: str) -> bool:
    with store.lock(name, waits=False) as is_mine:
        return is_mine


def can_read(store: JobStore) -> bool:
    try:
        with store.reading() as reader:
            reader.list_jobs()
    except StoreUnavailableError:
        return False
    return True


# ------------------------------------------------------------------ several planners


def test_writing_transactions_of_different_jobs_run_at_once_and_of_one_job_do_not(
    stores: tuple[PostgresJobStore, PostgresJobStore],
) -> None:
    order: list[str] = []

    def write_the_same() -> None:
        with stores[1].writing("a") as writer:
            order.append("second")
            writer.save_job(job_record("a", problem="second"))

    with ThreadPoolExecutor(1) as threads:
        with stores[0].writing("a") as writer:
            waiting = threads.submit(write_the_same)
            with stores[1].writing("b") as other:  # which would wait for ever if it had to
                other.save_job(job_record("b"))
            writer.save_job(job_record("a", problem="first"))
            order.append("first")
        waiting.result(PATIENCE_S)
    assert order == ["first", "second"]
    with stores[0].reading() as reader:
        assert reader.list_jobs() == (job_record("a", problem="second"), job_record("b"))


def test_a_turn_belongs_to_one_planner_and_is_handed_on(
    stores: tuple[PostgresJobStore, PostgresJobStore],
) -> None:
    has_it = threading.Event()

    def wait_for_it() -> bool:
        with stores[1].lock("plan job") as is_mine:
            has_it.set()
            return is_mine

    with ThreadPoolExecutor(1) as threads:
        with stores[0].lock("plan job") as is_mine:
            assert is_mine
            assert not is_free(stores[1], "plan job")
            assert is_free(stores[1], "plan other")
            waiting = threads.submit(wait_for_it)
            assert not has_it.is_set()
        assert waiting.result(PATIENCE_S)
    assert is_free(stores[0], "plan job")


def test_whoever_waits_for_a_turn_is_told_when_its_store_is_closed(
    stores: tuple[PostgresJobStore, PostgresJobStore],
) -> None:
    def wait_for_it() -> None:
        with pytest.raises(StoreClosedError), stores[1].lock("plan job"):
            pass

    with ThreadPoolExecutor(1) as threads, stores[0].lock("plan job"):
        waiting = threads.submit(wait_for_it)
        stores[1].close()
        waiting.result(PATIENCE_S)


def test_a_planner_that_is_killed_releases_its_locks(
    stores: tuple[PostgresJobStore, PostgresJobStore], postgres_database: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, postgres_database], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert not is_free(stores[0], "plan job")
        holder.kill()
        wait_until(lambda: is_free(stores[0], "plan job"))
        with stores[0].writing("job") as writer:
            writer.save_job(job_record())


def test_a_signal_reaches_the_listeners_of_all_planners_and_once_each(
    stores: tuple[PostgresJobStore, PostgresJobStore],
) -> None:
    heard: tuple[list[str | None], list[str | None]] = ([], [])
    for store, jobs in zip(stores, heard, strict=True):
        store.listen(jobs.append)
    wait_until(lambda: all(None in jobs for jobs in heard))  # both are connected now
    stores[0].signal("a")
    stores[1].signal("b")
    wait_until(lambda: all({"a", "b"} <= set(jobs) for jobs in heard))
    assert [sorted(filter(None, jobs)) for jobs in heard] == [["a", "b"], ["a", "b"]]


def test_what_is_signalled_just_before_a_store_closes_is_heard(
    stores: tuple[PostgresJobStore, PostgresJobStore],
) -> None:
    heard: list[str | None] = []
    stores[1].listen(heard.append)
    wait_until(lambda: None in heard)
    stores[0].signal("job")
    stores[0].close()
    wait_until(lambda: "job" in heard)


def test_many_signals_of_a_job_cost_few_transactions(
    stores: tuple[PostgresJobStore, PostgresJobStore],
) -> None:
    heard: list[str | None] = []
    stores[1].listen(heard.append)
    wait_until(lambda: None in heard)
    for _ in range(2000):
        stores[0].signal("job")
    stores[0].signal("last")
    wait_until(lambda: "last" in heard)
    assert heard.count("job") < 1000


def test_a_listener_that_fails_is_called_again(
    stores: tuple[PostgresJobStore, PostgresJobStore], caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str | None] = []

    def fail(job_id: str | None) -> None:
        heard.append(job_id)
        raise RuntimeError("no")

    with caplog.at_level(logging.CRITICAL):
        stores[1].listen(fail)
        wait_until(lambda: None in heard)
        for name in ("a", "b"):
            stores[0].signal(name)
            wait_until(lambda name=name: name in heard)  # type: ignore[misc]


def test_signals_go_on_after_what_nobody_has_foreseen(
    stores: tuple[PostgresJobStore, PostgresJobStore],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = [OSError(24, "Too many open files")]

    class ScarceSelector(selectors.DefaultSelector):
        def __init__(self) -> None:
            if failures:
                raise failures.pop()
            super().__init__()

    monkeypatch.setattr(selectors, "DefaultSelector", ScarceSelector)
    heard: list[str | None] = []
    stores[1].listen(heard.append)
    wait_until(lambda: None in heard)
    stores[0].signal("job")
    wait_until(lambda: "job" in heard)
    assert caplog.text.count("signals between planners are paused: [Errno 24]") == 1


def test_a_signal_that_finds_no_thread_is_sent_with_the_next(
    stores: tuple[PostgresJobStore, PostgresJobStore],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    heard: list[str | None] = []
    stores[1].listen(heard.append)
    wait_until(lambda: None in heard)
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        for name in ("first", "second"):
            stores[0].signal(name)
    stores[0].signal("third")
    wait_until(lambda: {"first", "second", "third"} <= set(heard))
    assert caplog.text.count("no thread: can't start new thread") == 1


# ------------------------------------------------------------------ PostgreSQL goes and comes


@pytest.mark.parametrize("kindly", [True, False])
def test_when_postgresql_has_gone_and_come_back_all_works_without_a_restart(
    postgres_server: PostgresServer,
    stores: tuple[PostgresJobStore, PostgresJobStore],
    caplog: pytest.LogCaptureFixture,
    kindly: bool,
) -> None:
    caplog.set_level(logging.INFO)
    store = stores[0]
    heard: tuple[list[str | None], list[str | None]] = ([], [])
    for each, jobs in zip(stores, heard, strict=True):
        each.listen(jobs.append)
    wait_until(lambda: all(None in jobs for jobs in heard))
    with store.writing("job") as writer:
        writer.save_job(job_record())
    assert is_free(store, "plan job")
    postgres_server.stop(kindly=kindly)
    try:
        with pytest.raises(StoreUnavailableError, match="flyball@127"), store.reading() as reader:
            reader.list_jobs()
        with pytest.raises(StoreUnavailableError), store.writing("job"):
            pass
        with pytest.raises(StoreUnavailableError), store.lock("plan job"):
            pass
        store.signal("meanwhile")
        assert "meanwhile" in heard[0]  # within the process
        for jobs in heard:
            jobs.clear()
    finally:
        postgres_server.start()
    assert can_read(store)
    with store.reading() as reader:
        assert reader.list_jobs() == (job_record(),)
    with store.writing("job") as writer:
        writer.save_ranks([rank_record()])
    assert is_free(store, "plan job")
    # What was signalled meanwhile may have been sent before the other one listened again.
    wait_until(lambda: all(None in jobs for jobs in heard))
    assert caplog.text.count("signals between planners resumed") == len(stores)
    store.signal("job")
    wait_until(lambda: "job" in heard[1])


def test_a_transaction_that_postgresql_leaves_stores_nothing_and_says_so(
    postgres_server: PostgresServer, stores: tuple[PostgresJobStore, PostgresJobStore]
) -> None:
    try:
        with pytest.raises(StoreUnavailableError), stores[0].writing("job") as writer:
            writer.save_job(job_record())
            postgres_server.stop()
    finally:
        postgres_server.start()
    with stores[0].reading() as reader:
        assert reader.list_jobs() == ()


def test_a_turn_that_ends_after_postgresql_was_started_again_takes_nobody_elses(
    postgres_server: PostgresServer, stores: tuple[PostgresJobStore, PostgresJobStore]
) -> None:
    with stores[0].lock("plan job"):
        postgres_server.stop()
        postgres_server.start()
        assert is_free(stores[1], "plan job")  # it was lost
        assert is_free(stores[0], "plan other")  # the holder's planner has a new connection
    with stores[1].lock("plan job"):
        assert not is_free(stores[0], "plan job")


# ------------------------------------------------------------------ refusals


def refusal(database: str) -> StoreError:
    """Return what opening this database raises; no password is in it or behind it."""
    store = PostgresJobStore(database)
    with pytest.raises(StoreError) as caught:
        store.open()
    error: BaseException | None = caught.value
    while error is not None:
        assert PASSWORD not in f"{error} {error!r}"
        assert "wrong-one" not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__
    assert PASSWORD not in repr(store)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_wrong_password_is_told_without_it(postgres_server: PostgresServer) -> None:
    error = refusal(postgres_server.address(password="wrong-one"))  # noqa: S106 - a test's
    assert isinstance(error, StoreUnreachableError)
    assert "password authentication failed" in error.message
    assert f"postgresql://flyball@127.0.0.1:{postgres_server.port}/postgres" in error.message


def test_a_database_that_there_is_not_is_told(postgres_server: PostgresServer) -> None:
    assert (
        'database "nowhere" does not exist' in refusal(postgres_server.address("nowhere")).message
    )


def test_a_server_that_there_is_not_is_told() -> None:
    error = refusal(f"postgresql://flyball:{PASSWORD}@127.0.0.1:1/flyball")
    assert "refused" in error.message
    several = refusal(f"postgresql://flyball:{PASSWORD}@127.0.0.1:1,127.0.0.1:2/flyball")
    assert "refused" in several.message


def test_an_option_that_there_is_not_is_told(postgres_server: PostgresServer) -> None:
    assert "sslmood" in refusal(f"{postgres_server.address()}?sslmood=require").message


def test_a_user_who_may_make_no_tables_is_told(
    postgres_server: PostgresServer, postgres_database: str
) -> None:
    with closing(psycopg.connect(postgres_database, autocommit=True)) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute(f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'".encode())
    guests = postgres_database.replace("//flyball:", "//guest:")
    assert "permission denied for schema public" in refusal(guests).message


def test_a_subject_that_another_planner_holds_too_long_is_busy(
    stores: tuple[PostgresJobStore, PostgresJobStore],
    postgres_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_engine, "BUSY_TIMEOUT_S", 0.05)
    hasty = PostgresJobStore(postgres_database)
    hasty.open()
    with stores[0].writing("job") as writer:
        writer.save_job(job_record())
        with pytest.raises(StoreBusyError, match="try again"), hasty.writing("job"):
            pass
        with hasty.reading() as reader:
            assert reader.list_jobs() == ()
    hasty.close()


def test_text_that_postgresql_cannot_hold_is_a_mistake_of_the_caller(
    stores: tuple[PostgresJobStore, PostgresJobStore],
) -> None:
    with (
        pytest.raises(ValueError, match="refused by the schema"),
        stores[0].writing("job") as writer,
    ):
        writer.save_job(job_record(problem="a\0b"))


# ------------------------------------------------------------------ room


def test_a_full_disk_is_called_that_and_writing_is_checked_by_writing(
    postgres_server: PostgresServer,
) -> None:
    folder = postgres_server.folder / "small"
    with small_disk_at(folder, 24, owner=postgres_server.user_id) as disk:
        if not disk.is_mounted:
            pytest.skip("this account may mount no disk")
        with postgres_server.database_in(folder) as address:
            store = MeasuredStore(PostgresJobStore(address), ProcessMetrics())
            store.open()
            store.check_writing()
            with disk.filled(), pytest.raises(StoreFullError):
                for number in range(1000):
                    with store.writing(f"job-{number}") as writer:
                        writer.save_job(
                            job_record(f"job-{number}", problem=_incompressible(number))
                        )
            with pytest.raises(RuntimeError, match="the store was full"):
                WritingCheck(store)()
            WritingCheck(store, full_s=0.0)()
            store.close()


def _incompressible(number: int) -> str:
    return random.Random(number).randbytes(2**15).hex()
