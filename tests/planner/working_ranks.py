"""Ranks whose steps differ: they announce work, follow plans of steps, and post what it takes."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tests.planner.one_rank import newer_plan, register_rank, store_posts, take_up
from tests.planner.samples import rank_record

from flyball_pipeline.clock_rounding import ChangeDelays
from flyball_pipeline.dag import DependencyDag
from flyball_pipeline.paths import earliest_finish_s
from flyball_pipeline.retiming import RetimedPipeline, StepReserve, own_times, retime
from flyball_pipeline.work import StepWork, WorkCoefficients, step_work, work_factors
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.measurements.measurements import RankPost
from flyball_server.jobs.records import PlanRecord, RankRecord
from flyball_server.jobs.registry.inspection import get_job, get_plan
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StepDetail, StepRecord
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_wire.plans.rank_pipeline import unpacked_pipeline
from flyball_wire.plans.rank_plan import RankPipeline, RankPlan

Lengths = Sequence[Sequence[float]]

_STEPS_A_POST = 8


def moments(times_s: Sequence[float]) -> tuple[int, float, float]:
    """Return number, mean and variance, as ranks post them."""
    mean_s = sum(times_s) / len(times_s)
    return len(times_s), mean_s, sum((each - mean_s) ** 2 for each in times_s) / len(times_s)


@dataclass(kw_only=True)
class WorkingStep:
    """One step of all pipelines.

    Attributes:
        time_s: of the slowest pipeline.
        highest_s: of the slowest, had all run at the highest clocks.
        energy_j, highest_j: of all GPUs, waiting included.
        clocks_mhz: all that ran.
    """

    time_s: float
    highest_s: float
    energy_j: float
    highest_j: float
    clocks_mhz: set[int]


@dataclass(kw_only=True)
class WorkingRanks:
    """All ranks of job `job`; each stage of each pipeline is one.

    Attributes:
        services: the planner's.
        profile: times at factor 1.
        true: coefficients of factors by stage, kind and chunk.
        draw: sequence lengths of a step's microbatches.
        announced: what ranks announce of them; None: nothing.
        silent: pipelines that announce nothing whatever it says.
        error: deviation of times that a microbatch's instructions share.
        slowdowns: times of a rank's instructions over those of other ranks; no entry: 1.
        are_posted: false where the planner needs none of the steps.
        unmeasured_every: number of steps after which rank 0's energy is missing; 0: it never is.
    """

    services: JobServices
    num_pipelines: int
    num_stages: int
    profile: StageProfile
    true: Mapping[tuple[int, str], WorkCoefficients]
    draw: Callable[[random.Random], Lengths]
    announced: Callable[[Lengths], StepWork | None] = step_work
    silent: Collection[int] = ()
    error: float = 0.0
    own_error: float = 0.0
    slowdowns: Mapping[int, float] = field(default_factory=dict[int, float])
    waiting_power_w: float = 70.0
    are_posted: bool = True
    unmeasured_every: int = 0
    step: int = 0
    parts: dict[int, RankPlan] = field(default_factory=dict[int, RankPlan])
    _chance: random.Random = field(default_factory=lambda: random.Random(5))
    _models: dict[int, tuple[PipelineModel, list[int]]] = field(
        default_factory=dict[int, tuple[PipelineModel, list[int]]]
    )
    _retimed: dict[int, tuple[RankPipeline, DependencyDag, RetimedPipeline]] = field(
        default_factory=dict[int, tuple[RankPipeline, DependencyDag, RetimedPipeline]]
    )

    @property
    def ranks(self) -> list[RankRecord]:
        """All ranks."""
        return [
            rank_record(number, stage=number % self.num_stages, dp_rank=number // self.num_stages)
            for number in range(self.num_pipelines * self.num_stages)
        ]

    def register(self) -> None:
        """Make all ranks known."""
        for rank in self.ranks:
            register_rank(self.services, rank)

    @property
    def newest(self) -> int:
        """Newest version of the job's plan."""
        return get_job(self.services, "job").newest_version or 0

    def take(self) -> int:
        """All ranks take the newest version, and go on to its first step."""
        version = self.newest
        for rank in self.ranks:
            part = newer_plan(self.services, "job", rank.rank, after_version=0)
            assert part is not None
            if rank.stage == 0:
                self.parts[rank.dp_rank] = part
        numbers = (rank.rank for rank in self.ranks)
        self.step = take_up(self.services, numbers, version=version, current_step=self.step)
        return version

    def run(self, num_steps: int) -> list[WorkingStep]:
        """Run so many steps on the version that was taken last, and post them, some at a time."""
        record = get_plan(self.services, "job", next(iter(self.parts.values())).version)
        steps: list[WorkingStep] = []
        posts: list[RankPost] = []
        for number in range(1, num_steps + 1):
            steps.append(self._run(record, posts))
            if posts and (number % _STEPS_A_POST == 0 or number == num_steps):
                store_posts(self.services, posts)
                posts = []
        return steps

    def _model_of(self, record: PlanRecord) -> tuple[PipelineModel, list[int]]:
        """Return a version's pipeline and its clocks by node."""
        found = self._models.get(record.version)
        if found is None:
            model, assignment = model_of_plan(self.profile, record.plan)
            clocks = (points[each] for points, each in zip(model.points, assignment, strict=True))
            found = model, [point.frequency_mhz for point in clocks]
            self._models[record.version] = found
        return found

    def _run(self, record: PlanRecord, posts: list[RankPost]) -> WorkingStep:
        model, planned_mhz = self._model_of(record)
        lengths = [self.draw(self._chance) for _ in range(self.num_pipelines)]
        works = [
            None if dp_rank in self.silent else self.announced(each)
            for dp_rank, each in enumerate(lengths)
        ]
        factors = [self._true_factors(model, *each) for each in enumerate(lengths)]
        highest = [[points[0].frequency_mhz for points in model.points]] * self.num_pipelines
        cycle = record.baseline_cycle
        if cycle and cycle[(self.step - (record.first_step or 0)) % len(cycle)]:
            clocks = highest
        else:
            clocks = self._clocks(works, planned_mhz, highest)
        ran = [self._ran(model, *each) for each in zip(factors, clocks, strict=True)]
        best = [self._ran(model, *each) for each in zip(factors, highest, strict=True)]
        time_s, highest_s = (max(max(ends) for ends, _, _ in all_) for all_ in (ran, best))
        if self.are_posted:
            posts += (
                self._post(
                    dp_rank,
                    stage,
                    model=model,
                    ends_s=ends_s,
                    durations_s=durations_s,
                    energies_j=energies_j,
                    clocks=clocks[dp_rank],
                    work=works[dp_rank],
                    time_s=time_s,
                )
                for dp_rank, (ends_s, durations_s, energies_j) in enumerate(ran)
                for stage in range(self.num_stages)
            )
        self.step += 1
        return WorkingStep(
            time_s=time_s,
            highest_s=highest_s,
            energy_j=self._energy_j(ran, time_s),
            highest_j=self._energy_j(best, highest_s),
            clocks_mhz={mhz for each in clocks for mhz in each},
        )

    def _true_factors(self, model: PipelineModel, dp_rank: int, lengths: Lengths) -> list[float]:
        work = step_work(lengths)
        shared = [1 + self._chance.gauss(0, self.error) for _ in work]
        return [
            self.true[stage, str(kind)].factor(work[microbatch])
            * shared[microbatch]
            * (1 + self._chance.gauss(0, self.own_error))
            * self.slowdowns.get(dp_rank * self.num_stages + stage, 1.0)
            for stage, (kind, microbatch, _) in zip(
                model.dag.stage, model.dag.instruction, strict=True
            )
        ]

    def _clocks(
        self,
        works: Sequence[StepWork | None],
        planned_mhz: list[int],
        highest: list[list[int]],
    ) -> list[list[int]]:
        """Return clocks by pipeline and node, as ranks choose them."""
        parts = [self.parts[dp_rank].pipeline for dp_rank in range(self.num_pipelines)]
        if any(part is None for part in parts):
            return [planned_mhz] * self.num_pipelines
        made: list[tuple[RetimedPipeline, list[float], float, StepReserve]] = []
        for dp_rank, (part, work) in enumerate(zip(parts, works, strict=True)):
            assert part is not None
            dag, pipeline = self._retimed_pipeline(dp_rank, part)
            coefficients = dict(
                zip(dag.alike[0], map(WorkCoefficients._make, part.coefficients))  # noqa: B905
            )
            if work is None:
                return highest
            factors = work_factors(dag, work, coefficients, lengths_range=part.lengths_range)
            if factors is None:
                return highest
            made.append((pipeline, factors, part.deadline_ratio, StepReserve(*part.reserve)))
        deadline_s = max(own_times(each, factors)[0] * ratio for each, factors, ratio, _ in made)
        return [
            list(retime(each, factors, [deadline_s], reserve=reserve))
            for each, factors, _, reserve in made
        ]

    def _retimed_pipeline(
        self, dp_rank: int, part: RankPipeline
    ) -> tuple[DependencyDag, RetimedPipeline]:
        if dp_rank not in self._retimed or self._retimed[dp_rank][0] is not part:
            dag, points, plan_mhz = unpacked_pipeline(part)
            delays = part.change_delays_s
            pipeline = RetimedPipeline(
                dag=dag,
                points=points,
                waiting_power_w=part.waiting_power_w,
                plan_mhz=plan_mhz,
                delays=None if delays is None else ChangeDelays(up_s=delays[0], down_s=delays[1]),
            )
            self._retimed[dp_rank] = part, dag, pipeline
        return self._retimed[dp_rank][1:]

    def _ran(
        self, model: PipelineModel, factors: Sequence[float], clocks: Sequence[int]
    ) -> tuple[list[float], list[float], list[float]]:
        points = [
            next(point for point in of_node if point.frequency_mhz == mhz)
            for of_node, mhz in zip(model.points, clocks, strict=True)
        ]
        durations_s = [f * point.time_s for f, point in zip(factors, points, strict=True)]
        energies_j = [f * point.energy_j for f, point in zip(factors, points, strict=True)]
        return earliest_finish_s(model.dag, durations_s), durations_s, energies_j

    def _energy_j(
        self, ran: Sequence[tuple[list[float], list[float], list[float]]], time_s: float
    ) -> float:
        idle_s = sum(self.num_stages * time_s - sum(durations) for _, durations, _ in ran)
        return sum(sum(energies) for _, _, energies in ran) + self.waiting_power_w * idle_s

    def _post(
        self,
        dp_rank: int,
        stage: int,
        *,
        model: PipelineModel,
        ends_s: Sequence[float],
        durations_s: Sequence[float],
        energies_j: Sequence[float],
        clocks: Sequence[int],
        work: StepWork | None,
        time_s: float,
    ) -> RankPost:
        part, rank = self.parts[dp_rank], dp_rank * self.num_stages + stage
        nodes = [node for node, of in enumerate(model.dag.stage) if of == stage]
        busy_s = sum(durations_s[node] for node in nodes)
        energy_j = sum(energies_j[node] for node in nodes)
        energy_j += self.waiting_power_w * (time_s - busy_s)
        every = self.unmeasured_every
        record = StepRecord(
            job_id="job",
            rank=rank,
            step=self.step,
            plan_version=part.version,
            time_s=time_s,
            energy_j=None if rank == 0 and every and self.step % every == 0 else energy_j,
        )
        reports = tuple(
            (
                str(model.dag.instruction[node].kind),
                model.dag.instruction[node].microbatch,
                model.dag.instruction[node].chunk,
                ends_s[node] - durations_s[node],
                durations_s[node],
                0.0,
                0.0,
                clocks[node],
            )
            for node in nodes
        )
        of_stage = [clocks[node] for node in nodes]
        times_s: dict[tuple[str, int, int], list[float]] = {}
        for kind, _, chunk, _, computed_s, _, _, clock_mhz in reports:
            times_s.setdefault((kind, chunk, clock_mhz), []).append(computed_s)
        detail = StepDetail(
            job_id="job",
            rank=rank,
            step=self.step,
            by_clock=tuple((*key, *moments(found)) for key, found in times_s.items()),
            instructions=reports,
            work=work,
            step_plan=(0.1, min(of_stage), max(of_stage), 1.0)
            if part.pipeline is not None and part.pipeline.coefficients
            else None,
        )
        return RankPost(rank=rank, steps=(record,), details=(detail,))
