"""Health and readiness of the planner."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import Request, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from flyball_server.http.dependencies import State, call_router
from flyball_server.http.openapi import examples
from flyball_server.http.openapi.documentation import READ_ERRORS, answers, problems
from flyball_wire import messages, routes

ROUTER = call_router("health", is_open=True)


@ROUTER.get(
    routes.HEALTH,
    summary="Is the planner up?",
    responses=answers(examples.HEALTH, meaning="It is."),
)
def get_health() -> messages.Health:
    """Answers as long as the planner's process does; needs no token and reads no database."""
    return messages.Health(status="ok", version=version("flyball"))


@ROUTER.get(
    routes.READY,
    summary="Can the planner do its work?",
    responses=answers(examples.READY, 503, meaning="It can."),
)
async def get_ready(state: State) -> messages.Health:
    """Check that the job store answers a read and that plans can be solved; needs no token.

    It answers within some seconds, whatever hangs.
    """
    await state.readiness.require()
    return messages.Health(status="ready", version=version("flyball"))


OPENMETRICS = "application/openmetrics-text"
TEXT = "text/plain"
_EXAMPLE = """\
# HELP flyball_store_readable 1 where the job store could be read for this answer, else 0.
# TYPE flyball_store_readable gauge
flyball_store_readable 1.0
"""

METRICS_ROUTER = call_router("health")


@METRICS_ROUTER.get(
    routes.METRICS,
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {
            "description": "All metrics; docs/metrics.md explains each.",
            "content": {
                TEXT: {"schema": {"type": "string"}, "example": _EXAMPLE},
                OPENMETRICS: {"schema": {"type": "string"}, "example": f"{_EXAMPLE}# EOF\n"},
            },
        },
        **problems(*READ_ERRORS),
    },
)
def get_metrics(state: State, request: Request) -> Response:
    """Of the planner's process, and of the jobs in its store, read for this answer.

    In OpenMetrics where `Accept` names it, else in Prometheus's text format. Where the store
    cannot be read, `flyball_store_readable` is 0 and figures of jobs are left out.
    """
    registry = state.metrics.registry
    if OPENMETRICS in request.headers.get("accept", "").lower():
        content = generate_openmetrics(registry)  # type: ignore[no-untyped-call]  # it has no types
        return Response(content, headers={"Content-Type": CONTENT_TYPE_OPENMETRICS})
    return Response(generate_text(registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
