"""EnvPipe's policies (Choi et al., USENIX ATC 2023): baseline, uniform, envelope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from flyball_pipeline.dag import NONE
from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.paths import earliest_finish_s
from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.array_dag import ArrayDag
from flyball_server.planning.model.least_energy_clock import least_energy_points
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.policies._base import PolicyChoice, PolicyRequest, PolicyRule
from flyball_server.planning.policies.reconfigure import reconfigure
from flyball_wire.plan_options import DEFAULT_TARGET, Policy

_UNITS: Mapping[InstructionKind, int] = MappingProxyType(
    {
        InstructionKind.FORWARD: 1,
        InstructionKind.RECOMPUTE: 1,
        InstructionKind.BACKWARD: 2,
        InstructionKind.BACKWARD_INPUT: 1,
        InstructionKind.BACKWARD_WEIGHT: 1,
        InstructionKind.STEP: 1,
    }
)
_FOLLOWS_GRADIENT = frozenset({InstructionKind.BACKWARD, InstructionKind.BACKWARD_INPUT})


def outer_envelope(dag: ArrayDag) -> tuple[int, ...]:
    """Nodes of the outer envelope, in the order of time."""
    units = [_UNITS[instruction.kind] for instruction in dag.instruction]
    dag = replace(dag, tail_s=0.0, transfer_s=())
    finish = earliest_finish_s(dag, units)  # small whole numbers: exact
    node = max(range(dag.num_nodes), key=lambda index: (finish[index], -dag.stage[index]))
    path = [node]
    while finish[node] > units[node]:
        node = _before(dag, node, finish[node] - units[node], finish)
        path.append(node)
    return tuple(path[::-1])


def _before(dag: ArrayDag, node: int, start: float, finish: list[float]) -> int:
    """Return the predecessor that ended when this node started."""
    order, data = dag.order_predecessor[node], dag.data_predecessor[node]
    comes_by_gradient = (
        dag.instruction[node].kind in _FOLLOWS_GRADIENT
        and data != NONE
        and dag.instruction[data].kind in _FOLLOWS_GRADIENT
    )
    ways = (data, order) if comes_by_gradient else (order, data)
    return next(before for before in ways if before != NONE and finish[before] == start)


def baseline(request: PolicyRequest) -> PolicyChoice:
    """Every instruction at its highest frequency."""
    return _reconfigured(request, request.model.baseline())


def uniform(request: PolicyRequest) -> PolicyChoice:
    """Every instruction at its stage's valley frequency."""
    return _reconfigured(request, _valleys(request.model))


def envelope(request: PolicyRequest) -> PolicyChoice:
    """Return the outer envelope at the highest frequency, the rest at its stage's valley."""
    assignment = _valleys(request.model)
    for node in outer_envelope(request.model.dag):
        assignment[node] = 0
    return _reconfigured(request, assignment)


ENVPIPE_POLICIES: dict[Policy, PolicyRule] = {
    Policy.BASELINE: baseline,
    Policy.UNIFORM: uniform,
    Policy.ENVELOPE: envelope,
}


def _valleys(model: PipelineModel) -> Assignment:
    """Every instruction at its stage's valley: the clock is one for all of a stage's chunks."""
    alike, alike_of_node = model.dag.alike
    points_of = dict(zip(alike_of_node, model.points, strict=True))
    by_stage: list[dict[tuple[InstructionKind, int], tuple[OperatingPoint, ...]]] = [
        {} for _ in model.schedule.stages
    ]
    for row, (stage, kind, chunk) in enumerate(alike):
        by_stage[stage][kind, chunk] = points_of[row]
    valleys = [least_energy_points(points) for points in by_stage]
    choices = [
        points_of[row].index(valleys[stage][kind, chunk])
        for row, (stage, kind, chunk) in enumerate(alike)
    ]
    return [choices[row] for row in alike_of_node]


def _reconfigured(request: PolicyRequest, assignment: Assignment) -> PolicyChoice:
    options = request.options
    if options.target != DEFAULT_TARGET:
        raise PlanningError(
            f"EnvPipe's policies support {DEFAULT_TARGET!r} only, not {options.target!r}",
            field="target",
        )
    return PolicyChoice(
        assignment=reconfigure(
            request.model, assignment, options.reconfiguration, request.reconfigure_granularity_mhz
        )
    )
