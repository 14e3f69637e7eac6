"""Thread of the helper that plans single steps from the pipelines of a rank's versions."""

from __future__ import annotations

import logging
import math
from itertools import starmap
from queue import SimpleQueue

from flyball_client.helper.planner_calls import PlannerThread
from flyball_client.session.active_plan import given_mhz
from flyball_client.steps.agreement import Coupling
from flyball_client.steps.step_plans import (
    AsksForSteps,
    PlanKey,
    StepDeadlines,
    StepLoad,
    StepPlan,
)
from flyball_pipeline.clock_rounding import ChangeDelays
from flyball_pipeline.dag import DependencyDag
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import GIVE_GRADIENT, InstructionKind
from flyball_pipeline.retiming import RetimedPipeline, StepReserve, own_times, retime
from flyball_pipeline.work import WorkCoefficients, work_factors
from flyball_wire.errors import CodecError
from flyball_wire.plans.rank_pipeline import unpacked_pipeline
from flyball_wire.plans.rank_plan import RankPipeline, RankPlan

_logger = logging.getLogger(__name__)

# Versions whose pipelines are kept: in force, awaited, and those of other numbers of microbatches.
_MAX_KEPT = 6
# An instruction that is so many delays of a change up long counts as settled after one.
_SETTLED = 50


class OtherWorkError(PipelineError):
    """Work that the plan knows no factors for; that of other steps may be known."""


class StepPlanner(PlannerThread):
    """Times and plans of a rank's steps; of questions that have piled up the newest is answered.

    Args:
        rank: Rank that asks.
        name: Job and rank, for the log.
        coupling: Where its data-parallel ranks wait for each other.
        supported_mhz: SM clocks of its GPU, MHz; empty: not known.
    """

    def __init__(
        self, rank: AsksForSteps, name: str, coupling: Coupling, supported_mhz: tuple[int, ...]
    ) -> None:
        super().__init__("flyball-steps", f"{name}: steps get no plans of their own any more")
        self._rank, self._name = rank, name
        self._coupling: Coupling = coupling
        self._supported_mhz = supported_mhz
        self._asked: SimpleQueue[StepLoad | StepDeadlines | None] = SimpleQueue()
        self._kept: dict[PlanKey, RankPlan] = {}
        # Plans and couplings of which it is logged that steps get no plans, and plans of which it
        # is that some do not.
        self._refused: set[tuple[PlanKey, Coupling]] = set()
        self._other_work: set[PlanKey] = set()
        self._pipeline: StepPipeline | None = None
        self._load: tuple[StepLoad, StepPipeline, list[float]] | None = None

    def keep(self, plan: RankPlan) -> None:
        """Keep a version that has a pipeline."""
        key = PlanKey(plan.version, plan.plan_id)
        kept = [(known, kept_plan) for known, kept_plan in self._kept.items() if known != key]
        # Replaced in one store: the thread reads it.
        self._kept = dict([*kept, (key, plan)][-_MAX_KEPT:])

    def ask(self, question: StepLoad | StepDeadlines) -> None:
        """Answer through the rank's `step_timed` or `step_planned`, unless a newer one comes."""
        self._asked.put(question)

    def stop(self, timeout_s: float = 0.0) -> None:
        """Stop the thread, and wait at most `timeout_s` for an answer in progress."""
        self._stopping.set()
        self._asked.put(None)
        super().stop(timeout_s)

    def _run(self) -> None:
        while (question := self._newest()) is not None and not self._stopping.is_set():
            if isinstance(question, StepDeadlines):
                self._rank.step_planned(self._plan(question))
                continue
            times_s = self._times_s(question)
            if question.deadlines is None:
                self._rank.step_timed(question.step, times_s)
            else:
                only = question.deadlines._replace(greatest_s=times_s)
                self._rank.step_planned(self._plan(only))

    def _newest(self) -> StepLoad | StepDeadlines | None:
        """Return the newest question; steps of older questions have begun."""
        question = self._asked.get()
        while not self._asked.empty():
            question = self._asked.get()
        return question

    def _times_s(self, load: StepLoad) -> tuple[float, ...]:
        self._load = None
        if self._kind_of(load) in self._refused:
            return ()
        try:
            pipeline = self._pipeline_of(load)
            if pipeline is None:
                return ()
            factors = pipeline.factors(load)
            self._load = load, pipeline, factors
            return own_times(pipeline.retimed, factors)
        except Exception as error:
            self._refuse(load, error)
            return ()

    def _plan(self, deadlines: StepDeadlines) -> StepPlan:
        if self._load is None or self._load[0].step != deadlines.step:
            return StepPlan(deadlines.step)
        load, pipeline, factors = self._load
        try:
            return pipeline.plan(load, deadlines, factors)
        except Exception as error:
            self._refuse(load, error)
            return StepPlan(deadlines.step)

    def _refuse(self, load: StepLoad, error: Exception) -> None:
        """Log once for each plan that a step gets none; plan on where others may."""
        if isinstance(error, OtherWorkError):
            if load.plan in self._other_work:
                return
            self._other_work.add(load.plan)
        else:
            self._refused.add(self._kind_of(load))
        why = str(error) if isinstance(error, (PipelineError, CodecError)) else repr(error)
        _logger.warning(
            "%s: steps get no plans of their own under plan version %d, first step %d: %s",
            self._name,
            load.plan.version,
            load.step,
            why,
        )

    def _kind_of(self, load: StepLoad) -> tuple[PlanKey, Coupling]:
        return load.plan, load.coupling or self._coupling

    def _pipeline_of(self, load: StepLoad) -> StepPipeline | None:
        key, coupling = self._kind_of(load)
        plan = self._kept.get(key)
        if plan is None:
            return None
        known = self._pipeline
        if known is None or known.rank_plan is not plan or known.coupling != coupling:
            self._pipeline = known = StepPipeline(
                plan, coupling=coupling, supported_mhz=self._supported_mhz
            )
        return known


class StepPipeline:
    """A version's pipeline, for the steps of one of its ranks.

    Args:
        rank_plan: The rank's part of the version.
        coupling: Where data-parallel ranks wait for each other.
        supported_mhz: SM clocks of the rank's GPU, MHz; empty: not known.

    Raises:
        CodecError: There is no pipeline, or not that of the rank's instructions.
        PipelineError: Its steps get no plans of their own.
    """

    def __init__(
        self, rank_plan: RankPlan, *, coupling: Coupling, supported_mhz: tuple[int, ...]
    ) -> None:
        part = rank_plan.pipeline
        if part is None:
            raise CodecError(f"plan version {rank_plan.version} has no pipeline")
        self.rank_plan, self.coupling = rank_plan, coupling
        self._part, self._stage = part, rank_plan.stage
        dag, points, plan_mhz = unpacked_pipeline(part)
        self._dag, self._points = dag, points
        self._own = [node for node, stage in enumerate(dag.stage) if stage == rank_plan.stage]
        own = [tuple(dag.instruction[node]) for node in self._own]
        if own != [(rank_plan.kinds[kind], *rest) for kind, *rest, _ in rank_plan.instructions]:
            raise CodecError(f"plan version {rank_plan.version}: its pipeline has another order")
        self._coefficients = _coefficients(part)
        self.retimed = RetimedPipeline(
            dag=dag,
            points=points,
            waiting_power_w=part.waiting_power_w,
            meeting=_meetings(dag, coupling),
            plan_mhz=plan_mhz,
            delays=_delays(part),
        )
        delays = self.retimed.delays
        self._up_s = 0.0 if delays is None else delays.up_s
        clocks_mhz = self.retimed.clocks_mhz
        self._highest_mhz = max(supported_mhz or clocks_mhz)
        self._given_mhz = dict(
            zip(clocks_mhz, given_mhz(clocks_mhz, supported_mhz or clocks_mhz), strict=True)
        )

    def factors(self, load: StepLoad) -> list[float]:
        """Return per node its time in the step over the planned one.

        Raises:
            OtherWorkError: It is not known.
        """
        num_stages = self.retimed.num_stages
        slowness = (*load.slowness, *(1.0,) * num_stages)[:num_stages]
        factors = work_factors(
            self._dag, load.work, self._coefficients, slowness, self._part.lengths_range
        )
        if factors is None:
            num = self._part.num_microbatches
            raise OtherWorkError(
                f"{len(load.work)} microbatches are announced, and the plan has {num}"
                if len(load.work) != num
                else "the times of such lengths are not known yet",
                field="work",
            )
        return factors

    def plan(self, load: StepLoad, deadlines: StepDeadlines, factors: list[float]) -> StepPlan:
        """Return the plan of a step.

        Raises:
            PipelineError: The deadlines do not fit the pipeline.
        """
        part = self._part
        own_s = own_times(self.retimed, factors)
        *greatest_s, last_s = deadlines.greatest_s
        greatest_s.append(max(last_s, deadlines.slowest_s))
        deadlines_s = [part.deadline_ratio * time_s for time_s in greatest_s]
        of_step, of_instruction = part.reserve
        num_known = len(deadlines.in_force_mhz)
        clocks_mhz = retime(
            self.retimed,
            factors,
            deadlines_s,
            in_force_mhz=deadlines.in_force_mhz if num_known == self.retimed.num_stages else (),
            gap_s=deadlines.gap_s,
            reserve=StepReserve(of_step, of_instruction + load.caution),
        )
        stage, power_w = self._stage, part.waiting_power_w[self._stage]
        planned_s: list[float] = []
        saved_j: list[float] = []
        for node in self._own:
            points = self._points[node]
            ran = next(point for point in points if point.clock_mhz == clocks_mhz[node])
            highest, factor = max(points), factors[node]
            planned_s.append(factor * ran.time_s)
            waited_j = power_w * (highest.time_s - ran.time_s)
            saved_j.append(factor * (highest.energy_j - ran.energy_j - waited_j))
        step_plan = StepPlan(
            step=deadlines.step,
            clocks_mhz=tuple(self._given_mhz[clocks_mhz[node]] for node in self._own),
            slack=max(0.0, 1 - math.fsum(own_s) / math.fsum(deadlines_s)),
            saved_j=math.fsum(saved_j),
            slowness=load.slowness[stage] if stage < len(load.slowness) else 1.0,
            counts_changes=min(planned_s) >= _SETTLED * self._up_s,
        )
        highest_s, lower_s = step_plan.settled_s(planned_s, self._highest_mhz)
        return step_plan._replace(highest_s=highest_s, lower_s=lower_s)


def _delays(part: RankPipeline) -> ChangeDelays | None:
    if part.change_delays_s is None:
        return None
    up_s, down_s = part.change_delays_s
    return ChangeDelays(up_s=up_s, down_s=down_s)


def _coefficients(part: RankPipeline) -> dict[tuple[int, InstructionKind, int], WorkCoefficients]:
    kinds = [InstructionKind(kind) for kind in part.kinds]
    places = [(stage, kinds[kind], chunk) for stage, kind, chunk in part.groups]
    return dict(zip(places, starmap(WorkCoefficients, part.coefficients), strict=False))


def _meetings(dag: DependencyDag, coupling: Coupling) -> list[int]:
    """Return per node the meeting that ends its segment; empty: one at the step's end.

    Raises:
        PipelineError: It is not known where ranks wait for each other.
    """
    if coupling == "step":
        return []
    if coupling == "unknown" or max(dag.stage):
        raise PipelineError(
            "it is not known where its ranks wait for each other"
            if coupling == "unknown"
            else "ranks of a pipeline that wait for each other within a step get no such plans",
            field="coupling",
        )
    meetings: list[int] = []
    number = 0
    for instruction in dag.instruction:
        meetings.append(number)
        number += coupling == "instruction" or instruction.kind in GIVE_GRADIENT
    # What follows the last meeting within the step belongs to its end.
    return [min(meeting, max(number - 1, 0)) for meeting in meetings]
