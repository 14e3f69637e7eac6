"""Truths for emulated profiling runs, and how far what was found is from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tests.unit.profiling.emulated_training import Truth

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model.pipeline_model import build_model
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.planner import PlanRequest
from flyball_server.planning.scheduling import ScheduleContext, schedule_for
from flyball_server.planning.stragglers.slowed_pipelines import (
    SlowedRequest,
    make_slowed_plan,
    slowed_model,
)
from flyball_server.profiling.moves import Finished
from flyball_server.profiling.observations import ProbeSetup
from flyball_wire.online_profiling import ProbedPoint, ProfilingResult
from flyball_wire.plan_options import Effort, PlanOptions
from flyball_wire.plans.plan import Plan, Slowdown

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
        schedule=schedule_for(schedule, context),
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
    """Largest errors of the probed points.

    Energies are compared with the true ones, divided between kinds by equal power at the highest
    clock.

    Attributes:
        time_percent, energy_percent: of the true value.
        covered_percent: of the probed points' energies, those within 1.96 standard errors.
    """

    time_percent: float
    energy_percent: float
    covered_percent: float


def found_errors(truth: Truth, result: ProfilingResult) -> FoundErrors:
    """Of the probed points."""
    times: list[float] = []
    energies: list[float] = []
    within: list[bool] = []
    for point in result.points:
        if point.num_probes:
            true_s, true_j = truth.point(
                point.stage, kind_of(point), point.chunk, point.frequency_mhz
            )
            error_j = point.energy_j - true_j - _moved_j(truth, point)
            times.append(abs(point.time_s / true_s - 1))
            energies.append(abs(error_j) / true_j)
            within.append(abs(error_j) <= 1.96 * point.energy_error_j)
    return FoundErrors(
        time_percent=100 * max(times),
        energy_percent=100 * max(energies),
        covered_percent=100 * float(np.mean(within)),
    )


def kind_of(point: ProbedPoint) -> InstructionKind:
    return InstructionKind(point.instruction)


def _moved_j(truth: Truth, point: ProbedPoint) -> float:
    """Return the energy that the division by equal power moves to each such instruction, J."""
    highest_mhz = truth.profile.points[point.stage, kind_of(point)][0].frequency_mhz
    classes = {
        (instruction.kind, instruction.chunk) for instruction in truth.schedule.stages[point.stage]
    }
    tops = [truth.point(point.stage, *of_class, highest_mhz) for of_class in classes]
    power_w = sum(energy_j for _, energy_j in tops) / sum(time_s for time_s, _ in tops)
    own_s, own_j = truth.point(point.stage, kind_of(point), point.chunk, highest_mhz)
    return power_w * own_s - own_j


def plan_excess_percent(truth: Truth, found: Finished, *slowdowns: Slowdown) -> float:
    """Return the energy of the found profile's plan beyond that of the truth's plan, %.

    Both of policy `frontier`, target `fastest`, with these slowdowns, evaluated on the truth.
    """
    power_w = found.result.blocking_power_w
    assert power_w is not None
    made = _plan(truth, found.profile, power_w, slowdowns)
    best = _plan(truth, truth.profile, truth.blocking_power_w, slowdowns)
    model = build_model(truth.profile, truth.schedule, truth.blocking_power_w)
    slowed = slowed_model(model, slowdowns, share=1.0)
    found_j, best_j = (
        simulate(slowed, model_of_plan(truth.profile, plan)[1]).energy_j for plan in (made, best)
    )
    return 100 * (found_j / best_j - 1)


def _plan(
    truth: Truth,
    profile: StageProfile,
    blocking_power_w: tuple[float, ...],
    slowdowns: tuple[Slowdown, ...],
) -> Plan:
    request = PlanRequest(
        profile=profile,
        num_microbatches=truth.schedule.num_microbatches,
        options=PlanOptions(
            blocking_power_w=blocking_power_w,
            schedule=truth.schedule.name,
            reserve=0.0,
            effort=Effort.LOW,
        ),
    )
    plan = make_slowed_plan(SlowedRequest(request=request, slowdowns=slowdowns))
    assert not plan.is_separate
    return plan
