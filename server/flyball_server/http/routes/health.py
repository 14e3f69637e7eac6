"""Health, readiness and metrics of the planner."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import Request, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from flyball_server.http.dependencies import State
from flyball_server.http.openapi.documentation import call_router, problems
from flyball_wire import messages, routes

ROUTER = call_router("health", is_open=True)
METRICS_ROUTER = call_router("health")

OPENMETRICS = "application/openmetrics-text"
TEXT = "text/plain"


@ROUTER.get(
    routes.HEALTH, summary="Check that the planner is up", response_description="The planner is up."
)
def get_health() -> messages.Health:
    """Answer as long as the planner's process runs; needs no token and reads no database."""
    return messages.Health(status="ok", version=version("flyball"))


@ROUTER.get(
    routes.READY,
    summary="Check that the planner is ready",
    response_description="The planner is ready.",
    responses=problems(503),
)
async def get_ready(state: State) -> messages.Health:
    """Check that the job store can be read and written and plans can be solved; needs no token.

    The answer comes within 2 s even if the store or a solver hangs. A small write is tried at most
    every 5 s.
    """
    await state.readiness.require()
    return messages.Health(status="ready", version=version("flyball"))


@METRICS_ROUTER.get(
    routes.METRICS,
    summary="Get metrics for Prometheus",
    response_class=Response,
    responses={
        200: {
            "description": "All metrics; docs/metrics.md explains each.",
            "content": {
                TEXT: {"schema": {"type": "string"}},
                OPENMETRICS: {"schema": {"type": "string"}},
            },
        },
    },
)
def get_metrics(state: State, request: Request) -> Response:
    """Return metrics of the planner's process and of the jobs in its store.

    The format is OpenMetrics if `Accept` names it, else Prometheus's text format. While the store
    cannot be read, `flyball_store_readable` is 0 and jobs have no metrics.
    """
    registry = state.metrics.registry
    if OPENMETRICS in request.headers.get("accept", "").lower():
        content = generate_openmetrics(registry)  # type: ignore[no-untyped-call]  # it has no types
        return Response(content, headers={"Content-Type": CONTENT_TYPE_OPENMETRICS})
    return Response(generate_text(registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
