"""The schema's history: what each version added, applied in order when a store is opened.

A step that has been released is never edited; a change of schema is a new step at the end.
"""

from __future__ import annotations

from sqlalchemy import Connection, inspect, text

from flyball_server.jobs.errors import StoreForeignError, StoreTooNewError
from flyball_server.jobs.store.sql.sql_tables import JOBS, SCHEMA_VERSION

_FIRST = (
    """CREATE TABLE jobs (
        job_id VARCHAR(128) NOT NULL PRIMARY KEY,
        created_at VARCHAR(40) NOT NULL,
        state VARCHAR(32) NOT NULL,
        problem TEXT,
        registered TEXT NOT NULL,
        in_force TEXT NOT NULL,
        changed_input VARCHAR(32) NOT NULL,
        inputs_revision INTEGER NOT NULL,
        planned_revision INTEGER NOT NULL
    )""",
    """CREATE TABLE profiles (
        job_id VARCHAR(128) NOT NULL PRIMARY KEY REFERENCES jobs (job_id),
        document TEXT NOT NULL
    )""",
    """CREATE TABLE ranks (
        job_id VARCHAR(128) NOT NULL REFERENCES jobs (job_id),
        rank INTEGER NOT NULL,
        stage INTEGER NOT NULL,
        host TEXT NOT NULL,
        gpu_name TEXT NOT NULL,
        gpu_uuid TEXT NOT NULL,
        emulated BOOLEAN NOT NULL,
        client_version TEXT NOT NULL,
        acknowledged_version BIGINT,
        current_step BIGINT,
        PRIMARY KEY (job_id, rank)
    )""",
    """CREATE TABLE plans (
        job_id VARCHAR(128) NOT NULL REFERENCES jobs (job_id),
        version INTEGER NOT NULL,
        created_at VARCHAR(40) NOT NULL,
        first_step BIGINT,
        solve_s FLOAT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (job_id, version)
    )""",
    """CREATE TABLE steps (
        job_id VARCHAR(128) NOT NULL,
        rank INTEGER NOT NULL,
        step BIGINT NOT NULL,
        plan_version BIGINT,
        time_s FLOAT NOT NULL,
        energy_j FLOAT,
        num_unplanned BIGINT NOT NULL,
        num_overruns BIGINT NOT NULL,
        PRIMARY KEY (job_id, rank, step),
        FOREIGN KEY (job_id, rank) REFERENCES ranks (job_id, rank)
    )""",
    "CREATE INDEX steps_by_step ON steps (job_id, step)",
)

# Job specifications name an effort. They are JSON objects that are never empty, so the field goes
# in front as text: all the others stay as they are to the last bit, on any SQL database.
_EFFORT = (
    """UPDATE jobs SET
        registered = '{"effort": "normal", ' || substr(registered, 2),
        in_force = '{"effort": "normal", ' || substr(in_force, 2)""",
)

# What the GPU really did beside what it was asked for; nothing of that is known of older steps.
_CLOCK_MISSES = (
    "ALTER TABLE steps ADD COLUMN num_clock_misses BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE steps ADD COLUMN num_power_capped BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE steps ADD COLUMN num_thermally_capped BIGINT NOT NULL DEFAULT 0",
)

# Where a rank stands in data, tensor and context parallelism; older clients have not told.
_RANK_LAYOUT = (
    "ALTER TABLE ranks ADD COLUMN dp_rank INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE ranks ADD COLUMN tp_rank INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE ranks ADD COLUMN cp_rank INTEGER NOT NULL DEFAULT 0",
)

# Specifications may give an order, and profiles and plans may have model chunks; what is stored has
# none. An older planner must not read what it would time wrongly.
_ORDERS = (
    """UPDATE jobs SET
        registered = '{"checkpoint": null, "order": null, "virtual_stages": null, '
            || substr(registered, 2),
        in_force = '{"checkpoint": null, "order": null, "virtual_stages": null, '
            || substr(in_force, 2)""",
)

# The closed loop: what steers a job while it runs, what single instructions took, plans of which
# some steps run at other clocks. What is stored has none of it.
_CLOSED_LOOP = (
    """UPDATE jobs SET
        registered = '{"profiling": "given", "profiling_slowdown": 0.1, '
            || '"adaptation": "announced", ' || substr(registered, 2),
        in_force = '{"profiling": "given", "profiling_slowdown": 0.1, '
            || '"adaptation": "announced", ' || substr(in_force, 2)""",
    "ALTER TABLE ranks ADD COLUMN sm_clocks_mhz TEXT",
    "ALTER TABLE plans ADD COLUMN report VARCHAR(32) NOT NULL DEFAULT 'totals'",
    "ALTER TABLE plans ADD COLUMN baseline_cycle TEXT NOT NULL DEFAULT '[]'",
    """CREATE TABLE step_details (
        job_id VARCHAR(128) NOT NULL,
        step BIGINT NOT NULL,
        rank INTEGER NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (job_id, step, rank),
        FOREIGN KEY (job_id, rank) REFERENCES ranks (job_id, rank)
    )""",
    """CREATE TABLE controls (
        job_id VARCHAR(128) NOT NULL PRIMARY KEY REFERENCES jobs (job_id),
        document TEXT NOT NULL
    )""",
)

# Who may call, and which ranks are there.
_TRUST = (
    """CREATE TABLE tokens (
        token_id VARCHAR(64) NOT NULL PRIMARY KEY,
        digest VARCHAR(64) NOT NULL,
        job_id VARCHAR(128),
        created_at VARCHAR(40) NOT NULL,
        note TEXT NOT NULL
    )""",
    "ALTER TABLE ranks ADD COLUMN last_seen_at VARCHAR(40)",
    "ALTER TABLE ranks ADD COLUMN has_left BOOLEAN NOT NULL DEFAULT FALSE",
    "ALTER TABLE jobs ADD COLUMN run TEXT",
    "ALTER TABLE jobs ADD COLUMN restart_count BIGINT",
)

# Plans that leave instructions room; what is stored leaves none.
_RESERVE = (
    """UPDATE jobs SET
        registered = '{"reserve": 0.0, ' || substr(registered, 2),
        in_force = '{"reserve": 0.0, ' || substr(in_force, 2)""",
)

# The SM clock as ranks read it back; of older steps nobody knows it.
_MEASURED_CLOCKS = ("ALTER TABLE steps ADD COLUMN sm_clock_mhz FLOAT",)

# What others call a job by is apart from what its rows refer to it by: another name is a change of
# one row, and so is that it was deleted. The rows of a job that is there refer to its name of now.
_NAMES = (
    "ALTER TABLE jobs ADD COLUMN name VARCHAR(128)",
    "UPDATE jobs SET name = job_id",
    "CREATE UNIQUE INDEX jobs_by_name ON jobs (name)",
)

# That a job was deleted is said: one without a name may also be what a planner of an older schema
# writes that still runs, and is refused now. SQLite adds a check only with a column, and the rows
# that are there must pass it: a job that was deleted has an empty name in between.
_DELETED = (
    "DROP INDEX jobs_by_name",
    "UPDATE jobs SET name = '' WHERE name IS NULL",
    """ALTER TABLE jobs ADD COLUMN is_deleted BOOLEAN NOT NULL DEFAULT FALSE
        CHECK (is_deleted = (name IS NULL))""",
    "UPDATE jobs SET name = NULL, is_deleted = TRUE WHERE name = ''",
    "CREATE UNIQUE INDEX jobs_by_name ON jobs (name)",
)

MIGRATIONS = (
    _FIRST,
    _EFFORT,
    _CLOCK_MISSES,
    _RANK_LAYOUT,
    _ORDERS,
    _CLOSED_LOOP,
    _TRUST,
    _RESERVE,
    _MEASURED_CLOCKS,
    _NAMES,
    _DELETED,
)
NEWEST_SCHEMA = len(MIGRATIONS)


def migrate(connection: Connection, *, location: str) -> None:
    """Bring the database of this writing transaction to the newest schema.

    Args:
        connection: inside a transaction; nothing stays if this raises.
        location: what people know the database by.

    Raises:
        StoreForeignError: it has tables, but they are not Flyball's.
        StoreTooNewError: a newer Flyball has written it.
    """
    found = _schema_version(connection, location)
    if found > NEWEST_SCHEMA:
        raise StoreTooNewError(location=location, found=found, known=NEWEST_SCHEMA)
    if found == NEWEST_SCHEMA:
        return
    for statements in MIGRATIONS[found:]:
        for statement in statements:
            connection.execute(text(in_dialect(statement, connection.dialect.name)))
    connection.execute(SCHEMA_VERSION.delete())
    connection.execute(SCHEMA_VERSION.insert().values(version=NEWEST_SCHEMA))


def in_dialect(statement: str, dialect: str) -> str:
    """A statement of MIGRATIONS for this database: SQLite's INTEGER has 64 bits, others' 32."""
    return statement.replace(" INTEGER", " BIGINT") if dialect == "postgresql" else statement


def _schema_version(connection: Connection, location: str) -> int:
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
    connection.execute(text("CREATE TABLE schema_version (version INTEGER NOT NULL)"))
    return 0
