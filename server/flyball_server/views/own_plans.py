"""Plan of the newest step alone, of jobs whose steps have plans of their own."""

from __future__ import annotations

from statistics import fmean

from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_wire.read_models import OwnPlanOfStep

# Of a larger job the first ranks stand for all.
_MOST_RANKS = 1024


def newest_own_plan(reader: JobReader, job_id: str, step: int) -> OwnPlanOfStep | None:
    """Return the step's own plan over its ranks; None: no rank had one, or it is not kept.

    Args:
        reader: reader of the current transaction.
        job_id: ID of the job.
        step: newest step that all ranks have posted.
    """
    details = reader.list_step_details(job_id, step, limit=_MOST_RANKS)
    plans = [each.step_plan for each in details if each.step == step and each.step_plan is not None]
    if not plans:
        return None
    slacks, lowest_mhz, highest_mhz, saved_j = zip(*plans, strict=True)
    slack, lowest, highest = fmean(slacks), min(lowest_mhz), max(highest_mhz)
    return OwnPlanOfStep(
        step=step,
        num_ranks=len(plans),
        slack=slack,
        lowest_mhz=lowest,
        highest_mhz=highest,
        predicted_saved_j=sum(saved_j),
        text=f"step {step}: {100 * slack:.0f} % slack, {lowest} to {highest} MHz",
    )
