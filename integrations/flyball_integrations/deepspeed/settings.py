"""The settings that a DeepSpeed config and its environment can give: names, values, sources."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from flyball_profiles.gpu_windows import gpu_names
from flyball_wire.messages import Adaptation, Profiling
from flyball_wire.plan_options import MAX_RESERVE, Effort, Policy, Reconfigure

SCHEDULES = ("1f1b", "gpipe", "envpipe", "auto")
P2P = ("stock", "eager", "pulled")
WITHOUT_PLANNER = ("last-plan", "default-clocks")


@dataclass(frozen=True, kw_only=True)
class EnvPipeName:
    """EnvPipe's name of a setting: its block's key, its variable, its values and ours."""

    key: str
    values: Mapping[str, str]
    variable: str | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One argument of `attach`, and key of the `flyball` block.

    Attributes:
        must_be: what its value has to be, for a message.
        read: the value from JSON or a variable's text; None: it is not that.
    """

    key: str
    variable: str
    must_be: str
    read: Callable[[object], object | None]
    envpipe: EnvPipeName | None = None

    def is_set_in(self, environ: Mapping[str, str]) -> bool:
        """Return whether a variable gives it, Flyball's or EnvPipe's."""
        envpipe = None if self.envpipe is None else self.envpipe.variable
        return bool(environ.get(self.variable) or (envpipe and environ.get(envpipe)))

    def value(
        self,
        arguments: Mapping[str, Any],
        environ: Mapping[str, str],
        flyball: Mapping[str, object],
        envpipe: Mapping[str, object],
    ) -> object | None:
        """From the first source that has it; None: none has.

        Args:
            arguments: of `attach`, taken as they are.
            environ: an empty variable counts as not set.
            flyball: the block of that name; null counts as not set.
            envpipe: likewise.

        Raises:
            ValueError: that source's value cannot be used.
        """
        if arguments.get(self.key) is not None:
            return cast("object", arguments[self.key])
        if environ.get(self.variable):
            return self._ours(self.variable, environ[self.variable])
        name = self.envpipe
        if name is not None and name.variable is not None and environ.get(name.variable):
            return _envpipes(name.variable, environ[name.variable], name.values)
        if flyball.get(self.key) is not None:
            return self._ours(f"flyball.{self.key}", flyball[self.key])
        if name is not None and envpipe.get(name.key) is not None:
            return _envpipes(f"envpipe.{name.key}", envpipe[name.key], name.values)
        return None

    def _ours(self, where: str, given: object) -> object:
        value = self.read(given)
        if value is None:
            raise ValueError(f"{where} must be {self.must_be}, not {given!r}")
        return value


def _envpipes(where: str, given: object, values: Mapping[str, str]) -> str:
    if not isinstance(given, str) or given not in values:
        raise ValueError(f"{where} must be one of {', '.join(values)}, not {given!r}")
    return values[given]


def _choice(
    key: str, variable: str, names: Iterable[str], envpipe: EnvPipeName | None = None
) -> Setting:
    known = tuple(map(str, names))
    return Setting(
        key=key,
        variable=variable,
        must_be=f"one of {', '.join(known)}",
        read=lambda given: given if given in known else None,
        envpipe=envpipe,
    )


def _text(given: object) -> str | None:
    return given if isinstance(given, str) and given.strip() else None


def _job_id(given: object) -> str | None:
    is_one = isinstance(given, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,128}", given)
    return cast("str", given) if is_one else None


def _target(given: object) -> str | None:
    if not isinstance(given, str):
        return None
    name, colon, number = given.partition(":")
    if not colon:
        return given if name in {"fastest", "least-energy"} else None
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
    """The number above 0 that this is, or says as text; None: it is none."""
    number = _number(given)
    return number if number is not None and number > 0 else None


def _share(given: object) -> float | None:
    share = positive_number(given)
    return share if share is not None and share <= 1 else None


def _reserve(given: object) -> float | None:
    share = _number(given)
    return share if share is not None and 0 <= share <= MAX_RESERVE else None


def _num_bytes(given: object) -> int | None:
    number = _number(given)
    is_one = number is not None and number >= 0 and number.is_integer()
    return int(cast("float", number)) if is_one else None


def _powers_w(given: object) -> tuple[float, ...] | None:
    parts = given.split(",") if isinstance(given, str) else given
    each = [positive_number(part) for part in (parts if isinstance(parts, list) else [parts])]
    powers_w = tuple(power_w for power_w in each if power_w is not None)
    return powers_w if powers_w and len(powers_w) == len(each) else None


SETTINGS = (
    Setting(
        key="job_id",
        variable="FLYBALL_JOB_ID",
        must_be="1 to 128 of letters, digits, '.', '_' and '-'",
        read=_job_id,
    ),
    Setting(
        key="planner_url",
        variable="FLYBALL_PLANNER_URL",
        must_be="like http://HOST:PORT",
        read=_text,
    ),
    _choice(
        "policy",
        "FLYBALL_POLICY",
        Policy,
        EnvPipeName(
            key="type",
            variable="ENVPIPE_TYPE",
            values={str(name): str(name) for name in Policy if name != Policy.FRONTIER},
        ),
    ),
    _choice(
        "schedule",
        "FLYBALL_SCHEDULE",
        SCHEDULES,
        EnvPipeName(
            key="scheduling",
            variable="ENVPIPE_SCHEDULING",
            values={"1f1b": "1f1b", "ours": "envpipe"},
        ),
    ),
    _choice(
        "reconfigure",
        "FLYBALL_RECONFIGURE",
        Reconfigure,
        EnvPipeName(
            key="reconfig",
            variable="ENVPIPE_RECONFIGURE",
            values={str(name): str(name) for name in Reconfigure},
        ),
    ),
    Setting(
        key="target",
        variable="FLYBALL_TARGET",
        must_be="fastest, least-energy, slowdown:0.05, deadline:2.9 (s) or power:8000 (W)",
        read=_target,
    ),
    _choice("effort", "FLYBALL_EFFORT", Effort),
    _choice(
        "gpu_type",
        "FLYBALL_GPU_TYPE",
        gpu_names(),
        # EnvPipe's four are in the table under the same names, as is what others added to it.
        EnvPipeName(key="gpu", values={name: name for name in gpu_names()}),
    ),
    Setting(
        key="blocking_power_w",
        variable="FLYBALL_BLOCKING_POWER_W",
        must_be="W above 0, one value or one per stage (70 or 70,84)",
        read=_powers_w,
    ),
    _choice("profiling", "FLYBALL_PROFILING", Profiling),
    Setting(
        key="profiling_slowdown",
        variable="FLYBALL_PROFILING_SLOWDOWN",
        must_be="a share above 0 and at most 1 (0.1)",
        read=_share,
    ),
    _choice("adaptation", "FLYBALL_ADAPTATION", Adaptation),
    Setting(
        key="reserve",
        variable="FLYBALL_RESERVE",
        must_be="a share from 0 to 0.5 (0.01)",
        read=_reserve,
    ),
    _choice("p2p", "FLYBALL_P2P", P2P),
    _choice("without_planner", "FLYBALL_WITHOUT_PLANNER", WITHOUT_PLANNER),
    Setting(
        key="lease_s",
        variable="FLYBALL_LEASE_S",
        must_be="a number of seconds above 0",
        read=positive_number,
    ),
    Setting(
        key="free_memory_bytes",
        variable="FLYBALL_FREE_MEMORY_BYTES",
        must_be="a whole number of bytes, at least 0",
        read=_num_bytes,
    ),
)
