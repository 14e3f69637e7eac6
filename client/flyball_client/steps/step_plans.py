"""Questions of a rank to its helper about a step, and the answer: the step's clocks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from operator import eq
from typing import NamedTuple, Protocol

from flyball_client.steps.agreement import Coupling
from flyball_pipeline.work import StepWork


class PlanKey(NamedTuple):
    """A version of a plan; a restored planner may give a version's number to another plan."""

    version: int
    plan_id: str | None


class StepDeadlines(NamedTuple):
    """Times of the slowest pipelines: which clocks keep them?"""

    step: int
    #: Per meeting, the time of its segment at the highest clocks, s; empty: the pipeline's own,
    #: since it is the only one.
    greatest_s: tuple[float, ...] = ()
    #: Per stage, the clock in force as the step before ends, MHz; empty: not known.
    in_force_mhz: tuple[int, ...] = ()
    #: Least time from there to the step's begin on any rank of the pipeline, s.
    gap_s: float = 0.0
    #: Time of the last segment in the slowest pipeline, as the caller knows it, s; 0: it does not.
    slowest_s: float = 0.0


class StepLoad(NamedTuple):
    """Work of a step: how long does the pipeline take at its highest clocks?

    With `deadlines`: which clocks keep them?
    """

    step: int
    #: Plan that the step belongs to.
    plan: PlanKey
    work: StepWork
    #: Per stage, the time of its slowest GPU over what the plan assumes; further stages: 1.
    slowness: tuple[float, ...]
    #: Share by which instructions below the highest clock took longer than planned, at most.
    caution: float
    #: Where data-parallel ranks wait for each other; None: as in the job's other steps.
    coupling: Coupling | None = None
    #: Of the only pipeline.
    deadlines: StepDeadlines | None = None


class StepPlan(NamedTuple):
    """Clocks of one step on this rank."""

    step: int
    #: Per instruction, MHz; empty: the step has no plan of its own.
    clocks_mhz: tuple[int, ...] = ()
    #: Share of the step's deadline that the pipeline would wait at its highest clocks.
    slack: float = 0.0
    #: Energy that this rank saves by them, net of waiting, J.
    saved_j: float = 0.0
    #: Slowness of this rank's stage that its times contain.
    slowness: float = 1.0
    #: Time of the settled instructions at the highest clock, and of those below it, s. Settled is
    #: one at the clock of the one before, and with `counts_changes` every one: its clock is in
    #: force from its begin on, nearly.
    highest_s: float = 0.0
    lower_s: float = 0.0
    counts_changes: bool = False

    def settled_s(self, times_s: Iterable[float], highest_mhz: int) -> tuple[float, float]:
        """Return the time of settled instructions at the highest clock, and of those below it, s.

        Args:
            times_s: Time of each instruction, s.
            highest_mhz: Highest clock of the GPU, MHz.
        """
        mhz = self.clocks_mhz
        settled = repeat(True, len(mhz)) if self.counts_changes else map(eq, mhz, (0, *mhz))
        sums_s = [0.0, 0.0]
        for is_settled, clock_mhz, time_s in zip(settled, mhz, times_s, strict=True):
            if is_settled:
                sums_s[clock_mhz < highest_mhz] += time_s
        return sums_s[0], sums_s[1]


class AsksForSteps(Protocol):
    """Rank that asks for its steps' clocks."""

    def step_timed(self, step: int, times_s: tuple[float, ...]) -> None:
        """Hand over the time of each segment at the highest clocks, s; empty: not known."""
        ...

    def step_planned(self, plan: StepPlan) -> None:
        """Hand over a step's plan."""
        ...
