"""The token: whoever configures one lets in only calls that carry it."""

from __future__ import annotations

import hmac

from fastapi.security import APIKeyHeader
from starlette.types import ASGIApp, Receive, Scope, Send

from flyball_client import routes
from flyball_client.wire import TOKEN_HEADER
from flyball_server.rest.edge_errors import TokenError
from flyball_server.rest.problem_handlers import problem_response

DOCS = "/docs"
DOCS_SCRIPT = "/docs/swagger-ui-bundle.js"
DOCS_STYLE = "/docs/swagger-ui.css"
OPENAPI = "/openapi.json"
# None of them shows anything about jobs.
OPEN_PATHS = frozenset({routes.HEALTH, DOCS, DOCS_SCRIPT, DOCS_STYLE, OPENAPI})

# Tells the API's description about the header; TokenCheck is what looks at it.
TOKEN_SCHEME = APIKeyHeader(
    name=TOKEN_HEADER,
    scheme_name="token",
    description="Needed only where the planner runs with FLYBALL_TOKEN.",
    auto_error=False,
)


class TokenCheck:
    """ASGI middleware: 401 for calls without the token, before any of their body is read."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._token = token.encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, or answer it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        await problem_response(TokenError(header=TOKEN_HEADER))(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        wanted = TOKEN_HEADER.lower().encode("ascii")
        given: bytes = next((value for name, value in scope["headers"] if name == wanted), b"")
        return hmac.compare_digest(given, self._token)
