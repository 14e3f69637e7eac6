"""Read models: overview, timeline, history, steps by stage, frontier, tokens.

The dashboard and `flyball top` show them. A field named `predicted` is computed from the profile,
one named `measured` was read from the ranks' GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_wire.closed_loop import NO_RESERVE, ComparedPlan, MissedTarget, PlannedDelays, Reserve
from flyball_wire.energy_factors import EnergyFactors
from flyball_wire.messages import JobCondition, JobState
from flyball_wire.predictions import PredictedFigures
from flyball_wire.savings import Deviation, Estimate, Headline
from flyball_wire.strictness import Sent


class StepClocks(StrEnum):
    """Clocks of a step that all ranks have posted; `mixed`: ranks ran it on several versions."""

    PLAN = "plan"
    HIGHEST = "highest"
    DEFAULT = "default"
    PROFILING = "profiling"
    MIXED = "mixed"


class PlanKind(StrEnum):
    """Kind of a plan version.

    `comparison`: steps at the highest clocks in between. `separate`: each data-parallel pipeline
    has clocks of its own. `probe`: for online profiling.
    """

    PLAN = "plan"
    COMPARISON = "comparison"
    SEPARATE = "separate"
    PROBE = "probe"


@dataclass(frozen=True, kw_only=True)
class RankPower:
    """Planned power of one rank's GPU, and its limit.

    Attributes:
        dp_rank: number of the rank's data-parallel pipeline, from 0.
        host: name of the rank's node.
        planned_power_w: predicted average power on the plan, waiting included, W; null: not known,
            as in a plan whose pipelines have clocks of their own.
        power_limit_w: enforced power limit by the newest reading, W; null: not known.
    """

    rank: int
    stage: int
    dp_rank: int
    host: str
    gpu_uuid: str
    planned_power_w: float | None
    power_limit_w: float | None


@dataclass(frozen=True, kw_only=True)
class JobPower:
    """Planned power of a job's GPUs, for tools that divide a power budget.

    Attributes:
        target: current target, such as `power:8000` or `power:limit`.
        version: plan version of these figures, the active one or the newest if none is active;
            null: no plan yet.
        planned_power_w: sum over the ranks in W; null: not known of all.
        power_limit_w: sum of the ranks' limits in W; null: not known of all.
        ranks: ranks in training, by number.
    """

    job_id: str
    target: str
    version: int | None
    planned_power_w: float | None
    power_limit_w: float | None
    ranks: tuple[RankPower, ...]


@dataclass(frozen=True, kw_only=True)
class TokenRequest(Sent):
    """Request for a token of one job, a read-only token, or an operator's.

    Attributes:
        job_id: the only job that the token gives access to; null: requires `read_only` or
            `operator`.
        read_only: true for a token that reads everything and changes nothing.
        operator: true for a token that gives access to everything.
        note: description for people.
    """

    job_id: str | None = None
    read_only: bool = False
    operator: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class TokenView:
    """Description of a token, without its secret.

    Attributes:
        token_id: public part of the token, used to revoke it.
        job_id: the only job that it gives access to; null: all.
        read_only: true if it changes nothing.
        created_at: time of its creation, ISO 8601, UTC.
    """

    token_id: str
    job_id: str | None
    read_only: bool
    note: str
    created_at: str


@dataclass(frozen=True, kw_only=True)
class NewToken(TokenView):
    """A new token.

    Attributes:
        token: the token itself, which is shown only once.
    """

    token: str


@dataclass(frozen=True, kw_only=True)
class PredictedIteration(PredictedFigures):
    """Predicted iteration on the plan, and with all instructions at the highest clocks.

    Energies are of all GPUs of the job, also if its profile holds one of several data-parallel
    pipelines.

    Attributes:
        saving_percent: energy saved in %; negative: the plan needs more.
        gap_percent: optimality gap, the plan's energy above its lower bound in %; null: unknown.
        reserve: reserve of the plan.
    """

    iteration_time_s: float
    baseline_iteration_time_s: float
    baseline_energy_j: float
    saving_percent: float
    gap_percent: float | None
    reserve: Reserve = NO_RESERVE


@dataclass(frozen=True, kw_only=True)
class MeasuredIteration:
    """Mean of the newest complete steps at the same clocks.

    Attributes:
        clocks: clocks of the steps, never `mixed`.
        version: plan version; null: none, default clocks.
        energy_j: energy of all ranks in J; null: one of them could not read it.
    """

    clocks: StepClocks
    version: int | None
    first_step: int
    last_step: int
    num_steps: int
    iteration_time_s: float
    energy_j: float | None


@dataclass(frozen=True, kw_only=True)
class OwnPlanOfStep:
    """Newest step that all ranks have posted, where ranks had a plan for this step alone.

    Of more than 1024 ranks the first 1024 are read, and all of this is theirs.

    Attributes:
        num_ranks: number of ranks that had one; the others ran at the highest clocks.
        slack: share of the step's deadline that pipelines would have waited at the highest clocks,
            mean over these ranks.
        lowest_mhz: lowest clock of these ranks in the step in MHz.
        highest_mhz: highest clock of these ranks in the step in MHz.
        predicted_saved_j: energy that their plans save in the step, predicted, in J.
        text: all of this in one line.
    """

    step: int
    num_ranks: int
    slack: float
    lowest_mhz: int
    highest_mhz: int
    predicted_saved_j: float
    text: str


@dataclass(frozen=True, kw_only=True)
class JobOverview:
    """A job in one row.

    Attributes:
        num_ranks: number of ranks of the job, each with one GPU.
        num_registered: number of ranks that have registered.
        num_present: number of ranks that have called recently.
        policy: policy of the active version, or of the newest while none is active; the requested
            one while there is no version, or one for profiling.
        target: target, by the same rule.
        missed: target that cannot be met, and the target of the plan that runs instead;
            null: the newest plan meets its target.
        headline: saving in one line; null: nothing is measured and nothing predicted.
        saved_of_j: energy that the steps of `saved_j` would have taken at the highest clocks, J;
            null: `saved_j` is.
        factors: price and emissions of energy, by the planner's settings.
        predicted: prediction for the active version, or the newest while none is active; null: no
            version yet, or one for profiling.
        measured: newest measurement; null: no complete step yet.
        measured_baseline_time_s: measured iteration time in s at the highest clocks, for the newest
            version that has steps; null: never measured.
        measured_baseline_energy_j: measured energy in J of the same iterations; null: never
            measured.
        slowdown_percent: measured slowdown of that version in %; null: no baseline.
        saving_percent: measured saving of that version in %; null: no baseline.
        saved_j: energy saved by all versions with a measured baseline, as in JobReport; null: none
            has one.
        num_steps: number of steps that all ranks have posted.
        num_unknown_steps: number of further steps on unknown versions, as in JobReport.
        deviations: steps that did not run as planned, first those of that version, then the job's.
        is_caught_up: true if these figures include all of the job's steps.
        last_seen_at: time of the ranks' last heartbeat, ISO 8601, UTC.
        delays: times beside the instructions, as in JobReport; null: none.
        condition: trouble that `state` does not say; null: none.
        own_plan: newest step's own plan, where steps differ and have one; null: it had none.
    """

    job_id: str
    state: JobState
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
    last_seen_at: str
    num_unknown_steps: int = 0
    deviations: tuple[Deviation, ...] = ()
    missed: MissedTarget | None = None
    headline: Headline | None = None
    saved_of_j: float | None = None
    factors: EnergyFactors = field(default_factory=EnergyFactors)
    delays: PlannedDelays | None = None
    condition: JobCondition | None = None
    own_plan: OwnPlanOfStep | None = None


@dataclass(frozen=True, kw_only=True)
class Overview:
    """All jobs that the caller has access to, the most recently active first."""

    jobs: tuple[JobOverview, ...]


@dataclass(frozen=True, kw_only=True)
class StageOfStep:
    """Measurement of one stage's ranks in a step.

    Attributes:
        time_s: time of the slowest rank in s.
        energy_j: energy of the stage's ranks in J; null: one of them could not read it.
        num_clock_misses, num_power_capped, num_thermally_capped: sum over the stage's ranks, as in
            StepMeasurement.
        sm_clock_mhz: mean over the ranks that have read their clock, as in StepMeasurement, in MHz;
            null: none has.
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
    """One step by stages, in ascending order; stages without posts are left out.

    Attributes:
        plan_versions, unknown_versions: as in JobStep.
        time_s: time of the slowest rank in s.
        energy_j: energy of all ranks that posted it in J; null: one of them could not read it.
    """

    step: int
    num_ranks: int
    plan_versions: tuple[int | None, ...]
    time_s: float
    energy_j: float | None
    stages: tuple[StageOfStep, ...]
    unknown_versions: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlanSummary:
    """A plan version without its instructions.

    Attributes:
        schedule: schedule of the plan.
        policy: policy of the plan.
        target: target of the plan; empty for a probe.
        first_step: first step of the version; null: not all ranks have acknowledged it, or a newer
            version came first.
        predicted: prediction; null: a probe.
        stage_clock_mhz: mean planned clock per stage in MHz, weighted by the predicted times of the
            instructions (by their number if unknown); for a probe over all steps of its cycle.
        highest_mhz: highest clock in the job's profile in MHz; null: no profile.
        baseline_cycle: repeated pattern of a comparison's steps from `first_step`, true for steps
            at the highest clocks; empty: no comparison.
    """

    version: int
    kind: PlanKind
    schedule: str
    policy: str
    target: str
    created_at: str
    first_step: int | None
    predicted: PredictedIteration | None
    stage_clock_mhz: tuple[float, ...]
    highest_mhz: int | None = None
    baseline_cycle: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TimelineRow:
    """Predicted instructions of one stage, in the order of execution; all lists have one length.

    Attributes:
        dp_rank: lowest data-parallel rank that the row stands for, if pipelines have clocks of
            their own; else 0.
        blocking_power_w: total power in W of the stage's ranks while they wait.
        kinds: kinds of the instructions, such as `forward` and `backward`.
        start_s: time from the iteration's start to the instruction's in s.
        duration_s: duration in s.
        energy_j: energy of the stage's ranks during the instruction in J.
        float_s: delay in s that does not make the iteration longer.
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
    """Predicted timeline of one iteration.

    Attributes:
        rows: rows by `dp_rank`, then stage.
        critical_path: `[row, position in the row]` of the instructions on a longest path, in the
            order of time; with several pipelines, their paths follow one another.
    """

    iteration_time_s: float
    energy_j: float
    bubble_fraction: float
    rows: tuple[TimelineRow, ...]
    critical_path: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class PlanTimeline:
    """Predicted iteration of a plan version, and at the highest clocks in the same order.

    Attributes:
        is_as_planned: true if the current profile gives the time and energy that the version was
            planned with; false: it was planned from another profile.
        emulated: true if the job's GPUs are emulated.
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
    """Predicted plan of the frontier, and the bound on all plans that meet its deadline.

    If the job has a reserve, the bound is on plans that keep it and are no faster.

    Attributes:
        deadline_s: deadline in s of the target `deadline:` that gives this plan, or one near it
            where clock changes take time.
        gap_percent: optimality gap, the energy above the bound in %.
    """

    deadline_s: float
    iteration_time_s: float
    energy_j: float
    lower_bound_j: float
    gap_percent: float


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """A time-energy frontier with the plans to compare it with.

    Attributes:
        points: plans in ascending time and descending energy; a job's limits of clock changes are
            not kept.
        constant: plans of policy `constant`, in ascending time and descending energy.
        global_clock: plans of policy `global`, in ascending time and descending energy.
        reserve: reserve that the points were planned with.
        transitions: times of clock changes in the predictions; null: clocks change at once. Only
            the fastest point's clocks are chosen with them.
    """

    points: tuple[FrontierPoint, ...]
    baseline: ComparedPlan
    envpipe: tuple[ComparedPlan, ...]
    constant: tuple[ComparedPlan, ...] = ()
    global_clock: tuple[ComparedPlan, ...] = ()
    reserve: Reserve = NO_RESERVE
    transitions: ClockTransitions | None = None


@dataclass(frozen=True, kw_only=True)
class JobFrontier(Frontier):
    """A job's time-energy frontier, with its slow GPUs and drifted stages as they are now.

    Attributes:
        solve_s: planning time in s.
    """

    job_id: str
    solve_s: float
