"""How long calls take, by route, method and class of status."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyball_server.prometheus.process_metrics import ProcessMetrics


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
