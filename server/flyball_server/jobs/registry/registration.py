"""Use cases of registration: a job, its ranks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from flyball_server.jobs.bounds import check_count
from flyball_server.jobs.errors import (
    InvalidFieldError,
    JobHeldError,
    JobIsRunningError,
    JobsError,
    PlaceTakenError,
    ProfiledShapeError,
    RegistrationConflictError,
    TooManyJobsError,
    UnknownJobError,
    WrongStateError,
)
from flyball_server.jobs.job_state import OVER, JobInput
from flyball_server.jobs.lifecycle.job_life import come_back, is_gone, is_silent
from flyball_server.jobs.loop_state import GpuChange, JobLoopState, RefusedRegistration, ShapeChange
from flyball_server.jobs.probing import is_never_planned
from flyball_server.jobs.records import LAYOUT_FIELDS, RUN_SIGN, JobRecord, RankPlace, RankRecord
from flyball_server.jobs.registry.inspection import (
    JobSummary,
    find_rank,
    newest_version,
    summarise,
)
from flyball_server.jobs.registry.launch import Launch, check_start, check_start_id
from flyball_server.jobs.registry.rank_batch import RankBatch
from flyball_server.jobs.registry.spec_checks import check_spec
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_wire.messages import JobSpec, JobState

# Limit per job: a job that its launcher restarts endlessly must not fill the database.
MAX_KEPT_RUNS = 16
# Limit of remembered replacements of GPUs per job; the newest are kept.
MAX_GPU_CHANGES = 64
# What may change while ranks train, together with the number of microbatches.
_SHAPE_FIELDS = {"num_microbatches", "schedule", "order", "extra_forwards"}
# Nodes that a message names.
_MOST_HOSTS = 4
# Time in s after which the same refusal is stored again, with its newer time.
_NOTED_AGAIN_S = 20.0
# Limit of a job's name, so that a number suffix still fits.
_KEPT_CHARACTERS = 112


def can_begin_anew(services: JobServices, reader: JobReader, job: JobRecord) -> bool:
    """Return whether the job has had ranks and all of them are gone."""
    ranks = reader.list_ranks(job.job_id)
    now = services.now()
    return bool(ranks) and all(is_gone(rank, now, services.life) for rank in ranks)


def new_run(services: JobServices, writer: JobWriter, job: JobRecord, wanted: JobRecord) -> None:
    """Keep the job under a name of its own and start a new run under the job's name.

    A profile with the same number of stages is copied and the job planned from it; so is its
    timetable. If `MAX_KEPT_RUNS` are kept, the oldest is deleted.

    Args:
        services: services of the use cases.
        writer: writer of this job; names of kept runs cannot be registered by other writers.
        job: current record.
        wanted: the same with the specification and the launch of the new run.
    """
    profile = writer.find_profile(job.job_id)
    earlier = writer.kept_profiles(job.job_id)[::-1]
    timetable = writer.find_loop_state(job.job_id).timetable
    kept_as = _keep(writer, job)
    begun = JobRecord(
        job_id=job.job_id,
        registered=wanted.registered,
        spec=wanted.spec,
        created_at=services.now(),
        start=wanted.start,
        run=wanted.run,
        restart_count=wanted.restart_count,
    )
    writer.save_job(begun)
    if timetable is not None:
        writer.save_loop_state(JobLoopState(job_id=job.job_id, timetable=timetable))
    if profile is not None and profile.num_stages == begun.spec.num_stages:
        for measured in (*earlier, profile):  # the last counts
            if measured.num_stages == profile.num_stages:
                writer.save_profile(job.job_id, measured)
        writer.save_job(begun.with_change(JobInput.PROFILE))
    _LOG.info("job %s: a new run begins; the run before is kept as %s", job.job_id, kept_as)


def _keep(writer: JobWriter, job: JobRecord) -> str:
    """Rename the job to the name of a kept run; return that name."""
    stem = job.job_id[:_KEPT_CHARACTERS] + RUN_SIGN
    names = (other.job_id for other in writer.list_jobs())
    numbers = sorted(int(name.removeprefix(stem)) for name in names if name.startswith(stem))
    for number in numbers[: max(len(numbers) + 1 - MAX_KEPT_RUNS, 0)]:
        writer.delete_job(f"{stem}{number}")
    kept_as = f"{stem}{numbers[-1] + 1 if numbers else 1}"
    writer.rename_job(job.job_id, kept_as)
    writer.save_ranks(rank.evolve(has_left=True) for rank in writer.list_ranks(kept_as))
    kept = writer.require_job(kept_as)
    if kept.state not in OVER:
        writer.save_job(kept.moved(JobState.ENDED, problem=kept.problem))
    return kept_as


def delete_job(services: JobServices, job_id: str) -> None:
    """Delete a job and everything that belongs to it.

    Raises:
        UnknownJobError: the job does not exist.
        JobIsRunningError: ranks of the job are still active.
    """
    now = services.now()
    with services.store.writing(job_id) as writer:
        job = writer.require_job(job_id)
        if job.state not in OVER and not all(
            is_gone(rank, now, services.life) for rank in writer.list_ranks(job_id)
        ):
            raise JobIsRunningError(job_id=job_id)
        writer.delete_job(job_id)
    services.notify_pollers(job_id)


_LOG = logging.getLogger(__name__)
_UNTOLD = Launch()


def register_job(
    services: JobServices, job_id: str, spec: JobSpec, launch: Launch = _UNTOLD
) -> tuple[JobSummary, bool]:
    """Register a job; the same again changes nothing. The reconcile loop plans it.

    Another start of the training begins once no rank of the start before is left, which its
    launcher may say. A job without any plan yet may be registered again with other values, and so
    may one that is waiting for an uploaded profile after its online profiling was refused. If all
    ranks of a job are gone, other values start a new run under its name, and the old run is kept
    under another.

    Returns:
        The job, and true if it is new.

    Raises:
        InvalidFieldError: a value is invalid.
        JobHeldError: ranks of another start are present.
        ProfiledShapeError: the number of microbatches has changed while the job is measured.
        RegistrationConflictError: the job has a plan, or ranks, that the values contradict.
        TooManyJobsError: the job is new, and the limit of stored jobs is reached.
    """
    try:
        registered = _register_job(services, job_id, spec, launch)
    except (WrongStateError, InvalidFieldError) as error:
        _note_refused(services, job_id, error, launch.host)
        raise
    services.enqueue_reconcile(job_id)
    return registered


def _register_job(
    services: JobServices, job_id: str, spec: JobSpec, launch: Launch
) -> tuple[JobSummary, bool]:
    check_spec(spec, services.gpu_window)
    with services.store.writing(job_id) as writer:
        job = writer.find_job(job_id)
        if job is None:
            if writer.count_jobs() >= services.max_jobs:
                raise TooManyJobsError(max_jobs=services.max_jobs, setting="FLYBALL_MAX_JOBS")
            created = launch.noted_in(
                JobRecord(job_id=job_id, registered=spec, spec=spec, created_at=services.now())
            )
            writer.save_job(created)
            return summarise(writer, created), True
        is_new = False
        _end_start_before(services, writer, job, launch)
        # A restarted rank sends its original values, even if the target has changed since.
        if spec not in (job.registered, job.spec):
            is_new = _register_otherwise(services, writer, job, spec, launch)
        elif launch.noted_in(job) != job:
            writer.save_job(launch.noted_in(job))
        loop_state = writer.find_loop_state(job_id)
        if loop_state.refused is not None:
            writer.save_loop_state(loop_state.evolve(refused=None))
        return summarise(writer, writer.require_job(job_id)), is_new


def _end_start_before(
    services: JobServices, writer: JobWriter, job: JobRecord, launch: Launch
) -> None:
    """Mark the ranks of other starts as left; those of the new start may have other places.

    Raises:
        JobHeldError: some are present.
    """
    is_restart = launch.is_restart_of(job)
    if not (is_restart or launch.is_another_of(job)):
        return
    now = services.now()
    others = [
        rank
        for rank in writer.list_ranks(job.job_id)
        # A start that has only its run's name has the same one as before.
        if launch.start_id in (None, job.start) or rank.start != launch.start_id
    ]
    hosts = sorted({rank.host for rank in others if not is_gone(rank, now, services.life)})
    if hosts and not is_restart:
        more = f" and {len(hosts) - _MOST_HOSTS} more nodes" if len(hosts) > _MOST_HOSTS else ""
        raise JobHeldError(job_id=job.job_id, hosts=", ".join(hosts[:_MOST_HOSTS]) + more)
    writer.save_ranks(rank.evolve(has_left=True) for rank in others if not rank.has_left)


def _note_refused(services: JobServices, job_id: str, error: JobsError, host: str | None) -> None:
    """Store that a registration of the job was refused, and log it where that is news."""
    refused = _refused(services, error, rank=None, host=host)
    with services.store.writing(job_id) as writer:
        is_news = writer.find_job(job_id) is not None and _save_refused(writer, job_id, refused)
    if is_news:
        _LOG.warning("job %s: %s", job_id, refused)


def _refused(
    services: JobServices, error: JobsError, *, rank: int | None, host: str | None
) -> RefusedRegistration:
    problem = f"{error.message[:1].lower()}{error.message[1:]}"
    at_unix_s = services.now().timestamp()
    return RefusedRegistration(rank=rank, host=host, problem=problem, at_unix_s=at_unix_s)


def _save_refused(writer: JobWriter, job_id: str, refused: RefusedRegistration) -> bool:
    """Store a refusal, unless the same was stored lately; return whether it is news."""
    loop_state = writer.find_loop_state(job_id)
    before = loop_state.refused
    is_same = before is not None and str(before) == str(refused)
    is_recent = before is not None and refused.at_unix_s - before.at_unix_s < _NOTED_AGAIN_S
    # Ranks of a start that is refused are refused too.
    is_of_job = before is not None and before.rank is None and refused.rank is not None
    if is_recent and (is_same or is_of_job):
        return False
    writer.save_loop_state(loop_state.evolve(refused=refused))
    return not is_same


@dataclass(frozen=True, kw_only=True)
class KnownRank:
    """Registration of a rank, and the start of its job that it belongs to."""

    record: RankRecord
    start_id: str


def register_together(
    services: JobServices, job_id: str, ranks: Sequence[RankRecord]
) -> tuple[KnownRank | JobsError, ...]:
    """Register ranks of a job in one transaction.

    A rank that registers again starts without a plan, and the newest registration of a rank is
    valid. A job that was over becomes active again.

    Returns:
        For each: the registered rank, or the error.
    """
    outcomes: list[KnownRank | JobsError] = []
    with services.store.writing(job_id) as writer:
        known = RankBatch(writer, job_id, (rank.rank for rank in ranks))
        job = known.job
        if job is None:
            return tuple(UnknownJobError(job_id=job_id) for _ in ranks)
        before = [known.find(rank.rank) for rank in ranks]
        now = services.now()
        taken = known.present_at(
            (rank.place for rank in ranks), lambda rank: is_gone(rank, now, services.life)
        )
        for rank in ranks:
            try:
                check_start(job, rank.start)
                record = _take_rank(services, known, job, rank, taken=taken)
                outcomes.append(KnownRank(record=record, start_id=job.start_id))
            except (WrongStateError, InvalidFieldError) as error:
                outcomes.append(error)
        _note_other_gpus(writer, job_id, before, outcomes)
        known.save(writer)
        returned = come_back(writer, job)
        if returned != job and not all(isinstance(outcome, JobsError) for outcome in outcomes):
            writer.save_job(returned)
        # One of a batch is enough. In the transaction that refuses: a registration of the job that
        # comes next forgets it.
        refused = next(
            (
                _refused(services, outcome, rank=rank.rank, host=rank.host)
                for rank, outcome in zip(ranks, outcomes, strict=True)
                if isinstance(outcome, JobsError)
            ),
            None,
        )
        is_news = refused is not None and _save_refused(writer, job_id, refused)
    services.enqueue_reconcile(job_id)
    if is_news:
        _LOG.warning("job %s: %s", job_id, refused)
    return tuple(outcomes)


def _note_other_gpus(
    writer: JobWriter,
    job_id: str,
    before: Sequence[RankRecord | None],
    outcomes: Sequence[KnownRank | JobsError],
) -> None:
    """Store which ranks have another GPU than before: savings say so if it lies in between."""
    changed = [
        (outcome.record.rank, _changes_scope(rank, outcome.record))
        for rank, outcome in zip(before, outcomes, strict=True)
        if rank is not None
        and isinstance(outcome, KnownRank)
        and _gpu_of(rank) != _gpu_of(outcome.record)
    ]
    newest_step = writer.newest_step(job_id) if changed else None
    if newest_step is None:
        return
    loop_state = writer.find_loop_state(job_id)
    noted = [
        GpuChange(rank=rank, after_step=newest_step, changes_scope=changes_scope)
        for rank, changes_scope in changed
    ]
    changes = (*loop_state.gpu_changes, *noted)[-MAX_GPU_CHANGES:]
    writer.save_loop_state(loop_state.evolve(gpu_changes=changes))


def _changes_scope(before: RankRecord, now: RankRecord) -> bool:
    scopes = (before.energy_scope, now.energy_scope)
    return None not in scopes and scopes[0] != scopes[1]


def _gpu_of(rank: RankRecord) -> tuple[str, str]:
    """Return what names a GPU; an emulated one has a new UUID in each process."""
    return rank.gpu_name, "" if rank.emulated else rank.gpu_uuid


def leave_rank(services: JobServices, job_id: str, rank: int, start_id: str | None = None) -> None:
    """Mark a rank as left at the end of its training; idempotent. Its measurements are kept.

    Raises:
        UnknownJobError: the job does not exist.
        OtherStartError: another start of the job has begun.
    """
    with services.store.writing(job_id) as writer:
        check_start_id(writer.require_job(job_id), start_id)
        known = find_rank(writer, job_id, rank)
        if known is None or known.has_left:
            return
        writer.save_ranks([known.evolve(has_left=True, last_seen_at=services.now())])
    services.enqueue_reconcile(job_id)


def _take_rank(
    services: JobServices,
    known: RankBatch,
    job: JobRecord,
    rank: RankRecord,
    *,
    taken: dict[RankPlace, int],
) -> RankRecord:
    _check_place(rank, job.spec)
    other = taken.setdefault(rank.place, rank.rank)
    if other != rank.rank:
        places = zip(("stage", *LAYOUT_FIELDS), rank.place, strict=True)
        place = ", ".join(f"{name} {number}" for name, number in places)
        raise PlaceTakenError(job_id=job.job_id, rank=rank.rank, other=other, place=place)
    _tell_if_taken_over(services, known.find(rank.rank), rank)
    present = rank.evolve(last_seen_at=services.now(), has_left=False)
    known.change(present)
    return present


def _check_place(rank: RankRecord, spec: JobSpec) -> None:
    if rank.rank >= spec.num_expected_ranks:
        raise InvalidFieldError(
            "rank", f"must be 0 to {spec.num_expected_ranks - 1}, not {rank.rank}"
        )
    if rank.stage >= spec.num_stages:
        raise InvalidFieldError("stage", f"must be 0 to {spec.num_stages - 1}, not {rank.stage}")
    # Each stage has at least one rank, and the others may all belong to this stage.
    most_of_stage = spec.num_expected_ranks - spec.num_stages
    for field in LAYOUT_FIELDS:
        check_count(field, getattr(rank, field), most=most_of_stage)


def _tell_if_taken_over(services: JobServices, before: RankRecord | None, now: RankRecord) -> None:
    """Warn of two processes that both claim to be this rank and replace each other."""
    if before is None or before.has_left or is_silent(before, services.now(), services.life):
        return
    if (before.host, before.gpu_uuid) != (now.host, now.gpu_uuid):
        _LOG.warning(
            "job %s: rank %d registers from %s, but called from %s recently; the newest is valid",
            now.job_id,
            now.rank,
            now.host,
            before.host,
        )


def _register_otherwise(
    services: JobServices, writer: JobWriter, job: JobRecord, spec: JobSpec, launch: Launch
) -> bool:
    """Store other values for a known job; return whether that starts a new run of it."""
    conflict = _conflict(writer, job, spec)
    if conflict is None:
        _register_anew(writer, launch.noted_in(come_back(writer, job)), spec)
        return False
    if _is_other_shape(job, spec, launch):
        _register_shape(writer, launch.noted_in(job), spec)
        return False
    if not can_begin_anew(services, writer, job):
        raise RegistrationConflictError(job_id=job.job_id, field=conflict)
    new_run(services, writer, job, launch.noted_in(job.evolve(registered=spec, spec=spec)))
    return True


def _is_other_shape(job: JobRecord, spec: JobSpec, launch: Launch) -> bool:
    """Return whether the same training has registered other microbatches, and nothing else."""
    is_same_start = launch.start_id is not None and launch.start_id == job.start
    changed = set(_differing(spec, job.registered))
    return is_same_start and "num_microbatches" in changed and changed <= _SHAPE_FIELDS


def _register_shape(writer: JobWriter, job: JobRecord, spec: JobSpec) -> None:
    """Store the new shape beside what was changed since the registration, such as the target.

    Raises:
        ProfiledShapeError: the job is measured with the old shape.
    """
    if job.state == JobState.PROFILING:
        raise ProfiledShapeError(job_id=job.job_id, num=job.spec.num_microbatches)
    change = ShapeChange(
        num_before=job.spec.num_microbatches,
        num_microbatches=spec.num_microbatches,
        after_version=newest_version(writer.list_versions(job.job_id)) or 0,
    )
    writer.save_loop_state(writer.find_loop_state(job.job_id).evolve(shape_change=change))
    shape = {name: getattr(spec, name) for name in _SHAPE_FIELDS}
    changed = job.with_change(JobInput.REGISTRATION, spec=replace(job.spec, **shape))
    writer.save_job(changed.evolve(registered=spec))
    _LOG.info("job %s: %s", job.job_id, change)


def _differing(spec: JobSpec, other: JobSpec) -> Iterator[str]:
    """Yield the fields in which two specifications differ."""
    for field in fields(spec):
        if getattr(spec, field.name) != getattr(other, field.name):
            yield field.name


def _conflict(reader: JobReader, job: JobRecord, spec: JobSpec) -> str | None:
    """Return the field that contradicts the stored job; None: it may be registered again."""
    if not _can_be_registered_anew(reader, job, spec):
        return next(_differing(spec, job.spec))
    for rank in reader.list_ranks(job.job_id):
        if rank.rank >= spec.num_expected_ranks:
            return "num_ranks"
        if rank.stage >= spec.num_stages:
            return "num_stages"
    return None


def _register_anew(writer: JobWriter, job: JobRecord, spec: JobSpec) -> None:
    changed_job = job.with_change(JobInput.REGISTRATION, spec=spec).evolve(registered=spec)
    profile = writer.find_profile(job.job_id)
    if profile is None or profile.num_stages != spec.num_stages:
        # The profile is of another pipeline now; the job waits for the right one.
        writer.delete_profile(job.job_id)
        if job.state == JobState.PLANNING_FAILED:
            changed_job = changed_job.moved(JobState.AWAITING_PROFILE)
    writer.save_job(changed_job)


def _can_be_registered_anew(reader: JobReader, job: JobRecord, spec: JobSpec) -> bool:
    """Return whether the ranks have received nothing, or online profiling was refused.

    Then a profile has to be uploaded: measuring it again takes a job of its own.
    """
    if not reader.list_versions(job.job_id):
        return True
    is_refused = job.state != JobState.PROFILING and is_never_planned(reader, job.job_id)
    return is_refused and not spec.is_profiled_online
