"""Reconciler that compares a planned job's order with others that its framework can run."""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress

from flyball_pipeline.errors import PipelineError
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.loop_state import JobLoopState, OrderComparison, PlanningInputs
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.replanning.plan_job import SLOT_RETRY_S, SlottedReconciler
from flyball_server.jobs.replanning.plan_request import plan_request
from flyball_server.jobs.replanning.slowed_plan import request_digest
from flyball_server.jobs.replanning.solve import OBSOLETE, is_same_work, solve
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.planning.order_advice import advise_order
from flyball_server.planning.planner import PlanRequest
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest
from flyball_wire.messages import JobState
from flyball_wire.orders import OrderAdvice

_LOG = logging.getLogger(__name__)


class OrderAdviceReconciler(SlottedReconciler):
    """Reconciler that finds the order a job would save more with, and changes nothing.

    A job is compared once it is planned, and again where its profile, its own options, its measured
    delays or its nodes have changed; stragglers and timetables do not count.
    """

    order = 80

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return False: a job is reconciled after it was planned."""
        del reader, job
        return False

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Compare the job's order if that was not done for its newest inputs."""
        work = _due_work(services, job_id)
        if work is None:
            return None
        job, before, request = work
        digest = _digest(job, request)
        if before is not None and before.digest == digest:
            _store(services, job, digest, before.advice)
            return None
        with self._slots.taken() as is_free:
            if not is_free:
                return SLOT_RETRY_S
            with suppress(*OBSOLETE):
                _store(services, job, digest, _advice(services, job, request))
        return None


def _due_work(
    services: JobServices, job_id: str
) -> tuple[JobRecord, OrderComparison | None, PlanRequest] | None:
    """Return job, comparison so far and request; None: there is nothing to compare."""
    with services.store.reading() as reader:
        job, loop_state = require_job(reader, job_id), reader.find_loop_state(job_id)
        profile = reader.find_profile(job_id) if _is_due(job, loop_state) else None
    if profile is None:
        return None
    state = loop_state.evolve(inputs=_lasting(loop_state.inputs))
    try:
        request = plan_request(job.spec, profile, services.gpu_window, state)
    except (InvalidFieldError, PipelineError):  # which planning says
        return None
    return job, loop_state.order_comparison, request


def _is_due(job: JobRecord, loop_state: JobLoopState) -> bool:
    compared = loop_state.order_comparison
    return (
        bool(job.spec.other_orders)
        and job.state == JobState.PLANNED
        and job.planned_revision == job.inputs_revision
        and (compared is None or compared.revision != job.inputs_revision)
    )


def _lasting(inputs: PlanningInputs) -> PlanningInputs:
    """Return the inputs that hold at the job's next start too."""
    return PlanningInputs(
        delays=inputs.delays, gpus_at_once=inputs.gpus_at_once, gpus_in_node=inputs.gpus_in_node
    )


def _digest(job: JobRecord, request: PlanRequest) -> str:
    of_request = request_digest(SlowedRequest(request=request, slowdowns=()))
    return hashlib.sha256(f"{of_request} {job.spec.other_orders!r}".encode()).hexdigest()


def _advice(services: JobServices, job: JobRecord, request: PlanRequest) -> OrderAdvice | None:
    lines = {other.schedule: other.line for other in job.spec.other_orders}
    try:
        return solve(services, job, advise_order, request, lines)
    except PipelineError as error:
        _LOG.debug("job %s: its order is not compared with others: %s", job.job_id, error.message)
        return None


def _store(services: JobServices, job: JobRecord, digest: str, advice: OrderAdvice | None) -> None:
    with services.store.writing(job.job_id) as writer:
        if not is_same_work(job, require_job(writer, job.job_id)):
            return
        compared = OrderComparison(revision=job.inputs_revision, digest=digest, advice=advice)
        loop_state = writer.find_loop_state(job.job_id)
        writer.save_loop_state(loop_state.evolve(order_comparison=compared))
    if advice is not None and advice != loop_state.order_advice:
        _LOG.info("job %s: %s", job.job_id, advice.text)
