"""Reconciler that compares a planned job's order with others that its framework can run."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace

from flyball_pipeline.errors import PipelineError
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.findings.noting import note_findings
from flyball_server.jobs.loop_state import JobLoopState, OrderComparison
from flyball_server.jobs.reconcile.solve import OBSOLETE, SLOT_RETRY_S, SlottedReconciler, solve
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.versions.planning import read_planning
from flyball_server.jobs.wanted.request import digest_of, plan_to_solve
from flyball_server.planning.order_advice import advise_order
from flyball_server.planning.planner import PlanRequest
from flyball_wire.messages import JobState
from flyball_wire.orders import OrderAdvice

_LOG = logging.getLogger(__name__)


class OrderAdviceReconciler(SlottedReconciler):
    """Reconciler that finds the order a job would save more with, and changes nothing.

    A job is compared once it is planned, and again where its profile, its own options, its measured
    delays or its nodes have changed; stragglers and timetables do not count.
    """

    runs_after_posts = None  # a job is reconciled after it was planned

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Compare the job's order if that was not done for its newest inputs."""
        due = _due(services, job_id)
        if due is None:
            return None
        with self.slot() as is_free:
            if not is_free:
                return SLOT_RETRY_S
            with suppress(*OBSOLETE):
                _store(services, due, _advice(services, due))
        return None


_Due = tuple[JobRecord, str, PlanRequest]
"""Job, digest of the comparison's inputs, and the request that all orders are planned for."""


def _due(services: JobServices, job_id: str) -> _Due | None:
    """Return the comparison to make; None: there is nothing to compare."""
    with services.store.reading() as reader:
        job = reader.require_job(job_id)
        if not job.spec.other_orders or job.state != JobState.PLANNED:
            return None
        planning = read_planning(reader, job)
        if planning.profile is None or not planning.is_planned(services):
            return None
        # What holds at the job's next start too.
        findings = planning.findings
        lasting = replace(findings.lasting, work=None)
        try:
            plan = plan_to_solve(job.spec, planning.profile, services.gpu_window, findings, lasting)
        except (InvalidFieldError, PipelineError):  # which planning says
            return None
        digest = digest_of((plan.digest, job.spec.other_orders))
        compared = findings.order_comparison
        if compared is not None and compared.digest == digest:
            return None
        profile = reader.find_profile(job_id)
        assert profile is not None  # noqa: S101 - it has a digest
        return job, digest, plan.of_profile(profile).request


def _advice(services: JobServices, due: _Due) -> OrderAdvice | None:
    job, _, request = due
    lines = {other.schedule: other.line for other in job.spec.other_orders}
    try:
        return solve(services, job, advise_order, request, lines)
    except PipelineError as error:
        _LOG.debug("job %s: its order is not compared with others: %s", job.job_id, error.message)
        return None


def _store(services: JobServices, due: _Due, advice: OrderAdvice | None) -> None:
    job, digest, _ = due

    def compared(now: JobRecord, findings: JobLoopState) -> JobLoopState:
        found = OrderComparison(digest=digest, advice=advice)
        return findings.evolve(order_comparison=found) if job.is_same_work(now) else findings

    note_findings(services, job.job_id, compared, None if advice is None else advice.text)
