"""Recorded runs of pipelines whose truth is known, drawn at random, for `replay.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_pipeline.dag import build_dag
from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.paths import earliest_finish_s
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.replay.recorded_runs import (
    KINDS,
    RecordedRun,
    RecordedTimes,
    Recording,
    planned_points,
    schedule_of,
)
from flyball_wire.plan_options import Effort, PlanOptions

Clocks = tuple[tuple[int, ...], ...]
_NUM_STAGES, _NUM_MICROBATCHES, _NUM_PLANS = 4, 8, 12
_CLOCKS_MHZ = tuple(range(1050, 1411, 30))
# Plans of a recorded series take up to so much longer than the highest clocks.
_SLOWEST = 1.12
# Standard deviations, as shares: of times and energies between runs, and of what a run has in
# common with the run before; of a plan's profile from the truth; of the tail's drift.
_TIME_NOISE, _ENERGY_NOISE, _CORRELATED = 0.0005, 0.002, 0.5
_PROFILE_ERROR, _TAIL_DRIFT = 0.01, 0.02


@dataclass(frozen=True, kw_only=True)
class SimulatedPipeline:
    """A pipeline with its true curves.

    Attributes:
        times_s, energies_j: by stage, kind and clock.
        blocking_power_w: per stage, W.
        tail_s: tail of an iteration, s.
    """

    times_s: dict[tuple[int, InstructionKind, int], float]
    energies_j: dict[tuple[int, InstructionKind, int], float]
    blocking_power_w: tuple[float, ...]
    tail_s: float

    @classmethod
    def drawn(cls, draws: np.random.Generator) -> SimulatedPipeline:
        """Draw a pipeline: P = static + dynamic f V(f)^2, V flat up to a knee; t = a + b / f.

        Power ends at a limit in half of the pipelines; beyond it the clock is not held.
        """
        position = np.array(_CLOCKS_MHZ) / _CLOCKS_MHZ[-1]
        knee, rise = draws.uniform(0.7, 0.9), draws.uniform(0.5, 1.5)
        voltage = 1 + rise * np.maximum(0.0, position - knee)
        static_w, highest_w = draws.uniform(60, 110), draws.uniform(250, 400)
        shape = position * voltage**2
        limit_w = highest_w * (draws.uniform(0.85, 0.97) if draws.random() < 0.5 else 2.0)
        heavy = draws.uniform(1.0, 1.25)
        times_s, energies_j = {}, {}
        for stage in range(_NUM_STAGES):
            of_gpu = draws.normal(1.0, 0.02)
            for kind in KINDS:
                work_s = (0.05 if kind is InstructionKind.FORWARD else 0.1) * draws.normal(1, 0.04)
                work_s *= heavy if stage == _NUM_STAGES - 1 else 1.0
                bound, dynamic = draws.uniform(0.0, 0.35), draws.uniform(0.85, 1.0)
                power_w = of_gpu * (static_w + (highest_w - static_w) * dynamic * shape / shape[-1])
                # A clock whose power is above the limit runs as a lower one does.
                held = np.minimum(position, np.interp(limit_w, power_w, position))
                curve_s = work_s * (bound + (1 - bound) / held)
                for mhz, time_s, drawn_w in zip(
                    _CLOCKS_MHZ, curve_s, np.minimum(power_w, limit_w), strict=True
                ):
                    times_s[stage, kind, mhz] = float(time_s)
                    energies_j[stage, kind, mhz] = float(time_s * drawn_w)
        blocking_w = draws.uniform(0.55, 0.95) * static_w * draws.normal(1, 0.02, _NUM_STAGES)
        return cls(
            times_s=times_s,
            energies_j=energies_j,
            blocking_power_w=tuple(blocking_w.tolist()),
            tail_s=float(draws.uniform(0.02, 0.1)),
        )

    def iteration(self, clocks_mhz: Sequence[Sequence[int]]) -> tuple[float, NDArray[np.float64]]:
        """Return time in s and the stages' energies in J of an iteration."""
        order = schedule_of("1f1b", _NUM_STAGES, _NUM_MICROBATCHES)
        keys = [
            (stage, instruction.kind, mhz)
            for stage, of_stage in enumerate(zip(order.stages, clocks_mhz, strict=True))
            for instruction, mhz in zip(*of_stage, strict=True)
        ]
        durations_s = [self.times_s[key] for key in keys]
        time_s = self.tail_s + max(earliest_finish_s(build_dag(order), durations_s))
        stages = [stage for stage, _, _ in keys]
        energies_j = np.bincount(stages, [self.energies_j[key] for key in keys])
        idle_s = time_s - np.bincount(stages, durations_s)
        return time_s, energies_j + idle_s * self.blocking_power_w

    def recording(self, draws: np.random.Generator) -> Recording:
        """Return runs of the highest clocks and of a series of plans, from slow to fast."""
        highest = ((_CLOCKS_MHZ[-1],) * (2 * _NUM_MICROBATCHES),) * _NUM_STAGES
        fastest_s = self.iteration(highest)[0] - self.tail_s
        profile = self._profile(draws)
        plans = [highest]
        plans += [
            self._plan(profile, fastest_s * slower)
            for slower in np.linspace(_SLOWEST, 1.0, _NUM_PLANS).tolist()
        ]
        noises = np.zeros(_NUM_STAGES)
        runs: list[RecordedRun] = []
        for number, plan in enumerate(plans):
            fresh = draws.normal(0, _ENERGY_NOISE, _NUM_STAGES)
            noises = _CORRELATED * noises + np.sqrt(1 - _CORRELATED**2) * fresh
            runs.append(self._run(f"run-{number}", plan, noises, draws))
        return Recording(
            pp=_NUM_STAGES, num_microbatches=_NUM_MICROBATCHES, schedule="1f1b", runs=tuple(runs)
        )

    def _profile(self, draws: np.random.Generator) -> StageProfile:
        """Return a profile as another planner may have had it, not quite the truth."""
        points: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {}
        for (stage, kind, mhz), energy_j in self.energies_j.items():
            point = OperatingPoint(
                frequency_mhz=mhz,
                time_s=self.times_s[stage, kind, mhz],
                energy_j=energy_j * draws.normal(1, _PROFILE_ERROR),
            )
            points[stage, kind] = (*points.get((stage, kind), ()), point)
        return StageProfile(points=points, num_ranks_per_stage=(1,) * _NUM_STAGES)

    def _plan(self, profile: StageProfile, deadline_s: float) -> Clocks:
        request = PlanRequest(
            profile=profile,
            num_microbatches=_NUM_MICROBATCHES,
            options=PlanOptions(
                schedule="1f1b",
                target=f"deadline:{deadline_s * (1 + 1e-9)!r}",
                effort=Effort.LOW,
                blocking_power_w=self.blocking_power_w,
            ),
        )
        return tuple(
            tuple(each.frequency_mhz for each in of_stage)
            for of_stage in make_plan(request).plan.stages
        )

    def run_of(self, plan: Clocks, draws: np.random.Generator) -> RecordedRun:
        """Return a run under a plan."""
        return self._run("plan", plan, draws.normal(0, _ENERGY_NOISE, _NUM_STAGES), draws)

    def _run(
        self, name: str, plan: Clocks, noises: NDArray[np.float64], draws: np.random.Generator
    ) -> RecordedRun:
        time_s, energies_j = self.iteration(plan)
        time_s += self.tail_s * draws.normal(0, _TAIL_DRIFT)
        order = schedule_of("1f1b", _NUM_STAGES, _NUM_MICROBATCHES)
        return RecordedRun(
            name=name,
            clocks_mhz=plan,
            iteration_time_s=tuple((time_s * draws.normal(1, _TIME_NOISE, 5)).tolist()),
            energy_j_per_stage=tuple((energies_j * (1 + noises)).tolist()),
            instruction_times=tuple(
                RecordedTimes(
                    stage=key[0],
                    instruction=key[1],
                    frequency_mhz=key[2],
                    time_s_median=self.times_s[key] * draws.normal(1, _TIME_NOISE),
                    samples=5 * count,
                )
                for key, count in sorted(planned_points(order, plan).items())
            ),
        )
