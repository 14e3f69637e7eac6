"""Results of the checks of `flyball doctor`, of a machine and of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

State = Literal["ok", "warning", "problem"]

_UNKNOWN_ADVICE = "see the system's log; if it names no cause, report this line"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Result of one check, all texts in one line; anything but `ok` has advice."""

    name: str
    #: `warning`: a run works, with a limitation; `problem`: clocks cannot be set, energy cannot be
    #: measured, or a clock stayed locked.
    state: State
    found: str
    advice: str = ""

    def __post_init__(self) -> None:
        if self.state not in get_args(State):
            raise ValueError(f"state must be one of {', '.join(get_args(State))}")
        if self.state != "ok" and not self.advice:
            raise ValueError(f"{self.name}: a {self.state} must have advice")

    @classmethod
    def of_error(
        cls, name: str, error: Exception, advice: str = "", *, state: State = "problem"
    ) -> CheckResult:
        """Return the result for an error, whose text has advice after its first semicolon."""
        text = " ".join(str(error).split()) or type(error).__name__
        found, _, own_advice = text.partition("; ")
        both = "; ".join(part for part in (own_advice, advice) if part)
        return cls(name=name, state=state, found=found, advice=both or _UNKNOWN_ADVICE)


def ok(name: str, found: str) -> CheckResult:
    """Return a result without fault."""
    return CheckResult(name=name, state="ok", found=found)


def warning(name: str, found: str, advice: str) -> CheckResult:
    """Return a warning."""
    return CheckResult(name=name, state="warning", found=found, advice=advice)


def problem(name: str, found: str, advice: str) -> CheckResult:
    """Return a problem."""
    return CheckResult(name=name, state="problem", found=found, advice=advice)


def counted(number: int, noun: str) -> str:
    """Return `no problems`, `1 problem` or `2 problems`."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
