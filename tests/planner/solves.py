"""Solves for planning processes, found there by their names: quick, endless, deadly."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tests.planner.sample_plans import frequency_plan

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.errors import PlanningError, TargetUnreachableError
from flyball_server.planning.planner import PlanRequest
from flyball_wire.plans.plan import Plan

# Longer than any test waits.
ENDLESS_S = 600.0


def is_there(pid: int) -> bool:
    """Return whether the process runs; one that has ended and is not reaped yet does not.

    Its first thread may have ended while others, and what it had opened, are still there.
    """
    try:
        states = [
            (task / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{pid}/task").iterdir()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}").exists()
    return states != ["Z"]


def niceness() -> int:
    """Of the process that solves."""
    return os.nice(0)


def refuse(field: str) -> None:
    """Refuse a request, as the planner does."""
    raise TargetUnreachableError("not to be met", field=field, nearest_target="deadline:1.68")


def fail() -> None:
    """Fail as nobody has foreseen."""
    raise ZeroDivisionError("by nothing")


def end_by(number: int) -> None:
    """End the process that solves by a signal."""
    os.kill(os.getpid(), number)
    time.sleep(ENDLESS_S)


def leave_pid_and_wait(file: Path) -> None:
    """Say in which process, and go on without an end."""
    _leave_pid(file)
    time.sleep(ENDLESS_S)


def ask_on(folder: Path) -> None:
    """Go on without an end, but ask whether to; leave a file while it does, and one at its end."""
    (folder / "asking").touch()
    try:
        while True:
            cancellation_point()
            time.sleep(0.005)
    finally:
        (folder / "ended").touch()


def pid_in(file: Path) -> int | None:
    """Return what `leave_pid_and_wait` left; None: nothing yet."""
    return int(file.read_text(encoding="utf-8")) if file.exists() else None


@dataclass(frozen=True)
class Planner:
    """A planner that goes on without an end for target `fastest`, and ends for `power:1`.

    Attributes:
        folder: there is the file `solving` with the process that goes on, and, as a planning
            ends its process, a file more.
        num_deaths: how many plannings end their process; the next ones answer.
        asks: whether the one without an end asks if it is to go on, as `ask_on` does.
    """

    folder: Path
    num_deaths: int = 0
    asks: bool = False

    @property
    def solving(self) -> Path:
        """The file with the process that goes on without an end."""
        return self.folder / "solving"

    def __call__(self, request: PlanRequest) -> Plan:
        """Answer, or not."""
        if request.options.target == "fastest" and self.asks:
            ask_on(self.folder)
        if request.options.target == "fastest":
            leave_pid_and_wait(self.solving)
        if request.options.target == "power:1":
            raise PlanningError("too little", field="target")
        deaths = len(list(self.folder.glob("death-*")))
        if request.options.target == "power:9" and deaths < self.num_deaths:
            (self.folder / f"death-{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return frequency_plan(num_stages=request.profile.num_stages)


def _leave_pid(file: Path) -> None:
    part = file.with_suffix(".part")
    part.write_text(str(os.getpid()), encoding="utf-8")
    part.rename(file)
