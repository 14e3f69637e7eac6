"""A training job on paper: true times and energies, noise, and energy counters as coarse as NVML's.

It runs what `next_move` asks for, with the delays that a change of version has, and hands back
what ranks would have posted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_pipeline.dag import build_dag
from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.paths import earliest_finish_s
from flyball_pipeline.schedule import Schedule
from flyball_profiles.stage_profile import StageProfile
from flyball_server.profiling.moves import Finished, KeepWatching, Move, Probe, Refused, next_move
from flyball_server.profiling.observations import (
    InstructionTimes,
    ProbedVersion,
    ProbeSetup,
    StageStep,
)

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """True times and energies of the emulated GPUs.

    Attributes:
        blocking_power_w: of a waiting rank, per stage.
        noise: standard deviation of each instruction's time and energy, as a share.
        work: the same of what a microbatch's instructions have in common, log-normal.
        counter_period_s: between movements of an energy counter.
        delay_steps: least and most steps from a version's making to its first step.
    """

    profile: StageProfile
    schedule: Schedule
    blocking_power_w: tuple[float, ...]
    noise: float = 0.02
    work: float = 0.0
    counter_period_s: float = 0.1
    delay_steps: tuple[int, int] = (3, 6)

    def point(self, stage: int, kind: InstructionKind, chunk: int, mhz: int) -> tuple[float, float]:
        """True time, s, and energy, J."""
        chunks = self.profile.by_chunk(self.schedule.num_chunks)
        point = chunks[chunk].at(stage, kind, mhz)
        return point.time_s, point.energy_j


class EmulatedTraining:
    """Runs steps one after the other."""

    def __init__(self, truth: Truth, *, seed: int) -> None:
        self._truth = truth
        self._random = np.random.default_rng(seed)
        self._dag = build_dag(truth.schedule)
        self._stage = np.array(self._dag.stage)
        self._microbatch = [instruction.microbatch for instruction in self._dag.instruction]
        # Each GPU's counter moves at moments of its own.
        self._now_s = self._random.uniform(0, truth.counter_period_s, truth.schedule.num_stages)
        self._exact_j = np.zeros(truth.schedule.num_stages)
        self._shown_j = np.zeros(truth.schedule.num_stages)
        self._table: dict[tuple[int, InstructionKind, int, int], tuple[float, float]] = {}

    def run_step(self, step: int, version: ProbedVersion) -> list[StageStep]:
        """One step of a version; one entry per stage."""
        plan = version.plan
        assert version.first_step is not None
        clocks_mhz = plan.cycle_mhz[(step - version.first_step) % len(plan.cycle_mhz)]
        keys = [
            (stage, instruction.kind, instruction.chunk, mhz)
            for stage, (instructions, mhzs) in enumerate(
                zip(self._truth.schedule.stages, clocks_mhz, strict=True)
            )
            for instruction, mhz in zip(instructions, mhzs, strict=True)
        ]
        for key in set(keys) - self._table.keys():
            self._table[key] = self._truth.point(*key)
        true = np.array([self._table[key] for key in keys])
        drawn = true * (1 + self._truth.noise * self._random.standard_normal(true.shape))
        if self._truth.work:
            of_microbatch = np.exp(
                self._truth.work * self._random.standard_normal(plan.num_microbatches)
            )
            drawn *= of_microbatch[self._microbatch][:, None]
        finish_s = np.array(earliest_finish_s(self._dag, drawn[:, 0].tolist()))
        iteration_time_s = float(finish_s.max())
        shown_j = self._read_counters(drawn, finish_s, iteration_time_s)
        return [
            StageStep(
                stage=stage,
                step=step,
                version=version.version,
                iteration_time_s=iteration_time_s,
                energy_j=float(shown_j[stage]),
                instructions=_rows(
                    [key for key in keys if key[0] == stage], drawn[self._stage == stage, 0]
                ),
            )
            for stage in range(self._truth.schedule.num_stages)
        ]

    def _last_moves_s(self, read_s: float) -> FloatArray:
        """Return when each stage's counter, read now, has last moved, s from the step's begin."""
        period_s = self._truth.counter_period_s
        moves: FloatArray = np.floor((self._now_s + read_s) / period_s) * period_s - self._now_s
        return moves

    def _exact_within(
        self, until_s: FloatArray, drawn: FloatArray, finish_s: FloatArray
    ) -> FloatArray:
        """Each stage's true energy up to so long after the step's begin, J; shape (num_stages,)."""
        num_stages = self._truth.schedule.num_stages
        ran_s = np.clip(until_s[self._stage] - (finish_s - drawn[:, 0]), 0, drawn[:, 0])
        busy_s = np.bincount(self._stage, ran_s, num_stages)
        busy_j = np.bincount(self._stage, ran_s * drawn[:, 1] / drawn[:, 0], num_stages)
        waiting_w = np.array(self._truth.blocking_power_w) * np.array(
            self._truth.profile.num_ranks_per_stage
        )
        energies: FloatArray = self._exact_j + busy_j + waiting_w * (until_s - busy_s)
        return energies

    def _read_counters(
        self, drawn: FloatArray, finish_s: FloatArray, iteration_time_s: float
    ) -> FloatArray:
        """Return what each stage's counter has moved by since the last step's end, J."""
        moved_s = self._last_moves_s(iteration_time_s)
        assert (moved_s >= 0).all(), "steps are longer than the counter's period here"
        before = self._shown_j
        self._shown_j = self._exact_within(moved_s, drawn, finish_s)
        ended_s = np.full(len(moved_s), iteration_time_s)
        self._exact_j = self._exact_within(ended_s, drawn, finish_s)
        self._now_s += iteration_time_s
        return self._shown_j - before


def _rows(
    keys: Sequence[tuple[int, InstructionKind, int, int]], times_s: FloatArray
) -> tuple[InstructionTimes, ...]:
    rows: dict[tuple[int, InstructionKind, int, int], list[float]] = {}
    for key, time_s in zip(keys, times_s.tolist(), strict=True):
        rows.setdefault(key, []).append(time_s)
    return tuple(
        InstructionTimes(
            kind=kind,
            chunk=chunk,
            sm_clock_mhz=mhz,
            count=len(values),
            mean_s=mean_s,
            # numpy takes ten times as long for a few values.
            variance_s2=sum((value - mean_s) ** 2 for value in values) / max(len(values) - 1, 1),
        )
        for (_, kind, chunk, mhz), values in rows.items()
        for mean_s in [sum(values) / len(values)]
    )


@dataclass(frozen=True, kw_only=True)
class ProfilingRun:
    """Course of one whole profiling.

    Attributes:
        last: the move that ended it.
        versions: given to the ranks.
        observed: every step of every stage.
    """

    last: Move
    versions: tuple[ProbedVersion, ...]
    observed: tuple[StageStep, ...]


def profile_online(
    setup: ProbeSetup,
    truth: Truth,
    *,
    seed: int,
    observe: Callable[[StageStep], StageStep] = lambda step: step,
    max_steps: int = 400,
) -> ProfilingRun:
    """Run until the profiler has finished or refused.

    Args:
        setup: what is profiled.
        truth: what its GPUs do.
        seed: of all noise and delays.
        observe: what becomes of each stage's step on its way to the profiler.
        max_steps: after which it should have ended.
    """
    training = EmulatedTraining(truth, seed=seed)
    random = np.random.default_rng(seed + 1)
    versions: list[ProbedVersion] = []
    observed: list[StageStep] = []
    next_look = 0
    for step in range(max_steps):
        newest = versions[-1] if versions else None
        begun = newest is None or (newest.first_step is not None and newest.first_step < step)
        if begun and step >= next_look:
            move = next_move(setup, versions, observed)
            if isinstance(move, KeepWatching):
                next_look = step + move.num_steps
            if isinstance(move, (Finished, Refused)):
                return ProfilingRun(last=move, versions=tuple(versions), observed=tuple(observed))
            if isinstance(move, Probe):
                delay = int(random.integers(*truth.delay_steps, endpoint=True)) if versions else 0
                versions.append(
                    ProbedVersion(
                        version=len(versions) + 1, first_step=step + delay, plan=move.plan
                    )
                )
        in_force = [version for version in versions if (version.first_step or 0) <= step][-1]
        observed += map(observe, training.run_step(step, in_force))
    raise AssertionError("profiling did not end")
