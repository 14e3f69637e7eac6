"""Types that people look at jobs by: overview, timeline, history, steps by stage, frontier.

As in `wire`; what the dashboard and `flyball top` show. Only the planner sends them. A name with
`predicted` is computed from the profile, one with `measured` was read from the ranks' GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from flyball_wire.closed_loop import Estimate
from flyball_wire.strictness import Sent


@dataclass(frozen=True, kw_only=True)
class TokenRequest(Sent):
    """A token to be made: for one job, or an operator's.

    Attributes:
        job_id: the one job that it opens; null: given by `operator` only.
        operator: it opens everything.
        note: what people know it by.
    """

    job_id: str | None = None
    operator: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class TokenView:
    """Facts about a token.

    Attributes:
        token_id: its public part, by which it is revoked.
        job_id: the one job that it opens; null: everything.
        created_at: ISO 8601, UTC.
    """

    token_id: str
    job_id: str | None
    note: str
    created_at: str


@dataclass(frozen=True, kw_only=True)
class NewToken(TokenView):
    """A token that was made; `token` is shown this once."""

    token: str


@dataclass(frozen=True, kw_only=True)
class PredictedIteration:
    """Predicted iteration on the plan, and with all instructions at the highest clocks.

    Attributes:
        saving_percent: of energy; below zero: the plan costs some.
        gap_percent: how far the plan's energy is above its certified lower bound, with a reserve
            that of plans which keep it and are no faster; null: unknown.
    """

    iteration_time_s: float
    energy_j: float
    baseline_iteration_time_s: float
    baseline_energy_j: float
    saving_percent: float
    gap_percent: float | None


@dataclass(frozen=True, kw_only=True)
class MeasuredIteration:
    """Mean of the newest complete steps that ran alike.

    Attributes:
        clocks: what they ran at: `plan`, `highest`, `default` or `profiling`.
        version: of the plan; null: none, default clocks.
        energy_j: of all ranks; null where one could not read it.
    """

    clocks: str
    version: int | None
    first_step: int
    last_step: int
    num_steps: int
    iteration_time_s: float
    energy_j: float | None


@dataclass(frozen=True, kw_only=True)
class JobOverview:
    """A job in one row.

    Attributes:
        num_ranks: that it is registered with; each has one GPU.
        num_registered, num_present: of these, how many have registered, and were heard of lately.
        policy, target: in force; `target` follows a timetable.
        predicted: of the active version, before there is one of the newest; null: there is none,
            or it is one of profiling.
        measured: null: no complete step yet.
        measured_baseline_time_s, measured_baseline_energy_j: at the highest clocks, measured, that
            the newest version which has steps is compared with; null: never measured.
        slowdown_percent, saving_percent: of that version against that baseline, measured.
        saved_j: by all versions with a measured baseline, as in JobReport; null where none has.
        num_steps: that all ranks have posted.
        is_caught_up: whether all of its steps are in these figures.
        heard_at: when it was last heard of, ISO 8601, UTC.
    """

    job_id: str
    state: str
    emulated: bool
    num_stages: int
    num_microbatches: int
    schedule: str
    num_ranks: int
    num_registered: int
    num_present: int
    newest_version: int | None
    active_version: int | None
    policy: str
    target: str
    predicted: PredictedIteration | None
    measured: MeasuredIteration | None
    measured_baseline_time_s: Estimate | None
    measured_baseline_energy_j: Estimate | None
    slowdown_percent: Estimate | None
    saving_percent: Estimate | None
    saved_j: Estimate | None
    num_steps: int
    is_caught_up: bool
    problem: str | None
    created_at: str
    heard_at: str


@dataclass(frozen=True, kw_only=True)
class Overview:
    """All jobs that are open to the caller, those heard of last first."""

    jobs: tuple[JobOverview, ...]


@dataclass(frozen=True, kw_only=True)
class StageOfStep:
    """Measurement of one stage's ranks in a step.

    Attributes:
        time_s: the slowest rank's, s.
        energy_j: all of them, J; null where one could not read it.
        num_clock_misses, num_power_capped, num_thermally_capped: added up over its ranks.
        sm_clock_mhz: measured: mean over those ranks that have read their clock back, as in
            StepMeasurement, MHz; null: none has.
    """

    stage: int
    num_ranks: int
    time_s: float
    energy_j: float | None
    num_clock_misses: int
    num_power_capped: int
    num_thermally_capped: int
    sm_clock_mhz: float | None = None


@dataclass(frozen=True, kw_only=True)
class StagesOfStep:
    """One step by stages, rising; a stage that nobody has posted of is missing.

    Attributes:
        plan_versions: as in JobStep.
        time_s: the slowest rank's, s.
        energy_j: of all ranks that posted it, J; null where one could not read it.
    """

    step: int
    num_ranks: int
    plan_versions: tuple[int | None, ...]
    time_s: float
    energy_j: float | None
    stages: tuple[StageOfStep, ...]


@dataclass(frozen=True, kw_only=True)
class PlanSummary:
    """A plan version without its instructions.

    Attributes:
        kind: `plan`; `comparison`: steps at the highest clocks in between; `separate`: each
            data-parallel pipeline has clocks of its own; `probe`: made to learn from.
        schedule, policy, target: that it was made for; of a probe `target` is empty.
        first_step: from which it holds; null: not all ranks have it, or a newer one overtook it.
        predicted: null of a probe.
        stage_clock_mhz: per stage the mean of the clocks that it asks for, weighted by the
            predicted times of the instructions (by their number where those are not known), MHz;
            of a probe over all steps of its cycle.
    """

    version: int
    kind: str
    schedule: str
    policy: str
    target: str
    created_at: str
    first_step: int | None
    predicted: PredictedIteration | None
    stage_clock_mhz: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class TimelineRow:
    """The instructions of one stage, predicted, in the order of execution; all lists as long.

    Attributes:
        dp_rank: of data-parallel pipelines with clocks of their own, the lowest that the row
            stands for; else 0.
        blocking_power_w: of its ranks together while they wait, W.
        kinds: `forward`, `backward`, ...
        start_s, duration_s: s from the iteration's begin.
        energy_j: of its ranks while it runs, J.
        float_s: by how much it could end later without a longer iteration, s.
    """

    stage: int
    dp_rank: int
    blocking_power_w: float
    kinds: tuple[str, ...]
    microbatches: tuple[int, ...]
    chunks: tuple[int, ...]
    clock_mhz: tuple[int, ...]
    start_s: tuple[float, ...]
    duration_s: tuple[float, ...]
    energy_j: tuple[float, ...]
    float_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class TimelineOfPlan:
    """One iteration, predicted.

    Attributes:
        rows: by `dp_rank`, then stage.
        critical_path: `[row, position in the row]` of the instructions on a longest path, in the
            order of time; of several pipelines one path each, one after the other.
    """

    iteration_time_s: float
    energy_j: float
    bubble_fraction: float
    rows: tuple[TimelineRow, ...]
    critical_path: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class PlanTimeline:
    """A plan version's iteration and that of the highest clocks in the same order, predicted.

    Attributes:
        is_as_planned: whether the profile as it is now gives the time and energy that the version
            was planned with; if not, it was planned from another profile.
        emulated: whether the job's GPUs are.
    """

    job_id: str
    version: int
    emulated: bool
    is_as_planned: bool
    schedule: str
    num_microbatches: int
    plan: TimelineOfPlan
    baseline: TimelineOfPlan


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """A plan of the frontier, predicted, and the bound on all plans that meet its deadline.

    Where the job has a reserve the bound is on those that keep it and are no faster.

    Attributes:
        deadline_s: `deadline:` with this as a target gives such a plan, s.
        gap_percent: how far the energy is above the bound.
    """

    deadline_s: float
    iteration_time_s: float
    energy_j: float
    lower_bound_j: float
    gap_percent: float


@dataclass(frozen=True, kw_only=True)
class ComparedPlan:
    """A plan to compare a frontier with, predicted: `baseline`, `envelope, balanced`, ..."""

    name: str
    iteration_time_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """A time-energy frontier with the plans to compare it with.

    Attributes:
        points: in rising time and falling energy.
        reserve: reserve that the points were planned with, a share; as in JobRegistration.
    """

    points: tuple[FrontierPoint, ...]
    baseline: ComparedPlan
    envpipe: tuple[ComparedPlan, ...]
    reserve: float = 0.0


@dataclass(frozen=True, kw_only=True)
class JobFrontier(Frontier):
    """A job's time-energy frontier; `solve_s` is the time that planning it took, s."""

    job_id: str
    solve_s: float
