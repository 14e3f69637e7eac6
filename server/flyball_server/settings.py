"""The planner's settings: options override `FLYBALL_*` variables, which override defaults."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from flyball_profiles.gpu_windows import gpu_names, load_gpu_window
from flyball_server.http.middleware.host_check import host_problem
from flyball_server.http.zeus.job_metadata import read_metadata
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.lifecycle.job_life import KEEP_PERIOD_S, LifeTimes
from flyball_server.jobs.store.databases import SQLITE_PREFIX, database_problem
from flyball_wire.energy_factors import CURRENCY_RULE, EnergyFactors, is_currency

_PREFIX = "FLYBALL_"
_SECRET = {"token", "database"}  # a database's address may contain a password
# Stragglers and drift are measured over the last minutes, and ranks post late.
_LEAST_STEP_RETENTION_S = 600.0
# What flyball_server/tracing.py imports.
_OTEL = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
DASK_PREFIX = "dask://"
# A frontier may take a minute: a plan is not to wait for it.
_FEWEST_PROCESSES = 2
_LAST_PORT = 65_535
_Seconds = Annotated[float, Field(allow_inf_nan=False)]


class SettingsError(ValueError):
    """Invalid setting; the message is one line that names its option or variable."""


def default_database() -> str:
    """Return the SQLite file in the user's state folder (XDG_STATE_HOME, else ~/.local/state)."""
    state_home = os.environ.get("XDG_STATE_HOME")
    folder = Path(state_home) if state_home else Path.home() / ".local" / "state"
    return f"{SQLITE_PREFIX}{folder / 'flyball' / 'planner.sqlite'}"


def default_num_processes() -> int:
    """Return half of the cores that this process may use, at least 2."""
    return max(_FEWEST_PROCESSES, len(os.sched_getaffinity(0)) // 2)


class Settings(BaseSettings):
    """Settings of the planner.

    A field that is not given is read from `FLYBALL_` with its name in capitals; an empty variable
    counts as not set. `load_settings` turns validation errors into one line.

    Attributes:
        host: address to listen on.
        port: TCP port; 0: a free one.
        database: database of jobs and plans: `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`.
        token: operator's token, in addition to those in the database; None: no such token.
        allowed_hosts: host names and addresses, in addition to loopback and the bound address, by
            which clients may call a planner that requires no token; separated by commas.
        allow_open: permission to listen beyond loopback without tokens.
        tls_certificate: PEM file of the certificate chain; None: plain HTTP.
        tls_key: PEM file of the certificate's private key; required with that.
        log_level: lowest severity that is logged.
        log_format: text, or a JSON object per line.
        max_body_bytes: size limit of a request body in bytes.
        max_wait_s: time limit of a long poll or event stream in s.
        body_timeout_s: time limit for receiving a request in s.
        max_header_bytes: size limit of a request line and its headers in bytes.
        max_connections: limit on concurrent connections; further ones get a 503.
        max_waiting: limit on concurrent long polls and streams; further ones get a 503.
        max_jobs: limit on stored jobs; further ones are refused.
        max_profile_points: limit on operating points per profile.
        max_instructions: limit on forwards and backwards per iteration of a job.
        planning_processes: number of processes that solve plans; 0: the planner's threads do.
        planning_timeout_s: time limit of a solve in s.
        planning_executor: address `dask://HOST:PORT` of a Dask scheduler whose workers solve plans
            instead of these processes; None: no Dask.
        gpu_folder: folder of GPU files that extend the shipped table; None: shipped table only.
        rank_silence_s: time in s without a call after which a rank counts as gone; None: 90 s, or
            30 s more than `max_wait_s` if that is longer.
        job_expiry_s: time in s without a call after which a job is `expired`; 0: never.
        job_retention_s: time in s after which an ended or expired job is deleted; 0: never.
        step_retention_s: time in s for which measurements of single ranks are kept; 0: forever.
        price_per_kwh: price of energy per kWh, for costs on the page and in reports; None: no
            cost is shown.
        currency: currency of the price.
        co2_g_per_kwh: CO2 emissions of energy in g per kWh; None: no emissions are shown.
        metrics_jobs: number of jobs with metrics of their own; other jobs share one label.
        metrics_open: permission to read `/metrics` without a token.
        traces: OpenTelemetry traces of calls and solves are sent; needs the extra `otel`.
        zeus_clients: calls of Zeus's `PipelineFrequencyOptimizer` are answered.
        zeus_defaults: name and options of jobs that Zeus's clients register, in the form of their
            `job_metadata`.

    Raises:
        pydantic.ValidationError: a value is invalid.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, frozen=True, validate_default=True
    )

    host: str = "127.0.0.1"
    port: int = Field(default=7787, ge=0, le=65535)
    database: str = Field(default_factory=default_database, repr=False)
    token: str | None = Field(default=None, repr=False)
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
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
    gpu_folder: str | None = None
    rank_silence_s: _Seconds | None = None
    job_expiry_s: _Seconds = LifeTimes.job_expiry_s
    job_retention_s: _Seconds = LifeTimes.job_retention_s
    step_retention_s: _Seconds = LifeTimes.step_retention_s
    price_per_kwh: float | None = Field(default=None, ge=0, le=1e6)
    currency: str = "EUR"
    co2_g_per_kwh: float | None = Field(default=None, ge=0, le=1e6)
    metrics_jobs: int = Field(default=20, ge=0, le=1000)
    metrics_open: bool = False
    traces: bool = False
    zeus_clients: bool = False
    zeus_defaults: str | None = None

    @property
    def life(self) -> LifeTimes:
        """Times after which ranks and jobs count as gone."""
        silence_s = _rank_silence_s(self.rank_silence_s, self.max_wait_s)
        return LifeTimes(
            rank_silence_s=silence_s,
            job_expiry_s=self.job_expiry_s,
            job_retention_s=self.job_retention_s,
            step_retention_s=self.step_retention_s,
        )

    @property
    def factors(self) -> EnergyFactors:
        """Price and emissions of energy."""
        return EnergyFactors(
            price_per_kwh=self.price_per_kwh,
            currency=self.currency,
            co2_g_per_kwh=self.co2_g_per_kwh,
        )

    @field_validator("currency")
    @classmethod
    def _check_currency(cls, currency: str) -> str:
        if not is_currency(currency):
            raise ValueError(f"must be {CURRENCY_RULE}, not {currency!r}")
        return currency

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
        if token is not None:
            token = token.rstrip("\r\n")  # as a file ends that it was read from
        # An empty token would disable authentication.
        if token is not None and not (token and all("!" <= letter <= "~" for letter in token)):
            raise ValueError("must be printable ASCII without spaces, not empty")
        return token

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, hosts: object) -> object:
        return _names(hosts) if isinstance(hosts, str) else hosts

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for problem in filter(None, map(host_problem, hosts)):
            raise ValueError(problem)
        return hosts

    @field_validator("tls_key")
    @classmethod
    def _check_tls_pair(cls, tls_key: str | None, info: ValidationInfo) -> str | None:
        if tls_key is None and info.data.get("tls_certificate") is not None:
            raise ValueError("must be given with FLYBALL_TLS_CERTIFICATE")
        if tls_key is not None and info.data.get("tls_certificate") is None:
            raise ValueError("needs FLYBALL_TLS_CERTIFICATE too")
        return tls_key

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("traces")
    @classmethod
    def _check_traces(cls, traces: bool) -> bool:
        if traces and not all(map(_is_installed, _OTEL)):
            raise ValueError("needs OpenTelemetry; install the extra otel")
        return traces

    @field_validator("zeus_defaults")
    @classmethod
    def _check_zeus_defaults(cls, text: str | None) -> str | None:
        try:
            read_metadata(text)
        except InvalidFieldError as error:
            raise ValueError(error.problem) from None
        return text

    @field_validator("planning_executor")
    @classmethod
    def _check_executor(cls, address: str | None) -> str | None:
        if address is None:
            return None
        host, _, port = address.removeprefix(DASK_PREFIX).rpartition(":")
        is_port = port.isdecimal() and 1 <= int(port) <= _LAST_PORT
        if not (address.startswith(DASK_PREFIX) and host and is_port):
            raise ValueError(f"must be {DASK_PREFIX}HOST:PORT of a Dask scheduler, not {address!r}")
        if not _is_installed("distributed"):
            raise ValueError("needs Dask; install the extra dask")
        return address

    @field_validator("gpu_folder")
    @classmethod
    def _check_gpu_files(cls, folder: str | None) -> str | None:
        if folder is not None:
            for name in gpu_names(folder=Path(folder)):
                load_gpu_window(name, folder=Path(folder))
        return folder

    @field_validator("rank_silence_s")
    @classmethod
    def _check_silence(cls, silence_s: float | None, info: ValidationInfo) -> float | None:
        # A long poll sends nothing for `max_wait_s`, and heartbeats are stored with a delay.
        least_s = info.data.get("max_wait_s", 0.0) + 2 * KEEP_PERIOD_S
        if silence_s is not None and silence_s < least_s:
            raise ValueError(
                f"must be at least {least_s:g}, {2 * KEEP_PERIOD_S:g} more than"
                f" FLYBALL_MAX_WAIT_S, not {silence_s:g}"
            )
        return silence_s

    @field_validator("step_retention_s")
    @classmethod
    def _check_step_retention(cls, value_s: float) -> float:
        if value_s != 0 and value_s < _LEAST_STEP_RETENTION_S:
            raise ValueError(
                f"must be 0 (forever), or at least {_LEAST_STEP_RETENTION_S:g}, not {value_s:g}"
            )
        return value_s

    @field_validator("job_expiry_s", "job_retention_s")
    @classmethod
    def _check_after_silence(cls, value_s: float, info: ValidationInfo) -> float:
        least_s = _rank_silence_s(info.data.get("rank_silence_s"), info.data.get("max_wait_s", 0.0))
        if value_s != 0 and value_s < least_s:
            raise ValueError(f"must be 0 (never), or at least {least_s:g}, not {value_s:g}")
        return value_s


def load_settings(**options: Any) -> Settings:  # noqa: ANN401 - Settings checks each value
    """Return the settings from options, the environment and defaults.

    Args:
        **options: values of Settings' fields from the command line; None: not given.

    Raises:
        SettingsError: a value is invalid; it names the option or the variable.
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


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package around it is missing
        return False


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _problem(name: str, fault: Mapping[str, Any]) -> str:
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    text = str(fault["msg"]).replace("Input should be", "must be", 1)
    return text if name in _SECRET else f"{text}, not {fault['input']!r}"


def _rank_silence_s(chosen_s: float | None, max_wait_s: float) -> float:
    return max(LifeTimes.rank_silence_s, max_wait_s + 30.0) if chosen_s is None else chosen_s
