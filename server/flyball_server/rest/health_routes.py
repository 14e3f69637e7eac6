"""Whether the planner is up."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter

from flyball_client import routes, wire
from flyball_server.rest import examples
from flyball_server.rest.documentation import answers

ROUTER = APIRouter(tags=["health"])


@ROUTER.get(
    routes.HEALTH,
    summary="Is the planner up?",
    responses=answers(examples.HEALTH, meaning="It is."),
)
def get_health() -> wire.Health:
    """Answers as long as the planner's process does; needs no token and reads no database."""
    return wire.Health(status="ok", version=version("flyball"))
