"""Records of a job: frozen, always valid, changed only by `evolve()`."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.work import StepWork, checked_work
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import EnergyScope
from flyball_server.jobs.bounds import (
    MAX_COUNT,
    check_count,
    check_quantity,
    check_text,
)
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.job_state import JobInput, check_move
from flyball_wire.messages import (
    MAX_RANKS,
    MAX_STAGES,
    ClockTiming,
    InstructionReport,
    JobSpec,
    JobState,
    MeasurementDetail,
    StepPlanReport,
)
from flyball_wire.plans.plan import Plan, Purpose

# No leading dot: `..` in an address leads elsewhere.
JOB_ID_PATTERN = "^[A-Za-z0-9_-][A-Za-z0-9._+-]{0,127}$"
# Earlier runs of a job are kept under its name with a number suffix, which cannot be registered.
RUN_SIGN = "@"
ANY_JOB_ID_PATTERN = "^[A-Za-z0-9_-][A-Za-z0-9._+-]{0,127}(@[0-9]{1,9})?$"
MAX_SM_CLOCKS = 4096
MAX_SM_CLOCK_MHZ = 100_000
# Limits of one rank in one step: sums and squares of any number of them stay finite.
MAX_STEP_TIME_S = 1e9
MAX_STEP_ENERGY_J = 1e12
# Position of a rank among those of its stage.
LAYOUT_FIELDS = ("dp_rank", "tp_rank", "cp_rank")
RankPlace = tuple[int, int, int, int]
"""Stage, and index in data, tensor and context parallelism."""
_SHOWN_RANKS = 8


def ranks_text(ranks: Sequence[int]) -> str:
    """Return `rank 0` or `ranks 0, 1 and 2`, at most 8 by number and the others as a count."""
    shown = [str(rank) for rank in ranks[:_SHOWN_RANKS]]
    if len(ranks) > _SHOWN_RANKS:
        shown.append(f"{len(ranks) - _SHOWN_RANKS} more")
    if len(shown) < 2:
        return f"rank {''.join(shown)}"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def identity_of(created_at: datetime) -> str:
    """Return the identity of what was created at this time, beside its name or number."""
    return f"{round(created_at.timestamp() * 1e6):x}"


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of all records."""

    def evolve(self, **changes: object) -> Self:
        """Return this record with some fields changed; checked like a new one."""
        return replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class JobRecord(Record):
    """A job.

    Attributes:
        registered: specification as first registered; registering the same again changes nothing.
        spec: current specification, with later changes of target.
        problem: reason why the newest planning failed; None: no failure, or the inputs have changed
            since and are not planned yet.
        created_at: creation time, UTC.
        changed_input: input that was changed last; its caller is told where planning fails.
        inputs_revision: number of changes of profile and specification.
        start: identity of the start that its ranks belong to; None: whoever registered the job
            named none, and ranks of any start are taken.
        run: name of the training, from its launcher; None: not reported.
        restart_count: number of restarts by the launcher itself; None: not reported.
    """

    job_id: str
    registered: JobSpec
    spec: JobSpec
    created_at: datetime
    state: JobState = JobState.AWAITING_PROFILE
    problem: str | None = None
    changed_input: JobInput = JobInput.REGISTRATION
    inputs_revision: int = 0
    start: str | None = None
    run: str | None = None
    restart_count: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(ANY_JOB_ID_PATTERN, self.job_id):
            raise InvalidFieldError(
                "job_id", "must be 1 to 128 characters of A-Z a-z 0-9 . _ + -, no dot or plus first"
            )
        check_count("inputs_revision", self.inputs_revision)
        check_text("start_id", self.start or "")
        check_text("run", self.run or "")
        check_count("restart_count", self.restart_count or 0)

    @property
    def start_id(self) -> str:
        """Return what its ranks name in their calls: other in each start and each kept run."""
        return self.start or identity_of(self.created_at)

    def with_change(self, changed_input: JobInput, *, spec: JobSpec | None = None) -> JobRecord:
        """Return the job after a change of one of its inputs; it is to be planned again."""
        return self.evolve(
            spec=spec or self.spec,
            changed_input=changed_input,
            inputs_revision=self.inputs_revision + 1,
            problem=None,
        )

    def is_same_work(self, other: JobRecord) -> bool:
        """Return whether both are the same run with the same profile and specification."""
        return (self.created_at, self.inputs_revision) == (other.created_at, other.inputs_revision)

    def moved(self, state: JobState, *, problem: str | None = None) -> JobRecord:
        """Return the job in another state, with the problem that led there.

        Raises:
            IllegalMoveError: the table has no such move from the job's state.
        """
        check_move(self.state, state)
        return self.evolve(state=state, problem=problem)


@dataclass(frozen=True, kw_only=True)
class RankRecord(Record):
    """A registered rank.

    Attributes:
        dp_rank, tp_rank, cp_rank: index in data, tensor and context parallelism; all ranks of a
            stage run the same plan.
        node: machine that its GPU is in; None: not known, `host` names it.
        acknowledged_version: newest plan version that it has acknowledged; None: none since it
            registered.
        current_step: current step at its last acknowledgement.
        sm_clocks_mhz: clocks that its GPU can be locked to, MHz, falling; None: not reported.
        last_seen_at: time of the last call, UTC, to some seconds; None: no call since it
            registered.
        has_left: true once its training is over.
        start: identity of the start that it names; None: none.
        no_clocks: reason why it sets no clocks, by its newest step; None: it sets them, or has
            posted no step since it registered.
        energy_scope: what its GPU's energy counter counts; None: not known.
        conditions: conditions of its GPU by the newest reading; None: not known.
    """

    job_id: str
    rank: int
    stage: int
    host: str
    gpu_name: str
    gpu_uuid: str
    emulated: bool
    client_version: str
    dp_rank: int = 0
    tp_rank: int = 0
    cp_rank: int = 0
    node: str | None = None
    acknowledged_version: int | None = None
    current_step: int | None = None
    sm_clocks_mhz: tuple[int, ...] | None = None
    last_seen_at: datetime | None = None
    has_left: bool = False
    start: str | None = None
    no_clocks: str | None = None
    energy_scope: EnergyScope | None = None
    conditions: GpuConditions | None = None

    @property
    def place(self) -> RankPlace:
        """Return the place in the job, which no other present rank has."""
        return (self.stage, self.dp_rank, self.tp_rank, self.cp_rank)

    def __post_init__(self) -> None:
        self._order_clocks()
        check_count("rank", self.rank, most=MAX_RANKS - 1)
        check_count("stage", self.stage, most=MAX_STAGES - 1)
        for field in LAYOUT_FIELDS:
            check_count(field, getattr(self, field), most=MAX_RANKS - 1)
        for field in ("host", "gpu_name", "gpu_uuid", "client_version", "node", "start"):
            check_text(field, getattr(self, field) or "")
        if self.acknowledged_version is not None:
            check_count("version", self.acknowledged_version, least=1)
        if self.current_step is not None:
            check_count("current_step", self.current_step)

    def _order_clocks(self) -> None:
        if self.sm_clocks_mhz is None:
            return
        object.__setattr__(self, "sm_clocks_mhz", _falling(self.sm_clocks_mhz))


@functools.lru_cache(maxsize=256)
def _falling(clocks_mhz: tuple[int, ...]) -> tuple[int, ...]:
    """Return a GPU's clocks, checked and in order; cached, since many ranks share them."""
    check_count("num_sm_clocks_mhz", len(clocks_mhz), least=1, most=MAX_SM_CLOCKS)
    for clock_mhz in clocks_mhz:
        check_count("sm_clocks_mhz", clock_mhz, least=1, most=MAX_SM_CLOCK_MHZ)
    return tuple(sorted(set(clocks_mhz), reverse=True))


@dataclass(frozen=True, kw_only=True)
class PlanRecord(Record):
    """One version of a job's plan; only `first_step` is ever added, once.

    Attributes:
        version: 1, 2, 3, ... without gaps.
        first_step: step from which all ranks run it; None until all have acknowledged it.
        solve_s: duration of the planning, s.
        measurement_detail: detail of the ranks' measurements of each step on it.
        baseline_cycle: true for steps that run at the highest clocks instead: step k uses entry
            `(k - first_step) % len`; empty: no such steps.
        digest: digest of the request that it answers; None: it only measures the job.
    """

    job_id: str
    version: int
    created_at: datetime
    solve_s: float
    plan: Plan
    first_step: int | None = None
    measurement_detail: MeasurementDetail = MeasurementDetail.TOTALS
    baseline_cycle: tuple[bool, ...] = ()
    digest: str | None = None

    @property
    def plan_id(self) -> str:
        """Return the identity of the plan, different from that of another plan of its version."""
        return identity_of(self.created_at)

    @property
    def purpose(self) -> Purpose:
        """Purpose of the version, by what it has its ranks run and measure."""
        if self.plan.is_probe:
            return Purpose.PROBE
        if self.baseline_cycle:
            return Purpose.COMPARISON
        is_measured = self.measurement_detail == MeasurementDetail.INSTRUCTIONS
        return Purpose.RAISE if is_measured else Purpose.PLAN

    @property
    def cycle_length(self) -> int:
        """Number of steps after which the clocks repeat; 1: all steps are equal."""
        return len(self.plan.cycle_mhz) or len(self.baseline_cycle) or 1


@dataclass(frozen=True, kw_only=True)
class NewestVersion(Record):
    """The newest version of a job's plan, without the plan; attributes as in PlanRecord."""

    version: int
    first_step: int | None
    baseline_cycle: tuple[bool, ...] = ()
    digest: str | None = None
    measurement_detail: MeasurementDetail = MeasurementDetail.TOTALS

    @property
    def is_raised(self) -> bool:
        """Return whether its measurements decide which clocks are raised."""
        return self.measurement_detail == MeasurementDetail.INSTRUCTIONS

    @property
    def is_held(self) -> bool:
        """Return whether all ranks have it and it is not being compared."""
        return self.first_step is not None and not self.baseline_cycle


_STEP_COUNTS = (
    "num_unplanned",
    "num_overruns",
    "num_clock_misses",
    "num_power_capped",
    "num_thermally_capped",
    "num_without_clocks",
)


@dataclass(frozen=True, kw_only=True)
class StepRecord(Record):
    """One step measured by one rank; units and meaning as in the wire's StepMeasurement.

    Attributes:
        plan_version: version of one of the job's plans; None: default clocks, or unknown.
        unknown_version: version that the rank ran and that is no plan of this job here; None: the
            rank ran `plan_version`.
        num_without_clocks: 1 if the rank set no clocks, else 0.
    """

    job_id: str
    rank: int
    step: int
    plan_version: int | None
    time_s: float
    energy_j: float | None
    num_unplanned: int = 0
    num_overruns: int = 0
    num_clock_misses: int = 0
    num_power_capped: int = 0
    num_thermally_capped: int = 0
    num_without_clocks: int = 0
    sm_clock_mhz: float | None = None
    unknown_version: int | None = None

    def __post_init__(self) -> None:
        check_count("step", self.step)
        for version in (self.plan_version, self.unknown_version):
            if version is not None:
                check_count("plan_version", version, least=1, most=MAX_COUNT)
        check_quantity("time_s", self.time_s, most=MAX_STEP_TIME_S)
        if self.energy_j is not None:
            check_quantity("energy_j", self.energy_j, most=MAX_STEP_ENERGY_J)
        if self.sm_clock_mhz is not None:
            check_quantity("sm_clock_mhz", self.sm_clock_mhz, most=MAX_SM_CLOCK_MHZ)
        for name in _STEP_COUNTS:
            check_count(name, getattr(self, name))

    @property
    def num_lost_clocks(self) -> int:
        """Return the number of clock readings below the plan's that no limit explains."""
        num_capped = self.num_power_capped + self.num_thermally_capped
        return max(self.num_clock_misses - num_capped, 0)


@dataclass(frozen=True, kw_only=True)
class StepTotals(Record):
    """One step over the ranks that have posted it."""

    step: int
    #: Number of ranks that have posted it.
    num_ranks: int
    #: Range of the plan versions that were run in it; None: all ranks ran at default clocks.
    lowest_version: int | None
    newest_version: int | None
    #: Number of ranks that ran a plan.
    num_with_plan: int
    #: Time of the slowest rank, s.
    time_s: float
    #: Sum over the ranks, J; None: a rank could not read it.
    energy_j: float | None
    num_unplanned: int
    num_clock_misses: int
    num_power_capped: int
    num_thermally_capped: int
    #: Number of ranks that ran a plan unknown here; none of them in `num_with_plan`.
    num_unknown: int = 0
    num_overruns: int = 0
    #: Number of ranks that set no clocks.
    num_without_clocks: int = 0
    #: Unix time of the last post, s.
    stored_at: int = dataclasses.field(default=0, compare=False)

    @property
    def is_mixed(self) -> bool:
        """Return whether its ranks ran several versions."""
        is_one_version = self.lowest_version == self.newest_version
        return not is_one_version or 0 < self.num_with_plan < self.num_ranks

    @property
    def num_capped(self) -> int:
        """Return the number of clock readings that power or heat held below the plan's clock."""
        return self.num_power_capped + self.num_thermally_capped

    @property
    def num_lost_clocks(self) -> int:
        """Return the number of other readings below it: another program set the clock."""
        return max(self.num_clock_misses - self.num_capped, 0)

    @property
    def left_plan(self) -> bool:
        """Return whether it deviated from the plan.

        Power and heat limit the highest clocks too: such steps belong to the comparison.
        """
        return bool(self.num_unplanned or self.num_without_clocks or self.num_lost_clocks)


@dataclass(frozen=True, kw_only=True)
class FoldPlace(Record):
    """Place that the stored totals of a job's steps have reached."""

    #: Start of the job that the newest posts belong to.
    start_id: str
    #: Number of times that the job has started over; its steps are numbered anew in each.
    run: int = 0
    #: Newest step of this run in the totals; -1: no step.
    after_step: int = -1
    #: Number of steps that were added after later ones.
    num_late: int = 0
    #: Newest plan version in the totals; 0: no version.
    newest_version: int = 0
    #: Newest step of this run that was posted, where it has overtaken steps of another; -1: none.
    newest_step: int = -1
    #: Step from which on a post adds to the totals.
    due_step: int = 0

    def is_ahead_of(self, other: tuple[int, int, int]) -> bool:
        """Return whether the stored totals have steps that others lack.

        Args:
            other: run, newest step and number of late steps of the others.
        """
        run, after_step, num_late = other
        return (self.run, self.after_step) > (run, after_step) or self.num_late != num_late


@dataclass(frozen=True, kw_only=True)
class StepDetail(Record):
    """Times of a rank's instructions in one step, if its plan requests them.

    Attributes:
        by_clock, instructions, work, step_plan: as in the wire's StepMeasurement.
    """

    job_id: str
    rank: int
    step: int
    by_clock: tuple[ClockTiming, ...] | None = None
    instructions: tuple[InstructionReport, ...] | None = None
    work: StepWork | None = None
    step_plan: StepPlanReport | None = None

    def __post_init__(self) -> None:
        check_count("step", self.step)
        self._check_work()
        for _, chunk, clock_mhz, count, mean_s, variance_s2 in self.by_clock or ():
            check_count("by_clock", chunk)
            check_count("by_clock", clock_mhz or 0, most=MAX_SM_CLOCK_MHZ)
            check_count("by_clock", count, least=1)
            check_quantity("by_clock", mean_s, most=MAX_STEP_TIME_S)
            check_quantity("by_clock", variance_s2, most=MAX_STEP_TIME_S**2)
        for _, microbatch, chunk, *times_s, clock_mhz in self.instructions or ():
            check_count("instructions", microbatch or 0)
            check_count("instructions", chunk)
            check_count("instructions", clock_mhz or 0, most=MAX_SM_CLOCK_MHZ)
            for time_s in times_s:
                check_quantity("instructions", time_s, most=MAX_STEP_TIME_S)

    def _check_work(self) -> None:
        if self.work is not None:
            try:
                checked_work(self.work)
            except PipelineError as error:
                raise InvalidFieldError("work", error.message) from None
        if self.step_plan is not None:
            slack, lowest_mhz, highest_mhz, saved_j = self.step_plan
            check_quantity("step_plan", slack, most=1)
            check_quantity("step_plan", abs(saved_j), most=MAX_STEP_ENERGY_J)
            for clock_mhz in (lowest_mhz, highest_mhz):
                check_count("step_plan", clock_mhz, most=MAX_SM_CLOCK_MHZ)


@dataclass(frozen=True, kw_only=True)
class TokenRecord(Record):
    """Record of an access token.

    Attributes:
        token_id: the token's public part, by which it is found and listed.
        digest: SHA-256 of the whole token, hexadecimal.
        job_id: ID of the only job that it grants access to; None: all jobs.
        is_read_only: true if it permits no change; such a token has no job.
        created_at: creation time, UTC.
        note: description for the list of tokens.
    """

    token_id: str
    digest: str
    job_id: str | None
    is_read_only: bool = False
    created_at: datetime
    note: str = ""

    def __post_init__(self) -> None:
        check_text("note", self.note)
        if self.is_read_only and self.job_id is not None:
            raise InvalidFieldError("job_id", "must not be given for a read-only token")

    @property
    def is_operators(self) -> bool:
        """Return whether it grants access to everything."""
        return self.job_id is None and not self.is_read_only


@dataclass(frozen=True, kw_only=True)
class StageTotals(Record):
    """A step over those ranks of a stage that ran one plan version in it.

    Attributes:
        plan_version: plan version that was run; None: default clocks, or unknown.
        unknown_version: version that was run and is no plan here; None: `plan_version` was run.
        num_ranks: number of ranks that have posted it.
        time_s: time of the slowest rank, s.
        energy_j: sum over the ranks, J; None: a rank could not read it.
        num_with_clock: number of ranks that read their SM clock.
        sm_clock_mhz: mean over those ranks, MHz; None: no readings.
    """

    step: int
    stage: int
    plan_version: int | None
    num_ranks: int
    time_s: float
    energy_j: float | None
    num_clock_misses: int
    num_power_capped: int
    num_thermally_capped: int
    num_with_clock: int = 0
    sm_clock_mhz: float | None = None
    unknown_version: int | None = None

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Return the sort key of totals: step, stage, version (none first)."""
        return self.step, self.stage, self.plan_version or 0, self.unknown_version or 0
