"""Access control: where tokens exist, each call needs one that permits it.

Calls that need none are answered to the planner's own hosts only.
"""

from __future__ import annotations

import base64
from typing import Annotated, cast

import anyio
import anyio.to_thread
from fastapi import Depends, Request
from fastapi.security import APIKeyHeader
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyball_server.http.edge_errors import (
    AccessError,
    CrossSiteError,
    EdgeError,
    FirstTokenError,
    HostError,
    ReadOnlyError,
    TokenError,
)
from flyball_server.http.middleware.host_check import AllowedHosts
from flyball_server.http.problem_handlers import is_from_browser, no_page, problem_response
from flyball_server.http.zeus.messages import REGISTER_JOB, is_zeus_path, job_of
from flyball_server.jobs.auth.access import ANYBODY, Access, TokenGate
from flyball_server.jobs.errors import StoreError
from flyball_wire import routes
from flyball_wire.messages import ACCESS_HEADER, READ_ONLY, TOKEN_HEADER

DOCS = "/docs"
DOCS_SCRIPT = "/docs/swagger-ui-bundle.js"
DOCS_STYLE = "/docs/swagger-ui.css"
OPENAPI = "/openapi.json"
# They contain no information about jobs.
OPEN_PATHS = frozenset({routes.HEALTH, routes.READY, DOCS, DOCS_SCRIPT, DOCS_STYLE, OPENAPI})

# For the API's description only; AccessCheck reads the header.
TOKEN_SCHEME = APIKeyHeader(
    name=TOKEN_HEADER,
    scheme_name="token",
    description="Required where tokens exist; or `Authorization: Bearer`.",
    auto_error=False,
)

_ACCESS = "flyball_access"
_OTHER_SITES = frozenset({b"cross-site", b"same-site"})
_JOB_PREFIX = routes.JOBS + "/"
_ABOUT_OWN_JOBS = frozenset({routes.JOBS, routes.OVERVIEW, routes.EVENTS})
# Concurrent look-ups of tokens: unauthorized calls must not exhaust the threads.
_MAX_LOOK_UPS = 4


class AccessCheck:
    """ASGI middleware: refuse unauthorized calls (401, 403) before reading their bodies.

    Args:
        app: app behind it.
        gate: check of tokens.
        hosts: hosts to which calls without a token are answered.
        open_paths: paths without information about jobs; they need neither a token nor a host.
        tokenless_paths: further paths that need no token.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        gate: TokenGate,
        hosts: AllowedHosts,
        open_paths: frozenset[str] = OPEN_PATHS,
        tokenless_paths: frozenset[str] = frozenset(),
    ) -> None:
        self._app = app
        self._gate = gate
        self._hosts = hosts
        self._open_paths = open_paths
        self._tokenless_paths = tokenless_paths
        self._look_ups: anyio.CapacityLimiter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the call, or refuse it."""
        if scope["type"] != "http" or _route_path(scope) in self._open_paths:
            await self._app(scope, receive, send)
            return
        try:
            _check_site(scope)
            access = await self._access(scope)
            _check(scope, access)
        except (EdgeError, StoreError) as error:
            response = problem_response(error)
            if isinstance(error, TokenError):
                request = Request(scope)
                if is_from_browser(request):
                    response = no_page(request, response.status_code)
                response.headers["WWW-Authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        scope[_ACCESS] = access
        await self._app(scope, receive, _naming_access(send) if access.is_read_only else send)

    async def _access(self, scope: Scope) -> Access:
        """Return the caller's access.

        Raises:
            TokenError: there is none.
            HostError: it needs no token, and the host is not allowed.
        """
        is_tokenless = _route_path(scope) in self._tokenless_paths
        access = ANYBODY if is_tokenless else await self._access_of(_given_token(scope))
        # A page whose foreign name resolves to the planner has no token.
        if not access.has_token and not self._hosts.permit(scope):
            raise HostError
        return access

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
    """Return the access of the caller."""
    return cast("Access", request.scope.get(_ACCESS, ANYBODY))


CallerAccess = Annotated[Access, Depends(caller_access)]


def require_token(access: CallerAccess) -> None:
    """Refuse callers who were let in without a token.

    Raises:
        FirstTokenError: the caller has shown none.
    """
    if not access.has_token:
        raise FirstTokenError


def _check(scope: Scope, access: Access) -> None:
    """Check that the token permits the call.

    Raises:
        ReadOnlyError: the token is read-only, and the call is a change or a rank's.
        AccessError: the token is another job's.
    """
    path = _route_path(scope)
    # Zeus's client has no calls that only read.
    if access.is_read_only and (scope["method"] not in {"GET", "HEAD"} or is_zeus_path(path)):
        raise ReadOnlyError
    if access.job_id is None:
        return
    if path in _ABOUT_OWN_JOBS and scope["method"] == "GET":
        return  # the route answers with the permitted jobs
    if path == REGISTER_JOB:
        return  # the body names the job, and the route checks it
    if not access.opens(_job_of(path)):
        raise AccessError(job_id=access.job_id)


def _naming_access(send: Send) -> Send:
    """Return a `send` that says in the answer that the token is read-only, for the dashboard."""

    async def send_with_access(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)[ACCESS_HEADER] = READ_ONLY
        await send(message)

    return send_with_access


def _job_of(path: str) -> str:
    if path.startswith(_JOB_PREFIX):
        return path.removeprefix(_JOB_PREFIX).partition("/")[0]
    return job_of(path)


def _check_site(scope: Scope) -> None:
    """Check that no page of another site requests a change through an authorized browser.

    Browsers send `Sec-Fetch-Site` to a planner on loopback, and over TLS.

    Raises:
        CrossSiteError: a page of another site requests a change.
    """
    if scope["method"] in {"GET", "HEAD"}:
        return  # the page cannot read the answer
    if any(name == b"sec-fetch-site" and value in _OTHER_SITES for name, value in scope["headers"]):
        raise CrossSiteError


def _given_token(scope: Scope) -> str | None:
    headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
    given = headers.get(TOKEN_HEADER.lower().encode("ascii"))
    if given is None:
        scheme, _, rest = headers.get(b"authorization", b"").partition(b" ")
        given = rest.strip() if scheme.lower() == b"bearer" else b""
        if scheme.lower() == b"basic" and is_zeus_path(_route_path(scope)):
            given = _password(rest)
    return given.decode("latin-1") or None


def _password(credentials: bytes) -> bytes:
    """Return the password of Basic credentials: Zeus's client sends those of its server's URL.

    Browsers repeat Basic credentials by themselves, so that no other call takes them.
    """
    try:
        return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return b""


def _route_path(scope: Scope) -> str:
    """Return the path without a proxy's prefix."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path
