"""Whether the planner is up, and whether it can do its work."""

from __future__ import annotations

from importlib.metadata import version

from flyball_server.http.call_router import call_router
from flyball_server.http.dependencies import State
from flyball_server.http.openapi import examples
from flyball_server.http.openapi.documentation import answers
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
    """Whether the job store answers a read, and what solves plans can be used; needs no token.

    It answers within some seconds, whatever hangs.
    """
    await state.readiness.require()
    return messages.Health(status="ready", version=version("flyball"))
