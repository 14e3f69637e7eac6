"""Calls of ranks, for tests of one rank at a time, and posts of many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from flyball_server.jobs.errors import JobsError
from flyball_server.jobs.measurements.measurements import RankPost, store_together
from flyball_server.jobs.records import RankRecord
from flyball_server.jobs.registry.registration import register_together
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StepDetail, StepRecord
from flyball_server.jobs.versions.plan_versions import (
    HeldVersion,
    acknowledge_together,
    list_versions,
    version_of,
)
from flyball_server.jobs.versions.rank_plans import PlanQuestion, RankPlans
from flyball_wire.messages import PlanVersion
from flyball_wire.plans.rank_plan import RankPlan

Outcome = TypeVar("Outcome")


def unwrap_one(outcomes: Sequence[Outcome | JobsError]) -> Outcome:
    """The outcome of the one item; its error is raised."""
    (outcome,) = outcomes
    if isinstance(outcome, JobsError):
        raise outcome
    return outcome


def register_rank(services: JobServices, rank: RankRecord) -> RankRecord:
    """Make it known."""
    return unwrap_one(register_together(services, rank.job_id, (rank,))).record


def newer_plan(
    services: JobServices, job_id: str, rank: int, *, after_version: int
) -> RankPlan | None:
    """Its part of the newest version, if that is newer."""
    parts: list[RankPlan] = []

    def render(part: RankPlan) -> bytes:
        parts.append(part)
        return b"rendered"

    question = PlanQuestion(rank=rank, after_version=after_version)
    unwrap_one(RankPlans(render).answer(services, job_id, (question,)))
    return parts[0] if parts else None


def acknowledge(
    services: JobServices, job_id: str, rank: int, *, version: int, current_step: int
) -> PlanVersion:
    """It holds a version; from which step that does so."""
    held = HeldVersion(rank=rank, version=version, current_step=current_step)
    return unwrap_one(acknowledge_together(services, job_id, (held,)))


def take_up(services: JobServices, ranks: Iterable[int], *, version: int, current_step: int) -> int:
    """All ranks of job `job` hold a version now; the step from which they follow it."""
    for rank in ranks:
        named = acknowledge(services, "job", rank, version=version, current_step=current_step)
    assert named.first_step is not None
    return named.first_step


def get_first_step(services: JobServices, job_id: str, version: int) -> PlanVersion:
    """From which step a version holds."""
    return version_of(list_versions(services, job_id), job_id, version)


def store_measurements(
    services: JobServices,
    job_id: str,
    rank: int,
    steps: Iterable[StepRecord],
    details: Iterable[StepDetail] = (),
) -> int:
    """Keep what it measured; how many steps."""
    post = RankPost(rank=rank, steps=tuple(steps), details=tuple(details))
    return unwrap_one(store_together(services, job_id, (post,))).stored


def store_posts(services: JobServices, posts: Sequence[RankPost]) -> None:
    """Store posts of job `job` in one transaction, which takes a fraction of the time of many."""
    for outcome in store_together(services, "job", posts):
        unwrap_one((outcome,))
