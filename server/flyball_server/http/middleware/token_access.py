"""Access: where there are tokens, only calls that carry one are let in, to what it opens."""

from __future__ import annotations

from typing import Annotated, cast

import anyio
import anyio.to_thread
from fastapi import Depends, Request
from fastapi.security import APIKeyHeader
from starlette.types import ASGIApp, Receive, Scope, Send

from flyball_server.http.edge_errors import AccessError, CrossSiteError, TokenError
from flyball_server.http.problem_handlers import problem_response
from flyball_server.jobs.auth.access import OPERATOR, Access, TokenGate
from flyball_server.jobs.errors import StoreError
from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER

DOCS = "/docs"
DOCS_SCRIPT = "/docs/swagger-ui-bundle.js"
DOCS_STYLE = "/docs/swagger-ui.css"
OPENAPI = "/openapi.json"
# None of them shows anything about jobs.
OPEN_PATHS = frozenset({routes.HEALTH, routes.READY, DOCS, DOCS_SCRIPT, DOCS_STYLE, OPENAPI})

# Tells the API's description about the header; AccessCheck is what looks at it.
TOKEN_SCHEME = APIKeyHeader(
    name=TOKEN_HEADER,
    scheme_name="token",
    description="Needed where there are tokens; `Authorization: Bearer` does as well.",
    auto_error=False,
)

_ACCESS = "flyball_access"
_OTHER_SITES = frozenset({b"cross-site", b"same-site"})
_JOB_PREFIX = routes.JOBS + "/"
_ABOUT_OWN_JOBS = frozenset({routes.JOBS, routes.OVERVIEW, routes.EVENTS})
# So many look-ups of tokens run at once: strangers' calls do not use up what others need.
_MAX_LOOK_UPS = 4


class AccessCheck:
    """ASGI middleware: 401 and 403 before any of a stranger's body is read.

    Args:
        app: what is behind it.
        gate: knows the tokens.
        open_paths: what needs none.
    """

    def __init__(
        self, app: ASGIApp, *, gate: TokenGate, open_paths: frozenset[str] = OPEN_PATHS
    ) -> None:
        self._app = app
        self._gate = gate
        self._open_paths = open_paths
        self._look_ups: anyio.CapacityLimiter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, or answer it."""
        if scope["type"] != "http" or _route_path(scope) in self._open_paths:
            await self._app(scope, receive, send)
            return
        try:
            _check_site(scope)
            access = await self._access_of(_given_token(scope))
            _check(scope, access)
        except (TokenError, AccessError, CrossSiteError, StoreError) as error:
            response = problem_response(error)
            if isinstance(error, TokenError):
                response.headers["WWW-Authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        scope[_ACCESS] = access
        await self._app(scope, receive, send)

    async def _access_of(self, token: str | None) -> Access:
        access = self._gate.remembered(token)
        if access is None:
            if self._look_ups is None:
                self._look_ups = anyio.CapacityLimiter(_MAX_LOOK_UPS)
            access = await anyio.to_thread.run_sync(
                self._gate.look_up, token, limiter=self._look_ups
            )
        if access is None:
            raise TokenError(header=TOKEN_HEADER)
        return access


def caller_access(request: Request) -> Access:
    """Return what is open to who makes this call."""
    return cast("Access", request.scope.get(_ACCESS, OPERATOR))


CallerAccess = Annotated[Access, Depends(caller_access)]


def _check(scope: Scope, access: Access) -> None:
    """Let the call pass that its token opens.

    Raises:
        AccessError: the token is another job's.
    """
    if access.job_id is None:
        return
    path = _route_path(scope)
    if path in _ABOUT_OWN_JOBS and scope["method"] == "GET":
        return  # the route tells of what is open to the caller
    named = path.removeprefix(_JOB_PREFIX).partition("/")[0] if path.startswith(_JOB_PREFIX) else ""
    if not access.opens(named):
        raise AccessError(job_id=access.job_id)


def _check_site(scope: Scope) -> None:
    """Let the call pass unless another site's page makes it, in a browser of somebody let in.

    Browsers say so to a planner on loopback, and over TLS.

    Raises:
        CrossSiteError: another site's page would change something.
    """
    if scope["method"] in {"GET", "HEAD"}:
        return  # what it gets it cannot read
    if any(name == b"sec-fetch-site" and value in _OTHER_SITES for name, value in scope["headers"]):
        raise CrossSiteError


def _given_token(scope: Scope) -> str | None:
    headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
    given = headers.get(TOKEN_HEADER.lower().encode("ascii"))
    if given is None:
        scheme, _, rest = headers.get(b"authorization", b"").partition(b" ")
        given = rest.strip() if scheme.lower() == b"bearer" else b""
    return given.decode("latin-1") or None


def _route_path(scope: Scope) -> str:
    """The path as routes know it: without what a proxy has put before it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path
