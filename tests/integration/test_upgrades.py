"""Planners upgraded one after another, by a synthetic next schema, while a job trains."""

from __future__ import annotations

import itertools
import json
import re
import signal
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.deploy.proxy import caddy, needs_caddy
from tests.planner.linked_rank import LinkedRank
from tests.planner.live import ServeProcess, serve_process
from tests.planner.newer_schema import NEWER_FLYBALL, migrate_to_next, next_schema
from tests.planner.patience import wait_until
from tests.planner.ports import free_port
from tests.planner.samples import job_record

from flyball_server.jobs.errors import StoreTooNewError
from flyball_server.jobs.loop_state import Comparison, JobLoopState
from flyball_server.jobs.store.databases import make_job_store
from flyball_server.jobs.store.sql.sql_tables import MIGRATIONS, newest_schema
from flyball_wire import routes

Execute = Callable[[str], list[tuple[Any, ...]]]
_ADDS = re.compile(
    r"CREATE TABLE (?!.*REFERENCES \w+ \([\w, ]+\)(?! ON DELETE CASCADE)).*"
    r"|CREATE INDEX .*"
    r"|ALTER TABLE \w+ ADD COLUMN \w+ (?!.*NOT NULL(?! DEFAULT )).*"
    r"|UPDATE .*"
)


def test_a_migration_only_adds_what_an_older_planner_need_not_know() -> None:
    for statement in (*itertools.chain(*MIGRATIONS), *next_schema()):
        assert _ADDS.fullmatch(statement), statement
    for statement in (
        "ALTER TABLE jobs ADD COLUMN size INTEGER NOT NULL",
        "ALTER TABLE jobs DROP COLUMN name",
        "ALTER TABLE jobs RENAME COLUMN name TO title",
        "CREATE UNIQUE INDEX one ON ranks (host)",
        "CREATE TABLE more (job_id TEXT REFERENCES jobs (job_id))",
        "DELETE FROM steps",
    ):
        assert not _ADDS.fullmatch(statement), statement


# ------------------------------------------------------------------ stores


@pytest.fixture
def execute(database_url: str) -> Execute:
    """Runs a statement on the database, committed; its rows."""

    def run(statement: str) -> list[tuple[Any, ...]]:
        if database_url.startswith("postgresql:"):
            with closing(psycopg.connect(database_url, autocommit=True)) as connection:
                cursor = connection.execute(statement.encode())
                return cursor.fetchall() if cursor.description else []
        file = database_url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(file)) as lite, lite:
            return lite.execute(statement).fetchall()

    return run


def test_what_a_newer_planner_has_stored_is_read_and_kept_by_an_older_one(
    database_url: str, execute: Execute
) -> None:
    store = make_job_store(database_url)
    store.open()
    state = JobLoopState(job_id="job", comparison=Comparison(num_pairs=2))
    with store.writing("job") as writer:
        writer.save_job(job_record("job"))
        writer.save_loop_state(state)
    store.close()
    migrate_to_next(database_url)
    for table, column in (("jobs", "spec"), ("jobs", "registered"), ("controls", "document")):
        ((document,),) = execute(f"SELECT {column} FROM {table}")  # noqa: S608
        newer = json.dumps(json.loads(document) | {"next_option": {"deep": [1]}})
        execute(f"UPDATE {table} SET {column} = '{newer}', next_note = 'kept'")  # noqa: S608
    execute("INSERT INTO next_things SELECT job_id, 7 FROM jobs")

    store.open()
    with store.reading() as reader:
        assert (reader.find_job("job"), reader.find_loop_state("job")) == (job_record("job"), state)
    with store.writing("job") as writer:
        writer.save_job(job_record("job").evolve(problem="another"))
        writer.save_loop_state(state.evolve(comparison=Comparison(num_pairs=3)))
        writer.save_job(job_record("new"))
    assert execute("SELECT next_note, next_count FROM controls") == [("kept", 3_000_000_000)]
    found = execute("SELECT name, next_note, problem FROM jobs ORDER BY name")
    assert found == [("job", "kept", "another"), ("new", None, None)]
    with store.writing("job") as writer:
        writer.delete_job("job")
    while store.forget_some():
        pass
    assert execute("SELECT count(*) FROM next_things") == [(0,)]
    store.close()
    assert execute("SELECT version FROM schema_version") == [(newest_schema() + 1,)]
    # Two versions newer is refused.
    execute(f"UPDATE schema_version SET version = {newest_schema() + 2}")  # noqa: S608
    with pytest.raises(StoreTooNewError, match="newer than"):
        make_job_store(database_url).open()


# ------------------------------------------------------------------ processes


def of_job(route: str, **parts: int) -> str:
    return routes.fill(route, job_id="job", **parts)


def change_target(planner: ServeProcess, target: str) -> int:
    """The version of its plan."""
    answer = planner.http.put(of_job(routes.TARGET), json={"target": target}).raise_for_status()
    version: int = answer.json()["newest_version"]
    return version


@needs_caddy
def test_a_jobs_ranks_follow_their_plans_through_an_upgrade_and_a_way_back(
    postgres_database: str, tmp_path: Path
) -> None:
    ports = [str(free_port()) for _ in range(2)]
    with ExitStack() as stack:

        def start(index: int, flyball: Sequence[str] | None = None) -> ServeProcess:
            started = serve_process(postgres_database, "--port", ports[index], flyball=flyball)
            return stack.enter_context(started)

        def end(planner: ServeProcess) -> None:
            assert planner.end(signal.SIGTERM)[0] == 0

        old = [start(0), start(1)]
        addresses = " ".join(f"127.0.0.1:{port}" for port in ports)
        proxy = stack.enter_context(caddy(addresses, tmp_path))
        old[0].put_job().raise_for_status()
        old[0].put_profile().raise_for_status()
        ca_file, url = str(tmp_path / "ca.pem"), str(proxy.base_url)
        ranks = [LinkedRank(url, rank, ca_file=ca_file) for rank in (0, 1)]
        training = stack.enter_context(ExitStack())
        for rank in ranks:
            training.callback(rank.close)

        def follow(planner: ServeProcess, target: str, version: int) -> None:
            """All ranks run the plan, and what they measure of it arrives."""
            assert change_target(planner, target) == version
            wait_until(lambda: all(rank.activated[-1].version == version for rank in ranks))
            for rank in ranks:
                rank.measure(version, rank.activated[-1])

            def is_stored() -> bool:
                steps = planner.http.get(of_job(routes.STEPS)).raise_for_status().json()
                both = {"step": version, "num_ranks": 2}.items()
                return any(both <= step.items() for step in steps)

            wait_until(is_stored)

        wait_until(lambda: all(rank.activated for rank in ranks))
        end(old[0])
        new = start(0, NEWER_FLYBALL)
        follow(old[1], "slowdown:0.1", 2)
        follow(new, "slowdown:0.2", 3)
        end(old[1])
        follow(new, "slowdown:0.3", 4)
        # The way back: an older planner starts on the newer schema.
        again = start(1)
        end(new)
        follow(again, "slowdown:0.1", 5)
        report = again.http.get(of_job(routes.REPORT)).raise_for_status().json()
        assert (report["num_steps"], report["num_unknown_steps"]) == (4, 0)
        assert [rank.link.outbox.num_dropped for rank in ranks] == [0, 0]
        training.close()  # while there is a planner to leave
        _, errors = again.end(signal.SIGTERM)
        assert "has the schema of a newer Flyball; upgrade this planner too" in errors
