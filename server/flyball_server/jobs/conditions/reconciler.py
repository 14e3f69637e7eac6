"""Reconciler of conditions: a plan made under others is not run."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from flyball_profiles.gpu_conditions import SAME_LIMIT
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.conditions.changes import (
    ProfiledConditions,
    changed_conditions,
    changed_ranks,
    stage_conditions,
    stage_limits_w,
)
from flyball_server.jobs.findings.noting import note_findings
from flyball_server.jobs.job_state import OVER, UNPROFILED, JobInput
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.planning_inputs import ChangedConditions
from flyball_server.jobs.probing import probe_plans
from flyball_server.jobs.records import JobRecord, RankRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.versions.plan_versions import add_version
from flyball_wire.messages import JobState

_LOG = logging.getLogger(__name__)

# Shortest period in s between reads, since a job may have thousands of ranks.
SHORTEST_PERIOD_S = 2.0
# Time in s that a change must have held before the job is measured again: ranks read their
# conditions once a minute, and an operator may move a limit in steps.
SETTLE_S = 150.0


@dataclass(frozen=True, kw_only=True)
class _Found:
    job: JobRecord
    ranks: tuple[RankRecord, ...]
    profiled: ProfiledConditions | None
    loop_state: JobLoopState
    has_profile: bool


class ConditionsReconciler:
    """Reconciler that answers changes of a job's GPUs, such as a lowered power limit.

    It plans from the newest of the job's profiles that was measured under the present conditions.
    Without one the job gets the highest clocks; a job that is profiled online is measured again
    once the change has held for `SETTLE_S`. So is one whose GPUs change while it is measured.
    """

    runs_after_posts = None  # a post with other conditions enqueues the job by itself

    def __init__(self) -> None:
        # By job, time of the last read, monotonic s.
        self._read_s: dict[str, float] = {}

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Answer a change; return the wait until the next read."""
        wait_s = self._read_s.get(job_id, -SHORTEST_PERIOD_S) + SHORTEST_PERIOD_S
        wait_s -= time.monotonic()
        if wait_s > 0:
            return wait_s
        with services.store.reading() as reader:
            found = _read(reader, reader.require_job(job_id))
        if found.job.state in OVER:
            self._read_s.pop(job_id, None)
            return None
        self._read_s[job_id] = time.monotonic()
        _store_limits(services, found)
        now_s = services.now().timestamp()
        changed = changed_conditions(found.profiled, found.ranks, now_s)
        is_without = not found.has_profile and found.job.state in {
            *UNPROFILED,
            JobState.PLANNING_FAILED,
        }
        if (changed or is_without) and _plan_from_kept(services, found):
            return None
        before = found.loop_state.changed
        if changed is not None and before is not None and before.text == changed.text:
            changed = before
        elif found.job.state != JobState.PROFILING:
            _note(services, found, changed)
        elif changed is None:
            _note_probed(services, found)
        else:
            _break_off(services, found.job, changed)
        if changed is None or not found.job.spec.is_profiled_online:
            return None
        left_s = changed.since_unix_s + SETTLE_S - now_s
        if left_s > 0:
            return left_s
        _measure_again(services, found.job)
        return None


def _note(services: JobServices, found: _Found, changed: ChangedConditions | None) -> None:
    """Store what has changed; the job is planned where that begins or ends a change."""
    if found.loop_state.changed == changed:
        return

    def noted(job: JobRecord, current: JobLoopState) -> JobLoopState:
        if job.start_id != found.job.start_id:
            return current
        return current.evolve(changed=changed)

    why = "its GPUs are under the profile's conditions again"
    if changed is not None:
        why = f"its profile does not hold: {changed.text}"
    note_findings(services, found.job.job_id, noted, why)


def _read(reader: JobReader, job: JobRecord) -> _Found:
    return _Found(
        job=job,
        ranks=tuple(rank for rank in reader.list_ranks(job.job_id) if not rank.has_left),
        profiled=reader.profiled_conditions(job.job_id),
        loop_state=reader.find_loop_state(job.job_id),
        has_profile=reader.has_profile(job.job_id),
    )


def _store_limits(services: JobServices, found: _Found) -> None:
    """Store the ranks' power limits; a job is planned whose target they are."""
    job_id = found.job.job_id
    is_whole = len(found.ranks) >= found.job.spec.num_expected_ranks
    limits_w = stage_limits_w(found.ranks, found.job.spec.num_stages) if is_whole else ()
    before_w = found.loop_state.power_limits_w
    if len(limits_w) == len(before_w) and all(
        math.isclose(one_w, other_w, rel_tol=SAME_LIMIT)
        for one_w, other_w in zip(before_w, limits_w, strict=True)
    ):
        return

    def noted(job: JobRecord, current: JobLoopState) -> JobLoopState:
        is_same = job.start_id == found.job.start_id
        return current.evolve(power_limits_w=limits_w) if is_same else current

    note_findings(services, job_id, noted, f"its power limits add up to {sum(limits_w):g} W")


def _plan_from_kept(services: JobServices, found: _Found) -> bool:
    """Store the newest profile measured under the present conditions; return whether there is one.

    `PlanReconciler` plans from it.
    """
    job_id = found.job.job_id
    with services.store.writing(job_id) as writer:
        job = writer.require_job(job_id)
        if job.start_id != found.job.start_id:
            return False
        kept = [
            profile for profile in writer.kept_profiles(job_id) if _fits(profile, job, found.ranks)
        ]
        if not kept:
            return False
        writer.save_profile(job_id, kept[0])
        findings = writer.find_loop_state(job_id).without_measured()
        writer.save_loop_state(findings.evolve(changed=None))
        writer.save_job(job.with_change(JobInput.PROFILE))
    _LOG.info("job %s: planned from its profile measured under the present conditions", job_id)
    services.enqueue_reconcile(job_id)
    return True


def _fits(profile: StageProfile, job: JobRecord, ranks: Sequence[RankRecord]) -> bool:
    """Return whether a profile was measured under the conditions of these ranks."""
    profiled = ProfiledConditions.of(profile)
    is_known = all(rank.conditions is not None for rank in ranks)
    return (
        profiled is not None
        and is_known
        and len(ranks) >= job.spec.num_expected_ranks
        and profile.num_stages == job.spec.num_stages
        and not any(change.is_of_work for change in changed_ranks(profiled, ranks))
    )


def _note_probed(services: JobServices, found: _Found) -> None:
    """Add what is first known in mid-measurement, as a memory clock, to its conditions."""
    now = stage_conditions(found.ranks, found.job.spec.num_stages)

    def noted(job: JobRecord, current: JobLoopState) -> JobLoopState:
        if job.state != JobState.PROFILING or len(current.probed_under) != len(now):
            return current
        under = [
            new if old is None or new is None else old.filled(new)
            for old, new in zip(current.probed_under, now, strict=True)
        ]
        return current.evolve(probed_under=tuple(under))

    note_findings(services, found.job.job_id, noted)


def _break_off(services: JobServices, before: JobRecord, changed: ChangedConditions) -> None:
    """End an online profiling whose GPUs have changed; the job returns to its highest clocks."""
    with services.store.writing(before.job_id) as writer:
        job = writer.require_job(before.job_id)
        plans = probe_plans(writer, job.job_id)
        if job.start_id != before.start_id or job.state != JobState.PROFILING or not plans:
            return
        # The first version runs entirely at the highest clocks.
        add_version(services, writer, job.job_id, plans[0].plan)
        findings = writer.find_loop_state(job.job_id)
        writer.save_loop_state(findings.evolve(changed=changed, profiling=None))
        writer.save_job(job.with_change(JobInput.PROFILE).moved(JobState.AWAITING_PROFILE))
    services.notify_pollers(job.job_id)
    _LOG.info("job %s: its measurement is broken off: %s", job.job_id, changed.text)


def _measure_again(services: JobServices, before: JobRecord) -> None:
    """Begin the online profiling of a job anew; the replaced profile is kept."""
    with services.store.writing(before.job_id) as writer:
        job = writer.require_job(before.job_id)
        findings = writer.find_loop_state(job.job_id)
        if job.start_id != before.start_id or findings.changed is None:
            return
        writer.delete_profile(job.job_id)
        writer.save_loop_state(findings.evolve(changed=None, profiling=None, probed_under=()))
        job = job.with_change(JobInput.PROFILE)
        is_waiting = job.state == JobState.AWAITING_PROFILE
        writer.save_job(job if is_waiting else job.moved(JobState.AWAITING_PROFILE))
    _LOG.info("job %s: measured again, since the conditions of its GPUs have changed", job.job_id)
    services.enqueue_reconcile(job.job_id)
