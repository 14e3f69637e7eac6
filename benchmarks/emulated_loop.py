"""A pipeline of emulated GPUs in virtual time, and loops that change its clocks as it runs.

Clocks change at once here: the figures are those of the loops, not of clock changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from flyball_client.gpu.emulated import IDEAL_GPU, EmulatedGpu, LeapingClock
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.reconcile.reconfigurations import STEPS_PER_WINDOW
from flyball_server.jobs.versions.plan_versions import margin_steps
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.policies.measured_reconfigure import (
    MeasuredLoop,
    MeasuredPipeline,
    decide,
    receives_from_neighbour,
)

# Of the energy counter: so fine that a step's energy is exact.
_COUNTER_PERIOD_S = 1e-9


@dataclass(frozen=True, kw_only=True)
class EmulatedStep:
    """One step, emulated.

    Attributes:
        energy_j: of all GPUs, J.
    """

    time_s: float
    energy_j: float
    measured: MeasuredPipeline


class EmulatedPipeline:
    """One emulated GPU per stage; each instruction starts when its input has come.

    Args:
        profile: what the GPUs emulate.
        model: the order that they run.
        noise: as in EmulatedGpuSettings.
        transfer_s: from an output's being ready to the next stage's having received it, s.
    """

    def __init__(
        self, profile: StageProfile, model: PipelineModel, *, noise: float, transfer_s: float
    ) -> None:
        self._model = model
        self._transfer_s = transfer_s
        self._clocks = [LeapingClock() for _ in model.schedule.stages]
        self._gpus = [
            EmulatedGpu(
                profile,
                stage,
                blocking_power_w=model.blocking_power_w[stage],
                counter_period_s=_COUNTER_PERIOD_S,
                settings=replace(IDEAL_GPU, noise=noise, seed=stage),
                clock=clock,
            )
            for stage, clock in enumerate(self._clocks)
        ]

    def set_slowdown(self, stage: int, slowdown: float) -> None:
        """The stage's GPU takes so many times as long from now on."""
        self._gpus[stage].set_slowdown(slowdown)

    def run_step(self, assignment: Sequence[int]) -> EmulatedStep:
        """Train a step at these clocks; it ends for all when the slowest is done."""
        began_s = self._clocks[0].now_s()
        began_j = sum(gpu.exact_energy_j() for gpu in self._gpus)
        measured = self._run_instructions(assignment)
        ended_s = max(clock.now_s() for clock in self._clocks)
        for clock in self._clocks:
            clock.sleep_until(ended_s)
        return EmulatedStep(
            time_s=ended_s - began_s,
            energy_j=sum(gpu.exact_energy_j() for gpu in self._gpus) - began_j,
            measured=measured,
        )

    def _run_instructions(self, assignment: Sequence[int]) -> MeasuredPipeline:
        dag = self._model.dag
        ended_s, computed_s, received_s = ([0.0] * dag.num_nodes for _ in range(3))
        for node in dag.topological_order:
            stage, (kind, _, chunk) = dag.stage[node], dag.instruction[node]
            gpu, clock = self._gpus[stage], self._clocks[stage]
            before_s = clock.now_s()
            if receives_from_neighbour(dag, node):
                # A message that was there before takes its time too.
                source_s = ended_s[dag.data_predecessor[node]]
                clock.sleep_until(max(before_s, source_s) + self._transfer_s)
            began_s = clock.now_s()
            gpu.lock_sm_clock_mhz(self._model.points[node][assignment[node]].frequency_mhz)
            gpu.on_instruction_begin(kind.value, chunk)
            gpu.on_instruction_end(kind.value, chunk)
            ended_s[node] = clock.now_s()
            computed_s[node], received_s[node] = ended_s[node] - began_s, began_s - before_s
        return MeasuredPipeline(computed_s=tuple(computed_s), received_s=tuple(received_s))


@dataclass(frozen=True, kw_only=True)
class Course:
    """Course of a loop until its clocks changed no more.

    Attributes:
        assignment: the clocks that it ended with.
        num_versions: that it made.
        times_s: of the steps before the last version took effect, s.
    """

    assignment: Assignment
    num_versions: int
    times_s: tuple[float, ...]


def reconfigure_from_waits(
    pipeline: EmulatedPipeline, loop: MeasuredLoop, start: Sequence[int]
) -> Course:
    """EnvPipe's loop, with as many steps to each version as the planner needs.

    A version's first step is not looked at; a decision takes effect a margin of steps later.
    """
    assignment, num_versions = list(start), 0
    times_s: list[float] = [pipeline.run_step(assignment).time_s]
    num_of_last = 0
    windows: list[MeasuredPipeline] = []
    while True:
        steps = [pipeline.run_step(assignment) for _ in range(STEPS_PER_WINDOW)]
        times_s += [step.time_s for step in steps]
        windows.append(_median([step.measured for step in steps]))
        decision = decide(loop, assignment, windows)
        if decision.is_finished:
            return Course(
                assignment=assignment,
                num_versions=num_versions,
                times_s=tuple(times_s[:num_of_last]),
            )
        if decision.raised is not None:
            margin = margin_steps(fmean(step.time_s for step in steps))
            times_s += [pipeline.run_step(assignment).time_s for _ in range(margin)]
            num_of_last = len(times_s)
            assignment, num_versions, windows = decision.raised, num_versions + 1, []
            times_s.append(pipeline.run_step(assignment).time_s)


def _median(measured: Sequence[MeasuredPipeline]) -> MeasuredPipeline:
    times_s = np.array([(each.computed_s, each.received_s) for each in measured])
    computed_s, received_s = np.median(times_s, axis=0).tolist()
    return MeasuredPipeline(computed_s=tuple(computed_s), received_s=tuple(received_s))
