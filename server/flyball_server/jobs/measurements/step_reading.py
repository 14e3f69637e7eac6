"""Reading of a job's running totals: what the store keeps, and the steps since."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.measurements.step_fold import StepFold, version_fold
from flyball_server.jobs.measurements.step_pairs import CountingRule, StepKinds
from flyball_server.jobs.measurements.work_at_highest import works_at_highest
from flyball_server.jobs.records import JobRecord, PlanRecord
from flyball_server.jobs.step_records import FoldPlace, StepRecord, StepTotals
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_wire.plans.plan import Plan, Prediction
from flyball_wire.predictions import PredictedFigures
from flyball_wire.read_models import PredictedIteration

# Time in s for which later steps are posted, after which a step is not waited for. A rank that
# cannot reach its planner posts its steps later, and they are added then.
GIVE_UP_S = 60
# Number of later steps after which a step is given up, however short they are: ranks keep 4096.
MOST_LATER = 8192
# Measurements of single ranks that are added to the stored totals at once, and read at once.
ROWS_A_PIECE = 4096
_FEWEST_A_PIECE = 8
# Number of steps with announced work after which they are added: their details, of which the fewest
# steps are kept, have it.
STEPS_WITH_WORK = 16
_WIDER = 4
_BASELINE = "baseline"


def step_kinds(record: PlanRecord, highest_mhz: Sequence[int] = ()) -> StepKinds:
    """Return which steps of this version run at the highest clocks.

    Args:
        record: plan version.
        highest_mhz: highest clock of online profiling by stage, MHz; empty: not profiled online.
    """
    if record.plan.is_probe:
        is_probe, cycle = True, _highest_rows(record.plan, highest_mhz)
    else:
        is_probe = False
        cycle = (True,) if record.plan.policy == _BASELINE else record.baseline_cycle
    return StepKinds(
        first_step=record.first_step or 0,
        baseline_cycle=cycle,
        is_probe=is_probe,
        num_microbatches=record.plan.num_microbatches,
    )


def all_step_kinds(records: Iterable[PlanRecord]) -> dict[int, StepKinds]:
    """Return the step kinds of all versions of a job."""
    known = tuple(records)
    highest_mhz = next(
        (highest_row_mhz(version.plan) for version in known if version.plan.is_probe), ()
    )
    return {record.version: step_kinds(record, highest_mhz) for record in known}


def highest_row_mhz(plan: Plan) -> tuple[int, ...]:
    """Return the highest clock of a probe's first row by stage, MHz.

    The first version of profiling runs entirely at the highest clocks.
    """
    return tuple(max(clocks_mhz, default=0) for clocks_mhz in plan.cycle_mhz[0])


def _highest_rows(plan: Plan, highest_mhz: Sequence[int]) -> tuple[bool, ...]:
    if len(highest_mhz) != plan.num_stages:
        return ()
    return tuple(
        all(
            clock_mhz == highest
            for clocks_mhz, highest in zip(row, highest_mhz, strict=True)
            for clock_mhz in clocks_mhz
        )
        for row in plan.cycle_mhz
    )


def new_fold(job: JobRecord) -> StepFold:
    """Return the totals of a job without steps."""
    return StepFold(rule=CountingRule(num_ranks=job.spec.num_expected_ranks))


def read_fold(reader: JobReader, job: JobRecord) -> StepFold:
    """Return the totals of all of the job's steps so far; steps that are awaited are in none."""
    fold = reader.find_fold(job.job_id) or new_fold(job)
    rest = read_settled(reader, job, fold)
    add_steps(reader, job.job_id, fold, [step for step in rest if fold.rule.is_complete(step)])
    return fold


def read_settled(reader: JobReader, job: JobRecord, fold: StepFold) -> Sequence[StepTotals]:
    """Add further steps to the totals, up to the first that ranks may still post.

    Of a job that is over all steps are settled.

    Returns:
        The steps that are not settled, rising.
    """
    widening = 1
    while True:
        limit = min(_piece(fold) * widening, 2 * MOST_LATER)
        num_read, rest = _add_piece(reader, job, fold, limit)
        if num_read < limit:
            return rest
        # While the first step is awaited, later ones decide whether it is given up.
        widening = 1 if len(rest) < num_read else widening * _WIDER


def _add_piece(
    reader: JobReader, job: JobRecord, fold: StepFold, limit: int
) -> tuple[int, Sequence[StepTotals]]:
    """Read at most `limit` steps, and add the settled ones.

    Returns:
        The number of steps that were read, and those that are not settled.
    """
    piece = reader.list_posted_steps(job.job_id, fold.run, after_step=fold.after_step, limit=limit)
    settled = piece if job.state in OVER else settled_steps(piece, fold.rule)
    add_steps(reader, job.job_id, fold, settled)
    return len(piece), piece[len(settled) :]


def _piece(fold: StepFold) -> int:
    return max(ROWS_A_PIECE // fold.rule.num_ranks, _FEWEST_A_PIECE)


def add_steps(reader: JobReader, job_id: str, fold: StepFold, steps: Sequence[StepTotals]) -> None:
    """Add these steps to the totals, and the versions that they ran."""
    _know_versions(reader, job_id, fold, steps)
    works = works_at_highest(reader, job_id, steps)
    for step in steps:
        fold.add(step, works.get(step.step))


def settled_steps(piece: Sequence[StepTotals], rule: CountingRule) -> Sequence[StepTotals]:
    """Return the steps of a rising sequence before the first that is awaited.

    A step is awaited until later ones have been posted for GIVE_UP_S.
    """
    num_settled = len(piece)
    first_later_unix_s = newest_unix_s = piece[-1].stored_at if piece else 0
    for num_later, step in enumerate(reversed(piece)):
        is_given_up = num_later >= MOST_LATER or newest_unix_s - first_later_unix_s >= GIVE_UP_S
        if not rule.is_complete(step) and not is_given_up:
            num_settled = len(piece) - 1 - num_later
        newest_unix_s = max(newest_unix_s, step.stored_at)
        first_later_unix_s = min(first_later_unix_s, step.stored_at)
    return piece[:num_settled]


def _know_versions(
    reader: JobReader, job_id: str, fold: StepFold, steps: Iterable[StepTotals]
) -> None:
    for step in steps:
        version = step.newest_version
        if version is None or version in fold.versions or step.num_unknown:
            continue
        record = reader.find_plan(job_id, version)
        if record is not None:
            if record.plan.is_probe and not fold.highest_mhz:
                fold.highest_mhz = _highest_mhz(reader, record)
            of_version = version_fold(step_kinds(record, fold.highest_mhz))
            plan = record.plan
            if not plan.is_probe:
                profile = reader.find_profile(job_id)
                of_version.predicted = predicted_iteration(plan, profile, fold.rule.num_ranks)
                of_version.policy, of_version.target = plan.policy, plan.target
            fold.know(version, of_version)


def gpus_over_profile(profile: StageProfile | None, num_ranks: int) -> float:
    """Return the number of a job's GPUs over that of its profile, whose energy plans predict.

    Args:
        profile: the job's profile; None: no profile, and the result is 1.
        num_ranks: number of the job's ranks, each with a GPU.
    """
    return 1.0 if profile is None else num_ranks / sum(profile.num_ranks_per_stage)


def predicted_iteration(
    plan: Plan, profile: StageProfile | None, num_ranks: int
) -> PredictedIteration | None:
    """Return the model's prediction for all GPUs of a job; None: a probe."""
    prediction = plan.prediction
    if prediction is None:
        return None
    figures: Prediction = _with_energies_times(gpus_over_profile(profile, num_ranks), prediction)
    shared = {item.name: getattr(figures, item.name) for item in fields(PredictedFigures)}
    return PredictedIteration(
        **shared,
        iteration_time_s=plan.iteration_time_s,
        baseline_iteration_time_s=prediction.baseline_iteration_time_s,
        baseline_energy_j=figures.baseline_energy_j,
        saving_percent=prediction.saving_percent,
        gap_percent=prediction.gap_percent,
        reserve=plan.reserve,
    )


def _with_energies_times(factor: float, value: Any, name: str = "") -> Any:  # noqa: ANN401 - a field
    """Return a dataclass, or a field of one, with all energies, whose names end in `_j`."""
    if isinstance(value, tuple):
        return tuple(_with_energies_times(factor, part, name) for part in cast("Any", value))
    if is_dataclass(value):
        changed = {
            each.name: _with_energies_times(factor, getattr(value, each.name), each.name)
            for each in fields(value)
        }
        return replace(cast("Any", value), **changed)
    return factor * value if name.endswith("_j") and value is not None else value


def _highest_mhz(reader: JobReader, probe: PlanRecord) -> tuple[int, ...]:
    """Return the highest clock of online profiling by stage, MHz, from its first version."""
    for version in range(1, probe.version):
        record = reader.find_plan(probe.job_id, version)
        if record is not None and record.plan.is_probe:
            return highest_row_mhz(record.plan)
    return highest_row_mhz(probe.plan) if probe.plan.is_probe else ()


# ------------------------------------------------------------------ posts


def place_of_post(writer: JobWriter, job: JobRecord, steps: Collection[StepRecord]) -> FoldPlace:
    """Return the place of the totals that these steps are posted to.

    A run starts over with another start of the job, or where a rank posts a step that has counted
    again, on a newer plan than all steps so far. The posted steps are stored afterwards.
    """
    place = writer.find_fold_place(job.job_id)
    if place is None:
        place = FoldPlace(start_id=job.start_id)
        writer.save_fold(job.job_id, place, new_fold(job))
    is_over = place.start_id != job.start_id or any(
        step.step <= place.after_step and (step.plan_version or 0) > place.newest_version
        for step in steps
    )
    if not is_over:
        return place
    fold = writer.find_fold(job.job_id) or new_fold(job)
    add_steps(writer, job.job_id, fold, read_settled(writer, job, fold))
    fold.start_over()
    return _save(writer, job, FoldPlace(start_id=job.start_id), fold)


def add_post(
    writer: JobWriter,
    job: JobRecord,
    place: FoldPlace,
    steps: Collection[StepRecord],
    *,
    has_work: bool = False,
) -> None:
    """Add some settled steps to the stored totals, if enough were posted since the last time.

    The posted steps are stored already. `has_work` is true if the work of some was announced: it is
    not kept for long, so fewer steps are enough.
    """
    numbers = {step.step for step in steps}
    newest_step = max(numbers, default=-1)
    if place.run and newest_step > place.newest_step:
        place = place.evolve(newest_step=newest_step)
        writer.save_fold(job.job_id, place)
    late = {step for step in numbers if step <= place.after_step}
    if late:
        fold = writer.find_fold(job.job_id) or new_fold(job)
        _add_late(writer, job.job_id, fold, late)
        if fold.num_late != place.num_late:
            place = _save(writer, job, place, fold)
    is_soon = has_work and newest_step >= place.after_step + STEPS_WITH_WORK
    if newest_step >= place.due_step or is_soon:
        fold = writer.find_fold(job.job_id) or new_fold(job)
        due_step = _add_some(writer, job, fold, newest_step)
        _save(writer, job, place.evolve(due_step=due_step), fold)


def _add_some(reader: JobReader, job: JobRecord, fold: StepFold, newest_step: int) -> int:
    """Add a piece of steps: other posts wait for it. Return the step at which to go on."""
    size = _piece(fold)
    num_read, rest = _add_piece(reader, job, fold, size)
    if num_read < size:
        return newest_step + size
    if len(rest) < num_read:
        return fold.after_step + 1
    # The first step is awaited, and later ones decide whether it is given up.
    _add_piece(reader, job, fold, 2 * MOST_LATER)
    return newest_step + _WIDER * size


def _add_late(reader: JobReader, job_id: str, fold: StepFold, steps: Collection[int]) -> None:
    """Complete those of the steps that were missing and that all ranks have posted now."""
    missing = fold.missing.keys() & steps
    if not missing:
        return
    first_step, end_step = min(missing), max(missing) + 1
    found = reader.list_posted_steps(
        job_id, fold.run, after_step=first_step - 1, end_step=end_step, limit=end_step - first_step
    )
    complete = [step for step in found if step.step in missing and fold.rule.is_complete(step)]
    _know_versions(reader, job_id, fold, complete)
    works = works_at_highest(reader, job_id, complete)
    for step in complete:
        fold.add_late(step, works.get(step.step))


def add_all(writer: JobWriter, job: JobRecord, end_step: int) -> None:
    """Add all steps before this step to the stored totals: nothing is posted of them any more."""
    place = place_of_post(writer, job, ())
    if place.after_step >= end_step - 1:
        return
    fold = writer.find_fold(job.job_id) or new_fold(job)
    limit, is_left = _piece(fold), True
    while is_left:
        piece = writer.list_posted_steps(
            job.job_id, fold.run, after_step=fold.after_step, end_step=end_step, limit=limit
        )
        add_steps(writer, job.job_id, fold, piece)
        is_left = len(piece) == limit
    if fold.after_step != place.after_step:
        _save(writer, job, place, fold)


def _save(writer: JobWriter, job: JobRecord, place: FoldPlace, fold: StepFold) -> FoldPlace:
    reached = place.evolve(
        run=fold.run,
        after_step=fold.after_step,
        num_late=fold.num_late,
        newest_version=fold.newest_version,
    )
    writer.save_fold(job.job_id, reached, fold)
    return reached
