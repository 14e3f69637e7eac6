"""The planner's settings: an option over its `FLYBALL_*` variable over the default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from flyball_server.jobs.lifecycle.job_life import KEEP_PERIOD_S, LifeTimes
from flyball_server.jobs.store.database_address import SQLITE_PREFIX, database_problem
from flyball_server.solving.executor_options import default_num_processes, executor_problem

_PREFIX = "FLYBALL_"
_SECRET = {"token", "database"}  # a database's address may hold a password
_Seconds = Annotated[float, Field(allow_inf_nan=False)]


class SettingsError(ValueError):
    """A setting that cannot be used: one line that names its option or its variable."""


def default_database() -> str:
    """The SQLite file in the user's state folder (XDG_STATE_HOME, else ~/.local/state)."""
    state_home = os.environ.get("XDG_STATE_HOME")
    folder = Path(state_home) if state_home else Path.home() / ".local" / "state"
    return f"{SQLITE_PREFIX}{folder / 'flyball' / 'planner.sqlite'}"


class Settings(BaseSettings):
    """Everything about the planner that an operator may choose.

    Each field is read from `FLYBALL_` and its name in capitals where it is not given. An empty
    variable counts as not set. `load_settings` makes one line of what is wrong with a value.

    Attributes:
        host: address to listen on.
        port: TCP port; 0 takes a free one.
        database: of the jobs and plans: `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`.
        token: an operator's token beside those of the database; None: there is none.
        allow_open: whether it may listen beyond loopback without any token.
        tls_certificate: PEM file with the certificate and those between it and a CA, for TLS;
            None: plain HTTP.
        tls_key: PEM file with the certificate's private key; with it or not at all.
        log_level: least severity that is logged.
        log_format: text, or a JSON object a line.
        max_body_bytes: the largest request body that is read, bytes.
        max_wait_s: the longest long poll, or stream of events, that is granted, s.
        body_timeout_s: the longest that a request may take to arrive, s.
        max_header_bytes: the longest request line with its headers, bytes.
        max_connections: so many connections are served at once; further ones get a 503.
        max_waiting: so many long polls and streams are held at once; further ones get a 503.
        max_jobs: so many jobs are kept; a further one is refused.
        max_profile_points: operating points of one profile.
        max_instructions: forwards and backwards of one iteration of one job.
        planning_processes: that plans are solved in; 0: in the planner's own threads.
        planning_timeout_s: how long one solve may take, s.
        planning_executor: `dask://HOST:PORT` of a scheduler on whose workers plans are solved
            instead; None: none.
        rank_silence_s: a rank of which nothing was heard for so long is taken for gone, s; None:
            90 s, or 30 more than `max_wait_s`.
        job_expiry_s: a job, likewise, is then `expired`; 0: never.
        job_retention_s: a job that was over for so long is deleted, s; 0: never.
        metrics_jobs: so many jobs have figures of their own in /metrics, the others together.
        metrics_open: whether /metrics needs no token where there are tokens.

    Raises:
        pydantic.ValidationError: a value cannot be used.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, frozen=True, validate_default=True
    )

    host: str = "127.0.0.1"
    port: int = Field(default=7787, ge=0, le=65535)
    database: str = Field(default_factory=default_database, repr=False)
    token: str | None = Field(default=None, repr=False)
    allow_open: bool = False
    tls_certificate: str | None = None
    tls_key: str | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    max_body_bytes: int = Field(default=16 * 2**20, ge=1024)
    max_wait_s: _Seconds = Field(default=60.0, ge=0, le=600)
    body_timeout_s: _Seconds = Field(default=30.0, ge=1, le=3600)
    max_header_bytes: int = Field(default=16 * 2**10, ge=1024, le=2**20)
    max_connections: int = Field(default=10_000, ge=2, le=10**6)
    max_waiting: int = Field(default=8192, ge=1, le=10**6)
    max_jobs: int = Field(default=10_000, ge=1, le=10**7)
    max_profile_points: int = Field(default=200_000, ge=4, le=10**8)
    max_instructions: int = Field(default=1_000_000, ge=2, le=10**9)
    planning_processes: int = Field(default_factory=default_num_processes, ge=0, le=1024)
    planning_timeout_s: _Seconds = Field(default=600.0, gt=0)
    planning_executor: str | None = None
    rank_silence_s: _Seconds | None = None
    job_expiry_s: _Seconds = LifeTimes.job_expiry_s
    job_retention_s: _Seconds = LifeTimes.job_retention_s
    metrics_jobs: int = Field(default=20, ge=0, le=1000)
    metrics_open: bool = False

    @property
    def life(self) -> LifeTimes:
        """After which silence ranks and jobs are taken for gone."""
        silence_s = _rank_silence_s(self.rank_silence_s, self.max_wait_s)
        return LifeTimes(
            rank_silence_s=silence_s,
            job_expiry_s=self.job_expiry_s,
            job_retention_s=self.job_retention_s,
        )

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        if not host.strip():
            raise ValueError("is empty; give an address such as 127.0.0.1")
        return host

    @field_validator("database")
    @classmethod
    def _check_database(cls, database: str) -> str:
        problem = database_problem(database)
        if problem is not None:
            raise ValueError(problem)
        return database

    @field_validator("token")
    @classmethod
    def _check_token(cls, token: str | None) -> str | None:
        # An empty token would let everybody in while looking like protection.
        if token is not None and not (token and all("!" <= letter <= "~" for letter in token)):
            raise ValueError("must be printable ASCII without spaces, not empty")
        return token

    @field_validator("tls_key")
    @classmethod
    def _check_tls_pair(cls, tls_key: str | None, info: ValidationInfo) -> str | None:
        if tls_key is None and info.data.get("tls_certificate") is not None:
            raise ValueError("must be given beside FLYBALL_TLS_CERTIFICATE")
        if tls_key is not None and info.data.get("tls_certificate") is None:
            raise ValueError("needs FLYBALL_TLS_CERTIFICATE beside it")
        return tls_key

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("planning_executor")
    @classmethod
    def _check_executor(cls, address: str | None) -> str | None:
        problem = executor_problem(address)
        if problem is not None:
            raise ValueError(problem)
        return address

    @field_validator("rank_silence_s")
    @classmethod
    def _check_silence(cls, silence_s: float | None, info: ValidationInfo) -> float | None:
        # A rank in a long poll says nothing for so long, and what was heard is kept later still.
        least_s = info.data.get("max_wait_s", 0.0) + 2 * KEEP_PERIOD_S
        if silence_s is not None and silence_s < least_s:
            raise ValueError(
                f"must be at least {least_s:g}, {2 * KEEP_PERIOD_S:g} more than"
                f" FLYBALL_MAX_WAIT_S, not {silence_s:g}"
            )
        return silence_s

    @field_validator("job_expiry_s", "job_retention_s")
    @classmethod
    def _check_after_silence(cls, value_s: float, info: ValidationInfo) -> float:
        least_s = _rank_silence_s(info.data.get("rank_silence_s"), info.data.get("max_wait_s", 0.0))
        if value_s != 0 and value_s < least_s:
            raise ValueError(f"must be 0 (never), or at least {least_s:g}, not {value_s:g}")
        return value_s


def load_settings(**options: Any) -> Settings:  # noqa: ANN401 - Settings checks each value
    """Read the settings: the options given, else the environment's, else the defaults.

    Args:
        **options: values of Settings' fields from the command line; None: not given.

    Raises:
        SettingsError: a value cannot be used; it names the option where one gave the value.
    """
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        name = str(fault["loc"][0])
        if name not in Settings.model_fields:  # pydantic-settings names the variable itself
            name = name.lower().removeprefix(_PREFIX.lower())
        blamed = f"--{name.replace('_', '-')}" if name in given else _PREFIX + name.upper()
        raise SettingsError(f"{blamed} {_problem(name, fault)}") from None


def _problem(name: str, fault: Mapping[str, Any]) -> str:
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    text = str(fault["msg"]).replace("Input should be", "must be", 1)
    return text if name in _SECRET else f"{text}, not {fault['input']!r}"


def _rank_silence_s(chosen_s: float | None, max_wait_s: float) -> float:
    return max(LifeTimes.rank_silence_s, max_wait_s + 30.0) if chosen_s is None else chosen_s
