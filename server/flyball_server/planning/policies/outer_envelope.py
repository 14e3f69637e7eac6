"""EnvPipe's outer envelope, for any schedule.

EnvPipe draws it for its own pipelines: everything on the last stage, microbatch 0's forward on
each stage, the last microbatch's backward on each stage. That is the longest path of the order
when all stages are equal, and so it is defined here for every order: the longest path where a
forward takes 1, a whole backward 2 and each other part 1. Whatever clocks the stages get, those
instructions must not be slowed, or equal stages would take longer than the baseline.

Of equally long ways back, a backward is followed to the virtual stage that its gradient comes
from, and anything else to what stands before it on its stage: so the path goes down to the last
virtual stage before it goes along.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.model.dag import NONE, DependencyDag
from flyball_server.planning.model.simulator import earliest_finish_s

_UNITS: Mapping[InstructionKind, int] = MappingProxyType(
    {
        InstructionKind.FORWARD: 1,
        InstructionKind.RECOMPUTE: 1,
        InstructionKind.BACKWARD: 2,
        InstructionKind.BACKWARD_INPUT: 1,
        InstructionKind.BACKWARD_WEIGHT: 1,
    }
)
_FOLLOWS_GRADIENT = frozenset({InstructionKind.BACKWARD, InstructionKind.BACKWARD_INPUT})


def outer_envelope(dag: DependencyDag) -> tuple[int, ...]:
    """Nodes of the outer envelope, in the order of time."""
    units = [_UNITS[instruction.kind] for instruction in dag.instruction]
    finish = earliest_finish_s(dag, units)  # small whole numbers: exact
    node = max(range(dag.num_nodes), key=lambda index: (finish[index], -dag.stage[index]))
    path = [node]
    while finish[node] > units[node]:
        node = _before(dag, node, finish[node] - units[node], finish)
        path.append(node)
    return tuple(path[::-1])


def _before(dag: DependencyDag, node: int, start: float, finish: list[float]) -> int:
    """The predecessor that ended when this node started."""
    order, data = dag.order_predecessor[node], dag.data_predecessor[node]
    comes_by_gradient = (
        dag.instruction[node].kind in _FOLLOWS_GRADIENT
        and data != NONE
        and dag.instruction[data].kind in _FOLLOWS_GRADIENT
    )
    ways = (data, order) if comes_by_gradient else (order, data)
    return next(before for before in ways if before != NONE and finish[before] == start)
