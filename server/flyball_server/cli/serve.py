"""`flyball serve`: the planner as a process, by default on loopback and SQLite."""

from __future__ import annotations

import argparse
import socket
import sys

from flyball_server.cli.token import command_refusal
from flyball_server.jobs.auth.access import has_operators, list_tokens, why_no_operators
from flyball_server.jobs.errors import StoreError
from flyball_server.jobs.records import TokenRecord
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.databases import make_job_store, missing_file
from flyball_server.log_setup import LOG_FORMATS, set_up_logging
from flyball_server.serving.listening import (
    address_of,
    check_certificate,
    check_operator_has_a_token,
    listening_socket,
    must_ask,
    raise_file_limit,
)
from flyball_server.settings import Settings, SettingsError, load_settings
from flyball_wire.command.command import Command, CommandError


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1; FLYBALL_HOST)")
    parser.add_argument(
        "--port",
        type=int,
        help="TCP port, 0 for a free one (default: 7787; FLYBALL_PORT)",
    )
    parser.add_argument(
        "--database",
        metavar="URL",
        help="database of jobs and plans: sqlite:///FILE or postgresql://USER@HOST/DATABASE"
        " (default: a file in the user's state folder;"
        " FLYBALL_DATABASE)",
    )
    parser.add_argument(
        "--token",
        help="operator's token, in addition to those of `flyball token`; on a shared machine set"
        " FLYBALL_TOKEN instead, which other users cannot read",
    )
    parser.add_argument(
        "--allow-open",
        action="store_true",
        help="allow listening beyond loopback without any token (FLYBALL_ALLOW_OPEN=1)",
    )
    parser.add_argument(
        "--tls-certificate",
        metavar="FILE",
        help="PEM file with the certificate and its intermediate certificates; serves HTTPS"
        " (FLYBALL_TLS_CERTIFICATE)",
    )
    parser.add_argument(
        "--tls-key",
        metavar="FILE",
        help="PEM file with the certificate's private key (FLYBALL_TLS_KEY)",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="log level on stderr (default: info; FLYBALL_LOG_LEVEL)",
    )
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        help="text, or a JSON object per line (default: text; FLYBALL_LOG_FORMAT)",
    )


def _run(arguments: argparse.Namespace) -> int:
    try:
        settings = load_settings(
            host=arguments.host,
            port=arguments.port,
            database=arguments.database,
            token=arguments.token,
            log_level=arguments.log_level,
            log_format=arguments.log_format,
            allow_open=arguments.allow_open or None,
            tls_certificate=arguments.tls_certificate,
            tls_key=arguments.tls_key,
        )
    except SettingsError as error:
        raise CommandError(str(error)) from None
    if arguments.token is not None:
        _warn("others on this machine can read --token in the list of processes; set FLYBALL_TOKEN")
    check_certificate(
        settings,
        certificate_name="--tls-certificate"
        if arguments.tls_certificate
        else "FLYBALL_TLS_CERTIFICATE",
        key_name="--tls-key" if arguments.tls_key else "FLYBALL_TLS_KEY",
    )
    set_up_logging(level=settings.log_level, log_format=settings.log_format)
    try:
        store = make_job_store(settings.database, for_planner=True)
        with listening_socket(settings) as listener:
            _run_planner(settings, store, listener)
    except StoreError as error:
        raise command_refusal(error) from None
    except SettingsError as error:
        raise CommandError(str(error)) from None
    return 0


def _run_planner(settings: Settings, store: JobStore, listener: socket.socket) -> None:
    """Check the settings, then serve; nothing listens before."""
    asks = must_ask(listener, settings)
    address = address_of(listener, settings)
    has_operator = settings.token is not None
    if missing_file(settings.database) is not None:
        # Before the database is made: a planner that does not start leaves nothing behind.
        _check_token(settings, ())
        if asks:
            check_operator_has_a_token(address, has_operator=has_operator, has_tokens=False)
    try:
        # Before anything listens, so that a bad file is one line and not a failed startup.
        store.open()
        tokens = list_tokens(store)
        _check_token(settings, tokens)
        has_tokens = has_operator or bool(tokens)
        if asks:
            check_operator_has_a_token(
                address,
                has_operator=has_operator or has_operators(tokens),
                has_tokens=has_tokens,
            )
        _warn_of(settings, listener, has_tokens=has_tokens)
        raise_file_limit(settings)
        # Imports take seconds, which help texts and invalid settings do not need.
        from flyball_server.serving.planner_server import serve_planner  # noqa: PLC0415

        serve_planner(settings, store, listener)
    finally:
        store.close()


def _check_token(settings: Settings, tokens: tuple[TokenRecord, ...]) -> None:
    """Check that the token of the settings may be an operator's: a client's may be set there."""
    why_not = None if settings.token is None else why_no_operators(tokens, settings.token)
    if why_not is not None:
        raise SettingsError(
            f"FLYBALL_TOKEN (or --token) would be an operator's token, and {why_not}; unset it"
        )


def _warn_of(settings: Settings, listener: socket.socket, *, has_tokens: bool) -> None:
    """Warn on stderr about settings that may be unintended."""
    if settings.allow_open and not has_tokens:
        where = address_of(listener, settings)
        _warn(f"anyone who reaches {where} can change plans, as FLYBALL_ALLOW_OPEN allows")


def _warn(text: str) -> None:
    print(f"flyball serve: warning: {text}", file=sys.stderr, flush=True)


COMMAND = Command(configure=_configure, run=_run)
