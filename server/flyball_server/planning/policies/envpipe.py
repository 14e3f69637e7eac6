"""EnvPipe's policies (Choi et al., USENIX ATC 2023): baseline, uniform, envelope."""

from __future__ import annotations

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.least_energy_clock import least_energy_points
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.policies._base import Policy, PolicyChoice, PolicyRequest
from flyball_server.planning.policies.outer_envelope import outer_envelope
from flyball_server.planning.policies.reconfigure import reconfigure


def baseline(request: PolicyRequest) -> PolicyChoice:
    """Every instruction at its highest frequency."""
    return _reconfigured(request, request.model.baseline())


def uniform(request: PolicyRequest) -> PolicyChoice:
    """Every instruction at its stage's valley frequency."""
    return _reconfigured(request, _valleys(request.model))


def envelope(request: PolicyRequest) -> PolicyChoice:
    """The outer envelope at the highest frequency, the rest at its stage's valley."""
    assignment = _valleys(request.model)
    for node in outer_envelope(request.model.dag):
        assignment[node] = 0
    return _reconfigured(request, assignment)


ENVPIPE_POLICIES: dict[str, Policy] = {
    "baseline": baseline,
    "uniform": uniform,
    "envelope": envelope,
}


def _valleys(model: PipelineModel) -> Assignment:
    """Every instruction at its stage's valley: the clock is one for all of a stage's chunks."""
    by_stage: list[dict[tuple[InstructionKind, int], tuple[OperatingPoint, ...]]] = [
        {} for _ in model.schedule.stages
    ]
    nodes = list(zip(model.dag.stage, model.dag.instruction, model.points, strict=True))
    for stage, instruction, points in nodes:
        by_stage[stage][instruction.kind, instruction.chunk] = points
    valleys = [least_energy_points(points) for points in by_stage]
    return [
        points.index(valleys[stage][instruction.kind, instruction.chunk])
        for stage, instruction, points in nodes
    ]


def _reconfigured(request: PolicyRequest, assignment: Assignment) -> PolicyChoice:
    if request.target != "fastest":
        raise PlanningError(
            f"{request.target!r} is not one that EnvPipe's policies know; they aim at 'fastest'",
            field="target",
        )
    return PolicyChoice(
        assignment=reconfigure(
            request.model, assignment, request.reconfigure, request.reconfigure_granularity_mhz
        )
    )
