"""Fit of every stage on some runs of a recording, and the prediction of any plan from it.

The fit is online profiling's: a run is a step, its instructions' times are the probes, and the
energies and the blocking power follow by regression over the runs. Beside that an iteration has a
tail, a constant time that no instruction takes (loading, transfers, the optimizer): the mean over
the fitted runs of what was measured less the DAG's longest path. GPUs wait in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_server.planning.model.dag import DependencyDag, build_dag
from flyball_server.planning.model.finish_times import earliest_finish_s
from flyball_server.profiling.instruction_times import estimate_times
from flyball_server.profiling.mixed_model import FloatArray
from flyball_server.profiling.observations import InstructionClass
from flyball_server.profiling.stage_energies import MeasuredStage, StageEnergies, estimate_energies
from flyball_server.profiling.stage_points import StagePoints, StepTable
from flyball_server.replay.recorded_runs import KINDS, RecordedRun, Recording, RecordingError
from flyball_server.replay.time_curves import StageCurves, curves_of

_CLASSES = tuple(InstructionClass(kind) for kind in KINDS)
_LEAST_ENERGY_J = 1e-6


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A recording's pipeline, with all clocks of its runs.

    Attributes:
        points: points of each stage: all clocks that any run asked for.
        num_ranks: whose energies a stage's are the sum of.
        kind: per node of the DAG, its place in `KINDS`.
    """

    recording: Recording
    dag: DependencyDag
    points: StagePoints
    num_ranks: int
    kind: NDArray[np.int64]

    @classmethod
    def of_recording(cls, recording: Recording) -> Workload:
        """Return the workload of a recording.

        Raises:
            RecordingError: all runs have one and the same clock.
        """
        clocks = {
            clock for run in recording.runs for of_stage in run.clocks_mhz for clock in of_stage
        }
        if len(clocks) < 2:
            raise RecordingError(
                f"runs: all instructions of all runs are at {clocks.pop()} MHz; times at"
                " other clocks cannot be fitted"
            )
        dag = build_dag(recording.schedule)
        return cls(
            recording=recording,
            dag=dag,
            points=StagePoints(classes=_CLASSES, clocks_mhz=tuple(sorted(clocks, reverse=True))),
            num_ranks=recording.dp * recording.tp,
            kind=np.array([KINDS.index(one.kind) for one in dag.instruction], dtype=np.int64),
        )

    def clocks_in(self, clocks_mhz: Sequence[Sequence[int]]) -> PlanClocks:
        """A plan's clocks, of which each is one of the workload's."""
        index = {clock: place for place, clock in enumerate(self.points.clocks_mhz)}
        clock = np.array(
            [index[mhz] for of_stage in clocks_mhz for mhz in of_stage], dtype=np.int64
        )
        point = self.kind * len(self.points.clocks_mhz) + clock
        stage = np.array(self.dag.stage, dtype=np.int64)
        num_stages = self.recording.num_stages
        counts = np.zeros((num_stages, self.points.num_points))
        np.add.at(counts, (stage, point), 1.0)
        return PlanClocks(stage=stage, point=point, counts=counts)

    def clocks_of(self, clocks: PlanClocks) -> list[list[int]]:
        """Per stage, the clock of each instruction, MHz: the inverse of `clocks_in`."""
        mhz = np.array(self.points.clocks_mhz)[clocks.point % len(self.points.clocks_mhz)]
        return [mhz[clocks.stage == stage].tolist() for stage in range(self.recording.num_stages)]


@dataclass(frozen=True, kw_only=True)
class PlanClocks:
    """A plan as points.

    Attributes:
        stage, point: per node of the DAG, its stage and its point; shape (num_nodes,).
        counts: per stage, its instructions at each point; shape (num_stages, num_points).
    """

    stage: NDArray[np.int64]
    point: NDArray[np.int64]
    counts: FloatArray


@dataclass(frozen=True, kw_only=True)
class PlanPrediction:
    """One iteration under a plan, predicted.

    Attributes:
        iteration_time_s: with the tail, s.
        energy_j: of all stages, J.
        unmeasured_time_s: by how much the time grows if instructions at clocks that no fitted
            run had take one standard error longer, s.
        energy_deviation_j: standard deviation of a run's energy by the regression, J.
        idle_s: per stage, time that no instruction takes, s; shape (num_stages,).
        unmeasured: points of the plan at which no fitted run measured a time.
    """

    iteration_time_s: float
    energy_j: float
    unmeasured_time_s: float
    energy_deviation_j: float
    idle_s: FloatArray
    unmeasured: tuple[tuple[int, InstructionKind, int], ...]


@dataclass(frozen=True, kw_only=True)
class RunsFit:
    """A stage profile with its errors, and the tail, fitted on some runs.

    Attributes:
        fitted: the runs.
        curves: per stage.
        energies: per stage.
        tail_s: s.
        tails_s: of each fitted run, s; shape (num fitted,).
    """

    workload: Workload
    fitted: tuple[RecordedRun, ...]
    curves: tuple[StageCurves, ...]
    energies: tuple[StageEnergies, ...]
    tail_s: float
    tails_s: FloatArray

    def predict(self, clocks: PlanClocks) -> PlanPrediction:
        """Predict time and energy of an iteration under a plan."""
        durations_s = durations_of(self.curves, clocks)
        time_s = _longest_s(self.workload.dag, durations_s) + self.tail_s
        late_s = _longest_s(self.workload.dag, durations_of(self.curves, clocks, late=True))
        idle_s = time_s - _busy_s(clocks, durations_s, len(self.curves))
        energy_j, variance_j2 = 0.0, 0.0
        for stage, energies in enumerate(self.energies):
            counted = np.append(clocks.counts[stage], energies.num_ranks * idle_s[stage])
            known = np.append(energies.mean_j, energies.blocking_power_w)
            energy_j += float(counted @ known)
            variance_j2 += self.variance_j2(stage, clocks, float(idle_s[stage]))
            variance_j2 += energies.step_noise_j**2
        return PlanPrediction(
            iteration_time_s=time_s,
            energy_j=energy_j,
            unmeasured_time_s=late_s + self.tail_s - time_s,
            energy_deviation_j=math.sqrt(variance_j2),
            idle_s=idle_s,
            unmeasured=self._unmeasured(clocks),
        )

    def variance_j2(self, stage: int, clocks: PlanClocks, idle_s: float) -> float:
        """Variance of a stage's energy under a plan by what the regression left open, J^2."""
        energies = self.energies[stage]
        counted = np.append(clocks.counts[stage], energies.num_ranks * idle_s)
        return float(counted @ energies.covariance @ counted)

    @property
    def blocking_power_w(self) -> tuple[float, ...]:
        """Per stage, of one of its GPUs, W."""
        return tuple(energies.blocking_power_w for energies in self.energies)

    def limited_points(self) -> tuple[tuple[int, InstructionKind, int], ...]:
        """Stage, kind and clock of the measured points that power limited."""
        return tuple(
            key
            for stage, curves in enumerate(self.curves)
            for number in np.flatnonzero(curves.is_limited)
            for key in (self._key(stage, int(number)),)
        )

    def profile(self) -> StageProfile:
        """Return the stage profile of the points that fitted runs measured."""
        points: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {}
        for stage, (curves, energies) in enumerate(zip(self.curves, self.energies, strict=True)):
            for number in np.flatnonzero(curves.times.num_probes):
                _, kind, clock = self._key(stage, int(number))
                point = OperatingPoint(
                    frequency_mhz=clock,
                    time_s=float(curves.times.mean_s[number]),
                    energy_j=max(float(energies.mean_j[number]), _LEAST_ENERGY_J),
                )
                points[stage, kind] = (*points.get((stage, kind), ()), point)
        return StageProfile(
            points=points, num_ranks_per_stage=(self.workload.num_ranks,) * len(self.curves)
        )

    def _unmeasured(self, clocks: PlanClocks) -> tuple[tuple[int, InstructionKind, int], ...]:
        return tuple(
            self._key(stage, int(number))
            for stage, curves in enumerate(self.curves)
            for number in np.flatnonzero(
                (clocks.counts[stage] > 0) & (curves.times.num_probes == 0)
            )
        )

    def _key(self, stage: int, number: int) -> tuple[int, InstructionKind, int]:
        clocks_mhz = self.workload.points.clocks_mhz
        index, clock = divmod(number, len(clocks_mhz))
        return stage, KINDS[index], clocks_mhz[clock]


def fit_runs(workload: Workload, fitted: Sequence[RecordedRun]) -> RunsFit:
    """Fit every stage on these runs, at least two."""
    plans = [workload.clocks_in(run.clocks_mhz) for run in fitted]
    tables = [_table(workload, stage, fitted) for stage in range(workload.recording.num_stages)]
    curves = tuple(
        curves_of(workload.points, estimate_times(workload.points, table)) for table in tables
    )
    durations_s = [durations_of(curves, plan) for plan in plans]
    tails_s = np.array(
        [
            run.iterations.mean_s - _longest_s(workload.dag, of_run)
            for run, of_run in zip(fitted, durations_s, strict=True)
        ]
    )
    measured_s = np.array([run.iterations.mean_s for run in fitted])
    idle_s = measured_s[:, None] - np.array(
        [
            _busy_s(plan, of_run, len(curves))
            for plan, of_run in zip(plans, durations_s, strict=True)
        ]
    )
    energies = estimate_energies(
        {
            stage: _measured_stage(
                workload,
                table,
                curves[stage],
                np.array([plan.counts[stage] for plan in plans]),
                idle_s[:, stage],
            )
            for stage, table in enumerate(tables)
        }
    )
    return RunsFit(
        workload=workload,
        fitted=tuple(fitted),
        curves=curves,
        energies=tuple(energies[stage] for stage in range(len(curves))),
        tail_s=float(tails_s.mean()),
        tails_s=tails_s,
    )


def durations_of(
    curves: Sequence[StageCurves], clocks: PlanClocks, *, late: bool = False
) -> FloatArray:
    """Per node, its time, s; `late`: one standard error longer at clocks not measured."""
    times_s = np.array(
        [
            each.times.mean_s + np.where(each.times.num_probes > 0, 0.0, each.times.error_s)
            if late
            else each.times.mean_s
            for each in curves
        ]
    )
    durations_s: FloatArray = times_s[clocks.stage, clocks.point]
    return durations_s


def _longest_s(dag: DependencyDag, durations_s: FloatArray) -> float:
    return max(earliest_finish_s(dag, durations_s.tolist()))


def _busy_s(clocks: PlanClocks, durations_s: FloatArray, num_stages: int) -> FloatArray:
    return np.bincount(clocks.stage, durations_s, num_stages).astype(np.float64)


def _table(workload: Workload, stage: int, fitted: Sequence[RecordedRun]) -> StepTable:
    """The stage's runs as steps, with how often each time was measured; no two are consecutive."""
    points = workload.points
    shape = (len(fitted), points.num_points)
    samples, mean_s = np.zeros(shape), np.zeros(shape)
    index = {clock: place for place, clock in enumerate(points.clocks_mhz)}
    for row, run in enumerate(fitted):
        for times in run.instruction_times:
            if times.stage == stage:
                number = points.number(KINDS.index(times.kind), index[times.frequency_mhz])
                samples[row, number] = times.num_samples
                mean_s[row, number] = times.time_s
    return StepTable(
        step=2 * np.arange(len(fitted), dtype=np.int64),
        counts=samples,
        mean_s=mean_s,
        variance_s2=np.zeros(shape),
        idle_s=np.zeros(len(fitted)),
        energy_j=np.array([run.energy_j_per_stage[stage] for run in fitted]),
    )


def _measured_stage(
    workload: Workload,
    table: StepTable,
    curves: StageCurves,
    counts: FloatArray,
    idle_s: FloatArray,
) -> MeasuredStage:
    """A stage's runs with the instructions of their plans in the place of the measured ones."""
    return MeasuredStage(
        points=workload.points,
        table=replace(table, counts=counts, idle_s=np.maximum(idle_s, 0.0)),
        times=curves.times,
        num_ranks=workload.num_ranks,
        blocking_power_w=None,
    )
