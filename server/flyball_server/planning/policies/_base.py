"""Policy contract: a policy gives every instruction of a pipeline a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flyball_server.planning.model.clocked_instructions import ClockRequest
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.request_options import DEFAULT_RECONFIGURE_GRANULARITY_MHZ
from flyball_wire.closed_loop import NO_RESERVE, Reserve
from flyball_wire.plan_options import PlanOptions


@dataclass(frozen=True, kw_only=True)
class PolicyChoice:
    """Decision of a policy.

    Attributes:
        assignment: per node, an index into its operating points.
        lower_bound_j: no assignment that meets the target needs less, J; within a power budget,
            none with this plan's iteration time. None where the policy has none.
        at_once_j: energy of the plan that is found for the target if clocks change at once, J;
            None: no such plan was sought.
        reserve: reserve that it keeps.
        requests: as in `PipelineModel`.
    """

    assignment: Assignment
    lower_bound_j: float | None = None
    at_once_j: float | None = None
    reserve: Reserve = NO_RESERVE
    requests: Mapping[int, ClockRequest] = field(default_factory=dict[int, ClockRequest])


@dataclass(frozen=True, kw_only=True)
class PolicyRequest:
    """Input of a policy.

    Attributes:
        options: options of the plan.
        reconfigure_granularity_mhz: least clock increase of one reconfiguration step in MHz.
    """

    model: PipelineModel
    options: PlanOptions
    reconfigure_granularity_mhz: int = DEFAULT_RECONFIGURE_GRANULARITY_MHZ


PolicyRule = Callable[[PolicyRequest], PolicyChoice]
"""Contract, tested over all policies by `tests/contract/test_policy.py`:

- pure and deterministic: the same request gives the same choice;
- the assignment has one valid index per node of the DAG;
- a lower bound, where given, is not above the choice's own energy;
- raises PlanningError naming `target` for one that the policy does not support, and
  TargetUnreachableError for one that cannot be met.
"""
