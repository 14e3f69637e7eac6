"""Fit of a pipeline on some recorded runs, and the prediction of any plan from it.

Times of instructions are as measured, interpolated where no run measured a clock. An iteration has
a tail beside, time that no instruction takes (loading, transfers, the optimizer): measured time
less the DAG's longest path. It drifts from plan to plan, so a plan gets the mean tail of the runs
with the nearest longest paths. Energies follow from the stages' by regression (`energy_fit`). A run
whose tail is unlike all others' ran in other conditions and tells nothing of tails and energies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball_pipeline.dag import build_dag
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_server.planning.model.array_dag import (
    ArrayDag,
    BoolArray,
    FloatArray,
    IndexArray,
    array_dag,
    earliest_finishes_s,
)
from flyball_server.profiling.iteration_delays import robust_deviation
from flyball_server.replay.energy_fit import EnergyFit, fit_energies
from flyball_server.replay.recorded_runs import (
    KINDS,
    PointKey,
    RecordedRun,
    Recording,
    RecordingError,
)

# Fewer determine neither energies nor how far predictions are off.
MIN_FITTED = 3
# A tail is the mean of so many runs', without those that are further off than so many deviations.
_NUM_NEAREST, _TRIMMED = 7, 3.0
# A run is unlike the others whose tail is further off than so many deviations, and than this share
# of the run's time.
_UNLIKE, _UNLIKE_SHARE = 6.0, 0.02
_LEAST_ENERGY_J = 1e-6


@dataclass(frozen=True, kw_only=True)
class RecordedWorkload:
    """Pipeline of a recording, with all clocks of its runs.

    The points of a stage are those of forwards, then those of backwards, each in rising clocks.

    Attributes:
        clocks_mhz: clocks that any run asked for, rising.
        num_ranks: number of ranks whose energies a stage's are the sum of.
        stage, kind: per node of the DAG, its stage, and its place in `KINDS`.
    """

    recording: Recording
    dag: ArrayDag
    clocks_mhz: tuple[int, ...]
    num_ranks: int
    stage: IndexArray
    kind: IndexArray

    @classmethod
    def of_recording(cls, recording: Recording) -> RecordedWorkload:
        """Return the workload of a recording.

        Raises:
            RecordingError: all runs have one and the same clock.
        """
        clocks = {mhz for run in recording.runs for of_stage in run.clocks_mhz for mhz in of_stage}
        if len(clocks) < 2:
            raise RecordingError(
                f"runs: all instructions of all runs are at {clocks.pop()} MHz; times at"
                " other clocks cannot be fitted"
            )
        dag = array_dag(build_dag(recording.order))
        return cls(
            recording=recording,
            dag=dag,
            clocks_mhz=tuple(sorted(clocks)),
            num_ranks=recording.dp * recording.tp,
            stage=np.array(dag.stage, dtype=np.int64),
            kind=np.array(
                [KINDS.index(instruction.kind) for instruction in dag.instruction], dtype=np.int64
            ),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Number of stages, and of the points of each."""
        return self.recording.pp, len(KINDS) * len(self.clocks_mhz)

    def key(self, stage: int, point: int) -> PointKey:
        """Return stage, kind and clock of a point."""
        kind, clock = divmod(point, len(self.clocks_mhz))
        return stage, KINDS[kind], self.clocks_mhz[clock]

    def point(self, key: PointKey) -> tuple[int, int]:
        """Return stage and point: the inverse of `key`."""
        stage, kind, mhz = key
        return stage, KINDS.index(kind) * len(self.clocks_mhz) + self.clocks_mhz.index(mhz)

    def points_of(self, clocks_mhz: Sequence[Sequence[int]]) -> IndexArray:
        """Return the point of each node under a plan, all of whose clocks are the workload's."""
        of_nodes = [mhz for of_stage in clocks_mhz for mhz in of_stage]
        return self.kind * len(self.clocks_mhz) + np.searchsorted(self.clocks_mhz, of_nodes)


@dataclass(frozen=True, kw_only=True)
class RunPrediction:
    """Prediction of an iteration under a plan.

    Attributes:
        iteration_time_s: time with the tail, s.
        tail_s: tail, s.
        energy_j: energy of all stages, J.
        energy_deviation_j: standard deviation of a run's energy by the regression, J.
        load: load of the stages, as in `EnergyFit`.
        unmeasured: points of the plan at which no fitted run measured a time.
    """

    iteration_time_s: float
    tail_s: float
    energy_j: float
    energy_deviation_j: float
    load: FloatArray
    unmeasured: tuple[PointKey, ...]


@dataclass(frozen=True, kw_only=True)
class RunsFit:
    """Times, tails and energies, fitted on some runs.

    Attributes:
        fitted: the runs.
        is_alike: runs that tails and energies are fitted on; shape (num_fitted,).
        loads: load of each run, as in `EnergyFit`.
        time_s: times of the points, s; shape `workload.shape`.
        is_measured: points that a fitted run measured; same shape.
        longest_s, tails_s: longest path and tail of each run, s; shape (num_fitted,).
    """

    workload: RecordedWorkload
    fitted: tuple[RecordedRun, ...]
    is_alike: BoolArray
    loads: FloatArray
    time_s: FloatArray
    is_measured: BoolArray
    longest_s: FloatArray
    tails_s: FloatArray
    energies: EnergyFit

    def predict(self, clocks_mhz: Sequence[Sequence[int]]) -> RunPrediction:
        """Predict time and energy of an iteration under a plan."""
        points = self.workload.points_of(clocks_mhz)
        longest_s = float(_longest_s(self.workload, self.time_s, [points])[0])
        tail_s = self.tail_at(longest_s)
        load = _load(self.workload, self.time_s, points, longest_s + tail_s)
        is_unmeasured = (load[:, :-1] > 0) & ~self.is_measured
        return RunPrediction(
            iteration_time_s=longest_s + tail_s,
            tail_s=tail_s,
            energy_j=self.energies.energy_of(load),
            energy_deviation_j=self.energies.deviation_of(load),
            load=load,
            unmeasured=tuple(
                self.workload.key(stage, point)
                for stage, point in np.argwhere(is_unmeasured).tolist()
            ),
        )

    def tail_at(self, longest_s: float) -> float:
        """Return the tail of an iteration with this longest path, s."""
        tails_s = self.tails_s[self.is_alike]
        off_s = np.abs(self.longest_s[self.is_alike] - longest_s)
        nearest_s = tails_s[np.argsort(off_s, kind="stable")[:_NUM_NEAREST]]
        off_s = np.abs(nearest_s - np.median(nearest_s))
        return float(nearest_s[off_s <= _TRIMMED * robust_deviation(nearest_s)].mean())

    @property
    def tail_s(self) -> float:
        """Median of the tails, s."""
        return float(np.median(self.tails_s))

    def is_unlike(self, tail_s: float, iteration_s: float) -> bool:
        """Return whether a run with this tail and time, s, ran in other conditions."""
        return bool(_are_unlike(self.tails_s, np.array(tail_s), np.array(iteration_s)))

    @property
    def blocking_power_w(self) -> tuple[float, ...]:
        """Per stage, blocking power of one of its GPUs, W."""
        of_stages_w = self.energies.energy_j[:, -1] / self.workload.num_ranks
        return tuple(np.maximum(of_stages_w, 0.0).tolist())

    def profile(self) -> StageProfile:
        """Return the stage profile of the points that fitted runs measured."""
        points: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {}
        for stage, point in np.argwhere(self.is_measured).tolist():
            _, kind, mhz = self.workload.key(stage, point)
            measured = OperatingPoint(
                frequency_mhz=mhz,
                time_s=float(self.time_s[stage, point]),
                energy_j=max(float(self.energies.energy_j[stage, point]), _LEAST_ENERGY_J),
            )
            points[stage, kind] = (*points.get((stage, kind), ()), measured)
        return StageProfile(
            points=points, num_ranks_per_stage=(self.workload.num_ranks,) * self.workload.shape[0]
        )


def fit_runs(workload: RecordedWorkload, fitted: Sequence[RecordedRun]) -> RunsFit:
    """Fit a pipeline on these runs, at least two."""
    plans = [workload.points_of(run.clocks_mhz) for run in fitted]
    time_s, is_measured = _times(workload, fitted)
    longest_s = _longest_s(workload, time_s, plans)
    measured_s = np.array([run.time_s for run in fitted])
    tails_s = measured_s - longest_s
    is_alike = ~_are_unlike(tails_s, tails_s, measured_s)
    if is_alike.sum() < MIN_FITTED:
        is_alike[:] = True
    loads = np.array(
        [_load(workload, time_s, plan, run.time_s) for plan, run in zip(plans, fitted, strict=True)]
    )
    energies_j = np.array([run.energy_j_per_stage for run in fitted])
    return RunsFit(
        workload=workload,
        fitted=tuple(fitted),
        is_alike=is_alike,
        loads=loads,
        time_s=time_s,
        is_measured=is_measured,
        longest_s=longest_s,
        tails_s=tails_s,
        energies=fit_energies(workload.clocks_mhz, time_s, loads[is_alike], energies_j[is_alike]),
    )


def _are_unlike(tails_s: FloatArray, of_s: FloatArray, iterations_s: FloatArray) -> BoolArray:
    """Return which of some tails are unlike `tails_s`, given their iterations' times."""
    limit_s = np.maximum(_UNLIKE * robust_deviation(tails_s), _UNLIKE_SHARE * iterations_s)
    return np.asarray(np.abs(of_s - np.median(tails_s)) > limit_s)


def _longest_s(
    workload: RecordedWorkload, time_s: FloatArray, plans: Sequence[IndexArray]
) -> FloatArray:
    """Return the DAG's longest path under each plan, s."""
    durations_s = time_s[workload.stage[:, None], np.array(plans).T]
    longest_s: FloatArray = earliest_finishes_s(workload.dag, durations_s).max(axis=0)
    return longest_s


def _load(
    workload: RecordedWorkload, time_s: FloatArray, points: IndexArray, iteration_s: float
) -> FloatArray:
    """Return the load of an iteration under a plan."""
    counts = np.zeros(workload.shape)
    np.add.at(counts, (workload.stage, points), 1.0)
    idle_s = np.maximum(iteration_s - (counts * time_s).sum(axis=1), 0.0)
    return np.column_stack([counts, idle_s])


def _times(
    workload: RecordedWorkload, fitted: Sequence[RecordedRun]
) -> tuple[FloatArray, BoolArray]:
    """Return times of all points, and which of them are measured.

    A time is the mean over the runs, weighted by samples; others are those of `_completed`.
    """
    samples, sums_s = np.zeros(workload.shape), np.zeros(workload.shape)
    for run in fitted:
        for times in run.instruction_times:
            place = workload.point(times.key)
            samples[place] += times.samples
            sums_s[place] += times.samples * times.time_s
    is_measured = samples > 0
    time_s = np.divide(sums_s, samples, out=np.zeros_like(sums_s), where=is_measured)
    period = 1 / np.array(workload.clocks_mhz)[::-1]
    # Per stage and kind a curve over the rising periods of the clocks.
    curves_s = time_s.reshape(len(time_s), len(KINDS), -1)[:, :, ::-1]
    is_known = is_measured.reshape(curves_s.shape)[:, :, ::-1]
    for kind in range(len(KINDS)):
        curves_s[:, kind] = _completed(period, curves_s[:, kind], is_known[:, kind])
    return time_s, is_measured


def _completed(period: FloatArray, curves_s: FloatArray, is_known: BoolArray) -> FloatArray:
    """Return a kind's times with those that are not known, s; shape (num_stages, num_clocks).

    Such a time is the geometric mean of two. By the stage alone it is linear in the period of the
    clock between known times, and below the lowest clock rises on as the curve does on the whole.
    By all stages, whose GPUs are of one kind, it is the common curve times the stage's ratio to it.
    The common curve is the mean of the stages' own, moved by least squares to the known times.
    """
    logs: FloatArray = np.log(_alone(period, curves_s, is_known))
    common = np.full(len(period), logs.mean(axis=0))
    stage, clock = np.nonzero(is_known)
    design = np.hstack([np.eye(len(logs))[stage], np.eye(len(period))[clock]])
    off = np.linalg.lstsq(design, (logs - common)[is_known], rcond=1e-9)[0]
    moved = np.asarray(off, dtype=np.float64)[len(logs) :]
    is_at_any = is_known.any(axis=0)
    common += np.interp(period, period[is_at_any], moved[is_at_any])
    for of_stage, is_in in zip(logs, is_known, strict=True):
        known: FloatArray = (of_stage - common)[is_in]
        ratio = np.interp(period, period[is_in], known)
        of_stage[:] = (of_stage + common + ratio) / 2
    return np.where(is_known, curves_s, np.exp(logs))


def _alone(period: FloatArray, curves_s: FloatArray, is_known: BoolArray) -> FloatArray:
    """Return times by each stage alone, s."""
    alone_s = np.empty_like(curves_s)
    for row_s, curve_s, is_in in zip(alone_s, curves_s, is_known, strict=True):
        known, known_s = period[is_in], curve_s[is_in]
        slope = known_s[0] / known[0]
        if len(known) > 1:
            slope = max(0.0, (known_s[-1] - known_s[0]) / (known[-1] - known[0]))
        row_s[:] = np.interp(period, known, known_s) + slope * np.maximum(period - known[-1], 0.0)
    return alone_s
