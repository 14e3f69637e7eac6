"""Reconciler of a version's first steps: tail, transfers, jitter, and factors of announced work."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flyball_server.jobs.findings.news_of_work import new_model, not_announced
from flyball_server.jobs.findings.noting import note_findings
from flyball_server.jobs.findings.placement import gpus_in_node
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.measurements.announced_work import (
    following,
    measured_work,
    with_changes,
)
from flyball_server.jobs.measurements.timed_steps import (
    delays_of_steps,
    read_timed_steps,
    timed_version,
)
from flyball_server.jobs.planning_inputs import MeasuredDelays, WorkModel
from flyball_server.jobs.records import JobRecord, PlanRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.versions.planning import read_planning
from flyball_server.jobs.versions.rank_plans import large_parts
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

    So it does with the factors of announced work. A job that begins to announce later, or other
    lengths than its factors hold for, gets a version whose steps run at the highest clocks until
    they are measured.

    Stored are only delays that change a job's predicted iteration time, or a reserve
    that it chooses, by enough; not while it is compared with the highest clocks, which a new
    version would end. Jobs whose clocks measured waits raise are left alone.
    """

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether the newest version's delays are not measured yet, or work is news."""
        loop_state = reader.find_loop_state(job.job_id)
        if _is_left_alone(job, loop_state):
            return False
        is_open = _is_open(reader, job, loop_state)
        return is_open or new_model(reader, job, loop_state) is not None

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Measure the newest version's delays once its timed steps are over."""
        with services.store.reading() as reader:
            job, loop_state = reader.require_job(job_id), reader.find_loop_state(job_id)
            if _is_left_alone(job, loop_state):
                return None
            if not read_planning(reader, job).is_planned(services):
                return None
            if _is_open(reader, job, loop_state):
                found = _read(reader, job, loop_state)
            else:
                model = new_model(reader, job, loop_state)
                found = None if model is None else _Found(work=model)
            if found is None:
                return None

        def changed(now: JobRecord, current: JobLoopState) -> JobLoopState:
            if not job.is_same_work(now):
                return current
            if found.record is None:
                is_same = current.work == loop_state.work
                return current.evolve(work=found.work) if is_same else current
            return _with_found(job.spec, current, found, found.record)

        what = "delays" if found.work is None else "delays and announced work"
        note_findings(services, job_id, changed, f"its steps were read for {what}")
        return None


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Findings from a version's timed steps.

    Attributes:
        record: the version; None: nothing was measured, and what is announced has changed.
        delays: delays; None: too few steps are usable.
        work: announced work; None: none was announced.
    """

    record: PlanRecord | None = None
    delays: MeasuredDelays | None = None
    work: WorkModel | None = None


def _read(reader: JobReader, job: JobRecord, loop_state: JobLoopState) -> _Found | None:
    """Return what the newest version's timed steps say; None: they are not over."""
    spec, inputs = job.spec, loop_state.lasting
    record = reader.require_plan(job.job_id, reader.list_versions(job.job_id)[-1].version)
    timed = timed_version(
        reader, record, spec.num_expected_ranks, loop_state.planned_inputs.step_work
    )
    profile = reader.find_profile(job.job_id)
    if not timed.is_over or profile is None:
        return None
    read = read_timed_steps(reader, timed)
    if read is None:
        known = inputs.work
        if known is not None and known.problem is None:
            known = WorkModel(version=record.version)
        return _Found(record=record, work=known)
    read = read.of_work()
    measured = measured_work(record.version, record.plan, read, profile=profile, spec=spec)
    delays = delays_of_steps(
        record.version,
        record.plan,
        read.times_s,
        read.reports,
        profile=profile,
        given_hops_s=None if spec.transfer_ms is None else spec.transfer_s,
        factors=None if measured is None else measured.factors,
    )
    before = inputs.delays
    if not needs_jitter(plan_options(spec), profile):
        delays = replace(delays, jitter=0.0)
    if read.num_step_plans:
        # The clocks are other ones than the plan's.
        jitter = 0.0 if before is None else before.jitter
        delays = replace(delays, jitter=jitter, work=0.0, up_s=None, down_s=None)
    delays = _rounded(delays)
    if measured is None:
        return _Found(
            record=record, delays=delays, work=inputs.work if read.has_some_work else None
        )
    # The next plan counts the delays that these steps have measured.
    following_inputs = inputs
    if delays.up_s is not None and _matters(spec, before, delays, record.plan):
        following_inputs = replace(inputs, delays=delays)
    model = with_changes(
        measured.model,
        record.plan,
        spec,
        following_inputs,
        are_given=has_given_transitions(spec),
        num_in_node=gpus_in_node(reader.list_ranks(job.job_id)),
    )
    if model.problem is None:
        model = replace(model, problem=large_parts(record.plan, profile, model))
    return _Found(record=record, delays=delays, work=model)


def _with_found(
    spec: JobSpec, current: JobLoopState, found: _Found, record: PlanRecord
) -> JobLoopState:
    """Return the loop state with what was measured, where it makes a difference."""
    current = current.evolve(timed_version=record.version)
    before = current.delays
    if found.delays is not None and _matters(spec, before, found.delays, record.plan):
        delays = found.delays if before is None else _following(before, found.delays)
        current = current.evolve(delays=delays)
    if found.work is None:
        return current.evolve(work=not_announced(current.work))
    after = following(current.work, found.work, limit=spec.max_work_error)
    return current if after is None else current.evolve(work=after)


def _is_open(reader: JobReader, job: JobRecord, loop_state: JobLoopState) -> bool:
    versions = reader.list_versions(job.job_id)
    return (
        bool(versions)
        and versions[-1].first_step is not None
        and versions[-1].version > loop_state.timed_version
    )


def _is_left_alone(job: JobRecord, loop_state: JobLoopState) -> bool:
    """Return whether the job is over, probed, not planned, raised or compared."""
    is_raised = job.spec.adaptation == Adaptation.RECONFIGURE
    is_compared = loop_state.open_comparison is not None
    return job.state in _NOT_TIMED or job.problem is not None or is_raised or is_compared


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
