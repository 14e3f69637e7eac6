"""Databases that an earlier Flyball has written: they open, and nothing in them is lost."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.planner.samples import MOMENT, job_record, job_spec, plan_record, profile

from flyball_server.jobs.job_state import JobInput, JobState
from flyball_server.jobs.records import JobRecord, JobSpec
from flyball_server.jobs.stores.profile_document import profile_document
from flyball_server.jobs.stores.sql_migrations import MIGRATIONS, NEWEST_SCHEMA
from flyball_server.jobs.stores.sql_rows import plan_values
from flyball_server.jobs.stores.sqlite_store import SqliteJobStore
from flyball_server.planning.effort import Effort

REGISTERED = job_spec(
    policy="uniform",
    gpu='a "quoted" ä',
    blocking_power_w=(70.1, 1 / 3),
    activation_bytes=(1, 2**53 - 1),
    free_memory_bytes=(0, 7),
)
IN_FORCE = REGISTERED.evolve(target="least-energy")
JOB = job_record(
    registered=REGISTERED,
    in_force=IN_FORCE,
    state=JobState.PLANNED,
    changed_input=JobInput.TARGET,
    inputs_revision=2,
    planned_revision=2,
)


# What specifications have had since, and in which schema they came.
LATER_FIELDS = {"effort": 2, "checkpoint": 5, "order": 5, "virtual_stages": 5}


def document_of_schema(spec: JobSpec, schema: int) -> str:
    """A specification as that schema kept it."""
    fields = asdict(spec)
    return json.dumps(
        {name: fields[name] for name in fields if LATER_FIELDS.get(name, 1) <= schema}
    )


def first_schema_document(spec: JobSpec) -> str:
    """A specification as the first schema kept it: without effort and order."""
    return document_of_schema(spec, 1)


@pytest.fixture
def first_schema_file(tmp_path: Path) -> Path:
    """A database of schema 1 with a planned job."""
    file = tmp_path / "planner.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        for statement in MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
        connection.execute("INSERT INTO schema_version VALUES (1)")
        connection.execute(
            "INSERT INTO jobs VALUES ('job', ?, 'planned', NULL, ?, ?, 'target', 2, 2)",
            (
                MOMENT.isoformat(),
                first_schema_document(REGISTERED),
                first_schema_document(IN_FORCE),
            ),
        )
        connection.execute(
            "INSERT INTO profiles VALUES ('job', ?)", (json.dumps(profile_document(profile())),)
        )
        connection.execute(
            "INSERT INTO plans VALUES"
            " (:job_id, :version, :created_at, :first_step, :solve_s, :document)",
            plan_values(plan_record()),
        )
        connection.commit()
    return file


def stored_job(file: Path) -> JobRecord | None:
    """The job as a store reads it that opens the file and closes it again."""
    store = SqliteJobStore(file)
    store.open()
    try:
        with store.reading() as reader:
            assert reader.find_profile("job") == profile()
            assert reader.list_plans("job") == (plan_record(),)
            return reader.find_job("job")
    finally:
        store.close()


def test_a_job_of_the_first_schema_is_of_normal_effort_and_else_as_it_was(
    first_schema_file: Path,
) -> None:
    assert JOB.registered.effort == Effort.NORMAL
    assert stored_job(first_schema_file) == JOB
    assert stored_job(first_schema_file) == JOB  # the second time there is nothing to change


def test_an_updated_database_says_so_to_an_older_flyball(first_schema_file: Path) -> None:
    stored_job(first_schema_file)
    with closing(sqlite3.connect(first_schema_file)) as connection:
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [
            (NEWEST_SCHEMA,)
        ]
        documents = connection.execute("SELECT registered, in_force FROM jobs").fetchone()
    assert NEWEST_SCHEMA >= 2
    for document, spec in zip(documents, (REGISTERED, IN_FORCE), strict=True):
        assert json.loads(document) == json.loads(json.dumps(asdict(spec)))


def test_an_update_that_fails_leaves_the_database_as_it_was(first_schema_file: Path) -> None:
    with closing(sqlite3.connect(first_schema_file)) as connection:
        connection.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        connection.commit()
        with pytest.raises(ValueError, match="refused by the schema: no"):
            SqliteJobStore(first_schema_file).open()
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [(1,)]
        documents = connection.execute("SELECT registered, in_force FROM jobs").fetchone()
    assert documents == (first_schema_document(REGISTERED), first_schema_document(IN_FORCE))


@pytest.mark.parametrize("schema", range(2, NEWEST_SCHEMA))
def test_a_job_of_any_older_schema_has_no_order_and_else_is_as_it_was(
    first_schema_file: Path, schema: int
) -> None:
    """A file of the first schema, taken on to an older one by its own statements."""
    with closing(sqlite3.connect(first_schema_file)) as connection:
        for statements in MIGRATIONS[1:schema]:
            for statement in statements:
                connection.execute(statement)
        connection.execute("UPDATE schema_version SET version = ?", (schema,))
        connection.execute(
            "UPDATE jobs SET registered = ?, in_force = ?",
            (document_of_schema(REGISTERED, schema), document_of_schema(IN_FORCE, schema)),
        )
        connection.commit()
    job = stored_job(first_schema_file)
    assert job == JOB
    for spec in (job.registered, job.in_force):
        assert (spec.checkpoint, spec.order, spec.virtual_stages) == (None, None, None)
