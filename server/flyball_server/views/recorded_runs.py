"""Use case: a job's measurements of each plan version, as recorded runs for a replay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.schedule import Schedule
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.errors import UnrecordedRunsError
from flyball_server.jobs.lifecycle.job_life import is_emulated
from flyball_server.jobs.measurements.pruning import most_steps
from flyball_server.jobs.measurements.step_pairs import CountingRule, StepKinds
from flyball_server.jobs.measurements.step_reading import all_step_kinds, read_fold
from flyball_server.jobs.records import JobRecord, PlanRecord, RankRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import InstructionKey, Moments
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.versions.rank_plans import rank_cycle_mhz
from flyball_server.replay.recorded_runs import (
    KINDS,
    IterationTotals,
    RecordedRun,
    RecordedTimes,
    Recording,
    RecordingError,
    planned_points,
    schedule_of,
)
from flyball_wire.closed_loop import RecordedRuns
from flyball_wire.codec import encode

# Of fewer, the energy is mostly the error of the counters.
FEWEST_STEPS = 4
_FEWEST_RUNS = 2


def get_recorded_runs(services: JobServices, job_id: str) -> RecordedRuns:
    """Return the job's counting steps so far by version; time grows with its steps.

    Raises:
        UnknownJobError: the job does not exist.
        UnrecordedRunsError: fewer than two versions can be replayed.
    """
    with services.store.reading() as reader:
        job = reader.require_job(job_id)
        plans = {record.version: record for record in reader.list_plans(job_id)}
        measured = _Measured(
            job=job,
            ranks=reader.list_ranks(job_id),
            plans=plans,
            kinds=all_step_kinds(plans.values()),
            profile=reader.find_profile(job_id),
            instructions_s={
                moment.place: moment.instructions_s for moment in reader.list_moments(job_id)
            },
        )
        sums = _summed_steps(reader, job, measured.kinds)
        worked = {
            version
            for version, of_version in read_fold(reader, job).versions.items()
            if of_version.on_plan.times_of_work.num_values
            or of_version.at_baseline.times_of_work.num_values
        }
    runs: dict[tuple[int, bool], RecordedRun] = {}
    left_out: list[str] = []
    schedule = measured.schedule(sums)
    for (version, is_highest), of_steps in sorted(sums.items()):
        if version in worked:
            left_out.append(f"version-{version}: its steps announced work, and no two are alike")
            continue
        try:
            runs[version, is_highest] = measured.run(
                version, of_steps, schedule, is_highest=is_highest
            )
        except _UnfitError as error:
            left_out.append(str(error))
        except RecordingError as error:
            left_out.append(f"version-{version}: {error}")
    if len(runs) < _FEWEST_RUNS:
        reason = f"; {left_out[0]}" if left_out else ""
        raise UnrecordedRunsError(
            job_id=job_id,
            problem=f"{len(runs)} plan versions have measured steps that count, at least"
            f" {_FEWEST_RUNS} are needed{reason}",
        )
    try:
        document = _present(encode(measured.recording(schedule, runs)))
    except RecordingError as error:
        raise UnrecordedRunsError(job_id=job_id, problem=str(error)) from None
    return RecordedRuns(job_id=job_id, document=document, left_out=tuple(left_out))


def _present(value: Any) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """Return a document without its absent fields."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: _present(field) for name, field in fields.items() if field is not None}
    if isinstance(value, list):
        return [_present(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


class _UnfitError(Exception):
    """A version's steps cannot be replayed; the message is one line."""


@dataclass(kw_only=True)
class _Sums:
    """Sums over counted steps at the same clocks.

    Attributes:
        time_s: their times, s.
        energies_j: by stage, energies of its ranks in those steps of which all stages have one, J.
    """

    time_s: Moments = field(default_factory=lambda: Moments(count=0, mean=0.0, m2=0.0))
    energies_j: dict[int, Moments] = field(default_factory=dict[int, Moments])
    num_without_energy: int = 0

    def add(self, time_s: float, energies_j: Mapping[int, float] | None) -> None:
        """Add a step; energies None: not stored by stages, or not readable."""
        if energies_j is None:
            self.num_without_energy += 1
            return
        self.time_s = self.time_s.merged(_one(time_s))
        for stage, energy_j in energies_j.items():
            known = self.energies_j.get(stage)
            self.energies_j[stage] = (
                _one(energy_j) if known is None else known.merged(_one(energy_j))
            )


def _one(value: float) -> Moments:
    return Moments(count=1, mean=value, m2=0.0)


def _summed_steps(
    reader: JobReader, job: JobRecord, kinds: Mapping[int, StepKinds]
) -> dict[tuple[int, bool], _Sums]:
    """Sum the steps that count, by version and by whether they ran at the highest clocks.

    Steps at default clocks, whose clocks are unknown, and those of online profiling at other than
    the highest clocks, of which no two are alike, are left out.
    """
    sums: dict[tuple[int, bool], _Sums] = {}
    rule = CountingRule(num_ranks=job.spec.num_expected_ranks)
    limit = most_steps(job.spec)
    after_step = -1
    while True:
        piece = reader.list_step_totals(job.job_id, after_step=after_step, limit=limit)
        counted = [step for step in piece if rule.counts(step) and step.newest_version in kinds]
        energies_j = (
            _stage_energies(reader, job, after_step, piece[-1].step, len(piece)) if counted else {}
        )
        for step in counted:
            of_version = kinds[step.newest_version or 0]
            is_highest = of_version.is_baseline(step.step)
            if is_highest or not of_version.is_probe:
                known = sums.setdefault((step.newest_version or 0, is_highest), _Sums())
                known.add(step.time_s, energies_j.get(step.step))
        if len(piece) < limit:
            return sums
        after_step = piece[-1].step


def _stage_energies(
    reader: JobReader, job: JobRecord, after_step: int, last_step: int, num_steps: int
) -> dict[int, dict[int, float]]:
    """Return the stages' energies of each step in the range that has them all, J."""
    found: dict[int, dict[int, float]] = {}
    for totals in reader.list_stage_totals(
        job.job_id, after_step=after_step, before_step=last_step + 1, num_steps=num_steps
    ):
        if totals.energy_j is not None:
            found.setdefault(totals.step, {})[totals.stage] = totals.energy_j
    return {
        step: energies_j
        for step, energies_j in found.items()
        if len(energies_j) == job.spec.num_stages
    }


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A job with its measurements.

    Attributes:
        plans, kinds: by version.
        profile: None: no profile yet.
        instructions_s: by version and stage, times of instructions as measured in it.
    """

    job: JobRecord
    ranks: Sequence[RankRecord]
    plans: Mapping[int, PlanRecord]
    kinds: Mapping[int, StepKinds]
    profile: StageProfile | None
    instructions_s: Mapping[tuple[int, int], Mapping[InstructionKey, Moments]]

    def schedule(self, sums: Mapping[tuple[int, bool], _Sums]) -> Schedule:
        """Return the schedule of the newest version with steps; it is that of all runs.

        Raises:
            UnrecordedRunsError: no version has steps, or that schedule is not replayed.
        """
        job_id = self.job.job_id
        if not sums:
            raise UnrecordedRunsError(
                job_id=job_id, problem="no measured step of a plan counts yet"
            )
        if self._num_ranks_per_stage is None:
            raise UnrecordedRunsError(
                job_id=job_id, problem="its stages have different numbers of ranks"
            )
        name = self.plans[max(sums)[0]].plan.schedule
        try:
            return schedule_of(name, self.job.spec.num_stages, self.job.spec.num_microbatches)
        except RecordingError as error:
            raise UnrecordedRunsError(job_id=job_id, problem=str(error)) from None

    @property
    def _num_ranks_per_stage(self) -> int | None:
        """Ranks of each stage; None: they differ."""
        per_stage, rest = divmod(self.job.spec.num_expected_ranks, self.job.spec.num_stages)
        stages = [rank.stage for rank in self.ranks]
        is_even = all(stages.count(stage) == per_stage for stage in set(stages))
        return per_stage if is_even and not rest else None

    def run(
        self, version: int, sums: _Sums, schedule: Schedule, *, is_highest: bool
    ) -> RecordedRun:
        """Return the run of these steps.

        Raises:
            _UnfitError: it cannot be replayed.
        """
        record = self.plans[version]
        kinds = self.kinds[version]
        name = f"version-{version}"
        if is_highest and not kinds.is_all_baseline:
            name += "-highest"
        num_steps = sums.time_s.count
        if num_steps < FEWEST_STEPS:
            without = (
                f", and {sums.num_without_energy} without the energy of each stage"
                if sums.num_without_energy
                else ""
            )
            raise _UnfitError(
                f"{name}: has {num_steps} measured steps that count{without}; at least"
                f" {FEWEST_STEPS} are needed"
            )
        clocks_mhz = self._clocks_mhz(record, name, schedule, is_highest=is_highest)
        return RecordedRun(
            name=name,
            clocks_mhz=clocks_mhz,
            iterations=IterationTotals(
                count=num_steps,
                time_s_mean=sums.time_s.mean,
                time_s_deviation=math.sqrt(sums.time_s.variance or 0.0),
            ),
            energy_j_per_stage=tuple(
                sums.energies_j[stage].mean for stage in range(len(clocks_mhz))
            ),
            instruction_times=tuple(self._times(version, name, schedule, clocks_mhz)),
        )

    def _clocks_mhz(
        self, record: PlanRecord, name: str, schedule: Schedule, *, is_highest: bool
    ) -> tuple[tuple[int, ...], ...]:
        plan = record.plan
        if plan.schedule != schedule.name:
            raise _UnfitError(
                f"{name}: runs schedule {plan.schedule}, the newest version {schedule.name}"
            )
        if plan.is_separate:
            raise _UnfitError(f"{name}: its data-parallel pipelines have clocks of their own")
        pipeline = plan.pipelines[0]
        clocks_mhz = pipeline.clocks_mhz
        if is_highest and record.baseline_cycle:
            rows = [
                rank_cycle_mhz(record, stage, of_stage, self.profile)
                for stage, of_stage in enumerate(plan.stages)
            ]
            row = record.baseline_cycle.index(True)
            clocks_mhz = tuple(
                cycle[row] if cycle else planned
                for cycle, planned in zip(rows, clocks_mhz, strict=True)
            )
        if pipeline.order != schedule.stages:
            raise _UnfitError(f"{name}: its order is not that of {schedule.name}")
        return clocks_mhz

    def _times(
        self,
        version: int,
        name: str,
        schedule: Schedule,
        clocks_mhz: Sequence[Sequence[int]],
    ) -> Iterator[RecordedTimes]:
        """Yield the times as the version measured them, or else as the profile has them."""
        profiled = self._profiled_times()
        for stage, kind, clock in sorted(planned_points(schedule, clocks_mhz)):
            measured = self.instructions_s.get((version, stage), {}).get((str(kind), 0, clock))
            time_s = profiled.get((stage, kind, clock)) if measured is None else measured.mean
            if time_s is None:
                raise _UnfitError(
                    f"{name}: neither its ranks nor the profile measured {kind} of stage {stage} at"
                    f" {clock} MHz"
                )
            yield RecordedTimes(
                stage=stage,
                instruction=kind,
                frequency_mhz=clock,
                time_s_mean=time_s,
                samples=1 if measured is None else measured.count,
                source="run" if measured is not None else "profile",
            )

    def _profiled_times(self) -> dict[tuple[int, InstructionKind, int], float]:
        if self.profile is None:
            return {}
        return {
            (stage, kind, point.frequency_mhz): point.time_s
            for (stage, kind), points in self.profile.points.items()
            if kind in KINDS
            for point in points
        }

    def recording(
        self, schedule: Schedule, runs: Mapping[tuple[int, bool], RecordedRun]
    ) -> Recording:
        """Return the runs by version, first one at the highest clocks if there is any."""
        gpus = {rank.gpu_name for rank in self.ranks}
        tp = 1 + max((rank.tp_rank for rank in self.ranks), default=0)
        per_stage = self._num_ranks_per_stage or 1
        tp = tp if per_stage % tp == 0 else 1
        in_order = dict(runs)
        highest = next((place for place in sorted(runs) if place[1]), None)
        first = [] if highest is None else [in_order.pop(highest)]
        return Recording(
            model=self.job.job_id,
            gpu=gpus.pop() if len(gpus) == 1 else "",
            dp=per_stage // tp,
            tp=tp,
            pp=schedule.num_stages,
            num_microbatches=schedule.num_microbatches,
            schedule=schedule.name,
            runs=(*first, *(in_order[place] for place in sorted(in_order))),
            emulated=is_emulated(self.job, self.ranks),
        )
