"""The time-energy frontier of a request: its points, and what people compare it with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flyball_server.planning.errors import PlanningError
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.frontier.sweep import sweep_frontier
from flyball_server.planning.model.data_parallel import (
    DataParallelRequest,
    joint_model,
    make_data_parallel_plan,
)
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.plan import PlanPrediction
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request

DEFAULT_NUM_POINTS = 100
MAX_NUM_POINTS = 10_000
# Greedy reconfiguration is left out: it ends near balanced and takes by far the longest.
COMPARED_ENVPIPE = (("uniform", "default"), ("envelope", "default"), ("envelope", "balanced"))


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """A deployable plan's predicted time and energy, with the bound at its deadline.

    The plan itself comes by the target `deadline:` with the point's `deadline_s`.
    """

    deadline_s: float
    iteration_time_s: float
    energy_j: float
    lower_bound_j: float

    @property
    def gap_percent(self) -> float:
        """Return how far the energy is above the bound, %."""
        return 100 * (self.energy_j / self.lower_bound_j - 1)


@dataclass(frozen=True, kw_only=True)
class ComparedPlan:
    """Another policy's predicted time and energy; `name` as `envelope, balanced`."""

    name: str
    iteration_time_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True)
class FrontierCurve:
    """The frontier: points in rising time and falling energy, the baseline, EnvPipe's plans.

    Attributes:
        reserve: that the points were planned with; bounds are then on plans that keep it.
    """

    points: tuple[FrontierPoint, ...]
    baseline: ComparedPlan
    envpipe: tuple[ComparedPlan, ...]
    reserve: float = 0.0


def make_frontier(
    request: PlanRequest | DataParallelRequest,
    num_points: int = DEFAULT_NUM_POINTS,
    report: Callable[[int], None] = lambda _: None,
) -> FrontierCurve:
    """The whole frontier; `request.policy`, `reconfigure` and `target` are not looked at.

    Args:
        request: the pipeline, or data-parallel pipelines with clocks of their own.
        num_points: 2 to 10 000; fewer come where the profile does not allow so many.
        report: told how many plans have been made so far.

    Raises:
        PlanningError: a part of the request cannot be used; names its field.
    """
    if not 2 <= num_points <= MAX_NUM_POINTS:
        raise PlanningError(f"must be from 2 to {MAX_NUM_POINTS}, not {num_points}", field="points")
    first = request.pipelines[0] if isinstance(request, DataParallelRequest) else request
    solver = DeadlineSolver(_model(request), reserve=first.reserve)
    plans = sweep_frontier(solver, num_points, solver.num_sweep_moves(first.effort), report)
    return FrontierCurve(
        points=tuple(
            FrontierPoint(
                deadline_s=plan.relaxed.deadline_s,
                iteration_time_s=plan.iteration_time_s,
                energy_j=plan.energy_j,
                lower_bound_j=plan.lower_bound_j,
            )
            for plan in plans
        ),
        baseline=_compared(request, "baseline", "default"),
        envpipe=tuple(
            _compared(request, policy, reconfigure) for policy, reconfigure in COMPARED_ENVPIPE
        ),
        reserve=first.reserve,
    )


def frontier_document(curve: FrontierCurve, *, solve_s: float) -> dict[str, Any]:
    """Return what `flyball frontier --json` prints; `solve_s` is how long the planning took, s."""
    return {
        "points": [
            {
                "iteration_time_s": point.iteration_time_s,
                "energy_j": point.energy_j,
                "lower_bound_j": point.lower_bound_j,
                "gap_percent": point.gap_percent,
                "deadline_s": point.deadline_s,
            }
            for point in curve.points
        ],
        "baseline": _compared_document(curve.baseline),
        "envpipe": [_compared_document(plan) for plan in curve.envpipe],
        "reserve": curve.reserve,
        "solve_s": solve_s,
    }


def _compared_document(plan: ComparedPlan) -> dict[str, str | float]:
    return {
        "name": plan.name,
        "iteration_time_s": plan.iteration_time_s,
        "energy_j": plan.energy_j,
    }


def _model(request: PlanRequest | DataParallelRequest) -> PipelineModel:
    if isinstance(request, DataParallelRequest):
        return joint_model(request)
    return model_of_request(request)


def _compared(
    request: PlanRequest | DataParallelRequest, policy: str, reconfigure: str
) -> ComparedPlan:
    plan: PlanPrediction
    if isinstance(request, DataParallelRequest):
        plan = make_data_parallel_plan(
            request.evolve(policy=policy, reconfigure=reconfigure, target="fastest")
        ).plan
    else:
        plan = make_plan(
            dataclasses.replace(request, policy=policy, reconfigure=reconfigure, target="fastest")
        ).plan
    return ComparedPlan(
        name=policy if policy == "baseline" else f"{policy}, {reconfigure}",
        iteration_time_s=plan.iteration_time_s,
        energy_j=plan.energy_j,
    )
