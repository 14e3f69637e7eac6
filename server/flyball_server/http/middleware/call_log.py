"""Every call has an id: in the answer, and with the job and rank in all log lines about it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyball_server.log_setup import log_fields, set_log_fields
from flyball_server.prometheus.process_metrics import ProcessMetrics

REQUEST_ID_HEADER = "X-Request-Id"
_SCOPE_KEY = "flyball.request_id"
# What others send ends up in log lines: nothing that could be taken for another field or line.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ABOUT = re.compile(
    r"/api/v1/jobs/(?P<job>[A-Za-z0-9._-]{1,128})"
    r"(?:/(?:ranks|stragglers)/(?P<rank>[0-9]{1,8})|/plans/(?P<version>[0-9]{1,18}))?(?:/|$)"
)


class CallLog:
    """ASGI middleware, the outermost: gives the call its id and its log fields.

    A client's own `X-Request-Id` is kept if it is 1 to 128 of A-Z a-z 0-9 . _ -, else one is made.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given_id(scope) or uuid4().hex
        scope[_SCOPE_KEY] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        # Not taken back at the end: what the server logs of a failure belongs to this call, and
        # each call has a task of its own.
        set_log_fields({**_about(scope["path"]), "request_id": request_id})
        await self._app(scope, receive, send_with_id)


def current_request_id() -> str | None:
    """The id of the call that this task answers; None outside of one."""
    found = log_fields().get("request_id")
    return found if isinstance(found, str) else None


def request_id_of(scope: Mapping[str, object]) -> str | None:
    """The id of the call; None where it came another way than through CallLog."""
    found = scope.get(_SCOPE_KEY)
    return found if isinstance(found, str) else None


def _given_id(scope: Scope) -> str | None:
    wanted = REQUEST_ID_HEADER.lower().encode("ascii")
    given = next((value for name, value in scope["headers"] if name == wanted), b"")
    text = given.decode("latin-1")
    return text if _REQUEST_ID.fullmatch(text) else None


def _about(path: str) -> dict[str, str | int]:
    """The job that a path is of, and its rank or plan version."""
    found = _ABOUT.match(path)
    if found is None:
        return {}
    parts = found.groupdict()
    fields: dict[str, str | int] = {"job": parts["job"]}
    for name in ("rank", "version"):
        if parts[name] is not None:
            fields[name] = int(parts[name])
    return fields


class CallMetrics:
    """ASGI middleware: tells the metrics of each call when its answer is complete."""

    def __init__(self, app: ASGIApp, *, metrics: ProcessMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500  # where nothing is answered, the server answers that

        async def noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        started_s = time.perf_counter()
        try:
            await self._app(scope, receive, noting_status)
        finally:
            self._metrics.observe_call(
                # Set by the router: the template, never the path with its names in it.
                route=getattr(scope.get("route"), "path", None),
                method=scope["method"],
                status=status,
                seconds=time.perf_counter() - started_s,
            )
