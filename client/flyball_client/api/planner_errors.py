"""How every failure of an HTTP call to the planner becomes one of the client's errors."""

from __future__ import annotations

import json
import ssl
from typing import NoReturn, cast

import httpx

from flyball_client.api.errors import (
    PlannerBusyError,
    PlannerCutOffError,
    PlannerDistrustedError,
    PlannerError,
    PlannerRefusedError,
    PlannerUnavailableError,
)
from flyball_wire.codec import decode
from flyball_wire.errors import CodecError
from flyball_wire.messages import Problem

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
