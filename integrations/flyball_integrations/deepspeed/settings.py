"""Settings in a DeepSpeed config and its environment: names, values, sources."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from flyball_profiles.clock_transitions import MAX_TRANSITION_S
from flyball_profiles.gpu_windows import (
    GPU_FOLDER_VARIABLE,
    GpuTableError,
    gpu_folder,
    gpu_names,
)
from flyball_wire.messages import Adaptation, Profiling
from flyball_wire.plan_options import (
    MAX_DWELL_MS,
    MAX_GPUS_AT_ONCE,
    MAX_GPUS_IN_NODE,
    MAX_RESERVE,
    MAX_TAIL_MS,
    MAX_TRANSFER_MS,
    Effort,
    Policy,
    Reconfigure,
)

SCHEDULES = ("1f1b", "envpipe")
P2P = ("stock", "eager", "pulled")
WITHOUT_PLANNER = ("last-plan", "default-clocks")
TIMINGS = ("stream", "synchronize")
_YES_OR_NO = {"1": True, "true": True, "0": False, "false": False}
N = TypeVar("N", int, float)
_JOB_ID = re.compile(r"[A-Za-z0-9._+-]{1,128}")


@dataclass(frozen=True)
class EnvPipeName:
    """EnvPipe's name of a setting: its block's key, its values and ours, its variable."""

    key: str
    values: Mapping[str, str]
    variable: str | None = None


@dataclass(frozen=True)
class Setting:
    """One argument of `attach`, and key of the `flyball` block.

    Attributes:
        must_be: Description of valid values, for a message.
        read: Conversion of a JSON value or a variable's text; None: not valid.
    """

    key: str
    variable: str
    must_be: str
    read: Callable[[object], object | None]
    envpipe: EnvPipeName | None = None

    def is_set_in(self, environ: Mapping[str, str]) -> bool:
        """Return whether a variable sets it, Flyball's or EnvPipe's."""
        envpipe = self.envpipe and self.envpipe.variable
        return bool(environ.get(self.variable) or (envpipe and environ.get(envpipe)))

    def value(
        self,
        arguments: Mapping[str, Any],
        environ: Mapping[str, str],
        flyball: Mapping[str, object],
        envpipe: Mapping[str, object],
    ) -> object | None:
        """Return the value of the first source that has one; None: no source has.

        Args:
            arguments: Arguments of `attach`, returned unchecked.
            environ: Environment; an empty variable counts as not set.
            flyball: The `flyball` block; null counts as not set.
            envpipe: The `envpipe` block; null counts as not set.

        Raises:
            ValueError: The source's value is not valid.
        """
        if arguments.get(self.key) is not None:
            return cast("object", arguments[self.key])
        name = self.envpipe or EnvPipeName("", {})
        theirs = name.variable or ""
        ours = (self.read, self.must_be)
        envpipes = (_reader(name.values), _one_of(name.values))
        sources = (
            (self.variable, environ.get(self.variable) or None, *ours),
            (theirs, environ.get(theirs) or None, *envpipes),
            (f"flyball.{self.key}", flyball.get(self.key), *ours),
            (f"envpipe.{name.key}", envpipe.get(name.key), *envpipes),
        )
        for where, given, read, must_be in sources:
            if given is not None:
                value = read(given)
                if value is None:
                    raise ValueError(f"{where} must be {must_be}, not {given!r}")
                return value
        return None


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}"


def _reader(values: Mapping[str, str]) -> Callable[[object], object | None]:
    return lambda given: values.get(given) if isinstance(given, str) else None


def _choice(
    key: str, variable: str, names: Iterable[str], envpipe: EnvPipeName | None = None
) -> Setting:
    values = {str(name): str(name) for name in names}
    return Setting(key, variable, _one_of(values), _reader(values), envpipe)


def _text(given: object) -> str | None:
    return given if isinstance(given, str) and given.strip() else None


def _job_id(given: object) -> str | None:
    return given if isinstance(given, str) and _JOB_ID.fullmatch(given) else None


def _gpu_type(given: object) -> str | None:
    try:
        known = gpu_names(folder=gpu_folder(os.environ))
    except GpuTableError:
        known = gpu_names()
    return given if isinstance(given, str) and given in known else None


def _target(given: object) -> str | None:
    if not isinstance(given, str):
        return None
    name, colon, number = given.partition(":")
    if not colon:
        return given if name in {"fastest", "least-energy"} else None
    if name == "slowdown":
        number = number.removesuffix("%")
    is_one = name in {"slowdown", "deadline", "power"} and _number(number) is not None
    return given if is_one else None


def _number(given: object) -> float | None:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    try:
        number = float(given)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def positive_number(given: object) -> float | None:
    """Return the number above 0, given as such or as text; None: not such a number."""
    number = _number(given)
    return number if number is not None and number > 0 else None


def _yes_or_no(given: object) -> bool | None:
    return _YES_OR_NO.get(str(given).lower()) if isinstance(given, bool | int | str) else None


def _share(given: object) -> float | None:
    share = positive_number(given)
    return share if share is not None and share <= 1 else None


def _up_to(highest: float) -> Callable[[object], float | None]:
    """Return a reader of numbers from 0 to this one."""

    def read(given: object) -> float | None:
        number = _number(given)
        return number if number is not None and 0 <= number <= highest else None

    return read


def _each(read: Callable[[object], N | None]) -> Callable[[object], tuple[N, ...] | None]:
    """Return a reader of one or several numbers, in text with commas between them."""

    def read_all(given: object) -> tuple[N, ...] | None:
        parts = given.split(",") if isinstance(given, str) else given
        each = [read(part) for part in (parts if isinstance(parts, list) else [parts])]
        numbers = tuple(number for number in each if number is not None)
        return numbers if numbers and len(numbers) == len(each) else None

    return read_all


def _count(given: object) -> int | None:
    number = _number(given)
    return int(number) if number is not None and number >= 0 and number.is_integer() else None


def _gpus(most: int) -> Callable[[object], int | None]:
    def read(given: object) -> int | None:
        number = _count(given)
        return number if number is not None and 1 <= number <= most else None

    return read


_POLICIES = {str(name): str(name) for name in (Policy.BASELINE, Policy.UNIFORM, Policy.ENVELOPE)}
_ORDERS = {"1f1b": "1f1b", "ours": "envpipe"}
_RECONFIGURATIONS = {str(name): str(name) for name in Reconfigure}
# EnvPipe's GPUs have the same names in the table.
_GPUS = {name: name for name in gpu_names()}

SETTINGS = (
    Setting(
        "job_id", "FLYBALL_JOB_ID", "1 to 128 of letters, digits, '.', '_', '+' and '-'", _job_id
    ),
    Setting("planner_url", "FLYBALL_PLANNER_URL", "like http://HOST:PORT", _text),
    _choice("policy", "FLYBALL_POLICY", Policy, EnvPipeName("type", _POLICIES, "ENVPIPE_TYPE")),
    _choice(
        "schedule",
        "FLYBALL_SCHEDULE",
        SCHEDULES,
        EnvPipeName("scheduling", _ORDERS, "ENVPIPE_SCHEDULING"),
    ),
    _choice(
        "reconfigure",
        "FLYBALL_RECONFIGURE",
        Reconfigure,
        EnvPipeName("reconfig", _RECONFIGURATIONS, "ENVPIPE_RECONFIGURE"),
    ),
    Setting(
        "target",
        "FLYBALL_TARGET",
        "fastest, least-energy, slowdown:5%, deadline:2.9 (s) or power:8000 (W)",
        _target,
    ),
    _choice("effort", "FLYBALL_EFFORT", Effort),
    Setting(
        "gpu_type",
        "FLYBALL_GPU_TYPE",
        f"{_one_of(_GPUS)}, or a name in the folder {GPU_FOLDER_VARIABLE}",
        _gpu_type,
        EnvPipeName("gpu", _GPUS),
    ),
    Setting(
        "blocking_power_w",
        "FLYBALL_BLOCKING_POWER_W",
        "W above 0, one value or one per stage (70 or 70,84)",
        _each(positive_number),
    ),
    _choice("profiling", "FLYBALL_PROFILING", Profiling),
    Setting(
        "profiling_slowdown",
        "FLYBALL_PROFILING_SLOWDOWN",
        "a share above 0 and at most 1 (0.1)",
        _share,
    ),
    _choice("adaptation", "FLYBALL_ADAPTATION", Adaptation),
    Setting("reserve", "FLYBALL_RESERVE", "a share from 0 to 0.5 (0.01)", _up_to(MAX_RESERVE)),
    Setting(
        "transition_ms",
        "FLYBALL_TRANSITION_MS",
        "a number of ms from 0 to 10000 (5)",
        _up_to(MAX_TRANSITION_S * 1e3),
    ),
    Setting("transitions", "FLYBALL_TRANSITIONS", "the path of a TOML file", _text),
    Setting(
        "gpus_at_once",
        "FLYBALL_GPUS_AT_ONCE",
        "a whole number from 1 to 128 (8)",
        _gpus(MAX_GPUS_AT_ONCE),
    ),
    Setting(
        "gpus_in_node",
        "FLYBALL_GPUS_IN_NODE",
        "a whole number from 1 to 1024 (8)",
        _gpus(MAX_GPUS_IN_NODE),
    ),
    Setting("early_requests", "FLYBALL_EARLY_REQUESTS", "true or false, 1 or 0", _yes_or_no),
    Setting("max_switches", "FLYBALL_MAX_SWITCHES", "a whole number, at least 0 (40)", _count),
    Setting(
        "min_dwell_ms",
        "FLYBALL_MIN_DWELL_MS",
        "a number of ms from 0 to 60000 (50)",
        _up_to(MAX_DWELL_MS),
    ),
    Setting(
        "tail_ms", "FLYBALL_TAIL_MS", "a number of ms from 0 to 600000 (20)", _up_to(MAX_TAIL_MS)
    ),
    Setting(
        "transfer_ms",
        "FLYBALL_TRANSFER_MS",
        "ms from 0 to 10000, one value or one for each pair of neighbours (1.5 or 1.5,2)",
        _each(_up_to(MAX_TRANSFER_MS)),
    ),
    Setting(
        "extra_forwards",
        "FLYBALL_EXTRA_FORWARDS",
        "whole numbers, at least 0, one for each stage (3,2,1,0)",
        _each(_count),
    ),
    _choice("p2p", "FLYBALL_P2P", P2P),
    _choice("without_planner", "FLYBALL_WITHOUT_PLANNER", WITHOUT_PLANNER),
    Setting("lease_s", "FLYBALL_LEASE_S", "a number of seconds above 0", positive_number),
    Setting("strict", "FLYBALL_STRICT", "true or false, 1 or 0", _yes_or_no),
    _choice("timing", "FLYBALL_TIMING", TIMINGS),
    Setting(
        "activation_bytes",
        "FLYBALL_ACTIVATION_BYTES",
        "a whole number of bytes, one value or one for each stage",
        _each(_count),
    ),
    Setting(
        "free_memory_bytes",
        "FLYBALL_FREE_MEMORY_BYTES",
        "a whole number of bytes, one value or one for each stage",
        _each(_count),
    ),
)
