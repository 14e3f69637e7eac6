"""Truths for emulated profiling runs, and how far what was found is from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tests.unit.profiling.emulated_training import Truth

from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_server.planning.model.pipeline_model import PipelineModel, build_model
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import ScheduleContext
from flyball_server.profiling.observations import ProbeSetup
from flyball_server.profiling.profiling_result import ProfilingResult
from flyball_wire.closed_loop import ProbedPoint

A100_BLOCKING_POWER_W = 83.64
NUM_CLOCKS = 40


def with_forty_clocks(profile: StageProfile) -> StageProfile:
    """The profile at its 40 highest clocks; where it has fewer, the curves go on straight."""
    return StageProfile(
        points={key: _forty(points) for key, points in profile.points.items()},
        num_ranks_per_stage=profile.num_ranks_per_stage,
    )


def _forty(points: tuple[OperatingPoint, ...]) -> tuple[OperatingPoint, ...]:
    extended = list(points[:NUM_CLOCKS])
    while len(extended) < NUM_CLOCKS:
        before, last = extended[-2:]
        extended.append(
            OperatingPoint(
                frequency_mhz=2 * last.frequency_mhz - before.frequency_mhz,
                time_s=2 * last.time_s - before.time_s,
                energy_j=2 * last.energy_j - before.energy_j,
            )
        )
    return tuple(extended)


def a100_truth(
    num_microbatches: int, *, stages: tuple[int, ...] = tuple(range(8)), schedule: str = "1f1b"
) -> Truth:
    """GPT-3 175B on A100, the shipped example, at 40 clocks."""
    profile = with_forty_clocks(load_example_profile()).select_stages(stages)
    return truth_of(profile, num_microbatches, A100_BLOCKING_POWER_W, schedule=schedule)


def truth_of(
    profile: StageProfile, num_microbatches: int, blocking_power_w: float, *, schedule: str = "1f1b"
) -> Truth:
    """An emulated job of this profile."""
    context = ScheduleContext(profile=profile, num_microbatches=num_microbatches)
    return Truth(
        profile=profile,
        schedule=make_schedule(schedule, context),
        blocking_power_w=(blocking_power_w,) * profile.num_stages,
    )


def setup_of(truth: Truth) -> ProbeSetup:
    """Profile all of it, with the defaults."""
    return ProbeSetup(
        schedule=truth.schedule,
        clocks_mhz=tuple(
            tuple(
                point.frequency_mhz
                for point in truth.profile.points[stage, InstructionKind.FORWARD]
            )
            for stage in range(truth.profile.num_stages)
        ),
        num_ranks=truth.profile.num_ranks_per_stage,
    )


@dataclass(frozen=True, kw_only=True)
class FoundErrors:
    """How far probed points are from the truth, at most.

    Attributes:
        time_percent, energy_percent: of the true value.
        plan_energy_percent: of the energy without its division between kinds, on which plans
            depend.
        covered_percent: of the probed points' energies, those within 1.96 standard errors.
    """

    time_percent: float
    energy_percent: float
    plan_energy_percent: float
    covered_percent: float


def found_errors(truth: Truth, result: ProfilingResult) -> FoundErrors:
    """Of the probed points."""
    tops = {
        (point.stage, kind_of(point), point.chunk): _error_and_truth_j(truth, point)
        for point in reversed(result.points)
    }
    times: list[float] = []
    energies: list[float] = []
    plan_energies: list[float] = []
    within: list[bool] = []
    for point in result.points:
        if not point.num_probes:
            continue
        true_s, _ = truth.point(point.stage, kind_of(point), point.chunk, point.frequency_mhz)
        error_j, true_j = _error_and_truth_j(truth, point)
        top_error_j, top_j = tops[point.stage, kind_of(point), point.chunk]
        of_stage = [value for key, value in tops.items() if key[0] == point.stage]
        share = top_j / sum(each for _, each in of_stage)
        moved_j = share * sum(error for error, _ in of_stage) - top_error_j
        times.append(abs(point.time_s / true_s - 1))
        energies.append(abs(error_j) / true_j)
        plan_energies.append(abs(error_j + moved_j) / true_j)
        within.append(abs(error_j) <= 1.96 * point.energy_error_j)
    return FoundErrors(
        time_percent=100 * max(times),
        energy_percent=100 * max(energies),
        plan_energy_percent=100 * max(plan_energies),
        covered_percent=100 * float(np.mean(within)),
    )


def kind_of(point: ProbedPoint) -> InstructionKind:
    return InstructionKind(point.instruction)


def _error_and_truth_j(truth: Truth, point: ProbedPoint) -> tuple[float, float]:
    _, true_j = truth.point(point.stage, kind_of(point), point.chunk, point.frequency_mhz)
    return point.energy_j - true_j, true_j


def plan_excess_percent(truth: Truth, setup: ProbeSetup, result: ProfilingResult) -> float:
    """Return what the plan made from the found profile takes beyond the plan made from the truth.

    Both of policy `frontier`, target `fastest`, and both evaluated on the truth.
    """
    found = _plan(truth, result.profile(setup), result.blocking_power_w)
    best = _plan(truth, truth.profile, truth.blocking_power_w)
    return 100 * (_true_energy_j(truth, found) / _true_energy_j(truth, best) - 1)


def _plan(
    truth: Truth, profile: StageProfile, blocking_power_w: tuple[float, ...]
) -> FrequencyPlan:
    return make_plan(
        PlanRequest(
            profile=profile,
            num_microbatches=truth.schedule.num_microbatches,
            blocking_power_w=blocking_power_w,
            schedule=truth.schedule.name,
        )
    ).plan


def _true_energy_j(truth: Truth, plan: FrequencyPlan) -> float:
    model = build_model(truth.profile, truth.schedule, truth.blocking_power_w)
    return simulate(model, _assignment(model, plan)).energy_j


def _assignment(model: PipelineModel, plan: FrequencyPlan) -> list[int]:
    clocks_mhz = [step.frequency_mhz for stage in plan.stages for step in stage]
    return [
        [point.frequency_mhz for point in points].index(mhz)
        for points, mhz in zip(model.points, clocks_mhz, strict=True)
    ]
