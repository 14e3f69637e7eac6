"""Storage of findings; what follows from them is planned by the reconcile loop."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.services import JobServices

_LOG = logging.getLogger(__name__)

Change = Callable[[JobRecord, JobLoopState], JobLoopState]


def note_findings(
    services: JobServices, job_id: str, change: Change, why: str | None = None
) -> None:
    """Store the job's changed findings, and log why; nothing if they stay the same.

    `change` is called within the transaction; `why` is None where there is nothing to log.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.writing(job_id) as writer:
        job, before = writer.require_job(job_id), writer.find_loop_state(job_id)
        after = change(job, before)
        if after == before:
            return
        writer.save_loop_state(after)
    services.enqueue_reconcile(job_id)
    if why is not None:
        _LOG.info("job %s: %s", job_id, why)
