"""Features and failures of PostgreSQL alone: several planners, and a server that goes away."""

from __future__ import annotations

import logging
import random
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from psycopg import sql
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
from flyball_server.jobs.store.sql.sql_tables import METADATA
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


Pair = tuple[PostgresJobStore, PostgresJobStore]
"""Two planners' stores on one database; to each other they are as of other processes."""


@pytest.fixture
def stores(postgres_database: str) -> Iterator[Pair]:
    pair = PostgresJobStore(postgres_database), PostgresJobStore(postgres_database)
    for store in pair:
        store.open()
    yield pair
    for store in pair:
        store.close()


@pytest.fixture
def heard(stores: Pair) -> list[str | None]:
    """Signals that the second planner's store receives, which is connected."""
    received: list[str | None] = []
    stores[1].listen(received.append)
    wait_until(lambda: None in received)
    return received


def is_free(store: JobStore, name: str) -> bool:
    with store.lock(name, waits=False) as is_mine:
        return is_mine


# ------------------------------------------------------------------ several planners


def test_writing_transactions_of_different_jobs_run_at_once_and_of_one_job_do_not(
    stores: Pair,
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


def test_whoever_waits_for_a_turn_of_another_planner_gets_it_or_is_told_that_its_store_is_closed(
    stores: Pair,
) -> None:
    order: list[str] = []

    def wait_for_it() -> None:
        with stores[1].lock("plan job"):
            order.append("second")

    with ThreadPoolExecutor(1) as threads:
        with stores[0].lock("plan job"):
            assert not is_free(stores[1], "plan job")
            assert is_free(stores[1], "plan other")
            waiting = threads.submit(wait_for_it)
            order.append("first")
        waiting.result(PATIENCE_S)
        assert order == ["first", "second"]
        with stores[0].lock("plan job"):
            waiting = threads.submit(wait_for_it)
            time.sleep(0.05)  # it waits by then
            stores[1].close()
            with pytest.raises(StoreClosedError):
                waiting.result(PATIENCE_S)


def test_a_planner_that_is_killed_releases_its_locks(stores: Pair, postgres_database: str) -> None:
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
    stores: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    heard: tuple[list[str | None], list[str | None]] = ([], [])

    def fail(job_id: str | None) -> None:
        heard[1].append(job_id)
        raise RuntimeError("no")

    caplog.set_level(logging.CRITICAL)
    stores[0].listen(heard[0].append)
    stores[1].listen(fail)  # it is called again all the same
    wait_until(lambda: all(None in jobs for jobs in heard))  # both are connected now
    stores[1].signal("a")
    wait_until(lambda: "a" in heard[0])
    stores[0].signal("b")
    stores[0].close()  # just after
    wait_until(lambda: "b" in heard[1])
    assert [sorted(filter(None, jobs)) for jobs in heard] == [["a", "b"], ["a", "b"]]


def test_many_signals_of_a_job_cost_few_transactions(stores: Pair, heard: list[str | None]) -> None:
    for _ in range(2000):
        stores[0].signal("job")
    stores[0].signal("last")
    wait_until(lambda: "last" in heard)
    assert heard.count("job") < 1000


def test_signals_go_on_after_what_nobody_has_foreseen(
    stores: Pair,
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
    stores: Pair,
    heard: list[str | None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

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
    stores: Pair,
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
    postgres_server: PostgresServer, stores: Pair
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
    postgres_server: PostgresServer, stores: Pair
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


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("flyball:wrong-one@127.0.0.1:{port}/postgres", "password authentication failed"),
        ("flyball:{password}@127.0.0.1:{port}/nowhere", 'database "nowhere" does not exist'),
        ("flyball:{password}@127.0.0.1:1/flyball", "refused"),
        ("flyball:{password}@127.0.0.1:1,127.0.0.1:2/flyball", "refused"),
        ("flyball:{password}@127.0.0.1:{port}/postgres?sslmood=require", "sslmood"),
    ],
    ids=["password", "database", "server", "several servers", "option"],
)
def test_an_address_that_leads_nowhere_is_told_without_its_password(
    postgres_server: PostgresServer, place: str, said: str
) -> None:
    address = place.format(password=PASSWORD, port=postgres_server.port)
    error = refusal(f"postgresql://{address}")
    assert isinstance(error, StoreUnreachableError)
    assert said in error.message
    assert f"postgresql://flyball@{address.partition('@')[2].partition('?')[0]}" in error.message


def test_tables_of_others_in_another_schema_are_none_of_its_business(
    postgres_database: str,
) -> None:
    with closing(psycopg.connect(postgres_database, autocommit=True)) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
        connection.execute("CREATE SCHEMA flyball")
        store = PostgresJobStore(f"{postgres_database}?options=-csearch_path%3Dflyball")
        store.open()
        with store.reading() as reader:
            assert reader.list_jobs() == ()
        store.close()
        made = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'flyball'")
        assert {name for (name,) in made} == METADATA.tables.keys()


def test_a_database_that_does_not_hold_every_text_is_refused(
    postgres_server: PostgresServer,
) -> None:
    postgres_server.execute(
        sql.SQL("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    )
    try:
        said = refusal(postgres_server.address("latin")).message
        assert "its encoding is LATIN1, not UTF8" in said
    finally:
        postgres_server.execute(sql.SQL("DROP DATABASE latin WITH (FORCE)"))


def test_a_user_who_may_make_no_tables_is_told(
    postgres_server: PostgresServer, postgres_database: str
) -> None:
    with closing(psycopg.connect(postgres_database, autocommit=True)) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute(f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'".encode())
    guests = postgres_database.replace("//flyball:", "//guest:")
    assert "permission denied for schema public" in refusal(guests).message


def test_a_subject_that_another_planner_holds_too_long_is_busy(
    stores: Pair,
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


def test_text_that_postgresql_cannot_hold_is_a_mistake_of_the_caller(stores: Pair) -> None:
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
