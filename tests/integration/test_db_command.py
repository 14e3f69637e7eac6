"""Backups: of a planner at work, and a fresh planner on what was restored."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.documentation.blocks import ROOT
from tests.integration.command_in_process import flyball, printed, refusal, run_apart
from tests.planner.live import ServeProcess, serve_process
from tests.planner.newer_schema import migrate_to_next
from tests.planner.samples import job_record
from tests.postgres.server import PASSWORD, PostgresServer, postgres_binaries

from flyball_server.jobs.store.databases import make_job_store
from flyball_server.jobs.store.sql import sql_tables
from flyball_wire import routes


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The file of a planner that has run."""
    file = tmp_path / "planner.sqlite"
    store = make_job_store(f"sqlite:///{file}")
    store.open()
    store.close()
    return file


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    return tmp_path / "planner.backup"


def db(action: str, file: Path, database: Path, *options: str) -> tuple[str | Path, ...]:
    return ("db", action, file, "--database", f"sqlite:///{database}", *options)


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


def test_a_fresh_planner_on_a_restored_backup_answers_as_the_first_one(
    tmp_path: Path, backup: Path
) -> None:
    first, second = tmp_path / "first.sqlite", tmp_path / "new" / "second.sqlite"
    with serve_process(first) as planner:
        train(planner)
        before = told(planner)
        made = printed(flyball(*db("backup", backup, first, "--json")))
        change_target(planner.http, "least-energy")  # is not in the backup
    assert made == {"file": str(backup), "database": str(first), "bytes": backup.stat().st_size}
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    done = flyball(*db("restore", backup, second))
    assert (done.returncode, done.stderr) == (0, "")
    assert stat.S_IMODE(second.stat().st_mode) == 0o600
    with serve_process(second) as planner:
        assert told(planner) == before
        change_target(planner.http, "least-energy")
        assert planner.http.get(of_job(routes.JOB)).json()["newest_version"] == 3


def test_a_backup_is_not_overwritten_and_not_left_half_done(database: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    mine = folder / "mine"
    mine.write_text("mine")
    for file, of, said in (
        (mine, database, "exists; give another name"),
        (tmp_path / "nowhere" / "file", database, "cannot be used (No such file or directory)"),
        (folder / "other", tmp_path / "none", "does not exist; name the planner's by --database"),
    ):
        assert said in refusal(flyball(*db("backup", file, of)))
    assert mine.read_text() == "mine"
    assert list(folder.iterdir()) == [mine]


def test_a_file_that_is_no_usable_backup_is_refused_in_one_line(
    database: Path, backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target.sqlite"
    flyball(*db("backup", backup, database))
    files = {name: tmp_path / name for name in ("text", "of postgres", "cut", "foreign", "empty")}
    files["text"].write_text("hello")
    files["of postgres"].write_bytes(b"PGDMP" + bytes(1000))
    files["cut"].write_bytes(backup.read_bytes()[: backup.stat().st_size // 3])
    files["empty"].write_bytes(b"")
    with closing(sqlite3.connect(files["foreign"])) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    for name, file in files.items():
        said = "is not Flyball's" if name in ("foreign", "empty") else "is damaged or no SQLite"
        assert said in refusal(flyball(*db("restore", file, target)))
    assert "is no file" in refusal(flyball(*db("restore", tmp_path, target)))
    migrate_to_next(f"sqlite:///{database}")
    newer = tmp_path / "newer"
    assert flyball(*db("backup", newer, database)).returncode == 0
    known = sql_tables.newest_schema()
    monkeypatch.setattr(sql_tables, "newest_usable_schema", lambda: known)
    assert f"has schema {known + 1}, newer than {known}" in refusal(
        flyball(*db("restore", newer, target))
    )
    monkeypatch.undo()
    assert not target.exists()
    assert flyball(*db("restore", newer, target)).returncode == 0


def test_an_existing_database_is_replaced_only_on_request_and_while_no_planner_runs(
    database: Path, backup: Path
) -> None:
    with serve_process(database) as planner:
        train(planner)
        printed(flyball(*db("backup", backup, database, "--json")))
        change_target(planner.http, "least-energy")
        # In a process of its own: a process that closes the file loses its own locks on it.
        line = refusal(run_apart(*db("restore", backup, database, "--replace")))
        assert "Another planner runs on" in line
        assert planner.http.get(of_job(routes.JOB)).json()["newest_version"] == 3
    before = database.read_bytes()
    assert "exists; give another name, or --replace" in refusal(
        flyball(*db("restore", backup, database))
    )
    assert database.read_bytes() == before
    assert flyball(*db("restore", backup, database, "--replace")).returncode == 0
    with serve_process(database) as planner:
        assert planner.http.get(of_job(routes.JOB)).json()["newest_version"] == 2


def test_a_database_that_another_program_writes_is_busy_and_one_restored_from_itself_stays(
    database: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flyball(*db("backup", backup, database))
    monkeypatch.setattr("flyball_server.jobs.store.sqlite.sqlite_backup.BUSY_TIMEOUT_S", 0.0)
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        done = flyball(*db("restore", backup, database, "--replace"))
    assert (done.returncode, "is busy in another process" in done.stderr) == (75, True)
    for file in (database, backup):  # with a write-ahead log, and without
        before = names(file)
        flyball(*db("restore", file, file, "--replace"))
        assert names(file) == before


def names(database: Path) -> list[str]:
    """The names of the jobs in a database that is whole."""
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [name for (name,) in connection.execute("SELECT name FROM jobs ORDER BY name")]


_KILLED_AT_SIZE = """\
import resource, signal, sys
from flyball_client.__main__ import main
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
raise SystemExit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("share", "is_new"), [(0.01, False), (0.5, True), (0.99, False)])
def test_a_restore_killed_halfway_leaves_the_old_database(
    share: float, is_new: bool, database: Path, backup: Path
) -> None:
    _add_job(database, "old", 10)
    larger = Path(shutil.copy(database, backup.with_name("larger.sqlite")))
    _add_job(larger, "new", 2_000_000)
    assert flyball(*db("backup", backup, larger)).returncode == 0
    if is_new:
        database = backup.with_name("another.sqlite")
    limit = str(round(share * backup.stat().st_size))
    command = db("restore", backup, database, "--replace")
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED_AT_SIZE, limit, *map(str, command)], check=False
    )
    assert killed.returncode == -signal.SIGXFSZ
    if is_new:
        assert not database.exists() or database.stat().st_size == 0
    else:
        assert names(database) == ["old"]
    assert flyball(*command).returncode == 0
    assert names(database) == ["new", "old"]


def _add_job(database: Path, name: str, size: int) -> None:
    store = make_job_store(f"sqlite:///{database}")
    store.open()
    with store.writing(name) as writer:
        writer.save_job(job_record(name, problem=os.urandom(size // 2).hex()))
    store.close()


def test_a_damaged_database_is_not_backed_up(database: Path, backup: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'jobs_by_name'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 64)
    assert "is damaged" in refusal(flyball(*db("backup", backup, database)))
    assert not backup.exists()


# ------------------------------------------------------------------ PostgreSQL


def shown_commands(file: Path, backed_up: str, restored: str) -> list[list[str]]:
    """The commands that a refusal names, which those of the documentation are."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    commands: list[list[str]] = []
    for action, database, example in (
        ("backup", backed_up, "postgresql://flyball@db.example.org/flyball"),
        ("restore", restored, "postgresql://flyball@db.example.org/restored"),
    ):
        line = refusal(flyball("db", action, file, "--database", database))
        assert PASSWORD not in line
        said, _, command = line.partition("has a program for that: ")
        assert said, line
        shown = database.replace(f":{PASSWORD}", "")
        documented = command.replace(str(file), "monday.backup").replace(shown, example)
        assert f"$ {documented}\n" in page
        commands.append(shlex.split(command))
    return commands


def test_postgresqls_own_programs_back_up_what_a_fresh_planner_goes_on_with(
    postgres_server: PostgresServer, backup: Path
) -> None:
    environment = {**os.environ, "PGPASSWORD": PASSWORD}
    with postgres_server.database() as first, postgres_server.database() as second:
        dump, restore = shown_commands(backup, first, second)
        for command in (dump, restore):
            found = postgres_binaries() / command[0]
            if not found.exists():
                pytest.skip(f"no {command[0]} beside PostgreSQL")
            command[0] = str(found)
        with serve_process(first) as planner:
            train(planner)
            before = told(planner)
            subprocess.run(dump, env=environment, check=True)
            change_target(planner.http, "least-energy")  # is not in the backup
        subprocess.run(restore, env=environment, check=True)
        with serve_process(second) as planner:
            assert told(planner) == before
            change_target(planner.http, "least-energy")
            assert planner.http.get(of_job(routes.JOB)).json()["newest_version"] == 3
        # Into a database with tables nothing is restored.
        assert subprocess.run(restore, env=environment, capture_output=True, check=False).returncode
        with serve_process(second) as planner:
            assert planner.http.get(of_job(routes.JOB)).json()["newest_version"] == 3
