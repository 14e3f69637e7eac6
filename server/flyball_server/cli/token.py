"""`flyball token`: manages tokens in the planner's database, whether it runs or not."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flyball_server.jobs.auth.access import create_token, list_tokens, revoke_token
from flyball_server.jobs.errors import (
    JobsError,
    NoOperatorsTokenError,
    StoreBusyError,
    StoreUnreachableError,
)
from flyball_server.jobs.records import TokenRecord
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.databases import make_job_store, missing_file
from flyball_server.settings import Settings, SettingsError, load_settings
from flyball_wire.command.command import BAD_INPUT, NOT_NOW, Command, CommandError
from flyball_wire.messages import TOKEN_HEADER


def add_database_options(action: argparse.ArgumentParser) -> None:
    """Add the options of a command on the planner's database."""
    action.add_argument(
        "--database",
        metavar="URL",
        help="database of the planner (default: FLYBALL_DATABASE, else as for flyball serve)",
    )
    action.add_argument("--json", action="store_true", help="print the result as JSON only")


def checked_settings(database: str | None) -> Settings:
    """Return the planner's settings; CommandError if a setting is invalid."""
    try:
        return load_settings(database=database)
    except SettingsError as error:
        raise CommandError(str(error)) from None


def command_refusal(error: JobsError) -> CommandError:
    """Return the command's error for a job error; an unreachable database may return."""
    is_passing = isinstance(error, StoreUnreachableError | StoreBusyError)
    return CommandError(error.message, status=NOT_NOW if is_passing else BAD_INPUT)


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (summary, configure, _) in _ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        configure(action)
        add_database_options(action)


def _configure_create(parser: argparse.ArgumentParser) -> None:
    opens = parser.add_mutually_exclusive_group(required=True)
    opens.add_argument(
        "--operator",
        action="store_true",
        help="create an operator's token, with access to everything",
    )
    opens.add_argument("--job", metavar="JOB", help="create a token with access to this job only")
    opens.add_argument(
        "--read-only",
        action="store_true",
        help="create a token that reads everything and changes nothing, as for Prometheus",
    )
    parser.add_argument("--note", default="", help="description, shown in the list of tokens")


def _configure_list(parser: argparse.ArgumentParser) -> None:
    del parser


def _configure_revoke(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="public part of the token, as listed")


def _create(store: JobStore, arguments: argparse.Namespace) -> None:
    record, token = create_token(
        store,
        job_id=arguments.job,
        is_read_only=arguments.read_only,
        note=arguments.note,
        has_operator=checked_settings(arguments.database).token is not None,
    )
    try:
        print(json.dumps({"token": token, **_as_json(record)}) if arguments.json else token)
        sys.stdout.flush()
    except OSError as error:
        revoke_token(store, record.token_id)  # it was not printed
        # Python flushes stdout once more as it exits, and must find it writable.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise CommandError(
            f"the token could not be written ({error.strerror}), and is revoked again"
        ) from None
    if not arguments.json:  # beside the token, so that $(flyball token create ...) is the token
        print(
            f"\n{_opens(record)}; it is not shown again. Clients send it as {TOKEN_HEADER}:\n"
            "set FLYBALL_TOKEN to it.",
            file=sys.stderr,
        )


def _list(store: JobStore, arguments: argparse.Namespace) -> None:
    records = list_tokens(store)
    if arguments.json:
        print(json.dumps({"tokens": [_as_json(record) for record in records]}))
    elif not records:
        print("No tokens. Make one: flyball token create --operator")
    else:
        rows = [("ID", "OPENS", "CREATED", "NOTE"), *map(_row, records)]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            print("  ".join((*cells, row[3])).rstrip())


def _revoke(store: JobStore, arguments: argparse.Namespace) -> None:
    # A whole token stands for its public part; its secret is not printed.
    token_id = arguments.id.removeprefix("fb_").partition("_")[0]
    if not token_id:
        raise CommandError("give the token's ID, as `flyball token list` shows it")
    revoke_token(store, token_id)
    if arguments.json:
        print(json.dumps({"revoked": token_id}))
    else:
        print(f"{token_id} is revoked; planners that run notice it within 5 s.")


def _run(arguments: argparse.Namespace) -> int:
    _, _, act = _ACTIONS[arguments.action]
    try:
        settings = checked_settings(arguments.database)
        missing = missing_file(settings.database)
        if missing is not None:
            _check_may_be_made(missing, settings, arguments)
        with _opened_store(settings.database) as store:
            if missing is not None:
                print(f"flyball token: created {missing}", file=sys.stderr)
            act(store, arguments)
    except JobsError as error:
        raise command_refusal(error) from None
    return 0


def _check_may_be_made(file: Path, settings: Settings, arguments: argparse.Namespace) -> None:
    """Check that this command may create the database.

    Raises:
        CommandError: only the first operator's token may, or another with one in the settings.
        NoOperatorsTokenError: the token is not an operator's, and no operator's token exists.
    """
    if arguments.action != "create":
        raise CommandError(
            f"{file} does not exist; give the planner's database with --database or"
            " FLYBALL_DATABASE"
        )
    if not arguments.operator and settings.token is None:
        raise NoOperatorsTokenError


@contextmanager
def _opened_store(database: str) -> Iterator[JobStore]:
    store = make_job_store(database)
    try:
        store.open()
        yield store
    finally:
        store.close()


def _as_json(record: TokenRecord) -> dict[str, str | bool | None]:
    return {
        "token_id": record.token_id,
        "job_id": record.job_id,
        "read_only": record.is_read_only,
        "note": record.note,
        "created_at": record.created_at.isoformat(),
    }


def _row(record: TokenRecord) -> tuple[str, str, str, str]:
    created = record.created_at.isoformat(sep=" ", timespec="seconds")
    return record.token_id, _kind(record), created, record.note


def _kind(record: TokenRecord) -> str:
    if record.job_id is not None:
        return f"job {record.job_id}"
    return "read-only" if record.is_read_only else "operator"


def _opens(record: TokenRecord) -> str:
    if record.job_id is not None:
        return f"A token that opens job {record.job_id} and nothing else"
    if record.is_read_only:
        return "A token that reads everything and changes nothing"
    return "An operator's token, which opens everything"


_Action = tuple[
    str,
    Callable[[argparse.ArgumentParser], None],
    Callable[[JobStore, argparse.Namespace], None],
]
_ACTIONS: dict[str, _Action] = {
    "create": ("create a token and print it once", _configure_create, _create),
    "list": ("list the tokens and their rights", _configure_list, _list),
    "revoke": ("revoke a token", _configure_revoke, _revoke),
}

COMMAND = Command(configure=_configure, run=_run)
