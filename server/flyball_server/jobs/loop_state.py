"""Findings about a job, beside registration and profile: one record per job.

Stored as JSON, so all of it is plain data; times are Unix time in s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flyball_profiles.gpu_conditions import GpuConditions
from flyball_server.jobs.bounds import check_count
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.records import Record
from flyball_wire.closed_loop import MissedTarget, StragglerReason, Timetable
from flyball_wire.messages import MAX_RANKS
from flyball_wire.online_profiling import ProfilingResult
from flyball_wire.orders import OrderAdvice
from flyball_wire.plans.plan import MAX_SLOWDOWN
from flyball_wire.targets import parse_target

KEPT_HIGHEST = "one plan would make steps longer, so the highest clocks are kept"


@dataclass(frozen=True, kw_only=True)
class AnnouncedSlowdown:
    """Announced slowdown of a rank's GPU against its profile.

    Attributes:
        slowdown: slowdown factor of its instructions, 1 to MAX_SLOWDOWN.
        from_unix_s: start time.
        until_unix_s: end time; None: until it is withdrawn.

    Raises:
        InvalidFieldError: a value is out of bounds.
    """

    rank: int
    slowdown: float
    from_unix_s: float
    until_unix_s: float | None = None

    def __post_init__(self) -> None:
        check_count("rank", self.rank, most=MAX_RANKS - 1)
        if not 1 <= self.slowdown <= MAX_SLOWDOWN:
            raise InvalidFieldError(
                "slowdown", f"must be a factor from 1 to {MAX_SLOWDOWN:g}, not {self.slowdown:g}"
            )
        if self.until_unix_s is not None and self.until_unix_s <= self.from_unix_s:
            raise InvalidFieldError("until_time", "must be later than from_time")

    def holds_at(self, unix_s: float) -> bool:
        """Return whether it is one at this moment."""
        return self.from_unix_s <= unix_s and (
            self.until_unix_s is None or unix_s < self.until_unix_s
        )


@dataclass(frozen=True, kw_only=True)
class RankSlowdown:
    """Measured slowdown factor of a rank against its profile.

    Attributes:
        slowdown: slowdown factor of its instructions; below 1: faster than profiled.
        reason: cause of the slowdown.
        since_unix_s: time of detection.
    """

    rank: int
    slowdown: float
    reason: StragglerReason = StragglerReason.SLOW
    since_unix_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StageSlowdown:
    """Drift of all ranks of a stage from its profile, for one kind of instruction.

    Attributes:
        kind: kind of instruction, such as `forward`.
        slowdown: slowdown factor, as in RankSlowdown.
    """

    stage: int
    kind: str
    slowdown: float


@dataclass(frozen=True, kw_only=True)
class MeasuredDelays:
    """Parts of an iteration beside its instructions, from the steps of one plan version.

    Attributes:
        version: plan version of these steps.
        num_steps: their number.
        tail_s: part of an iteration outside its instructions, s; 0: none is certain.
        transfer_s: time of a transfer between each pair of neighbouring stages, s; empty: none is
            certain.
        up_s, down_s: median delay of a change to a higher and to a lower clock, s; None: not
            certain.
        jitter: standard deviation of a single instruction's time as a share of it, root mean
            square; 0: none is certain.
        num_before: number of earlier delays that the job was planned with.
        work: how much a microbatch's instructions scatter together, as a share; 0: not surely. With
            more than 0 one plan does not fit all steps, for as long as the job keeps its profile.
        step_plans_saving_percent: energy that clocks for each step would have saved in these steps,
            predicted, %; None: not computed.
    """

    version: int
    num_steps: int
    tail_s: float = 0.0
    transfer_s: tuple[float, ...] = ()
    up_s: float | None = None
    down_s: float | None = None
    jitter: float = 0.0
    num_before: int = 0
    work: float = 0.0
    step_plans_saving_percent: float | None = None

    @property
    def work_note(self) -> str | None:
        """Line that says that one plan does not fit all steps; None: it does."""
        if not self.work:
            return None
        note = (
            f"steps differ in their work (a microbatch's times vary by {100 * self.work:.0f} %):"
            f" {KEPT_HIGHEST}; announce the work of each step to give it clocks of its own"
        )
        if self.step_plans_saving_percent is None:
            return note
        return (
            f"{note}, predicted to save {self.step_plans_saving_percent:.0f} % of these steps'"
            " energy"
        )


@dataclass(frozen=True, kw_only=True)
class WorkModel:
    """Work that a job announces, and how much longer it makes each instruction.

    Measured in the timed steps of one plan version; relative to the times of the plan that these
    steps ran, slowdown factors included. While nothing is measured, steps whose work is lengths run
    at the highest clocks.
    """

    #: Plan version of the measured steps; 0: none were measured yet.
    version: int = 0
    #: Number of measured microbatches.
    num_microbatches: int = 0
    #: Stage, kind and chunk of each instruction that has coefficients.
    places: tuple[tuple[int, str, int], ...] = ()
    #: By place, `WorkCoefficients`, rounded; empty: all work is factors, or none was measured.
    coefficients: tuple[tuple[float, float, float], ...] = ()
    #: Mean over the measured microbatches: sum of lengths, sum of their squares.
    mean_work: tuple[float, float] = (0.0, 0.0)
    #: Means of the squared sum of lengths S, of S times the sum of squares Q, and of Q squared.
    mean_products: tuple[float, float, float] = (0.0, 0.0, 0.0)
    #: Least and largest sum of a measured microbatch's lengths; 0 where all work is factors.
    lengths_range: tuple[float, float] = (0.0, 0.0)
    #: Standard deviation of times from the predicted ones that a microbatch's instructions share,
    #: and of each for itself, as shares.
    shared_error: float = 0.0
    own_error: float = 0.0
    #: `StepReserve`: of the step, and of each instruction.
    reserve: tuple[float, float] = (0.0, 0.0)
    #: Number of GPUs of a node whose calls may come before a GPU's own, beside those counted in the
    #: plan's times of clock changes.
    num_queued: int = 0
    #: True if nothing is known of the GPUs' clock changes, which then count as the slowest known.
    has_unknown_changes: bool = False
    #: Reason why steps get no plans of their own, in one line; None: they get them.
    problem: str | None = None
    #: Number of earlier models that the job was planned with.
    num_before: int = 0
    #: How often its factors were scaled since times had drifted.
    num_drifts: int = 0

    @property
    def error(self) -> float:
        """Return the standard deviation of an instruction's time from the predicted one."""
        return math.hypot(self.shared_error, self.own_error)

    @property
    def note(self) -> str | None:
        """Line that says why announced work is not used; None: it is."""
        if self.problem is None:
            if self.num_microbatches:
                return None
            return (
                "announced work is being measured: steps run at the highest clocks until their"
                " times are known"
            )
        return f"announced work is not used, and steps get no plans of their own: {self.problem}"


@dataclass(frozen=True, kw_only=True)
class StepPower:
    """Correction of steps' deadlines that keeps a target `power:` on average over blocks of steps.

    The plan keeps the target for the work of an average step.
    """

    #: Target of the measured steps, as planned.
    target: str
    #: A step's deadline over that which follows from the plan.
    factor: float = 1.0
    #: Ratio of deadlines to times at the highest clocks before the newest change, and mean power
    #: over the target with it; None: no change yet.
    before: tuple[float, float] | None = None
    #: Number of changes for this target.
    num_changes: int = 0
    #: Mean power in W at the least-energy clocks, where that misses the target; None: it does not.
    least_power_w: float | None = None

    @property
    def note(self) -> str | None:
        """Line that says that the target is missed; None: it is not known to be."""
        if self.least_power_w is None:
            return None
        return (
            f"target {self.target} is not met: steps draw {self.least_power_w:g} W on average at"
            " their least-energy clocks"
        )


def deadline_factor(step_power: StepPower | None, target: str) -> float:
    """Return the factor of steps' deadlines: 1 for other targets, and while none was measured."""
    return step_power.factor if step_power and parse_target(target).kind == "power" else 1.0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Steps at the highest clocks interleaved with those on the plan, requested or running.

    Attributes:
        num_pairs: number of requested pairs, 2 to 10000.
        version: plan version that it runs as; None: not created yet.
        is_done: true once enough was measured, or another plan has ended it.
    """

    num_pairs: int
    version: int | None = None
    is_done: bool = False

    def __post_init__(self) -> None:
        check_count("num_pairs", self.num_pairs, least=2, most=10_000)


@dataclass(frozen=True, kw_only=True)
class ChangedConditions:
    """Conditions of GPUs that the job's profile was not measured under.

    Attributes:
        text: what changed, and on which ranks.
        since_unix_s: time at which that was read first.
    """

    text: str
    since_unix_s: float


@dataclass(frozen=True, kw_only=True)
class PlanningInputs:
    """Inputs of a plan beside specification and profile.

    Attributes:
        target: target of the timetable; None: the specification's.
        rank_slowdowns: announced and detected slowdowns, the larger one of each rank.
        stage_slowdowns: drift of stages.
        delays: measured delays; None: not measured, or too small to matter.
        work: announced work; None: the job announces none.
        step_power: correction of steps' deadlines for a target `power:`; None: none was measured.
        gpus_at_once: largest number of GPUs that one stage has in one node; None: not all ranks
            have registered, or it has no effect.
        gpus_in_node: largest number of GPUs that the job has in one node; None: likewise.
        changed: conditions under which the profile does not hold; None: none are known.
    """

    target: str | None = None
    rank_slowdowns: tuple[RankSlowdown, ...] = ()
    stage_slowdowns: tuple[StageSlowdown, ...] = ()
    delays: MeasuredDelays | None = None
    work: WorkModel | None = None
    step_power: StepPower | None = None
    gpus_at_once: int | None = None
    gpus_in_node: int | None = None
    changed: ChangedConditions | None = None

    @property
    def step_work(self) -> WorkModel | None:
        """Return the work that steps' plans are made from; None: they get none of their own.

        They get none where the profile does not hold.
        """
        is_usable = self.work is not None and self.work.problem is None and self.changed is None
        return self.work if is_usable else None

    @property
    def work_note(self) -> str | None:
        """Line on steps that differ, or on announced work that is not used; None: neither."""
        of_steps = None if self.delays is None else self.delays.work_note
        if self.work is None:
            return of_steps
        is_kept = self.step_work is None and of_steps is not None
        return f"{self.work.note}; {KEPT_HIGHEST}" if is_kept else self.work.note


BROKEN = "unexpected error in the planner; see its log"
"""Problem of an attempt that failed by a fault of the planner's own."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Outcome of a request, by its digest.

    Attributes:
        digest: digest of the request.
        version: plan version that answers it; of a failed one the newest version then, which stays.
        field, problem: part of the request to change, and why it failed; None: it is answered.
        nearest: nearest target that can be met, of a target that cannot; None: any other outcome.
        again_unix_s: time from which it is repeated, Unix time in s; None: other inputs alone mend
            it, or it is answered.
        num_lost: number of times that its solver was lost.
    """

    digest: str
    version: int | None = None
    field: str | None = None
    problem: str | None = None
    nearest: str | None = None
    again_unix_s: float | None = None
    num_lost: int = 0

    @property
    def text(self) -> str:
        """Field and problem of a failed one."""
        return f"{self.field}: {self.problem}"


@dataclass(frozen=True, kw_only=True)
class OrderComparison:
    """Comparison of a job's order with others.

    Attributes:
        digest: digest of its inputs.
        advice: order that would save more; None: no other saves enough.
    """

    digest: str
    advice: OrderAdvice | None


@dataclass(frozen=True, kw_only=True)
class GpuChange:
    """Replacement of a rank's GPU, after this step.

    Attributes:
        changes_scope: true if the energy counter of the new GPU counts something else.
    """

    rank: int
    after_step: int
    changes_scope: bool = False


@dataclass(frozen=True, kw_only=True)
class RefusedRegistration:
    """Registration of the job or a rank that was refused, while none was taken since.

    Attributes:
        rank: rank that registered; None: it was the job.
        host: node from which it did; None: not reported.
        problem: why it was refused.
        at_unix_s: when that was last.
    """

    rank: int | None
    host: str | None
    problem: str
    at_unix_s: float

    def __str__(self) -> str:
        who = "a registration" if self.rank is None else f"rank {self.rank}"
        origin = "" if self.host is None else f" from {self.host}"
        return f"refused {who}{origin}: {self.problem}"


@dataclass(frozen=True, kw_only=True)
class ShapeChange:
    """Change of the number of microbatches that a training runs in a step.

    Attributes:
        num_before, num_microbatches: their number before and since.
        after_version: newest plan version then; later ones are for the new number.
    """

    num_before: int
    num_microbatches: int
    after_version: int

    def __str__(self) -> str:
        return f"runs {self.num_microbatches} microbatches a step, {self.num_before} before"


# Limit of the attempts per job; those not used for longest are dropped, and solved again if needed.
MAX_ATTEMPTS = 32


@dataclass(frozen=True, kw_only=True)
class JobLoopState(Record):
    """Knowledge of one job that has a memory; its plan is a function of it.

    Attributes:
        stragglers: announced slowdowns, at most one per rank; ended ones are dropped.
        detected: detected slowdowns by rank.
        drifts: detected drift of stages.
        delays, work, step_power, gpus_at_once, gpus_in_node, changed: as in PlanningInputs.
        timetable: timetable of targets; None: no timetable.
        comparison: newest comparison; None: never requested.
        profiling: state of online profiling; None: not profiled online, or not started.
        planned_inputs: planning inputs of the newest plan.
        missed: target that the newest plan misses; None: it meets its own.
        attempts: outcomes of requests, the one used last at the end.
        tried_target: target of the specification that was planned for or refused last.
        gpu_changes: replaced GPUs, the newest last.
        timed_version: newest plan version whose delays were read, or could not be; 0: none.
        order_comparison: newest comparison of its order with others; None: not compared yet.
        refused: newest refused registration; None: none since the job was registered last.
        shape_change: newest change of the number of microbatches; None: none in this run.
        power_limits_w: mean enforced power limit of a GPU by stage, W; empty: not all are known.
        probed_under: conditions of each stage's GPUs while the job is profiled online, None of a
            stage where they are not known; empty: it is not being profiled.
    """

    job_id: str
    stragglers: tuple[AnnouncedSlowdown, ...] = ()
    detected: tuple[RankSlowdown, ...] = ()
    drifts: tuple[StageSlowdown, ...] = ()
    delays: MeasuredDelays | None = None
    work: WorkModel | None = None
    step_power: StepPower | None = None
    gpus_at_once: int | None = None
    gpus_in_node: int | None = None
    changed: ChangedConditions | None = None
    timetable: Timetable | None = None
    comparison: Comparison | None = None
    profiling: ProfilingResult | None = None
    planned_inputs: PlanningInputs = PlanningInputs()
    missed: MissedTarget | None = None
    attempts: tuple[Attempt, ...] = ()
    tried_target: str | None = None
    gpu_changes: tuple[GpuChange, ...] = ()
    timed_version: int = 0
    order_comparison: OrderComparison | None = None
    refused: RefusedRegistration | None = None
    shape_change: ShapeChange | None = None
    power_limits_w: tuple[float, ...] = ()
    probed_under: tuple[GpuConditions | None, ...] = ()

    @property
    def lasting(self) -> PlanningInputs:
        """Planning inputs that neither time nor a slow GPU changes."""
        return PlanningInputs(
            delays=self.delays,
            work=self.work,
            step_power=self.step_power,
            gpus_at_once=self.gpus_at_once,
            gpus_in_node=self.gpus_in_node,
            changed=self.changed,
        )

    def without_measured(self) -> JobLoopState:
        """Return the findings without what was measured against a replaced profile."""
        work = None if self.work is None else WorkModel()
        return self.evolve(detected=(), drifts=(), work=work, probed_under=(), step_power=None)

    @property
    def order_advice(self) -> OrderAdvice | None:
        """Order that the job would save more with; None: none is known."""
        return None if self.order_comparison is None else self.order_comparison.advice

    @property
    def open_comparison(self) -> Comparison | None:
        """Comparison that is requested or running; None: no comparison."""
        newest = self.comparison
        return None if newest is None or newest.is_done else newest

    def attempt(self, digest: str | None) -> Attempt | None:
        """Return the attempt with this digest; None: none is stored."""
        return next((attempt for attempt in self.attempts if attempt.digest == digest), None)

    def version_of(self, digest: str | None) -> int | None:
        """Return the version that answers this digest; None: none does, or not that is known."""
        attempt = self.attempt(digest)
        return None if attempt is None or attempt.problem is not None else attempt.version

    def with_attempt(self, attempt: Attempt) -> JobLoopState:
        """Return the findings with this attempt in place of an earlier attempt of its digest."""
        others = [kept for kept in self.attempts if kept.digest != attempt.digest]
        return self.evolve(attempts=(*others, attempt)[-MAX_ATTEMPTS:])

    def with_lost_due(self) -> JobLoopState:
        """Return the findings with attempts whose solver was lost due at once."""
        return self.evolve(
            attempts=tuple(
                kept if kept.again_unix_s is None else replace(kept, again_unix_s=0.0)
                for kept in self.attempts
            )
        )
