"""Tables of the SQL store, and the totals over rows of measured steps."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Connection,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Text,
    case,
    cast,
    func,
    inspect,
    select,
    text,
)

from flyball_server.jobs.errors import StoreForeignError, StoreTooNewError

_LOG = logging.getLogger(__name__)

MIGRATIONS: tuple[tuple[str, ...], ...] = ()
"""Statements from schema 1 to 2, from 2 to 3 and so on. Never edit a released step: add one.

Planners are upgraded one after another, so a planner runs on a schema one version newer than its
own. A step therefore only adds: tables, indexes, and columns that are nullable or have a default. A
foreign key to an older table cascades, since an older planner deletes rows there. JSON documents
gain keys only, which an older planner ignores, and loses where it writes the document again.
"""


def newest_schema() -> int:
    """Return the schema version that this Flyball writes: 1 without migrations."""
    return 1 + len(MIGRATIONS)


def newest_usable_schema() -> int:
    """Return the newest schema version of which this Flyball can use a database."""
    return newest_schema() + 1


def check_schema(connection: Connection, *, location: object) -> int:
    """Return the schema version of a database that this Flyball can use.

    Raises:
        StoreForeignError: it is empty or not Flyball's.
        StoreTooNewError: a newer Flyball has written it.
    """
    found = _schema_version(connection, location)
    if found is None:
        raise StoreForeignError(location=location)
    _check_usable(found, location)
    return found


def migrate(connection: Connection, *, location: str) -> None:
    """Migrate the database of this writing transaction to the newest schema, if it is older.

    Args:
        connection: inside a transaction; rolled back if this raises.
        location: displayed form of the database.

    Raises:
        StoreForeignError: the database has tables, but they are not Flyball's.
        StoreTooNewError: a Flyball that is more than one schema newer has written the database.
    """
    found = _schema_version(connection, location)
    if found is None:
        METADATA.create_all(connection)
    elif found >= newest_schema():
        _check_usable(found, location)
        return
    else:
        for statements in MIGRATIONS[found - 1 :]:
            for statement in statements:
                connection.execute(text(in_dialect(statement, connection.dialect.name)))
        connection.execute(SCHEMA_VERSION.delete())
    connection.execute(SCHEMA_VERSION.insert().values(version=newest_schema()))


def rewrite_version(connection: Connection) -> None:
    """Write the schema version again, so that the transaction has something to store."""
    for _ in range(2):  # SQLite would not write an equal value
        connection.execute(SCHEMA_VERSION.update().values(version=-SCHEMA_VERSION.c.version))


def in_dialect(statement: str, dialect: str) -> str:
    """Return a statement of MIGRATIONS for this database: SQLite's INTEGER has 64 bits, else 32."""
    return statement.replace(" INTEGER", " BIGINT") if dialect == "postgresql" else statement


def _check_usable(found: int, location: object) -> None:
    if found > newest_usable_schema():
        raise StoreTooNewError(location=location, found=found, known=newest_usable_schema())
    if found > newest_schema():
        _LOG.info("%s has the schema of a newer Flyball; upgrade this planner too", location)


def _schema_version(connection: Connection, location: object) -> int | None:
    """Return the schema version of the database; None if it is empty."""
    inspector = inspect(connection)
    tables = inspector.get_table_names()
    if SCHEMA_VERSION.name in tables:
        # Other programs have a table of this name too.
        columns = [column["name"] for column in inspector.get_columns(SCHEMA_VERSION.name)]
        if columns != ["version"] or JOBS.name not in tables:
            raise StoreForeignError(location=location)
        version = connection.execute(SCHEMA_VERSION.select()).scalar()
        if not isinstance(version, int):
            raise StoreForeignError(location=location)
        return version
    if tables:
        raise StoreForeignError(location=location)
    return None


METADATA = MetaData()

# PostgreSQL's own INTEGER has 32 bits only.
_WHOLE = Integer().with_variant(BigInteger(), "postgresql")

SCHEMA_VERSION = Table("schema_version", METADATA, Column("version", Integer, nullable=False))

# `name` is the public name of the job; null once it was deleted, and only then. `job_id` is the key
# that its rows in the other tables refer to, and never changes.
JOBS = Table(
    "jobs",
    METADATA,
    Column("job_id", String(128), primary_key=True),
    Column("created_at", String(40), nullable=False),
    Column("state", String(32), nullable=False),
    Column("problem", Text),
    Column("registered", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("changed_input", String(32), nullable=False),
    Column("inputs_revision", _WHOLE, nullable=False),
    Column("start", Text),
    Column("run", Text),
    Column("restart_count", BigInteger),
    Column("name", String(128)),
    Column("is_deleted", Boolean, nullable=False),
    CheckConstraint("is_deleted = (name IS NULL)"),
    Index("jobs_by_name", "name", unique=True),
)

PROFILES = Table(
    "profiles",
    METADATA,
    Column("job_id", String(128), ForeignKey("jobs.job_id"), primary_key=True),
    Column("document", Text, nullable=False),
    Column("energy_scope", String(16)),
    Column("digest", String(64), nullable=False),
    Column("conditions", Text),
)

# Newest profile of the job measured under each conditions, which it may come back to.
KEPT_PROFILES = Table(
    "kept_profiles",
    METADATA,
    Column("job_id", String(128), ForeignKey("jobs.job_id"), primary_key=True),
    # Of the conditions.
    Column("digest", String(64), primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
)

RANKS = Table(
    "ranks",
    METADATA,
    Column("job_id", String(128), ForeignKey("jobs.job_id"), primary_key=True),
    Column("rank", _WHOLE, primary_key=True, autoincrement=False),
    Column("stage", _WHOLE, nullable=False),
    Column("host", Text, nullable=False),
    Column("gpu_name", Text, nullable=False),
    Column("gpu_uuid", Text, nullable=False),
    Column("emulated", Boolean, nullable=False),
    Column("client_version", Text, nullable=False),
    Column("acknowledged_version", BigInteger),
    Column("current_step", BigInteger),
    Column("dp_rank", _WHOLE, nullable=False),
    Column("tp_rank", _WHOLE, nullable=False),
    Column("cp_rank", _WHOLE, nullable=False),
    Column("node", Text),
    Column("sm_clocks_mhz", Text),
    Column("last_seen_at", String(40)),
    Column("has_left", Boolean, nullable=False),
    Column("start", Text),
    Column("no_clocks", Text),
    Column("energy_scope", String(16)),
    Column("conditions", Text),
)

PLANS = Table(
    "plans",
    METADATA,
    Column("job_id", String(128), ForeignKey("jobs.job_id"), primary_key=True),
    Column("version", _WHOLE, primary_key=True, autoincrement=False),
    Column("created_at", String(40), nullable=False),
    Column("first_step", BigInteger),
    Column("solve_s", Float, nullable=False),
    Column("document", Text, nullable=False),
    Column("measurement_detail", String(32), nullable=False),
    Column("baseline_cycle", Text, nullable=False),
    Column("digest", String(80)),
)

# Counts of a rank's step, which totals add up.
COUNTED_BY_STAGE = ("num_clock_misses", "num_power_capped", "num_thermally_capped")
COUNTED = ("num_unplanned", "num_overruns", "num_without_clocks", *COUNTED_BY_STAGE)


def _counts(names: Iterable[str]) -> Iterator[Column[int]]:
    """Yield a new column for each of these counts."""
    return (Column(name, BigInteger, nullable=False) for name in names)


STEPS = Table(
    "steps",
    METADATA,
    Column("job_id", String(128), primary_key=True),
    Column("rank", _WHOLE, primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("plan_version", BigInteger),
    Column("time_s", Float, nullable=False),
    Column("energy_j", Float),
    *_counts(COUNTED),
    Column("sm_clock_mhz", Float),
    Column("unknown_version", BigInteger),
    # Unix time in s of the post.
    Column("stored_at", BigInteger, nullable=False),
    # Number of times that the job had started over before.
    Column("run", BigInteger, nullable=False, server_default="0"),
    ForeignKeyConstraint(["job_id", "rank"], ["ranks.job_id", "ranks.rank"]),
    Index("steps_by_step", "job_id", "step"),
)

STEP_DETAILS = Table(
    "step_details",
    METADATA,
    Column("job_id", String(128), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("rank", _WHOLE, primary_key=True, autoincrement=False),
    Column("document", Text, nullable=False),
    ForeignKeyConstraint(["job_id", "rank"], ["ranks.job_id", "ranks.rank"]),
)

# Place that the running totals of a job's steps have reached, and the totals: a document for each
# plan version (0: default clocks), and one for all (-1).
FOLDS = Table(
    "folds",
    METADATA,
    Column("job_id", String(128), ForeignKey("jobs.job_id"), primary_key=True),
    Column("start_id", Text, nullable=False),
    *(
        Column(name, BigInteger, nullable=False)
        for name in (
            "run",
            "after_step",
            "num_late",
            "newest_version",
            "newest_step",
            "due_step",
        )
    ),
)
FOLD_PARTS = Table(
    "fold_parts",
    METADATA,
    Column("job_id", String(128), ForeignKey("jobs.job_id"), primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("document", Text, nullable=False),
)

# Totals of steps whose rows in `steps` were removed, and of the newest of them by stages. A step
# has rows in `steps` or here. `versions`, as JSON: known and unknown versions that were run in it;
# null: its ranks ran all the same.
PRUNED_STEPS = Table(
    "pruned_steps",
    METADATA,
    Column("job_id", String(128), ForeignKey("jobs.job_id"), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("num_ranks", _WHOLE, nullable=False),
    Column("lowest_version", BigInteger),
    Column("newest_version", BigInteger),
    Column("num_with_plan", _WHOLE, nullable=False),
    Column("num_unknown", _WHOLE, nullable=False),
    Column("versions", Text),
    Column("time_s", Float, nullable=False),
    Column("energy_j", Float),
    *_counts(COUNTED),
    Column("stored_at", BigInteger, nullable=False),
)
# `part` numbers the plan versions that a stage's ranks ran in the step.
PRUNED_STAGES = Table(
    "pruned_stages",
    METADATA,
    Column("job_id", String(128), ForeignKey("jobs.job_id"), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("stage", _WHOLE, primary_key=True, autoincrement=False),
    Column("part", _WHOLE, primary_key=True, autoincrement=False),
    Column("plan_version", BigInteger),
    Column("unknown_version", BigInteger),
    Column("num_ranks", _WHOLE, nullable=False),
    Column("time_s", Float, nullable=False),
    Column("energy_j", Float),
    *_counts(COUNTED_BY_STAGE),
    Column("num_with_clock", _WHOLE, nullable=False),
    Column("sm_clock_mhz", Float),
)

# Moments of measurements; version 0: default clocks.
MOMENTS = Table(
    "moments",
    METADATA,
    Column("job_id", String(128), ForeignKey("jobs.job_id"), primary_key=True),
    Column("plan_version", BigInteger, primary_key=True, autoincrement=False),
    Column("stage", _WHOLE, primary_key=True, autoincrement=False),
    Column("document", Text, nullable=False),
)

LOOP_STATES = Table(
    "controls",
    METADATA,
    Column("job_id", String(128), ForeignKey("jobs.job_id"), primary_key=True),
    Column("document", Text, nullable=False),
)

TOKENS = Table(
    "tokens",
    METADATA,
    Column("token_id", String(64), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("job_id", String(128)),
    Column("is_read_only", Boolean, nullable=False),
    Column("created_at", String(40), nullable=False),
    Column("note", Text, nullable=False),
)

# Tables with rows of jobs, in an order in which the rows can be deleted.
TABLES_OF_JOBS = (
    STEP_DETAILS,
    STEPS,
    PRUNED_STAGES,
    PRUNED_STEPS,
    MOMENTS,
    FOLD_PARTS,
    FOLDS,
    LOOP_STATES,
    PLANS,
    RANKS,
    PROFILES,
    KEPT_PROFILES,
    JOBS,
)


def step_totals(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Return the query of the totals, over ranks, of each step of STEPS under these conditions."""
    totals: list[ColumnElement[Any]] = [
        STEPS.c.step,
        func.count().label("num_ranks"),
        func.min(STEPS.c.plan_version).label("lowest_version"),
        func.max(STEPS.c.plan_version).label("newest_version"),
        func.count(STEPS.c.plan_version).label("num_with_plan"),
        func.count(STEPS.c.unknown_version).label("num_unknown"),
        *_times_and_energies(),
        *_sums(COUNTED),
        func.max(STEPS.c.stored_at).label("stored_at"),
    ]
    return select(*totals).where(*conditions).group_by(STEPS.c.step)


def stage_totals(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Return the query of the totals of the ranks of a stage that ran one version in a step."""
    group = (STEPS.c.step, RANKS.c.stage, STEPS.c.plan_version, STEPS.c.unknown_version)
    totals: list[ColumnElement[Any]] = [
        *group,
        func.count().label("num_ranks"),
        *_times_and_energies(),
        *_sums(COUNTED_BY_STAGE),
        func.count(STEPS.c.sm_clock_mhz).label("num_with_clock"),
        func.avg(STEPS.c.sm_clock_mhz).label("sm_clock_mhz"),
    ]
    return select(*totals).join_from(STEPS, RANKS, _of_rank()).where(*conditions).group_by(*group)


def _times_and_energies() -> tuple[ColumnElement[Any], ...]:
    energy_j = STEPS.c.energy_j
    is_whole = func.count(energy_j) == func.count()
    return (
        func.max(STEPS.c.time_s).label("time_s"),
        case((is_whole, func.sum(energy_j))).label("energy_j"),
    )


def _sums(names: Iterable[str]) -> Iterator[ColumnElement[Any]]:
    # PostgreSQL's sums of whole numbers are decimals.
    return (cast(func.sum(STEPS.c[name]), BigInteger).label(name) for name in names)


def _of_rank() -> ColumnElement[bool]:
    return (RANKS.c.job_id == STEPS.c.job_id) & (RANKS.c.rank == STEPS.c.rank)
