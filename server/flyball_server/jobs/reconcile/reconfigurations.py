"""EnvPipe's loop: a next version with raised clocks while measured waits require one.

Its progress is stored in the versions themselves: those that are undecided request the ranks'
instructions, the last version totals.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from flyball_pipeline.errors import PipelineError
from flyball_server.jobs.records import JobRecord, PlanRecord, RankRecord
from flyball_server.jobs.registry.inspection import newest_version
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StepDetail
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.versions.plan_versions import add_again
from flyball_server.jobs.versions.planning import read_planning
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.planner import planned_stages, predicted
from flyball_server.planning.policies.measured_reconfigure import (
    Decision,
    MeasuredLoop,
    MeasuredPipeline,
    MeasuredStep,
    StageInstructionTimes,
    decide,
    is_as_ordered,
    pipeline_of_steps,
    slowest,
)
from flyball_server.planning.policies.reconfigure import reconfigure
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.messages import Adaptation
from flyball_wire.plans.plan import Purpose

# Number of a version's steps that are read: a run that started over has later ones too.
MOST_STEPS = 64

_Ran = tuple[StageInstructionTimes, ...]
_Pipeline = list[list[int]]


def observation_windows(
    reader: JobReader,
    plan: PlanRecord,
    model: PipelineModel,
    *,
    steps_per_window: int,
    max_windows: int,
) -> list[MeasuredPipeline]:
    """Return the first observation windows of the active version, in the order of time.

    Each consists of `steps_per_window` steps that all ranks measured in the version's order; the
    version's first step is left out. Of data-parallel pipelines the slowest counts.

    Args:
        reader: reader of the current transaction.
        plan: version with a known first step.
        model: model of its order.
        steps_per_window: number of steps per window, at least 1; the window is their median.
        max_windows: maximum number of windows; no further steps are read.
    """
    ranks = reader.list_ranks(plan.job_id)
    pipelines = _whole_pipelines(model, ranks)
    if not pipelines:
        return []
    all_usable = (
        ran for ran in _ran_steps(reader, plan, len(ranks)) if _is_usable(model, ranks, ran)
    )
    usable = list(islice(all_usable, max_windows * steps_per_window))
    return [
        _window_of(model, pipelines, usable[end - steps_per_window : end])
        for end in range(steps_per_window, len(usable) + 1, steps_per_window)
    ]


def _ran_steps(reader: JobReader, plan: PlanRecord, num_ranks: int) -> Iterator[dict[int, _Ran]]:
    """Yield the ranks' instructions, by rank, in one complete step after another."""
    kept = reader.list_step_details(plan.job_id, (plan.first_step or 0) + 1, limit=1)
    if not kept:
        return
    for step in complete_steps(reader, plan, num_ranks, first_step=kept[0].step):
        yield {
            detail.rank: _instruction_times(detail)
            for detail in reader.list_step_details(plan.job_id, step, limit=num_ranks)
            if detail.step == step and detail.instructions is not None
        }


def complete_steps(
    reader: JobReader, plan: PlanRecord, num_ranks: int, *, first_step: int
) -> list[int]:
    """Return the steps among MOST_STEPS from this step on that all ranks ran on this version."""
    num_by_step = Counter(
        record.step
        for record in reader.list_steps(plan.job_id, first_step, first_step + MOST_STEPS)
        if record.plan_version == plan.version
    )
    return [step for step, num_posted in num_by_step.items() if num_posted == num_ranks]


def _instruction_times(detail: StepDetail) -> _Ran:
    return tuple(
        StageInstructionTimes(kind, microbatch, chunk, received_s, computed_s)
        for kind, microbatch, chunk, _, computed_s, received_s, *_ in detail.instructions or ()
    )


def _is_usable(model: PipelineModel, ranks: Sequence[RankRecord], ran: dict[int, _Ran]) -> bool:
    return all(
        rank.rank in ran and is_as_ordered(model.schedule, rank.stage, ran[rank.rank])
        for rank in ranks
    )


def _whole_pipelines(model: PipelineModel, ranks: Sequence[RankRecord]) -> list[_Pipeline]:
    """Return the data-parallel pipelines, each as the ranks' numbers by stage."""
    pipelines: dict[int, _Pipeline] = {}
    for rank in ranks:
        stages = pipelines.setdefault(rank.dp_rank, [[] for _ in model.schedule.stages])
        stages[rank.stage].append(rank.rank)
    return [stages for stages in pipelines.values() if all(stages)]


def _window_of(
    model: PipelineModel, pipelines: Sequence[_Pipeline], steps: Sequence[dict[int, _Ran]]
) -> MeasuredPipeline:
    measured = [
        pipeline_of_steps(
            model.schedule,
            model.dag,
            [ran for step in steps for ran in _by_stages(stages, step)],
        )
        for stages in pipelines
    ]
    return slowest(model.dag, measured)


def _by_stages(stages: _Pipeline, ran: dict[int, _Ran]) -> list[MeasuredStep]:
    """Return one step of one pipeline, once for each rank of a stage.

    The ranks run the same instructions at the same time, so each counts like a step of its own.
    """
    most = max(map(len, stages))
    return [[ran[ranks[lock % len(ranks)]] for ranks in stages] for lock in range(most)]


_LOG = logging.getLogger(__name__)

STEPS_PER_WINDOW = 2
# Number of measured steps on one version after which no window is expected any more.
PATIENCE_STEPS = 32


@dataclass(frozen=True, kw_only=True)
class _Round:
    """Active version and its measurements.

    Attributes:
        assignment: clocks of the version.
        is_hopeless: true if it has run for long without a usable measurement.
    """

    job: JobRecord
    record: PlanRecord
    loop: MeasuredLoop
    assignment: Assignment
    windows: list[MeasuredPipeline]
    is_hopeless: bool


class ReconfigurationReconciler:
    """Reconciler that raises clocks by measured waits, in jobs with `adaptation` `reconfigure`.

    Where waits cannot be had, the profile's own times decide once, as they do for jobs that
    adapt to nothing.
    """

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether measured waits raise its clocks."""
        del reader
        return job.spec.adaptation == Adaptation.RECONFIGURE

    def __call__(self, services: JobServices, job_id: str) -> None:
        """Raise clocks once more if needed."""
        with services.store.reading() as reader:
            this = _round(services, reader, job_id)
        if this is None:
            return
        if this.is_hopeless:
            _raise_by_profile(services, this, "its ranks post no instructions as they were planned")
            return
        try:
            decision = decide(this.loop, this.assignment, this.windows)
        except PipelineError as error:
            _raise_by_profile(services, this, error.message)
            return
        _act(services, this, decision)


def _round(services: JobServices, reader: JobReader, job_id: str) -> _Round | None:
    """Return the facts to decide on; None: the job is not to be reconfigured now."""
    job = reader.require_job(job_id)
    if job.spec.adaptation != Adaptation.RECONFIGURE:
        return None  # other jobs cost no more than this one read
    record = reader.newest_plan(job_id)
    if record is None:
        return None
    plan = record.plan
    is_open = record.purpose == Purpose.RAISE
    if not is_open or record.first_step is None or plan.is_separate:
        return None
    planning, profile = read_planning(reader, job), reader.find_profile(job_id)
    target = planning.wanted(services).plan
    if profile is None or target is None or not planning.is_planned(services):
        return None
    model, assignment = model_of_plan(profile, plan)
    loop = MeasuredLoop(
        model=model,
        manner=job.spec.reconfiguration,
        granularity_mhz=target.reconfigure_granularity_mhz,
    )
    windows = observation_windows(
        reader, record, model, steps_per_window=STEPS_PER_WINDOW, max_windows=loop.finish_limit
    )
    return _Round(
        job=job,
        record=record,
        loop=loop,
        assignment=assignment,
        windows=windows,
        is_hopeless=not windows and _num_measured(reader, record) >= PATIENCE_STEPS,
    )


def _num_measured(reader: JobReader, record: PlanRecord) -> int:
    num_ranks = len(reader.list_ranks(record.job_id))
    first_step = (record.first_step or 0) + 1
    return len(complete_steps(reader, record, num_ranks, first_step=first_step))


def _act(services: JobServices, this: _Round, decision: Decision) -> None:
    if decision.raised is not None:
        num_raised = sum(map(int.__gt__, this.assignment, decision.raised))
        why = f"{num_raised} instructions raised on the measured critical path"
        _publish(services, this, decision.raised, MeasurementDetail.INSTRUCTIONS, why)
    elif decision.is_finished:
        why = "nothing is left to raise on the measured critical path"
        _publish(services, this, this.assignment, MeasurementDetail.TOTALS, why)


def _raise_by_profile(services: JobServices, this: _Round, why: str) -> None:
    loop = this.loop
    raised = reconfigure(loop.model, this.assignment, loop.manner, loop.granularity_mhz)
    _LOG.warning("job %s: %s; the profile decides which clocks to raise", this.job.job_id, why)
    _publish(services, this, raised, MeasurementDetail.TOTALS, "reconfigured by the profile")


def _publish(
    services: JobServices, this: _Round, assignment: Assignment, detail: MeasurementDetail, why: str
) -> None:
    """Add the version unless the job has another version by now."""
    model, before = this.loop.model, this.record.plan.predicted
    simulation = simulate(model, assignment)
    [pipeline] = this.record.plan.pipelines
    plan = replace(
        this.record.plan,
        reconfigure=this.loop.manner,
        iteration_time_s=simulation.iteration_time_s,
        pipelines=(replace(pipeline, stages=planned_stages(model, assignment)),),
        prediction=predicted(
            model,
            assignment,
            simulation,
            lower_bound_j=before.lower_bound_j,
            compared=before.compared,
        ),
    )
    job_id = this.job.job_id
    with services.store.writing(job_id) as writer:
        now = writer.require_job(job_id)
        newest = newest_version(writer.list_versions(job_id))
        if not this.job.is_same_work(now) or newest != this.record.version:
            return
        raised = this.record.evolve(plan=plan, measurement_detail=detail, solve_s=0.0)
        record = add_again(services, writer, raised)
    services.notify_pollers(job_id)
    services.enqueue_reconcile(job_id)
    _LOG.info("job %s: plan %d: %s", job_id, record.version, why)
