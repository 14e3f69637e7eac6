"""Use cases of measuring: storing the ranks' measurements and combining them into steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from flyball_profiles.gpu_conditions import GpuConditions
from flyball_server.jobs.bounds import check_text
from flyball_server.jobs.errors import (
    InvalidFieldError,
    JobsError,
    OtherStartError,
    UnknownError,
    UnknownJobError,
)
from flyball_server.jobs.measurements.pruning import merge_instructions, without_pruned
from flyball_server.jobs.measurements.step_reading import add_post, place_of_post
from flyball_server.jobs.records import JobRecord, identity_of
from flyball_server.jobs.registry.rank_batch import RankBatch
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StepDetail, StepRecord
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_server.profiling.observations import DEFAULT_MAX_STEPS, MAX_WITH_WAITING
from flyball_wire.measurements import Accepted, JobStep
from flyball_wire.messages import JobState

# Number of a job's newest steps that are kept for reconcilers.
KEPT_DETAILS = 256
# Profiling reads all its steps, and short ones continue while it decides.
KEPT_DETAILS_OF_PROFILING = MAX_WITH_WAITING * DEFAULT_MAX_STEPS + KEPT_DETAILS
# Number of newest steps kept with single instructions, which take megabytes a step in a large
# pipeline: as many as hold this number of instructions of all ranks. Short steps need many, since
# ranks post a second of them at a time, and no step may be dropped before all ranks have posted
# it. 64 ranks x 32 instructions suffice for steps of 31 ms and more, fewer for shorter ones.
KEPT_INSTRUCTIONS = 65_536
FEWEST_KEPT_STEPS, MOST_KEPT_STEPS = 32, 1024
# Number of newest steps that drop the older ones though these are far away: a rank may post absurd
# numbers.
_FEWEST_FAR = 8
# Ranks post at this period up to FEW_RANKS, and at the longest one from MANY_RANKS on.
SHORTEST_PERIOD_S, LONGEST_PERIOD_S = 1.0, 15.0
FEW_RANKS, MANY_RANKS = 128, 4096
WATCHED_SHARE = 2 / 3


@dataclass(frozen=True, kw_only=True)
class RankPost:
    """Measurements of a rank since its last post, with details of some of those steps.

    Attributes:
        start_id: start of the job that the post belongs to; None: not reported.
        plan_ids: by step, the identity of its plan; not reported for others.
        no_clocks: reason why the rank sets no clocks, by the newest of the steps; None: it does.
        conditions: conditions of its GPU; None: not read in these steps.
    """

    rank: int
    steps: tuple[StepRecord, ...]
    details: tuple[StepDetail, ...] = ()
    start_id: str | None = None
    plan_ids: Mapping[int, str] = field(default_factory=dict[int, str])
    no_clocks: str | None = None
    conditions: GpuConditions | None = None

    def __post_init__(self) -> None:
        check_text("no_clocks", self.no_clocks or "")


def post_period_s(num_ranks: int, *, is_watched: bool) -> float:
    """Return the time between two posts of a rank in s, limited by the planner's load.

    One second with up to 128 ranks, 15 s with 4096, linear between: at most some 270 posts a
    second. Two thirds of that, and at least 1 s, for a job that a client follows.
    """
    share = (num_ranks - FEW_RANKS) / (MANY_RANKS - FEW_RANKS)
    growth_s = (LONGEST_PERIOD_S - SHORTEST_PERIOD_S) * min(max(share, 0.0), 1.0)
    period_s = SHORTEST_PERIOD_S + growth_s
    return max(SHORTEST_PERIOD_S, period_s * (WATCHED_SHARE if is_watched else 1.0))


def store_together(
    services: JobServices, job_id: str, posts: Sequence[RankPost]
) -> tuple[Accepted | JobsError, ...]:
    """Store the ranks' measurements of a job, in one transaction.

    A step posted again replaces the older measurement; of details only the newest are kept. Steps
    on a plan that the store does not have, since it was restored to an older state, are marked. Of
    a pruned step nothing is stored again; see `without_pruned`.

    Returns:
        For each post: the stored measurements, or the error.
    """
    steps: dict[tuple[int, int], StepRecord] = {}
    details: dict[tuple[int, int], StepDetail] = {}
    no_clocks: dict[int, str | None] = {}
    conditions: dict[int, GpuConditions] = {}
    stored: list[int | JobsError] = []
    with services.store.writing(job_id) as writer:
        ranks = RankBatch(writer, job_id, (post.rank for post in posts))
        job = ranks.job
        if job is None:
            return tuple(UnknownJobError(job_id=job_id) for _ in posts)
        has_plans = any(step.plan_version is not None for post in posts for step in post.steps)
        plans = writer.list_plan_times(job_id) if has_plans else {}
        for post in posts:
            try:
                ranks.check_start_of(post.rank, post.start_id)
                ranks.require(post.rank)
                known = _with_known_plans(post, plans)
            except (InvalidFieldError, OtherStartError, UnknownError) as error:
                stored.append(error)
                continue
            newest = {(post.rank, step.step): step for step in known}
            steps |= newest
            if newest:
                no_clocks[post.rank] = post.no_clocks
                if post.conditions is not None:
                    conditions[post.rank] = post.conditions
            unknown = {step.step for step in known if step.unknown_version is not None}
            details |= {
                (post.rank, detail.step): detail
                for detail in post.details
                if detail.step not in unknown
            }
            stored.append(len(newest))
        if steps:
            _save_steps(services, writer, job, steps, details, stages=ranks.stages)
        else:
            _save_details(writer, job_id, tuple(details.values()))
        writer.note_clocks(job_id, no_clocks)
        is_changed = writer.note_conditions(job_id, conditions)
        is_reconciled = is_changed or services.is_reconciled_after_posts(writer, job)
        next_post_s = _next_post_s(writer, job)
    if is_reconciled:
        services.enqueue_reconcile(job_id)
    return tuple(
        Accepted(stored=answer, next_post_s=next_post_s) if isinstance(answer, int) else answer
        for answer in stored
    )


def _save_steps(
    services: JobServices,
    writer: JobWriter,
    job: JobRecord,
    steps: Mapping[tuple[int, int], StepRecord],
    details: dict[tuple[int, int], StepDetail],
    *,
    stages: Mapping[int, int],
) -> None:
    """Store steps, and add them to the job's totals; remove details of those that have counted."""
    place = place_of_post(writer, job, steps.values())
    kept = without_pruned(writer, job.job_id, place, steps)
    for pruned in steps.keys() - kept.keys():
        details.pop(pruned, None)
    merge_instructions(writer, job.job_id, kept, details.values(), stages)
    writer.save_steps(tuple(kept.values()), stored_at=services.now(), run=place.run)
    _save_details(writer, job.job_id, tuple(details.values()))
    has_work = any(detail.work is not None for detail in details.values())
    add_post(writer, job, place, kept.values(), has_work=has_work)


def _with_known_plans(post: RankPost, plans: Mapping[int, datetime]) -> tuple[StepRecord, ...]:
    """Return the post's steps, marked where they ran a plan that is none of the job's here.

    Raises:
        InvalidFieldError: such a plan never was: the post has no identity of it, which a rank gets
            with its plan.
    """
    steps: list[StepRecord] = []
    for step in post.steps:
        version, plan_id = step.plan_version, post.plan_ids.get(step.step)
        if version is not None:
            created_at = plans.get(version)
            if created_at is None and plan_id is None:
                raise _unknown_plan(plans)
            if created_at is None or plan_id not in {None, identity_of(created_at)}:
                steps.append(step.evolve(plan_version=None, unknown_version=version))
                continue
        steps.append(step)
    return tuple(steps)


def _unknown_plan(plans: Mapping[int, datetime]) -> InvalidFieldError:
    """Return the error of a post with a step on a plan that never was."""
    newest = max(plans, default=None)
    return InvalidFieldError(
        "plan_version",
        "the job has no such plan version"
        f" ({'no plan yet' if newest is None else f'newest: {newest}'}); post the version that the"
        " rank ran, or null for default clocks",
    )


def _next_post_s(reader: JobReader, job: JobRecord) -> float:
    num_ranks = job.spec.num_expected_ranks
    if num_ranks <= FEW_RANKS:
        return SHORTEST_PERIOD_S
    loop_state = reader.find_loop_state(job.job_id)
    is_watched = job.state == JobState.PROFILING or bool(
        loop_state.stragglers or loop_state.detected
    )
    return post_period_s(num_ranks, is_watched=is_watched)


def _save_details(writer: JobWriter, job_id: str, details: tuple[StepDetail, ...]) -> None:
    if not details:
        return
    writer.save_step_details(details)
    num_kept = _num_kept_steps(writer, job_id, details)
    newest = max(detail.step for detail in details)
    for _ in range(_FEWEST_FAR):
        older = writer.newest_detail(job_id, newest - num_kept + 1)
        if older is None or newest - older == num_kept:
            break
        if not _are_few(writer, job_id, newest, num_kept):
            break
        newest = older
    writer.drop_step_details(job_id, newest - num_kept + 1)


def _are_few(reader: JobReader, job_id: str, newest: int, num_kept: int) -> bool:
    """Return whether fewer than `_FEWEST_FAR` of the newest steps have details."""
    step = newest
    for _ in range(_FEWEST_FAR - 1):
        before = reader.newest_detail(job_id, step)
        if before is None or newest - before >= num_kept:
            return True
        step = before
    return False


def _num_kept_steps(writer: JobWriter, job_id: str, details: tuple[StepDetail, ...]) -> int:
    job = writer.require_job(job_id)
    num_instructions = max(len(detail.instructions or ()) for detail in details)
    if not num_instructions:
        is_profiling = job.state == JobState.PROFILING
        return KEPT_DETAILS_OF_PROFILING if is_profiling else KEPT_DETAILS
    num_a_step = num_instructions * job.spec.num_expected_ranks
    return min(max(KEPT_INSTRUCTIONS // num_a_step, FEWEST_KEPT_STEPS), MOST_KEPT_STEPS)


def list_steps(services: JobServices, job_id: str, *, limit: int) -> tuple[JobStep, ...]:
    """Return the job's newest `limit` steps, rising.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        reader.require_job(job_id)
        return reader.list_job_steps(job_id, limit)
