"""Plans of requests that tests of one process make again and again, solved once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from flyball_server.planning.planner import PlanRequest, make_plan_only
from flyball_server.planning.stragglers.slowed_pipelines import make_slowed_plan
from flyball_server.solving.in_thread import PlannerThreads, StoppableFuture
from flyball_wire.plans.plan import Plan

# By function and request. Most jobs of the tests are planned from a few profiles.
_SOLVED: dict[bytes, Plan] = {}


def plan_once(request: PlanRequest) -> Plan:
    """`make_plan_only`, which solves a request once in this process."""
    return _solved_once(make_plan_only, request)


class SolvesOnce(PlannerThreads):
    """Threads that solve a request for a plan once in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> StoppableFuture[Any]:  # noqa: ANN401
        if fn in {make_plan_only, make_slowed_plan}:
            return super().submit(_solved_once, fn, *args)
        return super().submit(fn, *args, **kwargs)


def _solved_once(function: Callable[[Any], Plan], request: object) -> Plan:
    key = pickle.dumps((function, request))
    if key not in _SOLVED:
        _SOLVED[key] = function(request)
    return _SOLVED[key]
