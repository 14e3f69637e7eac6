"""All routes of the planner's API."""

from __future__ import annotations

from fastapi import APIRouter, Security

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
from flyball_server.rest.token import TOKEN_SCHEME


def api_router() -> APIRouter:
    """The routes; all but pages and the health route are marked as asking for the token."""
    router = APIRouter()
    router.include_router(documentation.ROUTER)
    router.include_router(dashboard_routes.ROUTER)
    router.include_router(health_routes.ROUTER)
    for resource in (
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
    ):
        router.include_router(resource.ROUTER, dependencies=[Security(TOKEN_SCHEME)])
    return router
