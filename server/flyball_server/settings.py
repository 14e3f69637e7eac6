"""The planner's settings: flag over `FLYBALL_*` environment over default, checked once."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

LOG_LEVELS = ("debug", "info", "warning", "error")
SQLITE_PREFIX = "sqlite:///"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7787

HOST_VARIABLE = "FLYBALL_HOST"
PORT_VARIABLE = "FLYBALL_PORT"
DATABASE_VARIABLE = "FLYBALL_DATABASE"
TOKEN_VARIABLE = "FLYBALL_TOKEN"  # noqa: S105 - the variable's name, not a token
LOG_LEVEL_VARIABLE = "FLYBALL_LOG_LEVEL"
MAX_BODY_VARIABLE = "FLYBALL_MAX_BODY_BYTES"
MAX_WAIT_VARIABLE = "FLYBALL_MAX_WAIT_S"


class SettingsError(ValueError):
    """A setting that cannot be used; the text names it and says what would be accepted.

    Args:
        name: of the variable, or of the flag that it was given by.
        problem: what is wrong with its value.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name = name
        self.problem = problem


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything about the planner that an operator may choose.

    Attributes:
        host: address to listen on.
        port: TCP port, 0 to 65535; 0 takes a free one.
        database: `sqlite:///FILE`, the file that holds jobs and plans.
        token: what clients must send in the `Flyball-Token` header; None: nothing is asked.
        log_level: one of LOG_LEVELS.
        max_body_bytes: the largest request body that is read, bytes, at least 1024.
        max_wait_s: the longest long poll that is granted, s, 0 to 600.

    Raises:
        SettingsError: a value is out of its bounds.
    """

    database: str
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    token: str | None = field(default=None, repr=False)
    log_level: str = "info"
    max_body_bytes: int = 16 * 2**20
    max_wait_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.host.strip():
            raise SettingsError(HOST_VARIABLE, "is empty; give an address such as 127.0.0.1")
        if not 0 <= self.port <= 65535:
            raise SettingsError(PORT_VARIABLE, f"must be 0 to 65535, not {self.port}")
        _check_database(self.database)
        _check_token(self.token)
        if self.log_level not in LOG_LEVELS:
            raise SettingsError(
                LOG_LEVEL_VARIABLE,
                f"must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}",
            )
        if self.max_body_bytes < 1024:
            raise SettingsError(
                MAX_BODY_VARIABLE, f"must be at least 1024, not {self.max_body_bytes}"
            )
        if not (math.isfinite(self.max_wait_s) and 0 <= self.max_wait_s <= 600):
            raise SettingsError(MAX_WAIT_VARIABLE, f"must be 0 to 600, not {self.max_wait_s}")

    @property
    def database_file(self) -> Path:
        """The SQLite file that `database` names."""
        return Path(self.database.removeprefix(SQLITE_PREFIX)).expanduser()


def load_settings(
    environ: Mapping[str, str] | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    database: str | None = None,
    token: str | None = None,
    log_level: str | None = None,
) -> Settings:
    """The settings in force: the arguments given, else the environment's, else the defaults.

    Args:
        environ: the environment; None: this process's. An empty variable counts as not set.
        host: from a flag; None: not given. Likewise the others.
        port: from a flag.
        database: from a flag.
        token: from a flag.
        log_level: from a flag.

    Raises:
        SettingsError: a value cannot be used; it names the flag where one gave the value.
    """
    env = os.environ if environ is None else environ
    try:
        return Settings(
            host=(env.get(HOST_VARIABLE) or DEFAULT_HOST) if host is None else host,
            port=_whole_number(env, PORT_VARIABLE, DEFAULT_PORT) if port is None else port,
            database=_database(env) if database is None else database,
            token=(env.get(TOKEN_VARIABLE) or None) if token is None else token,
            log_level=(
                (env.get(LOG_LEVEL_VARIABLE) or "info").lower() if log_level is None else log_level
            ),
            max_body_bytes=_whole_number(env, MAX_BODY_VARIABLE, Settings.max_body_bytes),
            max_wait_s=_number(env, MAX_WAIT_VARIABLE, Settings.max_wait_s),
        )
    except SettingsError as error:
        given = {
            HOST_VARIABLE: host,
            PORT_VARIABLE: port,
            DATABASE_VARIABLE: database,
            TOKEN_VARIABLE: token,
            LOG_LEVEL_VARIABLE: log_level,
        }
        if given.get(error.name) is None:
            raise
        raise SettingsError(_flag(error.name), error.problem) from None


def default_database(environ: Mapping[str, str]) -> str:
    """The SQLite file in the user's state folder (XDG_STATE_HOME, else ~/.local/state)."""
    state_home = environ.get("XDG_STATE_HOME")
    folder = Path(state_home) if state_home else Path.home() / ".local" / "state"
    return f"{SQLITE_PREFIX}{folder / 'flyball' / 'planner.sqlite'}"


def _flag(variable: str) -> str:
    return "--" + variable.removeprefix("FLYBALL_").lower().replace("_", "-")


def _database(environ: Mapping[str, str]) -> str:
    return environ.get(DATABASE_VARIABLE) or default_database(environ)


def _check_database(database: str) -> None:
    name = database.removeprefix(SQLITE_PREFIX)
    if not database.startswith(SQLITE_PREFIX) or name in {"", ":memory:"}:
        scheme = database.partition(":")[0]  # the rest may hold a password
        raise SettingsError(
            DATABASE_VARIABLE,
            "must be sqlite:///FILE (sqlite:////FILE from the root),"
            f" not a {scheme or 'nameless'} address"
            if scheme != "sqlite"
            else "must name a file: sqlite:///FILE",
        )


def _check_token(token: str | None) -> None:
    # An empty token would let everybody in while looking like protection.
    if token is not None and (not token or not token.isascii() or not token.isprintable()):
        raise SettingsError(TOKEN_VARIABLE, "must be printable ASCII and not empty")


def _whole_number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name)
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise SettingsError(name, f"must be a whole number, not {text!r}") from None


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise SettingsError(name, f"must be a number of seconds, not {text!r}") from None
