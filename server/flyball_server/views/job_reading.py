"""Reading of jobs from the store on demand, with bounded work and bounded memory.

Jobs with a label of their own are read every time, all others at intervals. Immutable data, the
documents of plan versions and settled steps, is read once.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean

from flyball_server.jobs.conditions.changes import num_changed
from flyball_server.jobs.findings.announcements import slow_ranks
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.lifecycle.condition import condition_of
from flyball_server.jobs.lifecycle.job_life import is_emulated, is_gone, last_sign, refused_text
from flyball_server.jobs.loop_state import GpuChange
from flyball_server.jobs.measurements.step_fold import StepFold
from flyball_server.jobs.measurements.step_reading import new_fold, read_settled
from flyball_server.jobs.records import JobRecord, RankRecord
from flyball_server.jobs.savings.comparisons import progress_of
from flyball_server.jobs.savings.savings import JobSavings, savings_of
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StageTotals
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.wanted.wanted import slowdowns_at
from flyball_server.views.plan_facts import PlanFacts, plan_facts
from flyball_server.views.planned_delays import planned_delays
from flyball_server.views.stage_steps import mean_clock_mhz, sum_of_energies_j
from flyball_wire.closed_loop import ComparisonStatus, MissedTarget, PlannedDelays
from flyball_wire.energy_factors import NO_FACTORS, EnergyFactors
from flyball_wire.messages import JobCondition, PlanVersion
from flyball_wire.plans.plan import StagePrediction
from flyball_wire.read_models import MeasuredIteration, OwnPlanOfStep, PredictedIteration

# Time limit for reading jobs without a label of their own in one pass, s.
BUDGET_S = 0.5
# Period at which a job without a label of its own is read, s.
OTHERS_PERIOD_S = 60.0
# A job keeps its label against newer ones for this time after its last call, s.
KEPT_LABEL_S = 600.0
# Limit of rows of single ranks that are read for the stages of a job.
_MOST_RANK_ROWS = 512
# Label of all jobs without their own; a job of this name is one of them.
OTHER_JOBS = "other"


@dataclass(frozen=True, kw_only=True)
class StageMeasurement:
    """Measurement of a stage's ranks in an iteration.

    Attributes:
        time_s: time of the slowest, s.
        energy_j: sum of their energies, J; None: a rank could not read it.
        sm_clock_mhz: mean of the read clocks over steps and ranks, MHz; None: not read.
    """

    time_s: float
    energy_j: float | None
    sm_clock_mhz: float | None


@dataclass(frozen=True, kw_only=True)
class RankCounts:
    """Number of ranks that are expected, registered and alive, and of some that are.

    Attributes:
        changed: ranks whose GPU runs under conditions that the profile does not hold for.
        without_clocks: present ranks that set no clocks.
    """

    expected: int
    registered: int
    present: int
    changed: int = 0
    without_clocks: int = 0


@dataclass(kw_only=True)
class JobFacts:
    """Facts about one job; `fold` keeps growing, the rest is from the last reading.

    Attributes:
        fold: running totals of its settled steps.
        savings: savings of these steps.
        versions: all its plan versions, rising.
        stages: predictions by stage, of the version that `prediction` belongs to.
        planned_clocks_mhz: mean clock of this version by stage, MHz.
        measured_stages: measurements of the newest steps by stage.
        options: policy and target of the version that `prediction` belongs to; None: no version,
            or one of profiling.
        comparison: progress of the newest comparison.
        missed: target that the newest plan misses; None: it meets its target.
        condition: trouble that the job's state does not say; None: none.
        refused: line on a registration that was refused lately; None: none was.
        num_stragglers: ranks that are announced or detected as stragglers now.
        gpu_changes: GPUs that were replaced.
        factors: price and emissions of energy.
        delays: times beside the instructions; None: none.
        slow_ranks: stragglers that the newest plan counts, rising.
        own_plan: newest step's own plan; None: it had none.
        plan: version in force, or else the newest, by its number.
        active_at: time of the last call of its ranks, UTC.
    """

    job: JobRecord
    fold: StepFold
    savings: JobSavings
    emulated: bool = False
    ranks: RankCounts = RankCounts(expected=0, registered=0, present=0)
    versions: tuple[PlanVersion, ...] = ()
    newest_version: int | None = None
    active_version: int | None = None
    prediction: PredictedIteration | None = None
    stages: tuple[StagePrediction, ...] = ()
    planned_clocks_mhz: tuple[float, ...] = ()
    newest: MeasuredIteration | None = None
    measured_stages: tuple[StageMeasurement, ...] = ()
    options: tuple[str, str] | None = None
    comparison: ComparisonStatus
    missed: MissedTarget | None = None
    condition: JobCondition | None = None
    refused: str | None = None
    num_stragglers: int = 0
    gpu_changes: tuple[GpuChange, ...] = ()
    factors: EnergyFactors = NO_FACTORS
    delays: PlannedDelays | None = None
    slow_ranks: tuple[int, ...] = ()
    own_plan: OwnPlanOfStep | None = None
    active_at: datetime
    read_at_s: float = float("-inf")
    plan: dict[int, PlanFacts] = field(default_factory=dict)

    @property
    def is_caught_up(self) -> bool:
        """Return whether the job was read."""
        return self.read_at_s > float("-inf")


@dataclass(frozen=True, kw_only=True)
class AllJobs:
    """Facts about all jobs.

    Attributes:
        labelled: jobs with a label of their own, in the order of their names.
        others: jobs without.
        num_by_state: number of jobs by state and by emulated or real GPUs.
    """

    labelled: tuple[JobFacts, ...]
    others: tuple[JobFacts, ...]
    num_by_state: Counter[tuple[str, bool]]


class JobReading:
    """Reader of jobs that caches immutable parts; one thread at a time.

    Args:
        services: services of the use cases.
        max_labelled: limit of jobs with a label of their own.
        budget_s: time limit for reading jobs without a label, s.
        clock: monotonic, s.
    """

    def __init__(
        self,
        services: JobServices,
        *,
        max_labelled: int,
        budget_s: float = BUDGET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services = services
        self._max_labelled = max_labelled
        self._budget_s = budget_s
        self._clock = clock
        self._known: dict[str, JobFacts] = {}
        self._labelled: frozenset[str] = frozenset()

    def read(self, *, num_fresh: int = 0) -> AllJobs:
        """Read all jobs in one transaction.

        Args:
            num_fresh: number of most recently active jobs to read, with a label or without.

        Raises:
            StoreError: the store cannot be read.
        """
        until_s = self._clock() + self._budget_s
        with self._services.store.reading() as reader:
            jobs = {job.job_id: job for job in reader.list_jobs()}
            self._known = {job_id: self._facts(job) for job_id, job in jobs.items()}
            wanted, others = self._due(num_fresh)
            for facts in wanted:
                self._read(reader, facts)
            for facts in others:
                self._read(reader, facts)
                if self._clock() >= until_s:
                    break
            self._labelled = self._choose()
        everything = tuple(self._known[job_id] for job_id in sorted(self._known))
        return AllJobs(
            labelled=tuple(facts for facts in everything if not self._is_other(facts)),
            others=tuple(facts for facts in everything if self._is_other(facts)),
            num_by_state=Counter((str(facts.job.state), facts.emulated) for facts in everything),
        )

    @contextmanager
    def reading(self) -> Generator[JobReader]:
        """Open a reading transaction."""
        with self._services.store.reading() as reader:
            yield reader

    def read_one(self, reader: JobReader, job_id: str) -> JobFacts | None:
        """Read one job now, in the caller's transaction; None: it does not exist."""
        job = reader.find_job(job_id)
        if job is None:
            self._known.pop(job_id, None)
            return None
        facts = self._known[job_id] = self._facts(job)
        self._read(reader, facts)
        return facts

    def _read(self, reader: JobReader, facts: JobFacts) -> None:
        _read_job(self._services, reader, facts)
        facts.read_at_s = self._clock()

    def _facts(self, job: JobRecord) -> JobFacts:
        known = self._known.get(job.job_id)
        if known is None or known.job.created_at != job.created_at:
            # Another run under the same name starts from zero.
            fold = new_fold(job)
            return JobFacts(
                job=job,
                fold=fold,
                savings=savings_of(fold),
                comparison=progress_of(None, fold),
                emulated=job.spec.emulated,
                active_at=job.created_at,
                factors=self._services.factors,
            )
        known.job = job
        return known

    def _is_other(self, facts: JobFacts) -> bool:
        return facts.job.job_id not in self._labelled

    def _due(self, num_fresh: int) -> tuple[list[JobFacts], list[JobFacts]]:
        """Return the jobs to be read now, then others that are due, those never read first."""
        now_s = self._clock()
        newest = sorted(self._known.values(), key=lambda facts: facts.active_at, reverse=True)
        fresh = {facts.job.job_id for facts in newest[:num_fresh]} | self._labelled
        wanted = [facts for facts in self._known.values() if facts.job.job_id in fresh]
        others = [
            facts
            for facts in self._known.values()
            if facts.job.job_id not in fresh
            and (now_s - facts.read_at_s >= OTHERS_PERIOD_S or not facts.is_caught_up)
        ]
        # Of those never read the newest first: it most likely trains.
        others.sort(key=lambda facts: (facts.read_at_s, -facts.active_at.timestamp()))
        return wanted, others

    def _choose(self) -> frozenset[str]:
        """Return the jobs that called last; a labelled one keeps its label while it calls."""
        now = self._services.now()

        def rank(facts: JobFacts) -> tuple[bool, datetime]:
            is_lately = (now - facts.active_at).total_seconds() < KEPT_LABEL_S
            return is_lately and not self._is_other(facts), facts.active_at

        nameable = [facts for job_id, facts in self._known.items() if job_id != OTHER_JOBS]
        chosen = sorted(nameable, key=rank, reverse=True)[: self._max_labelled]
        return frozenset(facts.job.job_id for facts in chosen)


def _read_job(services: JobServices, reader: JobReader, facts: JobFacts) -> None:
    job = facts.job
    ranks = reader.list_ranks(job.job_id)
    now = services.now()
    loop_state = reader.find_loop_state(job.job_id)
    facts.missed = loop_state.missed
    facts.refused = refused_text(loop_state.refused, now)
    facts.condition = condition_of(job, ranks, loop_state, now=now, times=services.life)
    facts.delays = planned_delays(job.spec, loop_state.planned_inputs)
    facts.slow_ranks = slow_ranks(loop_state)
    facts.emulated = is_emulated(job, ranks)
    facts.num_stragglers = len(slowdowns_at(loop_state, now.timestamp()))
    present = [rank for rank in ranks if not is_gone(rank, now, services.life)]
    facts.ranks = RankCounts(
        expected=job.spec.num_expected_ranks,
        registered=len(ranks),
        present=len(present),
        without_clocks=sum(rank.no_clocks is not None for rank in present),
        changed=0
        if job.state in OVER
        else num_changed(reader.profiled_conditions(job.job_id), ranks),
    )
    _read_plans(reader, facts)
    before = facts.fold.place
    _read_steps(reader, facts, loop_state.gpu_changes)
    facts.comparison = progress_of(loop_state.comparison, facts.fold)
    facts.active_at = max(facts.active_at, last_sign(job, ranks))
    if before not in {(0, -1, 0), facts.fold.place}:
        facts.active_at = max(facts.active_at, now)
    newest = facts.fold.newest
    if newest != facts.newest:
        facts.newest = newest
        facts.own_plan = None
        if newest is not None and loop_state.planned_inputs.step_work is not None:
            facts.own_plan = newest_own_plan(reader, job.job_id, newest.last_step)
        facts.measured_stages = _measured_stages(reader, facts, ranks)


def _read_steps(reader: JobReader, facts: JobFacts, gpu_changes: tuple[GpuChange, ...]) -> None:
    """Read the stored totals, where they are further, and the steps since."""
    job_id, before = facts.job.job_id, facts.fold.place
    stored = reader.find_fold_place(job_id)
    if stored is not None and stored.is_ahead_of(facts.fold.place):
        facts.fold = reader.find_fold(job_id) or facts.fold
    read_settled(reader, facts.job, facts.fold)
    if (facts.fold.place, gpu_changes) != (before, facts.gpu_changes):
        facts.gpu_changes = gpu_changes
        facts.savings = savings_of(facts.fold, gpu_changes)


def _read_plans(reader: JobReader, facts: JobFacts) -> None:
    """Read the list of versions, and the document of that in force."""
    job_id = facts.job.job_id
    versions = facts.versions = reader.list_versions(job_id)
    active = [entry.version for entry in versions if entry.first_step is not None]
    facts.newest_version = max((entry.version for entry in versions), default=None)
    facts.active_version = max(active, default=None)
    told = facts.active_version or facts.newest_version or 0
    if told not in facts.plan:
        record = reader.find_plan(job_id, told)
        profile = reader.find_profile(job_id) if record else None
        num_ranks = facts.job.spec.num_expected_ranks
        facts.plan = {} if record is None else {told: plan_facts(record, profile, num_ranks)}
    known = facts.plan.get(told)
    facts.prediction = None if known is None else known.prediction
    facts.options = None if known is None else known.options
    facts.stages = () if known is None else known.stages
    facts.planned_clocks_mhz = () if known is None else known.stage_clocks_mhz


def _measured_stages(
    reader: JobReader, facts: JobFacts, ranks: Sequence[RankRecord]
) -> tuple[StageMeasurement, ...]:
    """Return the mean over the newest steps by stage."""
    newest = tuple(step.step for step in facts.fold.newest_steps)
    if not newest or not ranks:
        return ()
    last_step = newest[-1]
    first_step = last_step - max(_MOST_RANK_ROWS // len(ranks), 1) + 1
    steps = frozenset(step for step in newest if step >= first_step)
    by_stage: dict[int, list[StageTotals]] = defaultdict(list)
    for totals in reader.list_stage_totals(
        facts.job.job_id,
        after_step=min(steps) - 1,
        before_step=last_step + 1,
        num_steps=last_step + 1 - min(steps),
    ):
        if totals.step in steps:
            by_stage[totals.stage].append(totals)
    if set(by_stage) != set(range(facts.job.spec.num_stages)):
        return ()
    return tuple(_measured_stage(of_stage, len(steps)) for _, of_stage in sorted(by_stage.items()))


def _measured_stage(totals: Sequence[StageTotals], num_steps: int) -> StageMeasurement:
    times_s: dict[int, float] = {}
    for of_step in totals:
        times_s[of_step.step] = max(of_step.time_s, times_s.get(of_step.step, 0.0))
    energy_j = sum_of_energies_j(totals)
    return StageMeasurement(
        time_s=sum(times_s.values()) / len(times_s),
        energy_j=None if energy_j is None else energy_j / num_steps,
        sm_clock_mhz=mean_clock_mhz(totals),
    )


# Of a larger job the first ranks are read, and the text says so.
_MOST_RANKS = 1024


def newest_own_plan(reader: JobReader, job_id: str, step: int) -> OwnPlanOfStep | None:
    """Return the step's own plan over its ranks; None: no rank had one, or it is not kept.

    Of more than 1024 ranks it is that of the first 1024.

    Args:
        reader: reader of the current transaction.
        job_id: ID of the job.
        step: newest step that all ranks have posted.
    """
    details = reader.list_step_details(job_id, step, limit=_MOST_RANKS + 1)
    of_step = [detail for detail in details if detail.step == step]
    is_part = len(of_step) > _MOST_RANKS
    plans = [detail.step_plan for detail in of_step[:_MOST_RANKS] if detail.step_plan is not None]
    if not plans:
        return None
    slacks, lowest_mhz, highest_mhz, saved_j = zip(*plans, strict=True)
    of_which = f"step {step}, first {_MOST_RANKS} ranks" if is_part else f"step {step}"
    slack, lowest, highest = fmean(slacks), min(lowest_mhz), max(highest_mhz)
    return OwnPlanOfStep(
        step=step,
        num_ranks=len(plans),
        slack=slack,
        lowest_mhz=lowest,
        highest_mhz=highest,
        predicted_saved_j=sum(saved_j),
        text=f"{of_which}: {100 * slack:.0f} % slack, {lowest} to {highest} MHz",
    )
