"""Records of measured steps, of one rank and over ranks, and the moments of their times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.work import StepWork, checked_work
from flyball_server.jobs.bounds import MAX_COUNT, check_count, check_quantity
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.records import MAX_SM_CLOCK_MHZ, Record
from flyball_wire.measurements import ClockTiming, InstructionReport, StepPlanReport

InstructionKey = tuple[str, int, int | None]
"""Kind, model chunk and requested clock in MHz; None: the driver's choice."""


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Number, mean and sum of squared deviations from the mean of some values.

    They merge without the values (T. F. Chan, G. H. Golub and R. J. LeVeque, Updating formulae and
    a pairwise algorithm for computing sample variances, 1979, eq. 2.1).
    """

    count: int
    mean: float
    m2: float

    @property
    def variance(self) -> float | None:
        """Sample variance; None: fewer than two values."""
        return self.m2 / (self.count - 1) if self.count > 1 else None

    def merged(self, other: Moments) -> Moments:
        """Return the moments of the values of both."""
        count = self.count + other.count
        if not count:
            return self
        offset = other.mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + offset * other.count / count,
            m2=self.m2 + other.m2 + offset**2 * self.count * other.count / count,
        )


@dataclass(frozen=True, kw_only=True)
class StageMoments(Record):
    """Times of instructions of the ranks of a stage on one plan version, as planned."""

    #: Plan version; None: default clocks.
    plan_version: int | None
    stage: int
    #: Moments of the times of single instructions, s.
    instructions_s: Mapping[InstructionKey, Moments] = field(
        default_factory=dict[InstructionKey, Moments]
    )

    @property
    def place(self) -> tuple[int, int]:
        """Return the sort key: version (none first), stage."""
        return self.plan_version or 0, self.stage

    def merged(self, other: StageMoments) -> StageMoments:
        """Return the moments of both, which are of the same version and stage."""
        merged = dict(self.instructions_s)
        for key, moments in other.instructions_s.items():
            merged[key] = merged[key].merged(moments) if key in merged else moments
        return self.evolve(instructions_s=merged)


def merged_moments(several: Iterable[StageMoments]) -> dict[tuple[int, int], StageMoments]:
    """Return the moments of each version and stage, by their place."""
    merged: dict[tuple[int, int], StageMoments] = {}
    for totals in several:
        known = merged.get(totals.place)
        merged[totals.place] = totals if known is None else known.merged(totals)
    return merged


# Limits of one rank in one step: sums and squares of any number of them stay finite.
MAX_STEP_TIME_S = 1e9
MAX_STEP_ENERGY_J = 1e12
_STEP_COUNTS = (
    "num_unplanned",
    "num_overruns",
    "num_clock_misses",
    "num_power_capped",
    "num_thermally_capped",
    "num_without_clocks",
)


@dataclass(frozen=True, kw_only=True)
class ClockReadings(Record):
    """Readings of the SM clock below the clock that was set."""

    #: Number of these readings.
    num_clock_misses: int = 0
    #: Number of those that a power limit explains.
    num_power_capped: int = 0
    #: Number of those that a thermal limit explains.
    num_thermally_capped: int = 0

    @property
    def num_capped(self) -> int:
        """Return the number of those that a limit explains."""
        return self.num_power_capped + self.num_thermally_capped

    @property
    def num_lost_clocks(self) -> int:
        """Return the number of the others: another program set the clock."""
        return max(self.num_clock_misses - self.num_capped, 0)


@dataclass(frozen=True, kw_only=True)
class StepRecord(ClockReadings):
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


@dataclass(frozen=True, kw_only=True)
class StepTotals(ClockReadings):
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
    #: Number of ranks that ran a plan unknown here; none of them in `num_with_plan`.
    num_unknown: int = 0
    num_overruns: int = 0
    #: Number of ranks that set no clocks.
    num_without_clocks: int = 0
    #: Unix time of the last post, s.
    stored_at: int = field(default=0, compare=False)

    @property
    def is_mixed(self) -> bool:
        """Return whether its ranks ran several versions."""
        is_one_version = self.lowest_version == self.newest_version
        return not is_one_version or 0 < self.num_with_plan < self.num_ranks

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
class StageTotals(ClockReadings):
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
    num_with_clock: int = 0
    sm_clock_mhz: float | None = None
    unknown_version: int | None = None

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Return the sort key of totals: step, stage, version (none first)."""
        return self.step, self.stage, self.plan_version or 0, self.unknown_version or 0
