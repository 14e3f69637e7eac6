"""Types of the closed loop that cross HTTP: profiling, stragglers, timetables, savings.

As in `wire`, of which this is the second half.
"""

from __future__ import annotations

from dataclasses import dataclass

from flyball_wire.strictness import Sent

# ------------------------------------------------------------------ what clients send


@dataclass(frozen=True, kw_only=True)
class StragglerReport(Sent):
    """A GPU is slower than its profile, or will be; a later report of the rank replaces it.

    Attributes:
        rank: whose GPU it is.
        slowdown: how many times as long its instructions take, at least 1.
        from_time: ISO 8601 with an offset from UTC; null: now.
        until_time: likewise, later than `from_time`; null: until it is withdrawn.
    """

    rank: int
    slowdown: float
    from_time: str | None = None
    until_time: str | None = None


@dataclass(frozen=True, kw_only=True)
class TimetableWindow(Sent):
    """A target that holds for a while.

    Attributes:
        from_time: `22:00`, every day (or on `days`), or ISO 8601 with an offset: once.
        until_time: in the same form; a time of day that is not later is one of the next day.
        target: as in JobRegistration, `power:8000` or `slowdown:0.05`, say.
        days: `mon`, `tue`, ... on which a daily window begins; null: all.
    """

    from_time: str
    until_time: str
    target: str
    days: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Timetable(Sent):
    """Targets by the time of day; outside all windows the job's own target holds.

    Attributes:
        windows: of several that hold at once the first counts.
        timezone: of times of day, an IANA name: `Europe/Berlin`.
    """

    windows: tuple[TimetableWindow, ...]
    timezone: str = "UTC"


@dataclass(frozen=True, kw_only=True)
class ComparisonRequest(Sent):
    """Run some steps at the highest clocks among those on the plan, to measure what it saves.

    Attributes:
        num_pairs: so many steps of either kind, 2 to 10000.
    """

    num_pairs: int


# ------------------------------------------------------------------ what the planner answers


@dataclass(frozen=True, kw_only=True)
class StragglerView:
    """A GPU that is planned as slower than its profile.

    Attributes:
        source: `announced` or `detected`.
        reason: what slows it where that is known: `power`, `thermal`; else `slow`.
        slowdown: how many times as long its instructions take.
        from_time, until_time: ISO 8601, UTC; null: no such end.
        is_in_force: whether the newest plan is made for it.
    """

    rank: int
    source: str
    reason: str
    slowdown: float
    from_time: str | None
    until_time: str | None
    is_in_force: bool


@dataclass(frozen=True, kw_only=True)
class TimetableView:
    """The timetable and what it makes of the target now.

    Attributes:
        target_in_force: what the job is planned for now.
        next_change: when that may change, ISO 8601, UTC; null: never.
    """

    timetable: Timetable | None
    target_in_force: str
    next_change: str | None


@dataclass(frozen=True, kw_only=True)
class ComparisonView:
    """Progress of a comparison.

    Attributes:
        state: `none`, `running`, `done`, or `ended`: another plan came before enough was measured,
            or the steps could not be used.
        version: the plan version that it runs as; null: none yet.
        num_pairs: asked for.
        num_measured_pairs: measured so far by all ranks, as planned.
    """

    state: str
    version: int | None
    num_pairs: int
    num_measured_pairs: int


@dataclass(frozen=True, kw_only=True)
class ProbedPointView:
    """Knowledge of one operating point of one stage during online profiling.

    Attributes:
        time_error_s, energy_error_j: standard errors.
        num_probes: instructions that ran at this clock; 0: interpolated.
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


@dataclass(frozen=True, kw_only=True)
class ProfilingView:
    """Online profiling of a job: how far it is, and what it found and cost.

    Attributes:
        state: `off`, `waiting` (for ranks, or their first steps), `probing`, `finished`,
            `refused`.
        problem: why it was refused; null otherwise.
        num_steps: that it has looked at.
        points: as found, by stage, instruction, chunk and falling frequency; empty before the end.
        blocking_power_w, blocking_power_error_w: per stage, measured; null where it was given,
            or is not known yet.
        slowdown_limit: the cap, as a share.
        largest_slowdown: of a step of probing against the steps at the highest clocks, as a share;
            null: none yet.
        extra_time_s: iteration time that profiling added, measured, s; null: not known.
        extra_energy_j: energy that it added (below zero: it saved some), measured, J; likewise.
        emulated: whether the GPUs are.
    """

    job_id: str
    state: str
    problem: str | None
    num_steps: int
    points: tuple[ProbedPointView, ...]
    blocking_power_w: tuple[float, ...] | None
    blocking_power_error_w: tuple[float, ...] | None
    slowdown_limit: float
    largest_slowdown: float | None
    extra_time_s: float | None
    extra_energy_j: float | None
    emulated: bool


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean of measured steps with its 95 % confidence interval, in the unit of the field.

    Attributes:
        low, high: null where too few steps were measured for an interval.
        num_steps: that it is made of; of a comparison those of the smaller side.
    """

    mean: float
    low: float | None
    high: float | None
    num_steps: int


@dataclass(frozen=True, kw_only=True)
class SavingView:
    """Measured effect of one plan version against a measured baseline.

    Attributes:
        policy, target: that it was planned with.
        time_s, energy_j: of an iteration on the plan, measured; null: no step was, or not its
            energy.
        baseline_time_s, baseline_energy_j: at the highest clocks, measured; null: never measured.
        baseline: how that was measured: `interleaved` with the plan's steps; `apart`, in the
            nearest steps of the job at default or highest clocks (drift in between counts as
            saving); `itself`: the version is all at the highest clocks; or `none`.
        slowdown_percent, saving_percent: of the plan against that baseline; null without one.
        saved_j: in `num_steps` steps, J; null without a baseline.
        num_steps: measured on the plan by all ranks, and counted.
        num_left_out: of the version's steps: not run as planned, of several versions, not posted by
            all ranks, or directly after a change of version.
        predicted_time_s, predicted_energy_j, predicted_saving_percent: the planner's.
    """

    version: int
    policy: str
    target: str
    time_s: Estimate | None
    energy_j: Estimate | None
    baseline_time_s: Estimate | None
    baseline_energy_j: Estimate | None
    baseline: str
    slowdown_percent: Estimate | None
    saving_percent: Estimate | None
    saved_j: Estimate | None
    num_steps: int
    num_left_out: int
    predicted_time_s: float
    predicted_energy_j: float
    predicted_saving_percent: float


@dataclass(frozen=True, kw_only=True)
class ReportView:
    """Measurements of a job so far.

    Attributes:
        emulated: whether its GPUs are: then all that is called measured was measured there.
        num_steps: of the job, measured by all ranks, on whatever clocks.
        time_s, energy_j: of all these steps together, measured; energy null where a rank could
            not read it.
        saved_j: by all versions that have a measured baseline, J; null where none has. The
            versions' bounds are added up, as they share baselines.
        profiling_time_s, profiling_energy_j: that online profiling added, measured; null: none was,
            or its energy could not be read.
        versions: per plan version that was run, rising; those of profiling are not among them.
    """

    job_id: str
    emulated: bool
    num_ranks: int
    num_steps: int
    time_s: float
    energy_j: float | None
    saved_j: Estimate | None
    profiling_time_s: float | None
    profiling_energy_j: float | None
    versions: tuple[SavingView, ...]
