"""The policy `frontier`: the least energy that is found for a target, with its certificate."""

from __future__ import annotations

from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.frontier.targets import parse_target, plan_for_target
from flyball_server.planning.model.finish_times import earliest_finish_s
from flyball_server.planning.policies._base import PolicyChoice, PolicyRequest


def frontier(request: PolicyRequest) -> PolicyChoice:
    """One clock per instruction near the relaxed optimum of the target's deadline.

    Option `reconfigure` is not used.
    """
    model = request.model
    target = parse_target(request.options.target)
    baseline_s = max(earliest_finish_s(model.dag, model.durations_s(model.baseline())))
    solver = DeadlineSolver(model, reserve=request.options.reserve)
    plan = plan_for_target(solver, target, baseline_s, solver.num_steps(request.options.effort))
    return PolicyChoice(assignment=plan.assignment, lower_bound_j=plan.lower_bound_j)
