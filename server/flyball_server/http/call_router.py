"""Routers of calls: their routes are built once in a process, however many apps take them."""

from __future__ import annotations

from fastapi import APIRouter, Security
from fastapi.routing import APIRoute

from flyball_server.http.middleware.token_access import TOKEN_SCHEME


def call_router(tag: str, *, is_open: bool = False) -> APIRouter:
    """A router of calls with this tag in the API's description.

    Args:
        tag: what its calls are about.
        is_open: whether they need no token.
    """
    return APIRouter(
        tags=[tag],
        dependencies=[] if is_open else [Security(TOKEN_SCHEME)],
        generate_unique_id_function=_operation_id,
    )


def _operation_id(route: APIRoute) -> str:
    return route.name
