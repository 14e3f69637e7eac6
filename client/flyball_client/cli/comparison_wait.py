"""Waiting for a comparison that the planner was asked for, with a line of progress on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from flyball_client.api.errors import PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient
from flyball_wire.closed_loop import ComparisonRequest, ComparisonView

POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Waited:
    """How waiting ended.

    Attributes:
        comparison: as it stood at the end.
        problem: why it is not whole; None: it is.
    """

    comparison: ComparisonView
    problem: str | None


class ProgressLine:
    """One line on stderr that is written over, where stderr is a terminal; else written once."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._length = 0

    def show(self, text: str) -> None:
        """Show this in the place of what stood there."""
        if self._is_terminal:
            print(f"\r{text:<{self._length}}", end="", file=sys.stderr, flush=True)
        elif not self._length:
            print(text, file=sys.stderr, flush=True)
        self._length = len(text)

    def clear(self) -> None:
        """Leave an empty line behind, where there is one to be wiped."""
        if self._is_terminal and self._length:
            print(f"\r{'':<{self._length}}\r", end="", file=sys.stderr, flush=True)


def wait_for_comparison(
    planner: PlannerClient,
    job_id: str,
    num_pairs: int,
    *,
    timeout_s: float,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Waited:
    """Ask for a comparison and wait until it is over, or for so long.

    A planner that is away for a while is waited for too.

    Raises:
        PlannerError: it cannot be asked for.
        KeyboardInterrupt: Ctrl-C; that the comparison goes on has been said on stderr.
    """
    deadline_s = now_s() + timeout_s
    line = ProgressLine()
    comparison = planner.put_comparison(job_id, ComparisonRequest(num_pairs=num_pairs))
    try:
        while comparison.state == "running" and now_s() < deadline_s:
            line.show(_progress(comparison))
            sleep(min(POLL_S, max(0.0, deadline_s - now_s())))
            comparison = _look(planner, job_id, comparison, line)
    except KeyboardInterrupt:
        line.clear()
        print(_goes_on(job_id), file=sys.stderr)
        raise
    line.clear()
    return Waited(comparison=comparison, problem=_problem(job_id, comparison, timeout_s))


def _look(
    planner: PlannerClient, job_id: str, known: ComparisonView, line: ProgressLine
) -> ComparisonView:
    try:
        return planner.get_comparison(job_id)
    except PlannerUnavailableError as error:
        line.show(f"comparing: {error}; waiting for it")
        return known


def _progress(comparison: ComparisonView) -> str:
    done = f"{comparison.num_measured_pairs} of {comparison.num_pairs} pairs of steps measured"
    where = "" if comparison.version is not None else ", waiting for the plan to take effect"
    return f"comparing: {done}{where}; Ctrl-C leaves it running"


def _problem(job_id: str, comparison: ComparisonView, timeout_s: float) -> str | None:
    measured = f"{comparison.num_measured_pairs} of {comparison.num_pairs} pairs were measured"
    if comparison.state == "running":
        return f"not over after {timeout_s:g} s, {measured}; {_goes_on(job_id)}"
    if comparison.state == "done":
        return None
    return (
        f"the comparison has ended early, {measured}: another plan came, or its steps could not"
        " be used; ask for it again"
    )


def _goes_on(job_id: str) -> str:
    return f"the comparison goes on; `flyball report {job_id}` shows what it has measured"
