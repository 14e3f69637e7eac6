"""`flyball serve`: the planner as a process, on loopback and SQLite unless told otherwise."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import socket
import sys

import uvicorn
from fastapi import FastAPI

from flyball_client.command import Command, CommandError
from flyball_server.app import create_app, release_long_polls
from flyball_server.jobs.errors import StoreError
from flyball_server.jobs.stores.sql_store import SqlJobStore
from flyball_server.planning.warm_up import warm_up
from flyball_server.rest.token import DOCS
from flyball_server.settings import (
    DATABASE_VARIABLE,
    DEFAULT_HOST,
    DEFAULT_PORT,
    HOST_VARIABLE,
    LOG_LEVEL_VARIABLE,
    LOG_LEVELS,
    PORT_VARIABLE,
    TOKEN_VARIABLE,
    Settings,
    SettingsError,
    load_settings,
)

# A plan being made, or an answer being sent, may take so long to end at shutdown.
_GRACE_S = 10


class _PlannerServer(uvicorn.Server):
    """uvicorn, which also says where it listens and does not wait for long polls at its end."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, address: str) -> None:
        super().__init__(config)
        self._app = app
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(
                f"Flyball planner listening on {self._address} (API: {self._address}{DOCS})",
                flush=True,
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn first waits for open calls, and only then ends the app's lifespan.
        release_long_polls(self._app)
        await super().shutdown(sockets)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", help=f"address to listen on (default {DEFAULT_HOST}; {HOST_VARIABLE})"
    )
    parser.add_argument(
        "--port",
        type=int,
        help=f"TCP port, 0 for a free one (default {DEFAULT_PORT}; {PORT_VARIABLE})",
    )
    parser.add_argument(
        "--database",
        metavar="URL",
        help="sqlite:///FILE that holds jobs and plans (default: in the user's state folder;"
        f" {DATABASE_VARIABLE})",
    )
    parser.add_argument(
        "--token",
        help="what clients must send in the Flyball-Token header; on a shared machine rather"
        f" set {TOKEN_VARIABLE}, which others cannot see",
    )
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        help=f"how much to log on stderr (default info; {LOG_LEVEL_VARIABLE})",
    )


def _run(arguments: argparse.Namespace) -> int:
    try:
        settings = load_settings(
            host=arguments.host,
            port=arguments.port,
            database=arguments.database,
            token=arguments.token,
            log_level=arguments.log_level,
        )
    except SettingsError as error:
        raise CommandError(str(error)) from None
    _set_up_logging(settings)
    store = SqlJobStore(settings.database_file)
    try:
        # Before anything listens, so that a bad file is one line and not a failed startup.
        store.open()
        with _listening_socket(settings) as listener:
            _warn_if_open_to_all(settings, listener)
            warm_up()  # the first plan is then not made to wait for the compiler
            _serve(settings, store, listener)
    except StoreError as error:
        raise CommandError(error.message) from None
    finally:
        store.close()
    return 0


def _serve(settings: Settings, store: SqlJobStore, listener: socket.socket) -> None:
    app = create_app(settings, store)
    config = uvicorn.Config(
        app,
        log_config=None,  # nor log_level: uvicorn would set its own loggers' levels again
        access_log=settings.log_level == "debug",
        timeout_graceful_shutdown=_GRACE_S,
    )
    try:
        _PlannerServer(config, app, _address(listener)).run(sockets=[listener])
    except KeyboardInterrupt:
        return  # Ctrl-C is how a planner in a terminal is ended; uvicorn has shut down by now


def _listening_socket(settings: Settings) -> socket.socket:
    where = f"{settings.host}:{settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise CommandError(f"cannot listen on {where}: {error}; give another --host") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise CommandError(
            f"cannot listen on {where}: {error.strerror}; give another --port or --host"
        ) from None
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _warn_if_open_to_all(settings: Settings, listener: socket.socket) -> None:
    is_loopback = ipaddress.ip_address(listener.getsockname()[0]).is_loopback
    if settings.token is None and not is_loopback:
        print(
            f"flyball serve: warning: anyone who reaches {_address(listener)} can change plans;"
            f" ask for a token: set {TOKEN_VARIABLE}, here and for the ranks",
            file=sys.stderr,
            flush=True,
        )


def _set_up_logging(settings: Settings) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # uvicorn's own lines on startup repeat what is printed.
    quiet = logging.DEBUG if settings.log_level == "debug" else logging.WARNING
    logging.getLogger("uvicorn.error").setLevel(quiet)
    logging.getLogger("numba").setLevel(logging.WARNING)  # its debugging is of the compiler


COMMAND = Command(
    summary="run the planner that ranks get their plans from",
    configure=_configure,
    run=_run,
)
