"""Condition of a job that its state does not say: trouble that would hide behind `planned`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.lifecycle.job_life import (
    LifeTimes,
    is_silent,
    last_sign,
    no_clocks_notes,
    refused_text,
    silence_text,
)
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.records import JobRecord, RankRecord, ranks_text
from flyball_server.jobs.registry.inspection import JobSummary
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.wanted.wanted import slowdowns_at
from flyball_wire.closed_loop import StragglerReason
from flyball_wire.messages import ConditionName, JobCondition

# Cause of a slow GPU, and what to look at.
_CAUSES = {
    StragglerReason.SLOW: "cause unknown: check what else runs on its GPU and node",
    StragglerReason.POWER: "held down by its power limit",
    StragglerReason.THERMAL: "held down by heat: check its cooling",
}


def condition_of(
    job: JobRecord,
    ranks: Sequence[RankRecord],
    loop_state: JobLoopState,
    *,
    now: datetime,
    times: LifeTimes,
) -> JobCondition | None:
    """Return the gravest condition of a job; None: its state says all."""
    if job.state in OVER:
        return None
    refusal = refused_text(loop_state.refused, now)
    if refusal is not None:
        return JobCondition(name=ConditionName.REFUSED, action=refusal)
    silent = [rank.rank for rank in ranks if is_silent(rank, now, times)]
    if silent and len(silent) == sum(not rank.has_left for rank in ranks):
        return JobCondition(
            name=ConditionName.NO_RANKS,
            action=f"no rank has called since {last_sign(job, ranks):%H:%M:%S} UTC: the training"
            " was killed, hangs or cannot reach this planner",
        )
    if silent:
        return JobCondition(
            name=ConditionName.RANKS_MISSING,
            action=f"{silence_text(silent, times)}: see the training's log; no new version takes"
            " effect meanwhile",
        )
    without_clocks = no_clocks_notes(ranks)
    if without_clocks:
        return JobCondition(name=ConditionName.NO_CLOCKS, action=without_clocks[0])
    return _slow(loop_state, now) or _differing(loop_state)


def summary_condition(services: JobServices, summary: JobSummary) -> JobCondition | None:
    """Return the condition of a job that was read."""
    return condition_of(
        summary.job, summary.ranks, summary.findings, now=services.now(), times=services.life
    )


def _slow(loop_state: JobLoopState, now: datetime) -> JobCondition | None:
    slowed = [
        slowdown for slowdown in slowdowns_at(loop_state, now.timestamp()) if slowdown.slowdown > 1
    ]
    if not slowed:
        return None
    # An announced one needs nobody to look at it.
    detected = {slowdown.rank for slowdown in loop_state.detected}
    found = [slowdown for slowdown in slowed if slowdown.rank in detected]
    worst = max(found, key=lambda each: each.slowdown, default=None)
    if worst is None:
        return JobCondition(name=ConditionName.SLOW_GPU)
    text = (
        f"rank {worst.rank} takes {worst.slowdown:.2f} times as long as profiled,"
        f" {_CAUSES[worst.reason]}"
    )
    if len(found) > 1:
        text = f"{ranks_text([slowdown.rank for slowdown in found])} are slow; {text}"
    return JobCondition(name=ConditionName.SLOW_GPU, action=text)


def _differing(loop_state: JobLoopState) -> JobCondition | None:
    """Return the condition of a job that keeps its highest clocks for its steps' differences."""
    delays = loop_state.delays
    if delays is None or not delays.work or loop_state.step_work is not None:
        return None
    return JobCondition(name=ConditionName.STEPS_DIFFER)
