"""Mapping between wire types and the planner's records."""

from __future__ import annotations

from dataclasses import asdict, fields

from flyball_server.jobs.lifecycle.condition import summary_condition
from flyball_server.jobs.measurements.measurements import RankPost
from flyball_server.jobs.records import PlanRecord, RankRecord
from flyball_server.jobs.registry import inspection
from flyball_server.jobs.registry.inspection import JobSummary
from flyball_server.jobs.registry.launch import Launch
from flyball_server.jobs.registry.registration import KnownRank
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StepDetail, StepRecord
from flyball_server.planning.documents.plan_document import plan_document
from flyball_wire import messages
from flyball_wire.measurements import MeasurementBatch
from flyball_wire.messages import JobSpec

_SPEC_FIELDS = tuple(field.name for field in fields(JobSpec))
_STEP_FIELDS = tuple(
    field.name
    for field in fields(StepRecord)
    if field.name not in {"job_id", "rank", "unknown_version", "num_without_clocks"}
)

# ------------------------------------------------------------------ from the wire


def job_spec(registration: messages.JobRegistration) -> JobSpec:
    """Return a registration's specification: one rank per stage unless it gives another number."""
    values = {name: getattr(registration, name) for name in _SPEC_FIELDS}
    return JobSpec(**values | {"num_ranks": registration.num_expected_ranks})


def launch(registration: messages.JobRegistration) -> Launch:
    """Return which start of the job somebody registers."""
    return Launch(
        start_id=registration.start_id,
        run=registration.run,
        restart_count=registration.restart_count,
        host=registration.host,
    )


def rank_record(job_id: str, rank: int, registration: messages.RankRegistration) -> RankRecord:
    """A rank that has just registered."""
    values = dict(vars(registration))
    start_id = values.pop("start_id")
    return RankRecord(job_id=job_id, rank=rank, start=start_id, **values)


def rank_post(job_id: str, rank: int, sent: MeasurementBatch) -> RankPost:
    """Return a rank's measured steps, and the instruction times of steps that have them."""
    return RankPost(
        rank=rank,
        start_id=sent.start_id,
        plan_ids={step.step: step.plan_id for step in sent.steps if step.plan_id is not None},
        steps=tuple(
            StepRecord(
                job_id=job_id,
                rank=rank,
                num_without_clocks=int(step.no_clocks is not None),
                **{name: getattr(step, name) for name in _STEP_FIELDS},
            )
            for step in sent.steps
        ),
        no_clocks=max(sent.steps, key=lambda step: step.step).no_clocks if sent.steps else None,
        conditions=next(
            (step.conditions for step in reversed(sent.steps) if step.conditions is not None), None
        ),
        details=tuple(
            StepDetail(
                job_id=job_id,
                rank=rank,
                step=step.step,
                by_clock=step.by_clock,
                instructions=step.instructions,
                work=step.work,
                step_plan=step.step_plan,
            )
            for step in sent.steps
            if any(details is not None for details in (step.by_clock, step.instructions, step.work))
        ),
    )


def profile_rows(profile: messages.JsonProfile) -> list[dict[str, object]]:
    """A JSON profile's rows as the profile reader takes them, without the keys not given."""
    return [
        {name: value for name, value in asdict(row).items() if value is not None}
        for row in profile.rows
    ]


# ------------------------------------------------------------------ to the wire


def job_view(services: JobServices, summary: JobSummary) -> messages.JobView:
    """A job, its registration as it is in force now, with notes and condition."""
    job = summary.job
    return messages.JobView(
        job_id=job.job_id,
        state=job.state,
        registration=messages.JobRegistration(
            **vars(job.spec), start_id=job.start, run=job.run, restart_count=job.restart_count
        ),
        ranks=tuple(rank_view(rank) for rank in summary.ranks),
        newest_version=summary.newest_version,
        active_version=summary.active_version,
        problem=job.problem,
        created_at=job.created_at.isoformat(),
        notes=inspection.notes(services, summary),
        missed=summary.findings.missed,
        order_advice=summary.findings.order_advice,
        condition=summary_condition(services, summary),
    )


def registered_view(known: KnownRank) -> messages.RegisteredRank:
    """A rank, as its registration is answered."""
    return messages.RegisteredRank(**vars(rank_view(known.record)), start_id=known.start_id)


def rank_view(rank: RankRecord) -> messages.RankView:
    """A rank."""
    values = {field.name: getattr(rank, field.name) for field in fields(messages.RankView)}
    seen_at = rank.last_seen_at
    return messages.RankView(
        **(values | {"last_seen_at": None if seen_at is None else seen_at.isoformat()})
    )


def plan_view(record: PlanRecord) -> messages.PlanView:
    """A plan version, whole."""
    return messages.PlanView(
        job_id=record.job_id,
        version=record.version,
        first_step=record.first_step,
        created_at=record.created_at.isoformat(),
        plan=plan_document(record.plan, solve_s=record.solve_s),
        measurement_detail=record.measurement_detail,
        baseline_cycle=record.baseline_cycle,
    )
