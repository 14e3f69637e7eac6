"""Findings about a job, beside registration and profile: one record per job.

Stored as JSON, so all of it is plain data; times are Unix time in s.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from flyball_profiles.gpu_conditions import GpuConditions
from flyball_server.jobs.bounds import check_count
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.planning_inputs import (
    LastingInputs,
    PlanningInputs,
    RankSlowdown,
    StageSlowdown,
    WorkModel,
)
from flyball_server.jobs.records import Record
from flyball_wire.closed_loop import MissedTarget, Timetable
from flyball_wire.messages import MAX_RANKS
from flyball_wire.online_profiling import ProfilingResult
from flyball_wire.orders import OrderAdvice
from flyball_wire.plans.plan import MAX_SLOWDOWN


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
class JobLoopState(Record, LastingInputs):
    """Knowledge of one job that has a memory; its plan is a function of it.

    Attributes:
        stragglers: announced slowdowns, at most one per rank; ended ones are dropped.
        detected: detected slowdowns by rank.
        drifts: detected drift of stages.
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
    timetable: Timetable | None = None
    comparison: Comparison | None = None
    profiling: ProfilingResult | None = None
    planned_inputs: PlanningInputs = field(default_factory=PlanningInputs)
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
        names = (item.name for item in fields(LastingInputs))
        return PlanningInputs(**{name: getattr(self, name) for name in names})

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
