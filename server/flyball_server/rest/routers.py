"""All routes of the planner's API."""

from __future__ import annotations

from starlette.routing import BaseRoute

from flyball_server.rest import (
    batch_routes,
    dashboard_routes,
    documentation,
    event_routes,
    frontier_routes,
    health_routes,
    history_routes,
    job_routes,
    life_routes,
    metrics_routes,
    overview_routes,
    plan_routes,
    profile_routes,
    profiling_routes,
    rank_routes,
    report_routes,
    stage_step_routes,
    step_routes,
    straggler_routes,
    timeline_routes,
    timetable_routes,
    token_routes,
)

_RESOURCES = (
    documentation,
    dashboard_routes,
    health_routes,
    overview_routes,
    event_routes,
    job_routes,
    life_routes,
    profile_routes,
    profiling_routes,
    rank_routes,
    batch_routes,
    plan_routes,
    frontier_routes,
    history_routes,
    timeline_routes,
    straggler_routes,
    timetable_routes,
    step_routes,
    stage_step_routes,
    report_routes,
    token_routes,
    metrics_routes,
)


def api_routes() -> list[BaseRoute]:
    """The routes as their modules have built them.

    An app that took them by `include_router` would build each of them anew, with every type in
    it: half a second of a processor at each start.
    """
    return [route for resource in _RESOURCES for route in resource.ROUTER.routes]
