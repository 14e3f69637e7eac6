"""Types of the closed loop that cross HTTP: profiling, stragglers, timetables, savings."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from flyball_wire.energy_factors import EnergyFactors
from flyball_wire.strictness import Sent


class Weekday(StrEnum):
    """Weekday, in the order of the week."""

    MON = "mon"
    TUE = "tue"
    WED = "wed"
    THU = "thu"
    FRI = "fri"
    SAT = "sat"
    SUN = "sun"


class StragglerSource(StrEnum):
    """Origin of a straggler: announced by someone, or detected from measurements."""

    ANNOUNCED = "announced"
    DETECTED = "detected"


class StragglerReason(StrEnum):
    """Cause of a slowdown: a power limit, a thermal limit, or unknown (`slow`)."""

    SLOW = "slow"
    POWER = "power"
    THERMAL = "thermal"


class ComparisonState(StrEnum):
    """State of a comparison.

    `ended`: another plan came before enough was measured, or the steps could not be used.
    """

    NONE = "none"
    RUNNING = "running"
    DONE = "done"
    ENDED = "ended"


class ProfilingState(StrEnum):
    """State of online profiling; `waiting`: for ranks, or their first steps."""

    OFF = "off"
    WAITING = "waiting"
    PROBING = "probing"
    FINISHED = "finished"
    REFUSED = "refused"


class BaselineOrigin(StrEnum):
    """Origin of a measured baseline.

    `interleaved` with the plan's steps. `apart`: in the nearest steps of the job at default or
    highest clocks; drift in between counts as saving. `itself`: the version is all at the highest
    clocks. `none`: nothing was measured.
    """

    NONE = "none"
    INTERLEAVED = "interleaved"
    APART = "apart"
    ITSELF = "itself"


# ------------------------------------------------------------------ what clients send


@dataclass(frozen=True, kw_only=True)
class StragglerAnnouncement(Sent):
    """Announcement of a GPU that is, or will be, slower than its profile.

    A later announcement for the same rank replaces it.

    Attributes:
        rank: rank of the GPU.
        slowdown: slowdown factor of its instructions, at least 1.
        from_time: begin, ISO 8601 with an offset from UTC; null: now.
        until_time: end in the same form, later than `from_time`; null: until it is withdrawn.
    """

    rank: int
    slowdown: float
    from_time: str | None = None
    until_time: str | None = None


@dataclass(frozen=True, kw_only=True)
class TimetableWindow(Sent):
    """Target for a window of time.

    Attributes:
        from_time: begin: `22:00` every day (or on `days`), or ISO 8601 with an offset, once.
        until_time: end in the same form; a time of day that is not later is one of the next day.
        target: target as in PlanOptions, for example `power:8000` or `slowdown:0.05`.
        days: weekdays on which a daily window begins; null: all.
    """

    from_time: str
    until_time: str
    target: str
    days: tuple[Weekday, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Timetable(Sent):
    """Targets by the time of day; outside all windows the job's own target applies.

    Attributes:
        windows: windows of time; if several apply at once, the first takes precedence.
        timezone: IANA name of the time zone of times of day, as `Europe/Berlin`.
    """

    windows: tuple[TimetableWindow, ...]
    timezone: str = "UTC"


@dataclass(frozen=True, kw_only=True)
class ComparisonRequest(Sent):
    """Request to alternate steps on the plan with steps at the highest clocks.

    Attributes:
        num_pairs: number of steps of either kind, 2 to 10000.
    """

    num_pairs: int


# ------------------------------------------------------------------ what the planner answers


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A GPU that is slower than its profile.

    Attributes:
        slowdown: slowdown factor: measured time of its instructions over the profile's.
        from_time, until_time: begin and end, ISO 8601, UTC; null: unlimited.
        is_planned: true if the newest plan is made for it.
    """

    rank: int
    source: StragglerSource
    reason: StragglerReason
    slowdown: float
    from_time: str | None
    until_time: str | None
    is_planned: bool


@dataclass(frozen=True, kw_only=True)
class TimetableStatus:
    """Timetable of a job with its current target.

    Attributes:
        current_target: target of the newest plan.
        next_change: time of the next possible change of target, ISO 8601, UTC; null: none.
    """

    timetable: Timetable | None
    current_target: str
    next_change: str | None


@dataclass(frozen=True, kw_only=True)
class MissedTarget:
    """A target that a job's plans met until conditions changed, as with a straggler.

    Attributes:
        target: target that no plan meets now; it is planned for again when conditions change.
        nearest: target of the nearest plan, which the job runs instead.
    """

    target: str
    nearest: str

    @property
    def text(self) -> str:
        """Line for people."""
        return (
            f"target {self.target} cannot be met any more; the job runs the nearest plan,"
            f" {self.nearest}"
        )


@dataclass(frozen=True, kw_only=True)
class ComparisonStatus:
    """Progress of a comparison.

    Attributes:
        version: plan version that it runs as; null: none yet.
        num_pairs: requested number of pairs.
        num_measured_pairs: number of pairs that all ranks have measured as planned.
    """

    state: ComparisonState
    version: int | None = None
    num_pairs: int = 0
    num_measured_pairs: int = 0


@dataclass(frozen=True, kw_only=True)
class ProbedPoint:
    """Operating point of one stage as measured by online profiling.

    Attributes:
        energy_j: energy in J, divided between a stage's kinds by equal power at the highest clock.
        time_error_s, energy_error_j: standard errors.
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
        problem: reason of the refusal; null otherwise.
        num_steps: number of steps that were evaluated.
        points: operating points by stage, instruction, chunk and falling frequency; empty before
            the end.
        blocking_power_w, blocking_power_error_w: measured blocking power per stage and its
            standard error; null: given, or not known yet.
        largest_slowdown: largest slowdown of a probing step against the steps at the highest
            clocks, as a share; null: none yet.
        extra_time_s: iteration time added by profiling, measured, s; null: not known.
        extra_energy_j: energy added by profiling (below zero: saved), measured, J; null: not
            known.
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


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean of measured steps with its 95 % confidence interval, in the unit of the field.

    Attributes:
        low, high: bounds of the interval; null: too few steps were measured.
        num_steps: number of measured steps; of a comparison those of the smaller side.
    """

    mean: float
    low: float | None
    high: float | None
    num_steps: int


class HeadlineTone(StrEnum):
    """Tone of a headline: energy saved, saved at the price of time, or lost."""

    GAIN = "gain"
    TRADE = "trade"
    LOSS = "loss"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """Saving of a job in one line: of steps on a plan only, with the time that it takes.

    Attributes:
        text: saving and time, such as `25.1 % less energy at 9.1 % more time`.
        time_text: the part of `text` about time.
        is_measured: true: measured, on the newest version with counted steps; false: predicted.
        caveats: limits of the comparison, a sentence each, such as a baseline of another time or
            of other GPUs.
    """

    text: str
    time_text: str
    tone: HeadlineTone
    is_measured: bool
    caveats: tuple[str, ...] = ()


class DeviationKind(StrEnum):
    """Reason why steps did not run as planned."""

    OVERRUN = "overrun"
    CAPPED = "capped"
    UNPLANNED = "unplanned"
    CLOCK_LOST = "clock-lost"
    UNSETTLED = "unsettled"
    MISSING = "missing"
    DEFAULT_CLOCKS = "default-clocks"


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """Steps that did not run as planned, for one reason, and what they did to the figures.

    Attributes:
        kind: `overrun`: an emulated computation took longer than its profile; `capped`: power or
            heat held a clock down; `unplanned`: instructions that the plan does not have;
            `clock-lost`: another program set a clock; `unsettled`: the first step after a change
            of version, or one of several versions; `missing`: not posted by all ranks;
            `default-clocks`: no plan was in force.
        num_steps: number of these steps.
        num_events: number of overruns, readings or instructions in them; of other kinds the steps.
        is_counted: true if these steps are in the figures beside it.
        text: explanation in a sentence or two.
    """

    kind: DeviationKind
    num_steps: int
    num_events: int
    is_counted: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class MeasuredSavings:
    """Measured effect of one plan version against a measured baseline.

    Attributes:
        time_s, energy_j: measured time and energy of an iteration on the plan; null: not measured.
        baseline_time_s, baseline_energy_j: the same at the highest clocks; null: never measured.
        baseline: origin of the baseline.
        slowdown_percent, saving_percent: slowdown and saving against that baseline; null: no
            baseline.
        saved_j: energy saved in `num_steps` steps in J; null: no baseline.
        num_steps: number of steps measured on the plan by all ranks, and counted.
        num_left_out: number of other steps of the version: not run as planned, of several
            versions, not posted by all ranks, or directly after a change of version.
        deviations: steps that did not run as planned, by reason; those left out are all there.
        caveats: limits of the comparison with the baseline, a sentence each.
    """

    version: int
    time_s: Estimate | None = None
    energy_j: Estimate | None = None
    baseline_time_s: Estimate | None = None
    baseline_energy_j: Estimate | None = None
    baseline: BaselineOrigin = BaselineOrigin.NONE
    slowdown_percent: Estimate | None = None
    saving_percent: Estimate | None = None
    saved_j: Estimate | None = None
    num_steps: int = 0
    num_left_out: int = 0
    deviations: tuple[Deviation, ...] = ()
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReserveChoice:
    """Reason and price of the reserve that the planner chose for a plan.

    Attributes:
        jitter_percent: standard deviation of a single instruction's time as profiled, %.
        time_error_percent: standard error of the profiled times, %.
        slowdown_percent, slowdown_without_percent: mean iteration time of the plan, and of one
            without a reserve, over that at the highest clocks, all with this noise and each
            relative to what it is without, %; predicted.
        cost_points: energy that the reserve costs, in points of the plan's saving.
    """

    jitter_percent: float
    time_error_percent: float
    slowdown_percent: float
    slowdown_without_percent: float
    cost_points: float


@dataclass(frozen=True, kw_only=True)
class ComparedPlan:
    """A plan to compare another one with, predicted.

    Attributes:
        name: how it was made: `baseline`, `envelope, balanced`, `constant`, ...
    """

    name: str
    iteration_time_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True)
class VersionSavings(MeasuredSavings):
    """Measured and predicted effect of one plan version.

    Attributes:
        policy, target: policy and target that it was planned with.
        predicted_time_s, predicted_energy_j, predicted_saving_percent: the planner's prediction.
        compared: predicted plans without a clock change, as in PredictedIteration.
    """

    policy: str
    target: str
    predicted_time_s: float
    predicted_energy_j: float
    predicted_saving_percent: float
    compared: tuple[ComparedPlan, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """Measurements of a job so far.

    Attributes:
        emulated: true if some of its GPUs are emulated; all measurements are then emulated.
        num_ranks: number of ranks of a complete step.
        num_steps: number of steps measured by all ranks, at any clocks.
        time_s, energy_j: measured time and energy of all these steps; energy null: a rank could
            not read it.
        saved_j: energy saved by all versions with a measured baseline in J; null: none has one. The
            versions' bounds are added up, as they share baselines.
        profiling_time_s, profiling_energy_j: measured time and energy added by online profiling;
            null: not profiled online, or not readable.
        versions: savings of each plan version that was run, rising, without those of profiling.
        num_unknown_steps: number of other steps, in which a rank ran a plan version that the
            planner's database does not have, since it was restored to an older state.
        deviations: steps at default clocks.
        headline: saving in one line; null: nothing is measured and nothing predicted.
        saved_of_j: energy that the steps of `saved_j` would have taken at the highest clocks, J;
            null: `saved_j` is.
        factors: price and emissions of energy, by the planner's settings.
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
    versions: tuple[VersionSavings, ...]
    num_unknown_steps: int = 0
    deviations: tuple[Deviation, ...] = ()
    headline: Headline | None = None
    saved_of_j: float | None = None
    factors: EnergyFactors = field(default_factory=EnergyFactors)


@dataclass(frozen=True, kw_only=True)
class RecordedRuns:
    """A job's measurements of each version of its plan, in the format of `flyball replay`.

    Attributes:
        document: recorded runs, one a version: docs/recorded-runs.schema.json.
        left_out: versions with measured steps that are not in it, a line each with the reason.
    """

    job_id: str
    document: dict[str, Any]
    left_out: tuple[str, ...] = ()
