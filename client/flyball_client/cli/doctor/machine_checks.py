"""Checks of the machine that need no GPU: kernel, state folder, records of locked clocks."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from flyball_client.governor.lock_record import FoundRecord, default_state_dir, find_records
from flyball_client.governor.process_watch import ProcessIdentity

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


_ROOTS_STATE_DIR = Path("/run/flyball")
_NO_GOVERNOR = "without it no process can own a GPU's clock, so none is set"


def check_system() -> Iterator[CheckResult]:
    """The kernel's and Python's features that the governor process is made of."""
    if sys.platform != "linux":
        yield CheckResult(
            name="system",
            state="problem",
            found=f"{platform.system()}; clocks of real GPUs are set on Linux only",
            advice="use emulated GPUs here",
        )
        return
    failures = [
        failure
        for failure in (
            _failure_of("memfd_create", lambda: os.close(os.memfd_create("flyball-doctor"))),
            _failure_of("eventfd", lambda: os.close(os.eventfd(0))),
            _failure_of("pidfd_open", lambda: os.close(os.pidfd_open(os.getpid()))),
        )
        if failure is not None
    ]
    yield from failures
    if ProcessIdentity.of(os.getpid()) is None:
        yield CheckResult(
            name="system /proc",
            state="problem",
            found="/proc does not show this process",
            advice=f"mount it; {_NO_GOVERNOR}",
        )
    elif not failures:
        yield CheckResult(
            name="system",
            state="ok",
            found=f"Linux {platform.release()}: memfd_create, eventfd, pidfd_open and /proc work",
        )


def check_state_dir(environ: Mapping[str, str]) -> CheckResult:
    """Return whether the governor can keep its records where it wants to; nothing is made."""
    folder = default_state_dir(environ)
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        found = f"{folder} can be written" if nearest == folder else f"{folder} can be made"
        return CheckResult(name="state folder", state="ok", found=found)
    return CheckResult(
        name="state folder",
        state="problem",
        found=f"{folder} cannot be written: {nearest} does not allow it",
        advice="set FLYBALL_STATE_DIR to a folder of yours on this machine; without one no clock"
        " is set",
    )


def find_all_records(environ: Mapping[str, str]) -> list[FoundRecord]:
    """The records in this user's state folder and in root's, unless the environment names one."""
    folders = [default_state_dir(environ)]
    if not environ.get("FLYBALL_STATE_DIR") and _ROOTS_STATE_DIR not in folders:
        folders.append(_ROOTS_STATE_DIR)
    return [record for folder in folders for record in find_records(folder)]


def check_records(records: Sequence[FoundRecord]) -> Iterator[CheckResult]:
    """Whose rank each locked clock belongs to, and whether somebody will give it back."""
    for record in records:
        holder = record.holder
        # The UUID is a file's name, which anybody may have chosen.
        name = f"record {holder.uuid if holder.uuid.isprintable() else ascii(holder.uuid)}"
        rank = f"{' '.join(holder.rank_name.split())} (process {holder.rank_pid})"
        if record.is_held:
            yield CheckResult(
                name=name,
                state="warning",
                found=f"its clock is set for {rank}, through {holder.control}",
                advice="another rank that is started on this GPU gets no clock; fine while that"
                " one is meant to run, else end it",
            )
        else:
            yield CheckResult(
                name=name,
                state="problem",
                found=f"its clock was left locked for {rank}, whose governor is gone",
                advice="flyball unlock, run as that rank's user, gives it back; so does the next"
                " rank on this GPU",
            )
    if not records:
        yield CheckResult(name="records", state="ok", found="no clock is set or left locked by us")


def _failure_of(feature: str, use: Callable[[], None]) -> CheckResult | None:
    name = f"system {feature}"
    # Without it the kernel's list of processes is looked at, a little later.
    can_do_without = feature == "pidfd_open"
    try:
        use()
    except AttributeError:
        return CheckResult(
            name=name,
            state="problem",
            found=f"this Python ({platform.python_version()}) was built without os.{feature}",
            advice=f"use a Python that has it, as distributions' do; {_NO_GOVERNOR}",
        )
    except OSError as error:
        return CheckResult(
            name=name,
            state="warning" if can_do_without else "problem",
            found=f"the kernel or the container's rules refuse {feature}: {error.strerror}",
            advice="allow it in the container's seccomp rules; until then the end of a rank is"
            " seen up to 0.1 s later"
            if can_do_without
            else f"allow it in the container's seccomp rules; {_NO_GOVERNOR}",
        )
    return None
