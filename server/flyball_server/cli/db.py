"""`flyball db`: backs up SQLite's file, and restores it."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

from flyball_server.cli.token import add_database_options, checked_settings, command_refusal
from flyball_server.jobs.errors import JobsError
from flyball_server.jobs.store.databases import is_postgres, shown, sqlite_file
from flyball_server.jobs.store.sqlite.sqlite_backup import back_up, restore
from flyball_wire.command.command import Command, CommandError

# PostgreSQL's own programs, which see to their versions, schemas and secrets themselves.
_OF_POSTGRES = {
    "backup": "pg_dump --format=custom --no-owner --file={file} {database}",
    "restore": "pg_restore --no-owner --single-transaction --dbname={database} {file}",
}


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "write a consistent backup of SQLite's file, even while a planner runs"
    backup = actions.add_parser("backup", help=summary, description=summary, allow_abbrev=False)
    backup.add_argument("file", metavar="FILE", type=Path, help="backup to write; must not exist")
    summary = "restore a backup to SQLite's file; no planner may run on it"
    restoring = actions.add_parser("restore", help=summary, description=summary, allow_abbrev=False)
    restoring.add_argument("file", metavar="FILE", type=Path, help="backup to restore")
    restoring.add_argument("--replace", action="store_true", help="overwrite an existing database")
    for action in (backup, restoring):
        add_database_options(action)


def _run(arguments: argparse.Namespace) -> int:
    file: Path = arguments.file
    address = checked_settings(arguments.database).database
    if is_postgres(address):
        names = {"file": shlex.quote(str(file)), "database": shlex.quote(shown(address))}
        command = _OF_POSTGRES[arguments.action].format_map(names)
        raise CommandError(f"PostgreSQL has a program for that: {command}")
    database = sqlite_file(address)
    try:
        if arguments.action == "backup":
            back_up(database, file)
        else:
            restore(database, file, replaces=arguments.replace)
    except JobsError as error:
        raise command_refusal(error) from None
    num_bytes = file.stat().st_size
    if arguments.json:
        print(json.dumps({"file": str(file), "database": str(database), "bytes": num_bytes}))
    elif arguments.action == "backup":
        print(f"{file}: backup of {database}, {num_bytes:,} bytes")
    else:
        print(f"{database}: restored from {file}, {num_bytes:,} bytes")
    return 0


COMMAND = Command(configure=_configure, run=_run)
