"""Types of online profiling that cross HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ProfilingState(StrEnum):
    """State of online profiling; `waiting`: for ranks, or their first steps."""

    OFF = "off"
    WAITING = "waiting"
    PROBING = "probing"
    FINISHED = "finished"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class ProbedPoint:
    """Operating point of one stage as measured by online profiling.

    Attributes:
        energy_j: energy in J; the kinds of a stage are assumed to draw equal power at the highest
            clock.
        time_error_s: standard error of `time_s` in s.
        energy_error_j: standard error of `energy_j` in J.
        num_probes: number of instructions that ran at this clock; 0: interpolated.
        jitter: standard deviation of a single instruction's time, as a share of `time_s`.
    """

    stage: int
    instruction: str
    chunk: int
    frequency_mhz: int
    time_s: float
    time_error_s: float
    energy_j: float
    energy_error_j: float
    num_probes: int
    jitter: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ProfilingResult:
    """Progress or outcome of online profiling.

    Attributes:
        problem: reason for the refusal; null: not refused.
        num_steps: number of evaluated steps.
        points: operating points by stage, instruction, chunk and falling frequency; empty before
            the end.
        blocking_power_w: measured blocking power per stage in W; null: given, or not known yet.
        blocking_power_error_w: standard error of `blocking_power_w` in W; null: as there.
        largest_slowdown: largest slowdown of a probing step against the steps at the highest
            clocks, as a share; null: none yet.
        extra_time_s: measured iteration time added by profiling in s; null: unknown.
        extra_energy_j: measured energy added by profiling in J (negative: saved); null: unknown.
    """

    state: ProfilingState
    problem: str | None = None
    num_steps: int = 0
    points: tuple[ProbedPoint, ...] = ()
    blocking_power_w: tuple[float, ...] | None = None
    blocking_power_error_w: tuple[float, ...] | None = None
    largest_slowdown: float | None = None
    extra_time_s: float | None = None
    extra_energy_j: float | None = None


@dataclass(frozen=True, kw_only=True)
class ProfilingStatus(ProfilingResult):
    """Online profiling of a job.

    Attributes:
        slowdown_limit: largest slowdown allowed while profiling, as a share.
        emulated: true if the GPUs are emulated.
    """

    job_id: str
    slowdown_limit: float
    emulated: bool
