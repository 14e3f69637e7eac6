"""The planner's settings: flag over `FLYBALL_*` environment over default, checked once."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flyball_server.jobs.lifecycle.job_life import KEEP_PERIOD_S, LifeTimes
from flyball_server.jobs.store.database_address import SQLITE_PREFIX, database_problem
from flyball_server.log_setup import LOG_FORMATS, TEXT
from flyball_server.solving.executor_options import default_num_processes, executor_problem

LOG_LEVELS = ("debug", "info", "warning", "error")
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7787

_PREFIX = "FLYBALL_"
HOST_VARIABLE = "FLYBALL_HOST"
PORT_VARIABLE = "FLYBALL_PORT"
DATABASE_VARIABLE = "FLYBALL_DATABASE"
TOKEN_VARIABLE = "FLYBALL_TOKEN"  # noqa: S105 - the variable's name, not a token
LOG_LEVEL_VARIABLE = "FLYBALL_LOG_LEVEL"
MAX_BODY_VARIABLE = "FLYBALL_MAX_BODY_BYTES"
RANK_SILENCE_VARIABLE = "FLYBALL_RANK_SILENCE_S"
JOB_EXPIRY_VARIABLE = "FLYBALL_JOB_EXPIRY_S"
JOB_RETENTION_VARIABLE = "FLYBALL_JOB_RETENTION_S"
MAX_WAIT_VARIABLE = "FLYBALL_MAX_WAIT_S"
PLANNING_PROCESSES_VARIABLE = "FLYBALL_PLANNING_PROCESSES"
PLANNING_TIMEOUT_VARIABLE = "FLYBALL_PLANNING_TIMEOUT_S"
PLANNING_EXECUTOR_VARIABLE = "FLYBALL_PLANNING_EXECUTOR"
ALLOW_OPEN_VARIABLE = "FLYBALL_ALLOW_OPEN"
TLS_CERTIFICATE_VARIABLE = "FLYBALL_TLS_CERTIFICATE"
TLS_KEY_VARIABLE = "FLYBALL_TLS_KEY"
BODY_TIMEOUT_VARIABLE = "FLYBALL_BODY_TIMEOUT_S"
MAX_HEADER_VARIABLE = "FLYBALL_MAX_HEADER_BYTES"
MAX_CONNECTIONS_VARIABLE = "FLYBALL_MAX_CONNECTIONS"
MAX_WAITING_VARIABLE = "FLYBALL_MAX_WAITING"
MAX_JOBS_VARIABLE = "FLYBALL_MAX_JOBS"
MAX_POINTS_VARIABLE = "FLYBALL_MAX_PROFILE_POINTS"
MAX_INSTRUCTIONS_VARIABLE = "FLYBALL_MAX_INSTRUCTIONS"
LOG_FORMAT_VARIABLE = "FLYBALL_LOG_FORMAT"
METRICS_JOBS_VARIABLE = "FLYBALL_METRICS_JOBS"
METRICS_OPEN_VARIABLE = "FLYBALL_METRICS_OPEN"

# Limits that are whole numbers: the field, its variable, the least and the largest value.
_LIMITS = (
    ("max_header_bytes", MAX_HEADER_VARIABLE, 1024, 2**20),
    ("max_connections", MAX_CONNECTIONS_VARIABLE, 2, 10**6),
    ("max_waiting", MAX_WAITING_VARIABLE, 1, 10**6),
    ("max_jobs", MAX_JOBS_VARIABLE, 1, 10**7),
    ("max_profile_points", MAX_POINTS_VARIABLE, 4, 10**8),
    ("max_instructions", MAX_INSTRUCTIONS_VARIABLE, 2, 10**9),
    ("metrics_jobs", METRICS_JOBS_VARIABLE, 0, 1000),
)


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
        database: that holds jobs and plans: `sqlite:///FILE` or
            `postgresql://USER@HOST/DATABASE`.
        token: an operator's token beside those of the database; None: there is none.
        allow_open: whether it may listen beyond loopback without any token.
        tls_certificate: PEM file with the certificate and those between it and a CA, for TLS;
            None: plain HTTP.
        tls_key: PEM file with the certificate's private key; with it or not at all.
        log_level: one of LOG_LEVELS.
        max_body_bytes: the largest request body that is read, bytes, at least 1024.
        max_wait_s: the longest long poll, or stream of events, that is granted, s, 0 to 600.
        body_timeout_s: the longest that a request may take to arrive, s, 1 to 3600.
        max_header_bytes: the longest request line with its headers, bytes.
        max_connections: so many connections are served at once; further ones get a 503.
        max_waiting: so many long polls and streams are held at once; further ones get a 503.
        max_jobs: so many jobs are kept; a further one is refused.
        max_profile_points: operating points of one profile.
        max_instructions: forwards and backwards of one iteration of one job.
        planning_processes: that plans are solved in, 0 to 1024; 0: in the planner's own threads.
        planning_timeout_s: how long one solve may take, s, above 0.
        planning_executor: `dask://HOST:PORT` of a scheduler on whose workers plans are solved
            instead; None: none.
        rank_silence_s: a rank of which nothing was heard for so long is taken for gone, s; None:
            90 s, or 30 more than `max_wait_s`.
        job_expiry_s: a job, likewise, is then `expired`; 0: never.
        job_retention_s: a job that was over for so long is deleted, s; 0: never.
        log_format: one of LOG_FORMATS.
        metrics_jobs: so many jobs have figures of their own in /metrics, the others together.
        metrics_open: whether /metrics needs no token where there are tokens.

    Raises:
        SettingsError: a value is out of its bounds.
    """

    database: str = field(repr=False)
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    token: str | None = field(default=None, repr=False)
    log_level: str = "info"
    max_body_bytes: int = 16 * 2**20
    max_wait_s: float = 60.0
    allow_open: bool = False
    tls_certificate: str | None = None
    tls_key: str | None = None
    body_timeout_s: float = 30.0
    max_header_bytes: int = 16 * 2**10
    max_connections: int = 10_000
    max_waiting: int = 8192
    max_jobs: int = 10_000
    max_profile_points: int = 200_000
    max_instructions: int = 1_000_000
    planning_processes: int = field(default_factory=default_num_processes)
    planning_timeout_s: float = 600.0
    planning_executor: str | None = None
    rank_silence_s: float | None = None
    job_expiry_s: float = LifeTimes.job_expiry_s
    job_retention_s: float = LifeTimes.job_retention_s
    log_format: str = TEXT
    metrics_jobs: int = 20
    metrics_open: bool = False

    def __post_init__(self) -> None:
        if not self.host.strip():
            raise SettingsError(HOST_VARIABLE, "is empty; give an address such as 127.0.0.1")
        if not 0 <= self.port <= 65535:
            raise SettingsError(PORT_VARIABLE, f"must be 0 to 65535, not {self.port}")
        problem = database_problem(self.database)
        if problem is not None:
            raise SettingsError(DATABASE_VARIABLE, problem)
        _check_token(self.token)
        if self.log_level not in LOG_LEVELS:
            raise SettingsError(
                LOG_LEVEL_VARIABLE,
                f"must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}",
            )
        if self.log_format not in LOG_FORMATS:
            raise SettingsError(
                LOG_FORMAT_VARIABLE,
                f"must be one of {', '.join(LOG_FORMATS)}, not {self.log_format!r}",
            )
        if self.max_body_bytes < 1024:
            raise SettingsError(
                MAX_BODY_VARIABLE, f"must be at least 1024, not {self.max_body_bytes}"
            )
        if not (math.isfinite(self.max_wait_s) and 0 <= self.max_wait_s <= 600):
            raise SettingsError(MAX_WAIT_VARIABLE, f"must be 0 to 600, not {self.max_wait_s}")
        _check_life(self.life, self.max_wait_s)
        _check_limits(self)
        _check_planning(self)
        _check_tls(self)

    @property
    def life(self) -> LifeTimes:
        """After which silence ranks and jobs are taken for gone."""
        default_s = max(LifeTimes.rank_silence_s, self.max_wait_s + 30.0)
        return LifeTimes(
            rank_silence_s=default_s if self.rank_silence_s is None else self.rank_silence_s,
            job_expiry_s=self.job_expiry_s,
            job_retention_s=self.job_retention_s,
        )


def load_settings(
    environ: Mapping[str, str] | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    database: str | None = None,
    token: str | None = None,
    log_level: str | None = None,
    allow_open: bool | None = None,
    tls_certificate: str | None = None,
    tls_key: str | None = None,
    log_format: str | None = None,
) -> Settings:
    """The settings in force: the arguments given, else the environment's, else the defaults.

    Args:
        environ: the environment; None: this process's. An empty variable counts as not set.
        host: from a flag; None: not given. Likewise the others.
        port: from a flag.
        database: from a flag.
        token: from a flag.
        log_level: from a flag.
        allow_open: from a flag.
        tls_certificate: from a flag.
        tls_key: from a flag.
        log_format: from a flag.

    Raises:
        SettingsError: a value cannot be used; it names the flag where one gave the value.
    """
    flags: dict[str, object] = {
        "host": host,
        "port": port,
        "database": database,
        "token": token,
        "log_level": log_level,
        "allow_open": allow_open,
        "tls_certificate": tls_certificate or None,
        "tls_key": tls_key or None,
        "log_format": log_format,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    readers = _readers(os.environ if environ is None else environ)
    try:
        # A variable that a flag goes before is not read: it may be nonsense.
        values: dict[str, Any] = {
            name: given[name] if name in given else read() for name, read in readers.items()
        }
        return Settings(**values)
    except SettingsError as error:
        if error.name.removeprefix(_PREFIX).lower() not in given:
            raise
        raise SettingsError(_flag(error.name), error.problem) from None


def _readers(env: Mapping[str, str]) -> dict[str, Callable[[], object]]:
    """By setting, what reads it from the environment, or gives its default."""
    whole_numbers = {
        "port": (PORT_VARIABLE, DEFAULT_PORT),
        "max_body_bytes": (MAX_BODY_VARIABLE, Settings.max_body_bytes),
        "planning_processes": (PLANNING_PROCESSES_VARIABLE, default_num_processes()),
        **{name: (variable, getattr(Settings, name)) for name, variable, _, _ in _LIMITS},
    }
    numbers = {
        "max_wait_s": (MAX_WAIT_VARIABLE, Settings.max_wait_s),
        "body_timeout_s": (BODY_TIMEOUT_VARIABLE, Settings.body_timeout_s),
        "planning_timeout_s": (PLANNING_TIMEOUT_VARIABLE, Settings.planning_timeout_s),
        "job_expiry_s": (JOB_EXPIRY_VARIABLE, Settings.job_expiry_s),
        "job_retention_s": (JOB_RETENTION_VARIABLE, Settings.job_retention_s),
    }
    return {
        "host": lambda: env.get(HOST_VARIABLE) or DEFAULT_HOST,
        "database": lambda: _database(env),
        "token": lambda: env.get(TOKEN_VARIABLE) or None,
        "log_level": (env.get(LOG_LEVEL_VARIABLE) or "info").lower,
        "log_format": (env.get(LOG_FORMAT_VARIABLE) or TEXT).lower,
        "allow_open": lambda: _yes_or_no(env, ALLOW_OPEN_VARIABLE),
        "metrics_open": lambda: _yes_or_no(env, METRICS_OPEN_VARIABLE),
        "tls_certificate": lambda: env.get(TLS_CERTIFICATE_VARIABLE) or None,
        "tls_key": lambda: env.get(TLS_KEY_VARIABLE) or None,
        "planning_executor": lambda: env.get(PLANNING_EXECUTOR_VARIABLE) or None,
        "rank_silence_s": lambda: _rank_silence_s(env),
        **{name: partial(_whole_number, env, *of) for name, of in whole_numbers.items()},
        **{name: partial(_number, env, *of) for name, of in numbers.items()},
    }


def default_database(environ: Mapping[str, str]) -> str:
    """The SQLite file in the user's state folder (XDG_STATE_HOME, else ~/.local/state)."""
    state_home = environ.get("XDG_STATE_HOME")
    folder = Path(state_home) if state_home else Path.home() / ".local" / "state"
    return f"{SQLITE_PREFIX}{folder / 'flyball' / 'planner.sqlite'}"


def _flag(variable: str) -> str:
    return "--" + variable.removeprefix(_PREFIX).lower().replace("_", "-")


def _database(environ: Mapping[str, str]) -> str:
    return environ.get(DATABASE_VARIABLE) or default_database(environ)


def _rank_silence_s(environ: Mapping[str, str]) -> float | None:
    is_given = bool(environ.get(RANK_SILENCE_VARIABLE))
    return _number(environ, RANK_SILENCE_VARIABLE, math.nan) if is_given else None


def _check_life(life: LifeTimes, max_wait_s: float) -> None:
    # A rank that waits in a long poll says nothing for so long, and what was heard is kept
    # some seconds later.
    least_s = max_wait_s + 2 * KEEP_PERIOD_S
    if not least_s <= life.rank_silence_s < math.inf:
        raise SettingsError(
            RANK_SILENCE_VARIABLE,
            f"must be finite and at least {least_s:g}, {2 * KEEP_PERIOD_S:g} more than"
            f" {MAX_WAIT_VARIABLE}, not {life.rank_silence_s:g}",
        )
    for name, value_s in (
        (JOB_EXPIRY_VARIABLE, life.job_expiry_s),
        (JOB_RETENTION_VARIABLE, life.job_retention_s),
    ):
        if not (value_s == 0 or life.rank_silence_s <= value_s < math.inf):
            raise SettingsError(
                name,
                f"must be 0 (never), or finite and at least {life.rank_silence_s:g},"
                f" not {value_s:g}",
            )


def _check_token(token: str | None) -> None:
    # An empty token would let everybody in while looking like protection.
    if token is not None and re.fullmatch("[!-~]+", token) is None:
        raise SettingsError(TOKEN_VARIABLE, "must be printable ASCII without spaces, not empty")


def _check_limits(settings: Settings) -> None:
    if not 1 <= settings.body_timeout_s <= 3600:
        raise SettingsError(
            BODY_TIMEOUT_VARIABLE, f"must be 1 to 3600, not {settings.body_timeout_s}"
        )
    for name, variable, least, most in _LIMITS:
        value = getattr(settings, name)
        if not least <= value <= most:
            raise SettingsError(variable, f"must be {least} to {most}, not {value}")


def _check_planning(settings: Settings) -> None:
    if not 0 <= settings.planning_processes <= 1024:
        raise SettingsError(
            PLANNING_PROCESSES_VARIABLE, f"must be 0 to 1024, not {settings.planning_processes}"
        )
    if not 0 < settings.planning_timeout_s < math.inf:
        raise SettingsError(
            PLANNING_TIMEOUT_VARIABLE,
            f"must be finite and above 0, not {settings.planning_timeout_s:g}",
        )
    problem = executor_problem(settings.planning_executor)
    if problem is not None:
        raise SettingsError(PLANNING_EXECUTOR_VARIABLE, problem)


def _check_tls(settings: Settings) -> None:
    if settings.tls_certificate is not None and settings.tls_key is None:
        raise SettingsError(TLS_CERTIFICATE_VARIABLE, f"needs {TLS_KEY_VARIABLE} beside it")
    if settings.tls_key is not None and settings.tls_certificate is None:
        raise SettingsError(TLS_KEY_VARIABLE, f"needs {TLS_CERTIFICATE_VARIABLE} beside it")


def _yes_or_no(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name) or "0"
    if text not in {"0", "1"}:
        raise SettingsError(name, f"must be 1 or 0, not {text!r}")
    return text == "1"


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
