"""A database as the first schema had it, with a planned job, and how a store reads it."""

from __future__ import annotations

import json
from dataclasses import asdict

from sqlalchemy import create_engine, text
from tests.planner.samples import (
    MOMENT,
    job_record,
    job_spec,
    plan_record,
    profile,
    step_record,
)

from flyball_server.jobs.job_state import JobInput, JobState
from flyball_server.jobs.records import JobRecord, JobSpec
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.sql.profile_document import profile_document
from flyball_server.jobs.store.sql.sql_migrations import MIGRATIONS, in_dialect
from flyball_server.jobs.store.sql.sql_rows import plan_values

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
# A rank and a step of the job, for tables as schema 8 had them.
STEP_OF_SCHEMA_8 = (
    "INSERT INTO ranks (job_id, rank, stage, host, gpu_name, gpu_uuid, emulated, client_version)"
    " VALUES ('job', 1, 1, 'node-1', 'emulated A100', 'EMULATED-1', TRUE, '0.1.0')",
    "INSERT INTO steps (job_id, rank, step, plan_version, time_s, energy_j, num_unplanned,"
    " num_overruns, num_clock_misses) VALUES ('job', 1, 3, 1, 1.5, 250.25, 0, 0, 2)",
    "UPDATE schema_version SET version = 8",
)
STEP_THEN = step_record(
    3, 1, plan_version=1, time_s=1.5, energy_j=250.25, num_clock_misses=2, sm_clock_mhz=None
)

# Two jobs that were deleted, which in schema 10 a missing name says: what is left of them.
DELETED_IN_SCHEMA_10 = (
    "INSERT INTO jobs SELECT 'deleted', created_at, state, problem, registered, in_force,"
    " changed_input, inputs_revision, planned_revision, run, restart_count, NULL FROM jobs",
    "INSERT INTO ranks (job_id, rank, stage, host, gpu_name, gpu_uuid, emulated, client_version)"
    " VALUES ('deleted', 1, 1, 'node-1', 'emulated A100', 'EMULATED-1', TRUE, '0.1.0')",
    "INSERT INTO steps (job_id, rank, step, plan_version, time_s, energy_j, num_unplanned,"
    " num_overruns, num_clock_misses) VALUES ('deleted', 1, 3, 1, 1.5, 250.25, 0, 0, 2)",
    "INSERT INTO jobs SELECT 'deleted-too', created_at, state, problem, registered, in_force,"
    " changed_input, inputs_revision, planned_revision, run, restart_count, NULL FROM jobs"
    " WHERE job_id = 'job'",
    "UPDATE schema_version SET version = 10",
)
LEFT_OF_DELETED = (
    "SELECT job_id FROM jobs WHERE job_id LIKE 'deleted%'"
    " UNION ALL SELECT job_id FROM ranks UNION ALL SELECT job_id FROM steps"
)

# What specifications have had since, and in which schema they came.
LATER_FIELDS = {
    "effort": 2,
    "checkpoint": 5,
    "order": 5,
    "virtual_stages": 5,
    "profiling": 6,
    "profiling_slowdown": 6,
    "adaptation": 6,
    "reserve": 8,
}


def document_of_schema(spec: JobSpec, schema: int) -> str:
    """A specification as that schema kept it."""
    fields = asdict(spec)
    return json.dumps(
        {name: fields[name] for name in fields if LATER_FIELDS.get(name, 1) <= schema}
    )


def first_schema_document(spec: JobSpec) -> str:
    """A specification as the first schema kept it: without effort and order."""
    return document_of_schema(spec, 1)


def write_first_schema(url: str) -> None:
    """Make the tables of schema 1, with the job, its profile and its plan.

    Args:
        url: of an empty database, as SQLAlchemy has it.
    """
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in MIGRATIONS[0]:
            connection.execute(text(in_dialect(statement, engine.dialect.name)))
        connection.execute(text("CREATE TABLE schema_version (version INTEGER NOT NULL)"))
        connection.execute(text("INSERT INTO schema_version VALUES (1)"))
        connection.execute(
            text(
                "INSERT INTO jobs VALUES"
                " ('job', :created_at, 'planned', NULL, :registered, :in_force, 'target', 2, 2)"
            ),
            {
                "created_at": MOMENT.isoformat(),
                "registered": first_schema_document(REGISTERED),
                "in_force": first_schema_document(IN_FORCE),
            },
        )
        connection.execute(
            text("INSERT INTO profiles VALUES ('job', :document)"),
            {"document": json.dumps(profile_document(profile()))},
        )
        connection.execute(
            text(
                "INSERT INTO plans VALUES"
                " (:job_id, :version, :created_at, :first_step, :solve_s, :document)"
            ),
            plan_values(plan_record()),
        )
    engine.dispose()


def job_stored_in(store: JobStore) -> JobRecord | None:
    """The job as this store reads it, which is opened and closed again."""
    store.open()
    try:
        with store.reading() as reader:
            assert reader.find_profile("job") == profile()
            assert reader.list_plans("job") == (plan_record(),)
            return reader.find_job("job")
    finally:
        store.close()
