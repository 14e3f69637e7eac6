"""Plan of the newest step alone, of jobs whose steps have plans of their own."""

from __future__ import annotations

from statistics import fmean

from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_wire.read_models import OwnPlanOfStep

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
    of_step = [each for each in details if each.step == step]
    is_part = len(of_step) > _MOST_RANKS
    plans = [each.step_plan for each in of_step[:_MOST_RANKS] if each.step_plan is not None]
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
