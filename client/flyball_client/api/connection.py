"""HTTP calls to the planner over httpx: bounded in time, repeated where that may help.

Every call is safe to repeat, so each is repeated a few times when the connection fails or a
proxy says that the planner is away for a moment.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self, TypeVar, cast

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
from flyball_wire.codec import decode, decode_list, encode
from flyball_wire.errors import CodecError
from flyball_wire.messages import TOKEN_HEADER, Problem

# What went wrong, by httpx's exception; the most special one in its family tree counts.
CAUSES: dict[type[Exception], str] = {
    httpx.ConnectError: "cannot be reached",
    httpx.ConnectTimeout: "cannot be reached in time",
    httpx.ReadTimeout: "did not answer in time",
    httpx.WriteTimeout: "did not take the request in time",
    httpx.PoolTimeout: "has no free connection",
    httpx.ReadError: "broke the connection off",
    httpx.WriteError: "broke the connection off",
    httpx.CloseError: "broke the connection off",
    httpx.LocalProtocolError: "could not be sent a valid request",
    httpx.RemoteProtocolError: "answered with something that is not HTTP",
    httpx.ProxyError: "cannot be reached through the proxy",
    httpx.UnsupportedProtocol: "needs an address with http:// or https://",
    httpx.DecodingError: "answered with a body that cannot be decoded",
    httpx.TooManyRedirects: "redirects, which is not followed",
    httpx.RequestError: "cannot be asked",
    httpx.InvalidURL: "has an address that is no URL",
}

# After these the request surely or possibly did not arrive, and a repetition may succeed at once.
CONNECTION_ERRORS = (httpx.NetworkError, httpx.ConnectTimeout, httpx.RemoteProtocolError)
_CUT_OFF = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)
PASSING_STATUSES = frozenset({502, 503, 504})

_MAX_DETAIL_CHARS = 300
_LONGEST_RETRY_AFTER_S = 60.0


def error_from_exception(base_url: str, error: Exception) -> PlannerUnavailableError:
    """The client's error for an exception of httpx."""
    if (why := _distrust(error)) is not None:
        return PlannerDistrustedError(
            f"the planner at {base_url} has a certificate that is not trusted ({why});"
            " set FLYBALL_CA_FILE to the file of the CA that made it"
        )
    for family in type(error).__mro__:
        if family in CAUSES:
            kind = PlannerCutOffError if isinstance(error, _CUT_OFF) else PlannerUnavailableError
            return kind(f"the planner at {base_url} {CAUSES[family]}")
    raise AssertionError(f"{type(error).__name__} is not an error of httpx")


def _distrust(error: BaseException) -> str | None:
    """Why TLS did not trust the other side, if that is the cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        cause = cause.__cause__ or cause.__context__
    return None


def error_from_response(base_url: str, response: httpx.Response) -> PlannerError:
    """The client's error for any answer that is not a success."""
    status = response.status_code
    if 400 <= status < 500:
        return PlannerRefusedError(
            f"the planner at {base_url} refused ({status}): {_detail(response)}", status=status
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
            " give the address it really has"
        )
    return PlannerUnavailableError(f"the planner at {base_url} answered with status {status}")


def parse_json(base_url: str, response: httpx.Response) -> object:
    """The JSON of an answer.

    Raises:
        PlannerUnavailableError: it is not JSON, or has NaN or Infinity in it.
    """
    try:
        return strict_json(response.content)
    except (ValueError, RecursionError):
        raise nonsense(base_url, "its body is not JSON") from None


def nonsense(base_url: str, why: str) -> PlannerUnavailableError:
    """The error for an answer that no planner would give."""
    return PlannerUnavailableError(
        f"what answers at {base_url} does not talk like a planner ({why}); check the address"
    )


def strict_json(body: bytes) -> object:
    """Parsed JSON; ValueError for what the standard does not allow, such as NaN."""
    return cast("object", json.loads(body, parse_constant=_refuse_constant))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _retry_after_s(response: httpx.Response) -> float | None:
    """Return what the header says, in s; None where it says nothing, or a date."""
    text = response.headers.get("Retry-After", "")
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        return None
    return min(float(text), _LONGEST_RETRY_AFTER_S)


def _detail(response: httpx.Response) -> str:
    try:
        problem = decode(Problem, strict_json(response.content))
    except (ValueError, RecursionError, CodecError):
        return response.reason_phrase or "no reason given"
    text = problem.detail
    if len(problem.errors) > 1:  # a single one is in the detail already
        fields = (f"{e.get('loc', '')}: {e.get('msg', '')}" for e in problem.errors)
        text = "; ".join((text, *fields))
    return " ".join(text.split())[:_MAX_DETAIL_CHARS]


# A list of jobs with thousands of ranks each has some tens of MiB.
MAX_ANSWER_BYTES = 256 * 2**20
# httpx's timeout is for each piece: one byte a second would never end.
MAX_ANSWER_S = 60.0


class EndlessAnswerError(Exception):
    """An answer is larger, or comes more slowly, than any planner's; its text says which."""


def whole_answer(
    response: httpx.Response,
    *,
    max_bytes: int = MAX_ANSWER_BYTES,
    max_s: float = MAX_ANSWER_S,
    now_s: Callable[[], float] = time.monotonic,
) -> httpx.Response:
    """The answer with its body, decompressed; closes the one that is read from.

    Args:
        response: of which nothing but the head has been read.
        max_bytes: of the body after decompression.
        max_s: from now to the body's end, s.
        now_s: a clock that only goes forward, s.

    Raises:
        EndlessAnswerError: it is beyond a limit.
        httpx.RequestError: it breaks off, or cannot be decompressed.
    """
    body = bytearray()
    deadline_s = now_s() + max_s
    try:
        for piece in response.iter_bytes():
            body += piece
            if len(body) > max_bytes:
                raise EndlessAnswerError(f"its body is larger than {max_bytes} bytes")
            if now_s() > deadline_s:
                raise EndlessAnswerError(f"its body has not come to an end within {max_s:g} s")
    finally:
        response.close()
    # Its length and encoding were those of what came; the body is now what it stands for.
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
    """Number of repetitions of a call, and the pause before each, which doubles.

    Attributes:
        num_attempts: calls in all, at least 1.
        first_pause_s: s, not negative.
    """

    num_attempts: int = 3
    first_pause_s: float = 0.1

    def __post_init__(self) -> None:
        if self.num_attempts < 1:
            raise ValueError(f"num_attempts must be at least 1, not {self.num_attempts}")
        if not self.first_pause_s >= 0:
            raise ValueError(f"first_pause_s must not be negative, as {self.first_pause_s} is")


class PlannerConnection:
    """HTTP connection to one planner; safe to use from several threads at once.

    Redirects are not followed and proxies of the environment are not used: a planner stands
    close to its ranks, and its token is for nobody else. The token appears in no error text.

    Args:
        base_url: where the planner is, `http://127.0.0.1:7787`.
        token: sent with every call, if the planner asks for one.
        timeout_s: for connecting, sending and receiving each, s; long polls add their wait.
        transport: what carries the requests instead of the network, for tests.
        ca_file: PEM file of the CAs that an `https://` planner's certificate may come from;
            None: the file that `FLYBALL_CA_FILE` names, else the system's CAs.
        retries: repetition of calls that fail to arrive.
        sleep: pauses between attempts, s.

    Every method raises PlannerUnavailableError when the planner is away, fails, or answers
    nonsense, and PlannerRefusedError when it says no.
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
    ) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, not {timeout_s}")
        self._base_url = printable_url(base_url)
        self._timeout_s = timeout_s
        self._retries = Retries() if retries is None else retries
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=base_url,
            headers=_token_headers(token),
            timeout=timeout_s,
            follow_redirects=False,
            trust_env=False,
            transport=transport,
            verify=trusted_context(base_url, ca_file),
        )
        if token is not None and transport is None:
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
        """Return where the planner is, without any user name or password."""
        return self._base_url

    def close(self) -> None:
        """Give up the connections; any number of times."""
        self._http.close()

    # ------------------------------------------------------------------ how a call is made

    def one(
        self,
        target: type[T],
        method: str,
        path: str,
        *,
        body: object = None,
        wait_s: float | None = None,
    ) -> T:
        """A call that is answered by one object of a wire type."""
        json = None if body is None else encode(body)
        return self.decoded(target, self.send(method, path, json=json, wait_s=wait_s))

    def many(
        self,
        target: type[T],
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        wait_s: float | None = None,
    ) -> tuple[T, ...]:
        """A call that is answered by a list of them."""
        data = parse_json(self._base_url, self.send(method, path, query=query, wait_s=wait_s))
        try:
            return decode_list(target, data)
        except CodecError as error:
            raise nonsense(self._base_url, str(error)) from None

    def decoded(self, target: type[T], response: httpx.Response) -> T:
        """The object that an answer holds."""
        try:
            return decode(target, parse_json(self._base_url, response))
        except CodecError as error:
            raise nonsense(self._base_url, str(error)) from None

    def send(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
        wait_s: float | None = None,
    ) -> httpx.Response:
        """Make the call, again where that may help; `wait_s`: how long the planner may take, s."""
        if self._http.is_closed:
            raise PlannerUnavailableError("this connection to the planner is closed; make another")
        timeout = self._timeout(wait_s)
        request = self._http.build_request(
            method, path, json=json, content=content, headers=headers, params=query, timeout=timeout
        )
        for pause_s in self._pauses_s():
            failure, is_passing = self._attempt(request)
            if isinstance(failure, httpx.Response):
                return failure
            if not is_passing or pause_s is None:
                raise failure
            self._sleep(pause_s)
        raise AssertionError("the last pause is None")

    def _attempt(self, request: httpx.Request) -> tuple[httpx.Response | PlannerError, bool]:
        """Return what came back, and where it is a failure whether it may pass by itself."""
        try:
            response = whole_answer(self._http.send(request, stream=True))
        except EndlessAnswerError as error:
            return nonsense(self._base_url, str(error)), False
        except (httpx.RequestError, httpx.InvalidURL) as error:
            is_passing = isinstance(error, CONNECTION_ERRORS)
            return error_from_exception(self._base_url, error), is_passing
        if response.status_code in {200, 201, 204}:
            return response, False
        failure = error_from_response(self._base_url, response)
        is_busy = isinstance(failure, PlannerBusyError)  # it says itself when to come again
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
    # httpx would put an unsendable value into its own error text.
    if re.fullmatch("[!-~]*", token) is None:
        raise ValueError("the planner's token must be printable ASCII text without spaces")
    return {TOKEN_HEADER: token}


def printable_url(base_url: str) -> str:
    """A planner's address without any user name or password.

    Raises:
        ValueError: it is no address that a planner could have.
    """
    wanted = "the planner's address must be like http://HOST:PORT"
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        raise ValueError(wanted) from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(wanted)
    return str(url.copy_with(username=None, password=None)).rstrip("/")
