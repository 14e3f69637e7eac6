"""What a rank asks its helper about a step, and what it gets: times, and the step's clocks."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from flyball_pipeline.work import StepWork


class StepLoad(NamedTuple):
    """Work of a step: how long does the pipeline take at its highest clocks?"""

    step: int
    #: Version of the plan that the step belongs to.
    version: int
    work: StepWork
    #: Per stage, the time of its slowest GPU over what the plan assumes.
    slowness: tuple[float, ...]


class StepDeadlines(NamedTuple):
    """Times of the slowest pipelines: which clocks keep them?"""

    step: int
    #: Per meeting, the time of its segment at the highest clocks, s.
    greatest_s: tuple[float, ...]
    #: Per stage, the clock in force as the step before ends, MHz; empty: not known.
    in_force_mhz: tuple[int, ...]


class StepPlan(NamedTuple):
    """Clocks of one step on this rank."""

    step: int
    #: Per instruction, MHz; empty: the step has no plan of its own.
    clocks_mhz: tuple[int, ...] = ()
    #: Share of the step's deadline that the pipeline would wait at its highest clocks.
    slack: float = 0.0
    #: Time of this rank's instructions at these clocks, s.
    planned_s: float = 0.0
    #: Energy that this rank saves by them, net of waiting, J.
    saved_j: float = 0.0
    #: Slowness of this rank's stage that it counts.
    slowness: float = 1.0


class AsksForSteps(Protocol):
    """Rank that asks for its steps' clocks."""

    def step_timed(self, step: int, times_s: tuple[float, ...]) -> None:
        """Hand over the time of each segment at the highest clocks, s; empty: not known."""
        ...

    def step_planned(self, plan: StepPlan) -> None:
        """Hand over a step's plan."""
        ...
