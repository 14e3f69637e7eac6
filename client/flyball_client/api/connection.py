"""HTTP calls to the planner over httpx, with finite timeouts and bounded retries.

Every call is idempotent, so it is retried when the connection fails or a proxy reports that the
planner is temporarily unavailable.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import NoReturn, Self, TypedDict, TypeVar, Unpack, cast

import httpx

from flyball_client.api.errors import (
    PlannerBusyError,
    PlannerCutOffError,
    PlannerDistrustedError,
    PlannerError,
    PlannerRefusedError,
    PlannerUnavailableError,
)
from flyball_client.api.trust import trusted_context, warn_of_plain_token
from flyball_wire import routes
from flyball_wire.codec import decode, decode_list, encode
from flyball_wire.errors import CodecError
from flyball_wire.messages import ACCESS_HEADER, READ_ONLY, TOKEN_HEADER, Problem

# Texts for httpx's exceptions; the most specific class in the exception's MRO is used.
CAUSES: dict[type[Exception], str] = {
    httpx.ConnectError: "cannot be reached",
    httpx.ConnectTimeout: "cannot be reached in time",
    httpx.ReadTimeout: "did not answer in time",
    httpx.WriteTimeout: "did not take the request in time",
    httpx.PoolTimeout: "has no free connection",
    httpx.ReadError: "closed the connection",
    httpx.WriteError: "closed the connection",
    httpx.CloseError: "closed the connection",
    httpx.LocalProtocolError: "could not be sent a valid request",
    httpx.RemoteProtocolError: "did not answer in HTTP",
    httpx.ProxyError: "cannot be reached through the proxy",
    httpx.UnsupportedProtocol: "needs an address with http:// or https://",
    httpx.DecodingError: "answered with a body that cannot be decoded",
    httpx.TooManyRedirects: "redirects, which is not followed",
    httpx.RequestError: "cannot be called",
    httpx.InvalidURL: "has an address that is no URL",
}

# The request probably did not arrive, and a retry may succeed.
CONNECTION_ERRORS = (httpx.NetworkError, httpx.ConnectTimeout, httpx.RemoteProtocolError)
_CUT_OFF = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)
PASSING_STATUSES = frozenset({502, 503, 504})
_SUCCESSES = frozenset({200, 201, 204})

_MAX_DETAIL_CHARS = 300
_MAX_PROBLEM_BYTES = 64 * 2**10
_LONGEST_RETRY_AFTER_S = 60.0


def error_from_exception(base_url: str, error: Exception) -> PlannerUnavailableError:
    """Return the client's error for an exception of httpx."""
    if (why := _distrust(error)) is not None:
        return PlannerDistrustedError(
            f"the planner at {base_url} has a certificate that is not trusted ({why});"
            " set FLYBALL_CA_FILE to the file of its CA"
        )
    for family in type(error).__mro__:
        if family in CAUSES:
            kind = PlannerCutOffError if isinstance(error, _CUT_OFF) else PlannerUnavailableError
            return kind(f"the planner at {base_url} {CAUSES[family]}")
    raise AssertionError(f"{type(error).__name__} is not an error of httpx")


def _distrust(error: BaseException) -> str | None:
    """Return the reason of a failed certificate check; None: that is not the cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        cause = cause.__cause__ or cause.__context__
    return None


def error_from_response(base_url: str, response: httpx.Response) -> PlannerError:
    """Return the client's error for a response that is not a success."""
    status = response.status_code
    if 400 <= status < 500:
        return PlannerRefusedError(
            f"the planner at {base_url} refused ({status}): {_detail(response)}",
            status=status,
            is_read_only=response.headers.get(ACCESS_HEADER) == READ_ONLY,
        )
    if status == 503 and (retry_after_s := _retry_after_s(response)) is not None:
        return PlannerBusyError(
            f"the planner at {base_url} is busy: {_detail(response)}", retry_after_s=retry_after_s
        )
    if status >= 500:
        return PlannerUnavailableError(
            f"the planner at {base_url} failed ({status}): {_detail(response)}"
        )
    if 300 <= status < 400:
        return PlannerUnavailableError(
            f"the planner at {base_url} redirects ({status}), which is not followed;"
            " use its final address"
        )
    return PlannerUnavailableError(f"the planner at {base_url} answered with status {status}")


def parse_json(base_url: str, response: httpx.Response) -> object:
    """Return the JSON of a response.

    Raises:
        PlannerUnavailableError: The body is not JSON, or contains NaN or Infinity.
    """
    try:
        return strict_json(response.content)
    except (ValueError, RecursionError):
        raise not_a_planner(base_url, "its body is not JSON") from None


def not_a_planner(base_url: str, why: str) -> PlannerUnavailableError:
    """Return the error for a response that does not follow the planner's API."""
    return PlannerUnavailableError(
        f"the server at {base_url} is not a planner ({why}); check the address"
    )


def strict_json(body: bytes) -> object:
    """Parse JSON; raise ValueError for NaN and Infinity, which the standard does not allow."""
    return cast("object", json.loads(body, parse_constant=_refuse_constant))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _retry_after_s(response: httpx.Response) -> float | None:
    """Return the Retry-After header in s; None: it is missing, or not a number of seconds."""
    text = response.headers.get("Retry-After", "")
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        return None
    return min(float(text), _LONGEST_RETRY_AFTER_S)


def _detail(response: httpx.Response) -> str:
    if len(response.content) > _MAX_PROBLEM_BYTES:
        return response.reason_phrase or "no reason given"
    try:
        problem = decode(Problem, strict_json(response.content))
    except (ValueError, RecursionError, CodecError):
        return response.reason_phrase or "no reason given"
    text = problem.detail
    if len(problem.errors) > 1:  # the detail includes a single error
        fields = (f"{e.get('loc', '')}: {e.get('msg', '')}" for e in problem.errors)
        text = "; ".join((text, *fields))
    return " ".join(text.split())[:_MAX_DETAIL_CHARS]


# A list of jobs with thousands of ranks each takes some tens of MiB.
MAX_ANSWER_BYTES = 256 * 2**20
_IDENTITY = "identity"


class _UnusableAnswerError(Exception):
    """A response is larger than its limit, or encoded."""


def whole_answer(response: httpx.Response, max_bytes: int) -> httpx.Response:
    """Read the body of a streamed response, close that, and return a complete response.

    Raises:
        _UnusableAnswerError: It is larger, or encoded, which was not asked for.
        httpx.RequestError: The body is incomplete.
    """
    body = bytearray()
    try:
        # A few KiB of gzip may be as many GiB.
        encoding = response.headers.get("Content-Encoding", _IDENTITY)
        if encoding.strip().lower() != _IDENTITY:
            raise _UnusableAnswerError("its body is compressed, which was not requested")
        for piece in response.iter_bytes():
            body += piece
            if len(body) > max_bytes:
                raise _UnusableAnswerError(f"its body is larger than {max_bytes} bytes")
    finally:
        response.close()
    # These headers describe the body on the wire.
    headers = [
        (name, value)
        for name, value in response.headers.multi_items()
        if name.lower() not in {"content-encoding", "content-length", "transfer-encoding"}
    ]
    return httpx.Response(
        response.status_code, headers=headers, content=bytes(body), request=response.request
    )


T = TypeVar("T")

MAX_WAIT_S = 60.0
_LONG_POLL_MARGIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Retries:
    """Retry policy of a call: the pause doubles, and a call that took its timeout is not retried.

    Attributes:
        num_attempts: Number of attempts in all, at least 1.
        first_pause_s: First pause in s, not negative.
    """

    num_attempts: int = 3
    first_pause_s: float = 0.1

    def __post_init__(self) -> None:
        if self.num_attempts < 1:
            raise ValueError(f"num_attempts must be at least 1, not {self.num_attempts}")
        if not self.first_pause_s >= 0:
            raise ValueError(f"first_pause_s must not be negative, as {self.first_pause_s} is")


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Arguments of a PlannerConnection over the network, with which another one can be opened."""

    base_url: str = field(repr=False)
    token: str | None = field(repr=False)
    timeout_s: float
    ca_file: str | None
    retries: Retries


class _Call(TypedDict, total=False):
    """Keyword arguments of a call, see `PlannerConnection.send`."""

    body: object
    content: bytes
    headers: dict[str, str]
    query: Mapping[str, str | float | None]
    wait_s: float | None
    is_body_read: bool
    job_id: str
    rank: int
    version: int


class PlannerConnection:
    """HTTP connection to one planner; thread-safe.

    Redirects are not followed and proxies of the environment are not used, so that the token
    reaches the planner only. The token appears in no error text.

    Args:
        base_url: Address of the planner, such as `http://127.0.0.1:7787`.
        token: Token that is sent with every call; None: no token.
        timeout_s: Timeout in s of connecting, sending and receiving; long polls add their wait.
        transport: Transport that replaces the network, for tests.
        ca_file: PEM file of trusted CAs for `https://`; None: the file that `FLYBALL_CA_FILE`
            names, else the system's CAs.
        retries: Retry policy of calls that fail to arrive.
        sleep: Function that pauses between attempts, for a time in s.
        max_answer_bytes: Largest body of an answer.

    Attributes:
        options: Arguments to open another such connection; None: a transport replaces the network.

    Every method raises PlannerUnavailableError when the planner cannot be reached, fails, or
    does not follow its API, and PlannerRefusedError when it refuses the call.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        timeout_s: float = 5.0,
        transport: httpx.BaseTransport | None = None,
        ca_file: str | None = None,
        retries: Retries | None = None,
        sleep: Callable[[float], None] = time.sleep,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, not {timeout_s}")
        if token is not None:
            token = token.rstrip("\r\n")  # as a file ends that it was read from
        self._base_url = printable_url(base_url)
        self._timeout_s = timeout_s
        self._retries = Retries() if retries is None else retries
        self._sleep = sleep
        self._max_answer_bytes = max_answer_bytes
        self.options: ConnectionOptions | None = None
        if transport is None:
            transport = httpx.HTTPTransport(verify=trusted_context(base_url, ca_file))
            self.options = ConnectionOptions(
                base_url=base_url,
                token=token,
                timeout_s=timeout_s,
                ca_file=ca_file,
                retries=self._retries,
            )
        self._http = httpx.Client(
            base_url=base_url,
            headers={"Accept-Encoding": _IDENTITY, **_token_headers(token)},
            timeout=timeout_s,
            follow_redirects=False,
            trust_env=False,
            transport=transport,
        )
        if token is not None and self.options is not None:
            warn_of_plain_token(self._base_url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        """Return the planner's address without user name and password."""
        return self._base_url

    def close(self) -> None:
        """Close the connections; may be called repeatedly."""
        self._http.close()

    # ------------------------------------------------------------------ calls

    def one(self, target: type[T], method: str, route: str, **call: Unpack[_Call]) -> T:
        """Make a call that returns one object of a wire type."""
        return self.decoded(target, self.send(method, route, **call))

    def many(
        self, target: type[T], method: str, route: str, **call: Unpack[_Call]
    ) -> tuple[T, ...]:
        """Make a call that returns a list of such objects."""
        data = parse_json(self._base_url, self.send(method, route, **call))
        try:
            return decode_list(target, data)
        except CodecError as error:
            raise not_a_planner(self._base_url, str(error)) from None

    def decoded(self, target: type[T], response: httpx.Response) -> T:
        """Return the object in a response."""
        try:
            return decode(target, parse_json(self._base_url, response))
        except CodecError as error:
            raise not_a_planner(self._base_url, str(error)) from None

    def send(
        self,
        method: str,
        route: str,
        *,
        body: object = None,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        query: Mapping[str, str | float | None] | None = None,
        wait_s: float | None = None,
        is_body_read: bool = True,
        **ids: object,
    ) -> httpx.Response:
        """Make the call, with retries.

        Args:
            method: HTTP method.
            route: Path template, see `flyball_wire.routes`.
            body: Wire object that is sent as JSON.
            content: Bytes that are sent instead.
            headers: Headers besides the token's.
            query: Query parameters; those that are None are left out.
            wait_s: Time in s that the planner may take, at most 60; None: `timeout_s`.
            is_body_read: False: of a success the status alone is returned.
            ids: Values of the template's fields.
        """
        if self._http.is_closed:
            raise PlannerUnavailableError("this connection to the planner is closed; open another")
        known = {name: value for name, value in (query or {}).items() if value is not None}
        request = self._http.build_request(
            method,
            routes.fill(route, **{name: str(value) for name, value in ids.items()}),
            json=None if body is None else encode(body),
            content=content,
            headers=headers,
            params={n: v if isinstance(v, str) else f"{v:.15g}" for n, v in known.items()},
            timeout=self._timeout(wait_s),
        )
        began_s = time.monotonic()
        for pause_s in self._pauses_s():
            failure, is_passing = self._attempt(request, is_body_read=is_body_read)
            if isinstance(failure, httpx.Response):
                return failure
            is_late = time.monotonic() - began_s > self._timeout_s
            if not is_passing or pause_s is None or is_late:
                raise failure
            self._sleep(pause_s)
        raise AssertionError("the last pause is None")

    def _attempt(
        self, request: httpx.Request, *, is_body_read: bool
    ) -> tuple[httpx.Response | PlannerError, bool]:
        """Return the response, or an error and whether a retry may succeed."""
        try:
            response = self._http.send(request, stream=True)
            if not is_body_read and response.status_code in _SUCCESSES:
                response.close()
                return httpx.Response(response.status_code), False
            response = whole_answer(response, self._max_answer_bytes)
        except _UnusableAnswerError as error:
            return not_a_planner(self._base_url, str(error)), False
        except (httpx.RequestError, httpx.InvalidURL) as error:
            is_passing = isinstance(error, CONNECTION_ERRORS)
            return error_from_exception(self._base_url, error), is_passing
        if response.status_code in _SUCCESSES:
            return response, False
        failure = error_from_response(self._base_url, response)
        is_busy = isinstance(failure, PlannerBusyError)  # it names the time of the next call
        return failure, response.status_code in PASSING_STATUSES and not is_busy

    def _pauses_s(self) -> list[float | None]:
        doubling = range(self._retries.num_attempts - 1)
        return [*(self._retries.first_pause_s * 2**i for i in doubling), None]

    def _timeout(self, wait_s: float | None) -> httpx.Timeout:
        if wait_s is None:
            return httpx.Timeout(self._timeout_s)
        if not 0 <= wait_s <= MAX_WAIT_S:
            raise ValueError(f"wait_s must be from 0 to {MAX_WAIT_S:g}, not {wait_s}")
        margin_s = max(_LONG_POLL_MARGIN_S, self._timeout_s)
        return httpx.Timeout(self._timeout_s, read=wait_s + margin_s)


def _token_headers(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    # httpx puts a value that cannot be sent into its error text.
    if re.fullmatch("[!-~]*", token) is None:
        raise ValueError("the planner's token must be printable ASCII text without spaces")
    return {TOKEN_HEADER: token}


def printable_url(base_url: str) -> str:
    """Return a planner's address without user name and password.

    Raises:
        ValueError: The address is not an HTTP URL.
    """
    wanted = "the planner's address must be like http://HOST:PORT"
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        raise ValueError(wanted) from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(wanted)
    return str(url.copy_with(username=None, password=None)).rstrip("/")
