"""JSON bodies without doubt: an object in which a field stands twice is refused.

Python and pydantic take the last of them, a proxy that checks calls perhaps the first.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from flyball_server.jobs.errors import InvalidFieldError


class JsonRequest(Request):
    """Request whose body has been read as JSON.

    Args:
        request: request that it stands for.
        content: its body, parsed.
    """

    def __init__(self, request: Request, content: Any) -> None:  # noqa: ANN401 - JSON
        super().__init__(request.scope, request.receive)
        self._content = content

    async def json(self) -> Any:  # noqa: ANN401 - JSON
        """Return the body, parsed."""
        return self._content


async def with_unique_fields(request: Request) -> Request:
    """Return a request with its JSON body parsed; the same request if it cannot be.

    Raises:
        InvalidFieldError: a field stands twice in an object.
    """
    try:
        body = await request.body()
        content = parse_unique(body)
    except (ValueError, RecursionError, ClientDisconnect):
        return request  # FastAPI answers it
    parsed = JsonRequest(request, content)
    parsed._body = body
    return parsed


def parse_unique(body: bytes) -> Any:  # noqa: ANN401 - JSON
    """Parse JSON.

    Raises:
        ValueError: it cannot be parsed.
        RecursionError: likewise.
        InvalidFieldError: a field stands twice in an object.
    """
    return json.loads(body, object_pairs_hook=_unique)


def _unique(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(fields)
    if len(found) != len(fields):
        raise InvalidFieldError("body", "has a field twice in one object; send each once")
    return found
