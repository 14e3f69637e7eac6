"""Result of one check: fine or not, and if not, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

State = Literal["ok", "warning", "problem"]

_UNKNOWN_ADVICE = "see the system's log; if it says nothing, report this line"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check's result, all texts in one line.

    Attributes:
        name: of the check, `GPU 0 clock`.
        state: `ok`; `warning`: a run works, but look at it; `problem`: clocks cannot be set,
            energy not be measured, or a clock stayed locked.
        found: what was found.
        advice: what to do; empty only where it is `ok`.

    Raises:
        ValueError: the state is another, or there is no advice where there must be some.
    """

    name: str
    state: State
    found: str
    advice: str = ""

    def __post_init__(self) -> None:
        if self.state not in get_args(State):
            raise ValueError(f"state must be one of {', '.join(get_args(State))}")
        if self.state != "ok" and not self.advice:
            raise ValueError(f"{self.name}: advice must say what to do about a {self.state}")

    @classmethod
    def of_error(
        cls, name: str, error: Exception, advice: str = "", *, state: State = "problem"
    ) -> CheckResult:
        """An error's text: what happened and, behind its first semicolon, what to do."""
        text = " ".join(str(error).split()) or type(error).__name__
        found, _, told = text.partition("; ")
        both = "; ".join(part for part in (told, advice) if part)
        return cls(name=name, state=state, found=found, advice=both or _UNKNOWN_ADVICE)


def as_text(results: Sequence[CheckResult]) -> str:
    """A table with the advice below each line, and the sum at the end."""
    width = max((len(result.name) for result in results), default=0)
    lines: list[str] = []
    for result in results:
        lines.append(f"{result.state:<8} {result.name:<{width}}  {result.found}")
        if result.advice:
            lines.append(f"{'':<8} {'':<{width}}  -> {result.advice}")
    counts = f"{_count(results, 'problem')}, {_count(results, 'warning')}"
    return "\n".join([*lines, "", counts])


def _count(results: Sequence[CheckResult], state: State) -> str:
    number = sum(result.state == state for result in results)
    return f"{number or 'no'} {state}{'' if number == 1 else 's'}"
