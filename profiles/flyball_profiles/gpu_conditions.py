"""Conditions that a GPU is measured or runs under: its limits and settings beside the SM clock."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

# Limits, and clocks, that differ by less than this share are the same: drivers round them.
SAME_LIMIT = 0.01
_MAX_VALUE = 1e6
_WORD = re.compile(r"[A-Za-z0-9._+-]{1,64}")
_FLAGS = {True: "on", False: "off"}


@dataclass(frozen=True, kw_only=True)
class GpuConditions:
    """Conditions of a GPU; null: not known, or the GPU has no such thing.

    Attributes:
        power_limit_w: enforced power limit in W, the lowest of all that apply.
        default_power_limit_w: power limit in W that the driver sets at its start.
        module_power_limit_w: enforced power limit in W of the GPU's module, as of a GB200.
        power_profile: enforced workload power profiles, such as `max-q` or `max-q+llm-training`;
            `none`: the GPU has such profiles and none is enforced.
        memory_clock_mhz: memory clock in MHz, read under load.
        application_clock_mhz: application clock of the SMs in MHz.
        ecc: true if ECC is on.
        persistence: true if the driver stays loaded while the GPU is not in use.
        driver: version of the driver.

    Raises:
        ValueError: a value is out of bounds.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    module_power_limit_w: float | None = None
    power_profile: str | None = None
    memory_clock_mhz: int | None = None
    application_clock_mhz: int | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    driver: str | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, str):
                if not _WORD.fullmatch(value):
                    raise ValueError(f"{name} must be 1 to 64 characters of A-Z a-z 0-9 . _ + -")
            elif value is not None and not 0 <= value <= _MAX_VALUE:
                raise ValueError(f"{name} must be from 0 to {_MAX_VALUE:g}, not {value:g}")

    def __str__(self) -> str:
        """Return `power_limit_w=700 ecc=on`, which `parse` reads; unknown ones are left out."""
        known = ((name, value) for name, value in vars(self).items() if value is not None)
        return " ".join(f"{name}={_shown(value)}" for name, value in known)

    @classmethod
    def parse(cls, text: str) -> GpuConditions:
        """Parse the text of `str`; names that are not known are left out.

        Raises:
            ValueError: the text has another form.
        """
        given: dict[str, Any] = {}
        for part in text.split():
            name, sign, value = part.partition("=")
            if not sign:
                raise ValueError(f"must be NAME=VALUE, such as power_limit_w=700, not {part!r}")
            if name in _READ:
                given[name] = _READ[name](name, value)
        return cls(**given)

    @property
    def text(self) -> str:
        """Line for people; empty: nothing is known."""
        known = ((name, getattr(self, name)) for name in _NAMES)
        shown = [_described(name, value) for name, value in known if value is not None]
        return ", ".join(shown)

    @property
    def at_rest(self) -> GpuConditions:
        """These without what is one of a GPU under load only."""
        return replace(self, memory_clock_mhz=None)

    def filled(self, other: GpuConditions) -> GpuConditions:
        """Return these, with what is not known of them from others."""
        unknown = {name for name, value in vars(self).items() if value is None}
        return replace(self, **{name: getattr(other, name) for name in unknown})

    @property
    def is_limited(self) -> bool:
        """True if the enforced power limit is surely below its default."""
        limit_w, default_w = self.power_limit_w, self.default_power_limit_w
        return limit_w is not None and default_w is not None and limit_w < default_w * 0.99


@dataclass(frozen=True, kw_only=True)
class ConditionChange:
    """Condition that differs between two moments."""

    name: str
    before: float | str
    now: float | str

    @property
    def changes_work(self) -> bool:
        """True if times and energies at a clock, or the clocks that are reached, depend on it."""
        return self.name in _OF_WORK

    def __str__(self) -> str:
        return self.since("before")

    def since(self, moment: str) -> str:
        """Return `power limit 500 W (profiled: 700 W)` with a word for the moment before."""
        now = _described(self.name, self.now)
        return f"{now} ({moment}: {_described(self.name, self.before, is_short=True)})"


def changes(before: GpuConditions, now: GpuConditions) -> tuple[ConditionChange, ...]:
    """Return what differs, of that which is known at both moments."""
    found: list[ConditionChange] = []
    for name in _NAMES:
        old, new = getattr(before, name), getattr(now, name)
        if old is None or new is None or _is_same(name, old, new):
            continue
        found.append(ConditionChange(name=name, before=old, now=new))
    return tuple(found)


def common_conditions(several: Iterable[GpuConditions | None]) -> GpuConditions | None:
    """Return what is the same in all of them; None: nothing is known of all.

    Of enforced limits that differ it is the lowest, by which the slowest of these GPUs runs.
    """
    listed = list(several)
    known = [conditions for conditions in listed if conditions is not None]
    if not known or len(known) < len(listed):
        return None
    shared = {
        name: _shared(name, [getattr(conditions, name) for conditions in known]) for name in _NAMES
    }
    found = GpuConditions(**shared)
    return found if str(found) else None


def _shared(name: str, values: Sequence[Any]) -> Any:  # noqa: ANN401 - of any field
    first = values[0]
    if any(value is None for value in values):
        return None
    if all(_is_same(name, first, value) for value in values):
        return first
    return min(values) if name in ENFORCED_LIMITS else None


def is_known(of_stages: Sequence[GpuConditions | None]) -> bool:
    """Return whether the conditions of any stage are known."""
    return any(conditions is not None for conditions in of_stages)


def _is_same(name: str, value: float | str, other: float | str) -> bool:
    if name in _ROUNDED and not isinstance(value, str) and not isinstance(other, str):
        return math.isclose(value, other, rel_tol=SAME_LIMIT)
    return value == other


def _shown(value: float | str) -> str:
    if isinstance(value, bool):
        return _FLAGS[value]
    return value if isinstance(value, str) else f"{value:.10g}"


def _described(name: str, value: float | str, *, is_short: bool = False) -> str:
    words, unit = _NAMES[name]
    shown = value if isinstance(value, str) else _shown(value)
    return f"{shown}{unit}" if is_short else f"{words} {shown}{unit}"


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a number, not {text!r}")
    return value


def _whole(name: str, text: str) -> int:
    return int(_number(name, text))


def _flag(name: str, text: str) -> bool:
    for value, shown in _FLAGS.items():
        if text == shown:
            return value
    raise ValueError(f"{name} must be on or off, not {text!r}")


def _text(name: str, text: str) -> str:
    del name
    return text


# Field -> words for people, unit.
_NAMES = {
    "power_limit_w": ("power limit", " W"),
    "default_power_limit_w": ("default power limit", " W"),
    "module_power_limit_w": ("the module's power limit", " W"),
    "power_profile": ("power profile", ""),
    "memory_clock_mhz": ("memory clock", " MHz"),
    "application_clock_mhz": ("application clock", " MHz"),
    "ecc": ("ECC", ""),
    "persistence": ("persistence mode", ""),
    "driver": ("driver", ""),
}
ENFORCED_LIMITS = frozenset({"power_limit_w", "module_power_limit_w"})
"""Fields of which the lowest of a stage's GPUs counts."""
_LIMITS = ENFORCED_LIMITS | {"default_power_limit_w"}
_ROUNDED = _LIMITS | {"memory_clock_mhz", "application_clock_mhz"}
_OF_WORK = ENFORCED_LIMITS | {"power_profile", "memory_clock_mhz", "ecc"}
_READ = {
    **dict.fromkeys(_LIMITS, _number),
    "power_profile": _text,
    "memory_clock_mhz": _whole,
    "application_clock_mhz": _whole,
    "ecc": _flag,
    "persistence": _flag,
    "driver": _text,
}
assert _NAMES.keys() == _READ.keys() == {field.name for field in fields(GpuConditions)}  # noqa: S101
