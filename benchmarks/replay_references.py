"""Simple predictors of recorded runs, to compare Flyball's with: written apart from its fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_pipeline.dag import build_dag
from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.paths import earliest_finish_s
from flyball_server.replay.recorded_runs import (
    KINDS,
    PointKey,
    RecordedRun,
    Recording,
    planned_points,
)

FloatArray = NDArray[np.float64]
Curve = tuple[FloatArray, FloatArray]
"""Clocks in MHz, rising, and times in s."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A way to predict.

    Attributes:
        name: name in tables.
        is_monotone: a higher clock never takes longer, so that the highest times are a floor.
        median_tail: the tail is the median, else the mean, of the fitted runs'.
        powers: powers of the clock that an instruction's energy is a sum of.
        has_constant: a stage's energy has a constant beside.
    """

    name: str
    is_monotone: bool
    median_tail: bool
    powers: tuple[int, ...]
    has_constant: bool


REFERENCES = (
    Reference(
        name="as measured",
        is_monotone=False,
        median_tail=False,
        powers=(1, 2),
        has_constant=True,
    ),
    Reference(
        name="with a floor", is_monotone=True, median_tail=True, powers=(1, 2), has_constant=False
    ),
)


class FittedReference:
    """A reference fitted on some runs.

    Times of instructions are the runs' means, linear in the inverse of the clock between these; an
    iteration takes the longest path and a constant tail. A stage's energy is a least-squares sum of
    its instructions' energies and its waiting time.
    """

    def __init__(
        self, reference: Reference, recording: Recording, fitted: Sequence[RecordedRun]
    ) -> None:
        self._reference, self._recording = reference, recording
        self._dag = build_dag(recording.order)
        self._curves = _curves(fitted, is_monotone=reference.is_monotone)
        tails_s = [run.time_s - self._longest_s(run.clocks_mhz) for run in fitted]
        self._tail_s = float((np.median if reference.median_tail else np.mean)(tails_s))
        self._coefficients: list[FloatArray] = []
        for stage in range(recording.pp):
            rows = np.array([self._row(run.clocks_mhz, stage, run.time_s) for run in fitted])
            scale = np.abs(rows).max(axis=0)
            energies_j = [run.energy_j_per_stage[stage] for run in fitted]
            found = np.linalg.lstsq(rows / scale, energies_j, rcond=1e-10)[0]
            self._coefficients.append(found / scale)

    def predict(self, clocks_mhz: Sequence[Sequence[int]]) -> tuple[float, float]:
        """Return time in s and energy in J of an iteration."""
        time_s = self._longest_s(clocks_mhz) + self._tail_s
        return time_s, self.energy_j(clocks_mhz, time_s)

    def energy_j(self, clocks_mhz: Sequence[Sequence[int]], time_s: float) -> float:
        """Return the energy of an iteration that takes this long, J."""
        return sum(
            float(self._row(clocks_mhz, stage, time_s) @ coefficients)
            for stage, coefficients in enumerate(self._coefficients)
        )

    def _longest_s(self, clocks_mhz: Sequence[Sequence[int]]) -> float:
        times_s = {
            key: _at(self._curves[key[:2]], key[2])
            for key in planned_points(self._recording.order, clocks_mhz)
        }
        flat = [mhz for of_stage in clocks_mhz for mhz in of_stage]
        nodes = zip(self._dag.stage, self._dag.instruction, flat, strict=True)
        durations_s = [times_s[stage, each.kind, mhz] for stage, each, mhz in nodes]
        return max(earliest_finish_s(self._dag, durations_s))

    def _row(self, clocks_mhz: Sequence[Sequence[int]], stage: int, time_s: float) -> FloatArray:
        counts: dict[PointKey, int] = {
            key: count
            for key, count in planned_points(self._recording.order, clocks_mhz).items()
            if key[0] == stage
        }
        busy_s = sum(n * _at(self._curves[key[:2]], key[2]) for key, n in counts.items())
        sums = [
            sum(
                count * (mhz / 1000) ** power
                for (_, of, mhz), count in counts.items()
                if of == kind
            )
            for kind in KINDS
            for power in self._reference.powers
        ]
        constant = [1.0] if self._reference.has_constant else []
        return np.array([*sums, time_s - busy_s, *constant])


def _curves(
    fitted: Sequence[RecordedRun], *, is_monotone: bool
) -> dict[tuple[int, InstructionKind], Curve]:
    measured: dict[PointKey, list[tuple[float, int]]] = {}
    for run in fitted:
        for times in run.instruction_times:
            measured.setdefault(times.key, []).append((times.time_s, times.samples))
    curves: dict[tuple[int, InstructionKind], Curve] = {}
    for of_curve in {key[:2] for key in measured}:
        clocks = sorted(key[2] for key in measured if key[:2] == of_curve)
        samples = [measured[*of_curve, mhz] for mhz in clocks]
        times_s = [np.average([t for t, _ in of], weights=[n for _, n in of]) for of in samples]
        if is_monotone:
            times_s = np.minimum.accumulate(times_s).tolist()
        curves[of_curve] = np.array(clocks, dtype=np.float64), np.array(times_s)
    return curves


def _at(curve: Curve, mhz: int) -> float:
    """Return the time at a clock, s; below the lowest it goes on as from end to end."""
    clocks, times_s = curve
    if mhz < clocks[0] and len(clocks) > 1:
        slope = (times_s[0] - times_s[-1]) / (1 / clocks[0] - 1 / clocks[-1])
        return float(times_s[0] + slope * (1 / mhz - 1 / clocks[0]))
    return float(np.interp(-1 / mhz, -1 / clocks, times_s))
