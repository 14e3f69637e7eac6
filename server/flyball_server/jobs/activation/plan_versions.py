"""Making a plan version known, whoever made the plan."""

from __future__ import annotations

from flyball_server.jobs.records import AnyPlan, PlanRecord, StepReport
from flyball_server.jobs.registry.inspection import newest_version
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobWriter


def add_version(
    services: JobServices,
    writer: JobWriter,
    job_id: str,
    plan: AnyPlan,
    *,
    solve_s: float = 0.0,
    report: StepReport = StepReport.TOTALS,
    baseline_cycle: tuple[bool, ...] = (),
) -> PlanRecord:
    """Store the plan as the job's next version, inside the caller's transaction.

    Once that is over, the caller calls `services.wake` and `services.notice` with the job.
    """
    record = PlanRecord(
        job_id=job_id,
        version=(newest_version(writer.list_activations(job_id)) or 0) + 1,
        created_at=services.now(),
        solve_s=solve_s,
        plan=plan,
        report=report,
        baseline_cycle=baseline_cycle,
    )
    writer.add_plan(record)
    return record
