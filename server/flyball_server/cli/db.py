"""`flyball db`: backs the planner's database up, and restores it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from flyball_server.cli.token import command_refusal
from flyball_server.jobs.errors import JobsError
from flyball_server.jobs.store.backups import back_up, restore
from flyball_server.settings import SettingsError, load_settings
from flyball_wire.command import Command, CommandError


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "write a consistent backup, even while planners run"
    backup = actions.add_parser("backup", help=summary, description=summary, allow_abbrev=False)
    backup.add_argument("file", metavar="FILE", type=Path, help="backup to write; must not exist")
    summary = "restore a backup; no planner may run"
    restoring = actions.add_parser("restore", help=summary, description=summary, allow_abbrev=False)
    restoring.add_argument(
        "file", metavar="FILE", type=Path, help="backup of a database of the same kind"
    )
    restoring.add_argument(
        "--replace",
        action="store_true",
        help="overwrite an existing SQLite file; a PostgreSQL database must be empty",
    )
    for action in (backup, restoring):
        action.add_argument(
            "--database",
            metavar="URL",
            help="database of the planner (default: FLYBALL_DATABASE, else as for flyball serve)",
        )
        action.add_argument("--json", action="store_true", help="print the result as JSON only")


def _run(arguments: argparse.Namespace) -> int:
    file: Path = arguments.file
    try:
        database = load_settings(database=arguments.database).database
        if arguments.action == "backup":
            done = back_up(database, file)
            text = f"{done.file}: backup of {done.database}, {done.num_bytes:,} bytes"
        else:
            done = restore(database, file, replaces=arguments.replace)
            text = f"{done.database}: restored from {done.file}, {done.num_bytes:,} bytes"
    except SettingsError as error:
        raise CommandError(str(error)) from None
    except JobsError as error:
        raise command_refusal(error) from None
    document = {"file": str(done.file), "database": done.database, "bytes": done.num_bytes}
    print(json.dumps(document) if arguments.json else text)
    return 0


COMMAND = Command(
    configure=_configure,
    run=_run,
)
