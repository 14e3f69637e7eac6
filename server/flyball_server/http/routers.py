"""All routes of the planner's API."""

from __future__ import annotations

from starlette.routing import BaseRoute

from flyball_server.http.openapi import documentation
from flyball_server.http.routes import (
    dashboard,
    departures,
    events,
    frontier,
    health,
    history,
    jobs,
    metrics,
    overview,
    plans,
    profiles,
    profiling,
    ranks,
    reports,
    stage_steps,
    steps,
    stragglers,
    timeline,
    timetables,
    tokens,
)

_RESOURCES = (
    documentation,
    dashboard,
    health,
    overview,
    events,
    jobs,
    departures,
    profiles,
    profiling,
    ranks,
    plans,
    frontier,
    history,
    timeline,
    stragglers,
    timetables,
    steps,
    stage_steps,
    reports,
    tokens,
    metrics,
)


def api_routes() -> list[BaseRoute]:
    """The routes as their modules have built them.

    An app that took them by `include_router` would build each of them anew, with every type in
    it: half a second of a processor at each start.
    """
    return [route for resource in _RESOURCES for route in resource.ROUTER.routes]
