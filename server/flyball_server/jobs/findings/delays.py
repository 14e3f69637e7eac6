"""Reconciler of measured delays: tail, transfers and jitter from a version's first steps."""

from __future__ import annotations

import math
from dataclasses import replace

from flyball_server.jobs.findings.noting import note_findings
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import JobLoopState, MeasuredDelays
from flyball_server.jobs.measurements.timed_steps import (
    num_timed_steps,
    read_delays,
    timed_version,
)
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry.inspection import require_job, require_plan
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.versions.planning import read_planning
from flyball_server.jobs.wanted.request import has_given_transitions, needs_jitter
from flyball_wire.messages import Adaptation, JobSpec, JobState
from flyball_wire.plan_options import plan_options
from flyball_wire.plans.plan import Plan

# Change of the predicted iteration time, as a share, above which the job is planned again; that of
# its jitter, absolute and relative; and that of the median delay of its clock changes, s, and as a
# share. All double with each time, so that times that vary from
# one version to the next end it soon.
LEAST_CHANGE = 0.005
LEAST_JITTER_CHANGE, LEAST_RELATIVE_JITTER_CHANGE = 0.002, 0.25
LEAST_LATENESS_S, LEAST_RELATIVE_LATENESS = 0.001, 0.25

_NOT_TIMED = OVER | {JobState.PROFILING}


class DelayReconciler:
    """Reconciler that measures a job's delays once per plan version, for later plans to count.

    Stored are only delays that change a job's predicted iteration time, or a reserve
    that it chooses, by enough; not while it is compared with the highest clocks, which a new
    version would end. Jobs whose clocks measured waits raise are left alone.
    """

    order = 55

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether the newest version's delays are not measured yet."""
        return _is_open(reader, job, reader.find_loop_state(job.job_id))

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Measure the newest version's delays once its timed steps are over."""
        with services.store.reading() as reader:
            job, loop_state = require_job(reader, job_id), reader.find_loop_state(job_id)
            if not _is_open(reader, job, loop_state):
                return None
            if not read_planning(reader, job).is_planned(services):
                return None
            record = require_plan(reader, job_id, reader.list_versions(job_id)[-1].version)
            timed = timed_version(reader, record, job.spec.num_expected_ranks)
            profile = reader.find_profile(job_id)
            if not timed.is_over or profile is None:
                return None
            delays = None
            if num_timed_steps(record.plan):
                delays = read_delays(reader, timed, profile, _given_hops_s(job.spec))
        if delays is not None:
            is_jitter_needed = needs_jitter(plan_options(job.spec), profile)
            delays = _rounded(delays if is_jitter_needed else replace(delays, jitter=0.0))

        def changed(now: JobRecord, current: JobLoopState) -> JobLoopState:
            if not job.is_same_work(now):
                return current
            before = current.delays
            if delays is not None and _matters(job.spec, before, delays, record.plan):
                found = delays if before is None else _following(before, delays)
                current = current.evolve(delays=found)
            return current.evolve(timed_version=record.version)

        note_findings(services, job_id, changed, f"was timed on plan {record.version}")
        return None


def _is_open(reader: JobReader, job: JobRecord, loop_state: JobLoopState) -> bool:
    is_raised = job.spec.adaptation == Adaptation.RECONFIGURE
    if job.state in _NOT_TIMED or is_raised or loop_state.open_comparison is not None:
        return False
    versions = reader.list_versions(job.job_id)
    return (
        bool(versions)
        and versions[-1].first_step is not None
        and versions[-1].version > loop_state.timed_version
    )


def _given_hops_s(spec: JobSpec) -> tuple[float, ...] | None:
    """Return the transfers that the job gives, s; None: none are given."""
    if spec.transfer_ms is None:
        return None
    return tuple(hop_ms / 1e3 for hop_ms in spec.transfer_ms)


def _rounded(delays: MeasuredDelays) -> MeasuredDelays:
    """Return the delays to four digits, more than are certain."""
    return replace(
        delays,
        tail_s=_digits(delays.tail_s),
        transfer_s=tuple(map(_digits, delays.transfer_s)),
        up_s=None if delays.up_s is None else _digits(delays.up_s),
        down_s=None if delays.down_s is None else _digits(delays.down_s),
        jitter=_digits(delays.jitter),
    )


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def _following(before: MeasuredDelays, after: MeasuredDelays) -> MeasuredDelays:
    """Return the later delays, with the earlier ones of what is not certain any more."""
    is_known = before.work and not after.work
    return replace(
        after,
        work=before.work if is_known else after.work,
        step_plans_saving_percent=before.step_plans_saving_percent
        if is_known
        else after.step_plans_saving_percent,
        up_s=before.up_s if after.up_s is None else after.up_s,
        down_s=before.down_s if after.down_s is None else after.down_s,
        num_before=before.num_before + 1,
    )


def _matters(
    spec: JobSpec, before: MeasuredDelays | None, after: MeasuredDelays, plan: Plan
) -> bool:
    """Return whether planning with the one or the other makes a difference."""
    factor = 1 if before is None else 2 ** (before.num_before + 1)
    if after.work and not (before and before.work):
        return True
    if not has_given_transitions(spec) and _changes_otherwise(plan, after, factor):
        return True
    before = before or replace(after, tail_s=0.0, transfer_s=(), jitter=0.0)
    change_s = 0.0 if spec.tail_ms is not None else abs(after.tail_s - before.tail_s)
    if spec.transfer_ms is None:
        # Each is on the critical path once there and once back.
        change_s += 2 * abs(math.fsum(after.transfer_s) - math.fsum(before.transfer_s))
    jitter_change = abs(after.jitter - before.jitter)
    return change_s > factor * LEAST_CHANGE * plan.iteration_time_s or jitter_change > factor * max(
        LEAST_JITTER_CHANGE, LEAST_RELATIVE_JITTER_CHANGE * before.jitter
    )


def _changes_otherwise(plan: Plan, after: MeasuredDelays, factor: int) -> bool:
    """Return whether clocks change at other times than the plan counts, by enough."""
    counted = plan.transitions
    pairs_s = (
        (after.up_s, 0.0 if counted is None else counted.up_p50_s),
        (after.down_s, 0.0 if counted is None else counted.down_p50_s),
    )
    return any(
        measured_s is not None
        and abs(measured_s - counted_s)
        > factor * max(LEAST_LATENESS_S, LEAST_RELATIVE_LATENESS * counted_s)
        for measured_s, counted_s in pairs_s
    )
