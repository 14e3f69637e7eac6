"""Types of the closed loop that cross HTTP: stragglers, timetables, comparisons, savings."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from flyball_profiles.stage_profile import EnergyScope
from flyball_wire.energy_factors import EnergyFactors
from flyball_wire.orders import OrderAdvice
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


class BaselineOrigin(StrEnum):
    """Origin of a measured baseline.

    `interleaved`: measured between the plan's steps. `apart`: measured in the nearest steps of the
    job at default or highest clocks; drift in between counts as saving. `itself`: the version runs
    at the highest clocks only. `none`: not measured.
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
        from_time: start, ISO 8601 with an offset from UTC; null: now.
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
        from_time: start: `22:00` every day (or on `days`), or ISO 8601 with an offset, once.
        until_time: end in the same form; a time of day not after `from_time` is on the next day.
        target: target as in PlanOptions, for example `power:8000` or `slowdown:5%`.
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
        timezone: IANA time zone of the times of day, such as `Europe/Berlin`.
    """

    windows: tuple[TimetableWindow, ...]
    timezone: str = "UTC"


@dataclass(frozen=True, kw_only=True)
class ComparisonRequest(Sent):
    """Request to alternate steps on the plan with steps at the highest clocks.

    Attributes:
        num_pairs: number of steps of each kind, 2 to 10000.
    """

    num_pairs: int


# ------------------------------------------------------------------ what the planner answers


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A GPU that is slower than its profile.

    Attributes:
        slowdown: slowdown factor: measured time of its instructions over the profile's.
        from_time: start, ISO 8601, UTC; null: unlimited.
        until_time: end, ISO 8601, UTC; null: unlimited.
        is_planned: true if the newest plan takes it into account.
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
        target: target that no plan meets now; planning retries it when conditions change.
        nearest: target of the nearest plan, which the job runs instead.
    """

    target: str
    nearest: str

    @property
    def text(self) -> str:
        """Line for people."""
        return f"target {self.target} cannot be met; the job runs the nearest plan, {self.nearest}"


@dataclass(frozen=True, kw_only=True)
class ComparisonStatus:
    """Progress of a comparison.

    Attributes:
        version: plan version of the comparison; null: none yet.
        num_pairs: requested number of pairs.
        num_measured_pairs: number of pairs that all ranks have measured as planned.
    """

    state: ComparisonState
    version: int | None = None
    num_pairs: int = 0
    num_measured_pairs: int = 0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean of measured steps with its 95 % confidence interval, in the unit of the field.

    Attributes:
        low: lower bound of the interval; null: too few measured steps.
        high: upper bound of the interval; null: too few measured steps.
        num_steps: number of measured steps; in a comparison, on the smaller side.
    """

    mean: float
    low: float | None
    high: float | None
    num_steps: int

    @property
    def includes_zero(self) -> bool:
        """Return whether zero lies in the interval: no measurable change."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high


class HeadlineTone(StrEnum):
    """Tone of a headline: energy saved, saved at the cost of time, lost, or no sure change."""

    GAIN = "gain"
    TRADE = "trade"
    LOSS = "loss"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """Saving of a job in one line, on steps with a plan, and its cost in time.

    Attributes:
        text: saving and time, measured ones with their 95 % intervals, such as
            `25.1 % less energy (24.9 to 25.3) at 9.1 % more time (8.9 to 9.3)`. A change whose
            interval includes zero is no measurable change.
        time_text: the part of `text` about time, without its interval.
        is_measured: true: measured, on the newest version with counted steps; false: predicted.
        caveats: limits of the comparison, a sentence each, such as a baseline measured at another
            time or on other GPUs.
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
    NO_CLOCKS = "no-clocks"
    UNSETTLED = "unsettled"
    MISSING = "missing"
    DEFAULT_CLOCKS = "default-clocks"


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """Steps that did not run as planned for one reason, and their effect on the figures.

    Attributes:
        kind: `overrun`: an emulated computation took longer than its profile; `capped`: power or
            heat held a clock down; `unplanned`: instructions were not in the plan; `clock-lost`:
            another program set a clock; `no-clocks`: a rank set no clocks; `unsettled`: the first
            step after a change of version, or a step on several versions; `missing`: not posted by
            all ranks; `default-clocks`: no plan was in force.
        num_steps: number of these steps.
        num_events: number of overruns, readings or instructions in these steps; for other kinds
            the number of steps.
        is_counted: true if the job's figures include these steps.
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
        time_s: measured iteration time on the plan in s; null: not measured.
        energy_j: measured energy of an iteration on the plan in J; null: not measured.
        baseline_time_s: measured iteration time at the highest clocks in s; null: not measured.
        baseline_energy_j: measured energy of an iteration at the highest clocks in J; null: not
            measured.
        baseline: origin of the baseline.
        slowdown_percent: slowdown against that baseline in %; null: no baseline.
        saving_percent: energy saved against that baseline in %; null: no baseline.
        saved_j: energy saved in `num_steps` steps in J; null: no baseline.
        num_steps: number of counted steps, measured on the plan by all ranks.
        num_left_out: number of other steps of the version: not run as planned, of several
            versions, not posted by all ranks, or directly after a change of version.
        deviations: steps that did not run as planned, by reason, including those left out.
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


class DelaySource(StrEnum):
    """Origin of a time: given as an option, or measured in the job's own steps."""

    GIVEN = "given"
    MEASURED = "measured"


@dataclass(frozen=True, kw_only=True)
class PlannedDelays:
    """Times beside the instructions that a job's newest plan counts.

    Attributes:
        tail_ms: part of an iteration outside its instructions, ms.
        tail_source: origin of `tail_ms`; null: neither given nor measured, it is 0.
        transfer_ms: time of a transfer between each pair of neighbouring stages, ms; empty: none.
        transfer_source: origin of `transfer_ms`; null: as in `tail_source`.
        jitter_percent: measured jitter that the reserve is chosen from, as a mean over the
            instructions, %; null: not measured, or not used.
        up_ms, down_ms: measured median delay of a change to a higher and to a lower clock, ms;
            null: not certain, or not used.
        gpus_at_once: largest number of GPUs that one stage has in one node, whose calls queue;
            null: not given, not all ranks have registered, or it has no effect.
        gpus_in_node: largest number of GPUs that the job has in one node, whose calls queue; null:
            likewise, or those of one stage only.
        num_steps: number of steps that were measured; null: none.
        version: plan version of these steps; null: none.
        text: all this in one line.
    """

    tail_ms: float
    tail_source: DelaySource | None
    transfer_ms: tuple[float, ...]
    transfer_source: DelaySource | None
    jitter_percent: float | None
    up_ms: float | None
    down_ms: float | None
    gpus_at_once: int | None
    gpus_in_node: int | None
    num_steps: int | None
    version: int | None
    text: str


@dataclass(frozen=True, kw_only=True)
class ReserveChoice:
    """Reason and cost of the reserve that the planner chose for a plan.

    Attributes:
        jitter_percent: standard deviation of a single instruction's time as profiled, %.
        time_error_percent: standard error of the profiled times, %.
        slowdown_percent: predicted % by which this noise lengthens the plan's mean iteration, in
            addition to its effect at the highest clocks.
        slowdown_without_percent: the same of a plan without a reserve.
        cost_points: energy cost of the reserve, in percentage points of the plan's saving.
    """

    jitter_percent: float
    time_error_percent: float
    slowdown_percent: float
    slowdown_without_percent: float
    cost_points: float


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """Reserve of a plan.

    Attributes:
        share: reserve as a share, 0 to 0.5; as in JobRegistration.
        choice: reason and cost of a reserve that the planner chose; null: it was given, or the
            scatter of the profiled times is unknown.
    """

    share: float = 0.0
    choice: ReserveChoice | None = None


NO_RESERVE = Reserve()


@dataclass(frozen=True, kw_only=True)
class ComparedPlan:
    """Prediction of a plan for comparison.

    Attributes:
        name: policy, such as `baseline`, `constant` or `envelope, balanced`.
    """

    name: str
    iteration_time_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True)
class VersionSavings(MeasuredSavings):
    """Measured and predicted effect of one plan version.

    Attributes:
        policy: policy of the plan.
        target: target of the plan.
        predicted_time_s: predicted iteration time in s.
        predicted_energy_j: predicted energy of an iteration in J.
        predicted_saving_percent: predicted saving in %.
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
        num_ranks: number of ranks in a complete step.
        num_steps: number of steps measured by all ranks, at any clocks.
        time_s: measured time of all these steps in s.
        energy_j: measured energy of all these steps in J; null: a rank could not read it.
        saved_j: energy saved by all versions with a measured baseline in J; null: none has one. The
            bounds are sums over the versions, which share baselines.
        num_profiling_steps: number of steps of online profiling; null: not profiled online.
        profiling_time_s: measured time added by online profiling in s; null: not profiled online.
        profiling_energy_j: measured energy added by online profiling in J; null: not profiled
            online, or not readable.
        versions: savings of each plan version that was run, in ascending order, without versions
            for profiling.
        num_unknown_steps: number of further steps, in which a rank ran a plan version that is not
            in the planner's database, since that was restored to an older state.
        deviations: steps without a plan.
        notes: remarks for people: ranks that set no clocks, energies that are not comparable.
        energy_scope: what the energy counters of all ranks count; null: not known, or several.
        headline: saving in one line; null: nothing is measured and nothing predicted.
        saved_of_j: energy that the steps of `saved_j` would have taken at the highest clocks, J;
            null: `saved_j` is.
        factors: price and emissions of energy, by the planner's settings.
        delays: times beside the instructions; null: none are given, and none measured.
        order_advice: order that would save more, from the job's next start on; null: none found.
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
    num_profiling_steps: int | None = None
    num_unknown_steps: int = 0
    deviations: tuple[Deviation, ...] = ()
    notes: tuple[str, ...] = ()
    energy_scope: EnergyScope | None = None
    headline: Headline | None = None
    saved_of_j: float | None = None
    factors: EnergyFactors = field(default_factory=EnergyFactors)
    delays: PlannedDelays | None = None
    order_advice: OrderAdvice | None = None


@dataclass(frozen=True, kw_only=True)
class RecordedRuns:
    """A job's measurements of each version of its plan, in the format of `flyball replay`.

    Attributes:
        document: recorded runs, one per version, by docs/recorded-runs.schema.json.
        left_out: reason why a version with measured steps is left out, a line per version.
    """

    job_id: str
    document: dict[str, Any]
    left_out: tuple[str, ...] = ()
