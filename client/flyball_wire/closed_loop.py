"""Types of the closed loop: stragglers, timetables, comparisons, planned delays and reserves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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
class RecordedRuns:
    """A job's measurements of each version of its plan, in the format of `flyball replay`.

    Attributes:
        document: recorded runs, one per version, by docs/recorded-runs.schema.json.
        left_out: reason why a version with measured steps is left out, a line per version.
    """

    job_id: str
    document: dict[str, Any]
    left_out: tuple[str, ...] = ()
