"""Routes that describe themselves in OpenAPI: bodies, answers and errors."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, cast, get_type_hints

from fastapi import APIRouter, Request, Response, Security
from fastapi.openapi.models import Example
from fastapi.params import Body
from fastapi.routing import APIRoute

from flyball_server.http.edge_errors import ContentTypeError
from flyball_server.http.json_body import with_unique_fields
from flyball_server.http.middleware.token_access import TOKEN_SCHEME
from flyball_wire.closed_loop import Timetable
from flyball_wire.messages import JobRegistration, Problem
from flyball_wire.strictness import Sent

JSON = "application/json"
Responses = dict[int | str, dict[str, Any]]

_PROBLEMS = MappingProxyType(
    {
        400: "The body cannot be read.",
        401: "The planner requires a token, and the call has no valid one.",
        403: "The token does not permit this call, or a page of another site or host sends it.",
        404: "No such job, rank or plan.",
        408: "The body did not arrive in time.",
        409: "The job's state does not permit this call.",
        413: "The body is too large.",
        415: "The body has another content type.",
        422: "A value is invalid; the field, or the profile's line, is named.",
        503: "The job store is not available, or too many calls wait; try again later.",
    }
)
# Bodies whose values follow rules that a schema does not have.
EXAMPLES: Mapping[object, Mapping[str, object]] = MappingProxyType(
    {
        JobRegistration: {"num_stages": 2, "num_microbatches": 2, "blocking_power_w": [83.6]},
        Timetable: {
            "timezone": "Europe/Berlin",
            "windows": [
                {
                    "days": ["mon", "fri"],
                    "from_time": "17:00",
                    "until_time": "20:00",
                    "target": "power:8000",
                }
            ],
        },
    }
)
_TOKEN_ERRORS = (401, 403, 422, 503)
BODY_ERRORS = (408, 413, 415)


def problems(*statuses: int) -> Responses:
    """Return the description of errors that a route may answer."""
    return {status: {"model": Problem, "description": _PROBLEMS[status]} for status in statuses}


class DescribedRoute(APIRoute):
    """Route that derives its errors from its path and body.

    The body is a parameter of a type that clients send; another content type than JSON is refused.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401 - FastAPI's
        hints = get_type_hints(endpoint)
        given: Responses = options.pop("responses") or {}
        self._has_body = any(
            isinstance(kind, type) and issubclass(kind, Sent) for kind in hints.values()
        )
        errors: tuple[int, ...] = _TOKEN_ERRORS if options["dependencies"] else ()
        errors += (400, *BODY_ERRORS) if self._has_body else ()
        errors += (404,) if "{" in path and 201 not in given else ()
        responses = {**problems(*errors), **given}
        super().__init__(path, endpoint, responses=responses, **options)
        if self.body_field is not None:
            body = cast("Body", self.body_field.field_info)
            if body.annotation in EXAMPLES:
                body.openapi_examples = {"example": Example(value=EXAMPLES[body.annotation])}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, behind the check of the body's content type."""
        handle = super().get_route_handler()
        if not self._has_body:
            return handle

        async def handle_json(request: Request) -> Response:
            require_content_type(request, JSON)
            return await handle(await with_unique_fields(request))

        return handle_json


def call_router(tag: str, *, is_open: bool = False) -> APIRouter:
    """Return a router of described routes.

    Args:
        tag: group of its routes in the API's description.
        is_open: no token is required.
    """
    return APIRouter(
        tags=[tag],
        dependencies=[] if is_open else [Security(TOKEN_SCHEME)],
        generate_unique_id_function=lambda route: route.name,
        route_class=DescribedRoute,
    )


def require_content_type(request: Request, *wanted: str) -> str:
    """Return the body's content type, in lower case and without parameters.

    Raises:
        ContentTypeError: it is none of those wanted, or the body is compressed.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    names = " or ".join(wanted)
    if kind not in wanted:
        raise ContentTypeError(wanted=names)
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise ContentTypeError(wanted=f"{names} and without a content encoding")
    return kind
