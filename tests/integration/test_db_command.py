"""`flyball db`: a backup of a planner at work, and a fresh planner on what was restored."""

from __future__ import annotations

import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from tests.integration.command_in_process import flyball, printed, refusal, run_apart
from tests.planner.live import ServeProcess, serve_process
from tests.postgres.server import (
    PASSWORD,
    PostgresServer,
    binaries_by_version,
    compose_version,
    private_postgres,
)

from flyball_server.jobs.store.job_stores import make_job_store
from flyball_server.jobs.store.sql import sql_tables
from flyball_server.jobs.store.sql.sql_tables import newest_usable_schema
from flyball_wire import routes

NewDatabase = Callable[[], str]


@pytest.fixture(params=("sqlite", "postgres"))
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewDatabase]:
    """Gives addresses of databases that are not there yet, or empty."""
    if request.param == "sqlite":
        names = iter("abcd")
        yield lambda: f"sqlite:///{tmp_path / next(names)}.sqlite"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.database() as first, server.database() as second:
        addresses = iter((first, second))
        yield lambda: next(addresses)


def create(database: str) -> None:
    """Make the tables of a planner there."""
    store = make_job_store(database)
    store.open()
    store.close()


def of_job(route: str, **parts: int) -> str:
    return routes.fill(route, job_id="job", **parts)


def train(planner: ServeProcess) -> None:
    """A job of two ranks with two plan versions and a measured step."""
    planner.put_planned_job()
    change_target(planner.http, "slowdown:0.1")
    for rank in (0, 1):
        planner.post_steps(rank, 5, plan_version=2, time_s=0.5, energy_j=10.0)


def change_target(http: httpx.Client, target: str) -> None:
    http.put(of_job(routes.TARGET), json={"target": target}).raise_for_status()


def told(planner: ServeProcess) -> dict[str, Any]:
    """All that a planner says of its job, but when it was last seen."""
    paths = [of_job(route) for route in (routes.JOB, routes.STEPS, routes.REPORT)]
    paths += [of_job(routes.PLAN, version=version) for version in (1, 2)]
    paths += [of_job(routes.RANK_PLAN, rank=rank) for rank in (0, 1)]
    answers = {path: planner.http.get(path).raise_for_status().json() for path in paths}
    for rank in answers[of_job(routes.JOB)]["ranks"]:
        rank.pop("last_seen_at", None)
    profile = planner.http.get(of_job(routes.PROFILE)).raise_for_status().text
    return {**answers, "profile": profile}


def test_a_fresh_planner_on_a_restored_backup_tells_what_the_first_one_told(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    first, second, backup = new_database(), new_database(), tmp_path / "planner.backup"
    with serve_process(first) as planner:
        train(planner)
        before = told(planner)
        made = printed(flyball("db", "backup", backup, "--database", first, "--json"))
        change_target(planner.http, "least-energy")  # is not in the backup
    assert made["bytes"] == backup.stat().st_size
    assert PASSWORD not in made["database"]
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    done = flyball("db", "restore", backup, "--database", second)
    assert (done.returncode, done.stderr) == (0, "")
    assert PASSWORD not in done.stdout
    with serve_process(second) as planner:
        assert told(planner) == before
        change_target(planner.http, "least-energy")
        assert planner.http.get(of_job(routes.JOB)).json()["newest_version"] == 3


@pytest.mark.parametrize("version", sorted(set(binaries_by_version()) - {compose_version()}))
def test_backups_go_from_other_versions_of_postgresql_where_they_are(
    version: str, tmp_path: Path
) -> None:
    backup = tmp_path / "planner.backup"
    with (
        private_postgres(binaries_by_version()[version]) as server,
        server.database() as first,
        server.database() as second,
    ):
        with serve_process(first) as planner:
            train(planner)
            before = told(planner)
            assert flyball("db", "backup", backup, "--database", first).returncode == 0
        assert flyball("db", "restore", backup, "--database", second).returncode == 0
        with serve_process(second) as planner:
            assert told(planner) == before


def test_a_backup_is_not_overwritten_and_not_left_half_done(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    database, empty, backup = new_database(), new_database(), tmp_path / "here" / "planner.backup"
    backup.parent.mkdir()
    create(database)
    backup.write_text("mine")
    for file, of, said in (
        (backup, database, "exists; give another name"),
        (tmp_path / "nowhere" / "planner.backup", database, "cannot be written"),
        (backup.with_name("another"), empty, ""),
    ):
        assert said in refusal(flyball("db", "backup", file, "--database", of))
    assert backup.read_text() == "mine"
    assert list(backup.parent.iterdir()) == [backup]


def test_what_is_no_backup_of_this_kind_and_version_is_refused(
    new_database: NewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, backup = new_database(), new_database(), tmp_path / "planner.backup"
    create(first)
    printed(flyball("db", "backup", backup, "--database", first, "--json"))
    other = "postgresql://nobody@127.0.0.1:9/none" if "sqlite" in first else "sqlite:///x.sqlite"
    restore = ("db", "restore", backup, "--database")
    assert "name such a database by --database" in refusal(flyball(*restore, other))
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    assert "is no backup" in refusal(flyball("db", "restore", text, "--database", second))
    cut = tmp_path / "cut"
    cut.write_bytes(backup.read_bytes()[: backup.stat().st_size // 3])
    refusal(flyball("db", "restore", cut, "--database", second))
    for module in ("sql.sql_tables", "postgres.postgres_backup"):
        name = f"flyball_server.jobs.store.{module}.newest_usable_schema"
        monkeypatch.setattr(name, lambda: 0)
    assert "has schema 1, newer than 0" in refusal(flyball(*restore, second))
    monkeypatch.undo()
    assert newest_usable_schema() >= sql_tables.newest_schema()
    assert flyball(*restore, second).returncode == 0  # nothing of the refused ones was left
    refused = refusal(flyball(*restore, second))
    assert "exists; give another name, or --replace" in refused or "has tables" in refused


# ------------------------------------------------------------------ SQLite


def test_sqlites_file_is_replaced_on_request_only_while_no_planner_runs(tmp_path: Path) -> None:
    database, backup = tmp_path / "planner.sqlite", tmp_path / "planner.backup"
    url = f"sqlite:///{database}"
    restore = ("db", "restore", backup, "--database", url, "--replace")
    with serve_process(database) as planner:
        train(planner)
        printed(flyball("db", "backup", backup, "--database", url, "--json"))
        change_target(planner.http, "least-energy")
        # In a process of its own: a process that closes the file loses its own locks on it.
        assert "Another planner runs on" in refusal(run_apart(*restore))
        assert planner.http.get(of_job(routes.JOB)).json()["newest_version"] == 3
    assert flyball(*restore).returncode == 0
    with serve_process(database) as planner:
        assert planner.http.get(of_job(routes.JOB)).json()["newest_version"] == 2


def test_a_damaged_database_is_not_backed_up(tmp_path: Path) -> None:
    database, backup = tmp_path / "planner.sqlite", tmp_path / "planner.backup"
    create(f"sqlite:///{database}")
    # From itself it is not restored: SQLite would wait for its own lock for ever.
    (tmp_path / "link").symlink_to(database)
    asked = ("db", "restore", tmp_path / "link", "--database", f"sqlite:///{database}", "--replace")
    assert "is the database itself" in refusal(flyball(*asked))
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'jobs_by_name'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 64)
    line = refusal(flyball("db", "backup", backup, "--database", f"sqlite:///{database}"))
    assert "is damaged" in line
    assert not backup.exists()


# ------------------------------------------------------------------ PostgreSQL


def test_a_schema_of_its_own_is_restored_without_what_others_have(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    backup = tmp_path / "planner.backup"
    with postgres_server.database() as first, postgres_server.database() as second:
        for database in (first, second):
            with closing(psycopg.connect(database, autocommit=True)) as connection:
                connection.execute('CREATE SCHEMA "of ""ours"')
        with closing(psycopg.connect(first, autocommit=True)) as connection:
            connection.execute("CREATE TABLE public.recipes (name TEXT)")
        option = "?options=-csearch_path%3D%22of%5C%20%22%22ours%22"
        create(first + option)
        printed(flyball("db", "backup", backup, "--database", first + option, "--json"))
        assert flyball("db", "restore", backup, "--database", second + option).returncode == 0
        with closing(psycopg.connect(second)) as connection:
            tables = connection.execute(
                "SELECT DISTINCT schemaname FROM pg_tables WHERE schemaname !~ '^(pg_|inf)'"
            ).fetchall()
        assert tables == [('of "ours',)]


def test_without_a_fitting_pg_dump_a_line_says_what_to_install(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(postgres_database)
    module = "flyball_server.jobs.store.postgres.postgres_backup"
    old = tmp_path / "bin" / "pg_dump"
    old.parent.mkdir()
    old.write_text(f"#!{shutil.which('sh')}\necho 'pg_dump (PostgreSQL) 9.6.24'\n")
    old.chmod(0o755)
    monkeypatch.setattr(f"{module}._DEBIAN", tmp_path / "nothing")
    backup = ("db", "backup", tmp_path / "backup", "--database", postgres_database)
    for path, there in ((tmp_path, "here is none"), (old.parent, "here is 9")):
        monkeypatch.setenv("PATH", str(path))
        line = refusal(flyball(*backup))
        assert f"or newer ({there}); on Debian: apt-get install postgresql-client-" in line
