"""First steps of a plan version, of which ranks post the times of single instructions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flyball_pipeline.dag import build_dag
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.schedule import Schedule
from flyball_pipeline.work import StepWork
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.findings.step_ratios import clock_times
from flyball_server.jobs.measurements.step_saving import step_plans_saving_percent
from flyball_server.jobs.planning_inputs import MeasuredDelays, WorkModel
from flyball_server.jobs.records import PlanRecord, RankRecord
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.planning.documents.recorded_plan import models_of_plan
from flyball_server.planning.model.array_dag import ArrayDag, FloatArray, array_dag
from flyball_server.planning.policies.measured_reconfigure import (
    StageInstructionTimes,
    is_as_ordered,
)
from flyball_server.profiling.change_delays import (
    MedianDelays,
    TimedStage,
    measured_change_delays,
)
from flyball_server.profiling.differing_work import shared_scatter
from flyball_server.profiling.iteration_delays import (
    TimedSteps,
    measured_delays,
    measured_jitter,
)
from flyball_wire.measurements import InstructionReport
from flyball_wire.plans.plan import Plan

# Steps with times of single instructions: fewer in a large pipeline, whose steps are long, and in
# which a post has this number of instructions.
MOST_TIMED_STEPS, FEWEST_TIMED_STEPS, TIMED_INSTRUCTIONS = 12, 6, 4096
# Microbatches of a pipeline from whose times the factors of announced work are fitted, and the most
# steps for that, which a client limits too.
TIMED_MICROBATCHES, MOST_TIMED_OF_WORK = 96, 64
# Instructions of a step that are posted, by one rank of each stage of as many pipelines: what
# thousands of ranks post in a step would be a gigabyte.
INSTRUCTIONS_A_STEP = 65_536
# Fewer usable steps say nothing.
FEWEST_USABLE_STEPS = 4
# Number of steps after the last timed one at which no post of these is expected any more.
PATIENCE_STEPS = 64

_Reports = tuple[InstructionReport, ...]
StepReports = Sequence[Sequence[_Reports]]
"""Of each data-parallel pipeline, the instructions of each stage in one step."""


def num_timed_steps(plan: Plan, work: WorkModel | None = None) -> int:
    """Return the number of steps on a plan whose instructions the ranks post; 0: none.

    A pipeline that never flushes has no tail, and profiling has its own measurements. A fit of
    announced work takes some microbatches; `work` is None where none is announced.
    """
    if plan.is_probe or plan.weight_versions is not None:
        return 0
    fit = TIMED_INSTRUCTIONS // max(map(len, plan.stages))
    least = min(max(fit, FEWEST_TIMED_STEPS), MOST_TIMED_STEPS)
    if work is None:
        return least
    wanted = math.ceil(TIMED_MICROBATCHES / plan.num_microbatches)
    return min(max(least, wanted), MOST_TIMED_OF_WORK)


def is_timed(plan: Plan, rank: RankRecord) -> bool:
    """Return whether this rank posts its instructions: one of each stage of some pipelines."""
    if plan.is_probe or rank.tp_rank or rank.cp_rank:
        return False
    num_pipelines = max(1, INSTRUCTIONS_A_STEP // sum(map(len, plan.stages)))
    return rank.dp_rank < num_pipelines


@dataclass(frozen=True, kw_only=True)
class TimedVersion:
    """A plan version with the steps that serve to measure its delays.

    Attributes:
        record: the version; its first step is known.
        num_ranks: number of its job's ranks.
        steps: usable steps with their iteration times in s, rising.
        is_over: true if no further step is expected.
    """

    record: PlanRecord
    num_ranks: int
    steps: Mapping[int, float]
    is_over: bool


def timed_version(
    reader: JobReader, record: PlanRecord, num_ranks: int, work: WorkModel | None = None
) -> TimedVersion:
    """Return the version's usable timed steps so far."""
    first_step, limit = record.first_step or 0, num_timed_steps(record.plan, work)
    if not limit:
        return TimedVersion(record=record, num_ranks=num_ranks, steps={}, is_over=True)
    totals = reader.list_step_totals(record.job_id, after_step=first_step, limit=limit)
    steps = {
        total.step: total.time_s
        for total in totals
        if total.num_ranks == total.num_with_plan == num_ranks
        and total.lowest_version == total.newest_version == record.version
        and not (total.num_unplanned or total.num_overruns)
    }
    last_step = first_step + limit
    newest_step = reader.newest_step(record.job_id, after_step=first_step) or 0
    is_whole = len(totals) == limit and all(total.num_ranks == num_ranks for total in totals)
    return TimedVersion(
        record=record,
        num_ranks=num_ranks,
        steps=steps,
        is_over=is_whole or newest_step >= last_step + PATIENCE_STEPS,
    )


@dataclass(frozen=True, kw_only=True)
class ReadSteps:
    """Timed steps of a version whose instructions all ran as ordered.

    Attributes:
        dp_ranks: of each pipeline, its data-parallel rank.
        times_s: iteration time of each step, s.
        reports: by step, pipeline and stage.
        works: work of each step by pipeline; None: none was announced.
        num_step_plans: number of the steps that had plans of their own.
    """

    dp_ranks: tuple[int, ...]
    times_s: tuple[float, ...]
    reports: tuple[StepReports, ...]
    works: tuple[tuple[StepWork | None, ...], ...]
    num_step_plans: int

    @property
    def has_some_work(self) -> bool:
        """Return whether any work was announced."""
        return any(work is not None for of_step in self.works for work in of_step)

    @property
    def has_work(self) -> bool:
        """Return whether all pipelines announced the work of at least half of the steps."""
        return 2 * sum(None not in of_step for of_step in self.works) >= len(self.works)

    def of_work(self) -> ReadSteps:
        """Return the steps of which all pipelines announced the work, if there are enough."""
        both = zip(self.times_s, self.reports, self.works, strict=True)
        kept = [(time_s, reports, works) for time_s, reports, works in both if None not in works]
        if not self.has_work or len(kept) < FEWEST_USABLE_STEPS:
            return self
        times_s, reports, works = zip(*kept, strict=True)
        return replace(self, times_s=times_s, reports=reports, works=works)


def read_timed_steps(reader: JobReader, timed: TimedVersion) -> ReadSteps | None:
    """Return the version's timed steps; None: too few are usable."""
    plan = timed.record.plan
    if plan.is_probe or len(timed.steps) < FEWEST_USABLE_STEPS:
        return None
    schedule = plan.order_of(plan.pipelines[0])
    ranks = [rank for rank in reader.list_ranks(timed.record.job_id) if is_timed(plan, rank)]
    pipelines = _pipelines(ranks, schedule.num_stages)
    read = [
        (time_s, found)
        for step, time_s in timed.steps.items()
        if (found := _read_step(reader, timed, step, schedule, list(pipelines.values())))
    ]
    if len(read) < FEWEST_USABLE_STEPS:
        return None
    return ReadSteps(
        dp_ranks=tuple(pipelines),
        times_s=tuple(time_s for time_s, _ in read),
        reports=tuple(reports for _, (reports, _, _) in read),
        works=tuple(works for _, (_, works, _) in read),
        num_step_plans=sum(has_plan for _, (_, _, has_plan) in read),
    )


def delays_of_steps(
    version: int,
    plan: Plan,
    iteration_times_s: Sequence[float],
    reports: Sequence[StepReports],
    *,
    profile: StageProfile,
    given_hops_s: Sequence[float] | None = None,
    factors: FloatArray | None = None,
) -> MeasuredDelays:
    """Return the delays that steps on a plan show.

    Args:
        version: version of the plan.
        plan: the plan.
        iteration_times_s: time of each step, s.
        reports: the instructions of each step, all as the plan orders them.
        profile: the job's profile.
        given_hops_s: given times of transfers, s; None: they are measured.
        factors: how much longer work makes the instructions, shape (num_nodes, num_steps,
            num_pipelines), which is then no jitter, and no late change; None: not known.
    """
    dag = array_dag(build_dag(plan.order_of(plan.pipelines[0])))
    # (num_steps, num_pipelines, num_nodes, 2), nodes being numbered stage after stage.
    times_s = np.array(
        [
            [
                [
                    (began_s, computed_s)
                    for of_stage in pipeline
                    for _, _, _, began_s, computed_s, *_ in of_stage
                ]
                for pipeline in of_step
            ]
            for of_step in reports
        ]
    ).transpose(3, 2, 0, 1)
    steps = TimedSteps(
        iteration_time_s=np.array(iteration_times_s), begin_s=times_s[0], compute_s=times_s[1]
    )
    delays = measured_delays(dag, steps, given_hops_s)
    alike = steps if factors is None else replace(steps, compute_s=steps.compute_s / factors)
    changes = MedianDelays()
    if not plan.is_separate:
        changes = measured_change_delays(_timed_stages(plan, profile, dag, alike))
    if factors is not None:
        changes = _shorter_than(changes, float(alike.compute_s.min()))
    work, saving_percent = shared_scatter(dag, steps.compute_s), None
    if work:
        saving_percent = _step_plans_saving_percent(plan, profile, steps)
    return MeasuredDelays(
        version=version,
        num_steps=len(reports),
        tail_s=delays.tail_s,
        transfer_s=delays.transfer_s,
        up_s=changes.up_s,
        down_s=changes.down_s,
        jitter=_jitter(dag, alike, plan),
        work=work,
        step_plans_saving_percent=saving_percent,
    )


def _shorter_than(changes: MedianDelays, shortest_s: float) -> MedianDelays:
    """Return the delays below the shortest instruction's time.

    A longer one cannot be told from none where work moves begins: each instruction then runs at the
    clock before its own, which looks like another time of its kind.
    """
    return MedianDelays(
        **{
            name: delay_s if delay_s is not None and delay_s < shortest_s else None
            for name, delay_s in vars(changes).items()
        }
    )


def _step_plans_saving_percent(
    plan: Plan, profile: StageProfile, steps: TimedSteps
) -> float | None:
    """Return what clocks for each of the steps would have saved, %; None: it cannot be known."""
    num_pipelines = steps.compute_s.shape[2]
    try:
        models = models_of_plan(profile, plan)
        if not plan.is_separate:
            models *= num_pipelines
        elif len(models) != num_pipelines:
            return None
        return step_plans_saving_percent(models, steps.compute_s)
    except PipelineError:
        return None


def _pipelines(ranks: Sequence[RankRecord], num_stages: int) -> dict[int, list[int]]:
    """Return the timed rank of each stage, of each whole data-parallel pipeline."""
    pipelines: dict[int, dict[int, int]] = defaultdict(dict)
    for rank in ranks:
        pipelines[rank.dp_rank][rank.stage] = rank.rank
    return {
        dp_rank: [of_stages[stage] for stage in range(num_stages)]
        for dp_rank, of_stages in sorted(pipelines.items())
        if len(of_stages) == num_stages
    }


def _read_step(
    reader: JobReader,
    timed: TimedVersion,
    step: int,
    schedule: Schedule,
    pipelines: Sequence[Sequence[int]],
) -> tuple[StepReports, tuple[StepWork | None, ...], bool] | None:
    """Return a step's instructions, its work, and whether it had a plan of its own.

    Returns:
        None where not all instructions were posted as ordered.
    """
    of_rank = {
        detail.rank: detail
        for detail in reader.list_step_details(timed.record.job_id, step, limit=timed.num_ranks)
        if detail.step == step and detail.instructions is not None
    }
    found = [
        [(of_rank[rank].instructions or ()) if rank in of_rank else () for rank in pipeline]
        for pipeline in pipelines
    ]
    is_whole = all(
        _is_as_ordered(schedule, stage, reports)
        for pipeline in found
        for stage, reports in enumerate(pipeline)
    )
    if not found or not is_whole:
        return None
    works = tuple(
        next((of_rank[rank].work for rank in pipeline if of_rank[rank].work is not None), None)
        for pipeline in pipelines
    )
    return found, works, any(detail.step_plan is not None for detail in of_rank.values())


def _is_as_ordered(schedule: Schedule, stage: int, reports: _Reports) -> bool:
    times = [
        StageInstructionTimes(kind, microbatch, chunk, received_s, computed_s)
        for kind, microbatch, chunk, _, computed_s, received_s, *_ in reports
    ]
    # Without a recorded end an instruction has no time.
    return is_as_ordered(schedule, stage, times) and all(report.computed_s > 0 for report in times)


def _timed_stages(
    plan: Plan, profile: StageProfile, dag: ArrayDag, steps: TimedSteps
) -> list[TimedStage]:
    """Return the stages whose instructions are all profiled at all clocks of the stage."""
    found: list[TimedStage] = []
    nodes = np.array(dag.stage)
    for number, stage in enumerate(plan.stages):
        known_s = clock_times(profile, number)
        clocks_mhz = sorted({item.frequency_mhz for item in stage}, reverse=True)
        times_s = [
            [known_s.get((str(item.kind), item.chunk, mhz), math.nan) for mhz in clocks_mhz]
            for item in stage
        ]
        if np.isnan(times_s).any():
            continue
        of_stage = nodes == number
        num_instructions = len(stage)
        found.append(
            TimedStage(
                times_s=np.array(times_s),
                clocks=tuple(clocks_mhz.index(item.frequency_mhz) for item in stage),
                kinds=tuple((item.kind, item.chunk) for item in stage),
                requests={
                    request.position: (request.after_position, request.offset_s)
                    for request in plan.pipelines[0].requests
                    if request.stage == number
                },
                begin_s=steps.begin_s[of_stage].reshape(num_instructions, -1),
                compute_s=steps.compute_s[of_stage].reshape(num_instructions, -1),
            )
        )
    return found


def _jitter(dag: ArrayDag, steps: TimedSteps, plan: Plan) -> float:
    """Return the jitter, of instructions at the clock before, where their kind has any."""
    changes = _has_changed(plan)
    alike, alike_of_node = dag.alike
    of_alike: list[float] = []
    for index in range(len(alike)):
        nodes = [node for node, group in enumerate(alike_of_node) if group == index]
        steady = [node for node in nodes if not changes[node]] or nodes
        of_alike.append(measured_jitter(steps.compute_s[steady]))
    return math.hypot(*of_alike) / math.sqrt(len(of_alike))


def _has_changed(plan: Plan) -> list[bool]:
    """Return per node whether its clock may change in it, in any pipeline.

    That is where it is another clock than before, and where the next clock is requested early.
    """
    by_pipeline: list[list[bool]] = []
    for part in plan.pipelines:
        requested = {(request.stage, request.position - 1) for request in part.requests}
        by_pipeline.append(
            [
                before.frequency_mhz != item.frequency_mhz or (number, position) in requested
                for number, stage in enumerate(part.stages)
                for position, (before, item) in enumerate(
                    zip([*stage[-1:], *stage[:-1]], stage, strict=True)
                )
            ]
        )
    return [any(of_node) for of_node in zip(*by_pipeline, strict=True)]
