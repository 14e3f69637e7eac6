"""Environment variables about clocks: who sets them, and what they are restored to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flyball_client.gpu._base import SmClockRange

DEFAULT_PORT = 4938

_MAX_TEXT_LENGTH = 200
_LABEL = r"[A-Za-z0-9_-]{1,63}"
_HOST_AND_PORT = re.compile(rf"(\[[0-9A-Fa-f:.]+\]|{_LABEL}(?:\.{_LABEL})*)(?::([0-9]{{1,5}}))?")


def check_endpoint(endpoint: str) -> None:
    """Check that it is the path of a socket, or `HOST:PORT`.

    Raises:
        ValueError: it is neither.
    """
    parse_endpoint(endpoint)


def check_token(token: str) -> None:
    """Check that it can be sent.

    Raises:
        ValueError: it cannot; the text does not show it.
    """
    if not (token.isascii() and token.isprintable() and token.strip()):
        raise ValueError("zeusd's token must be printable ASCII")


def parse_endpoint(endpoint: str) -> tuple[str, int] | None:
    """Host and port; None: the path of a Unix socket.

    Raises:
        ValueError: it is neither.
    """
    if "/" in endpoint and endpoint.isprintable():
        return None
    found = _HOST_AND_PORT.fullmatch(endpoint)
    port = int(found[2] or DEFAULT_PORT) if found else 0
    if found is None or not 0 < port < 1 << 16:
        raise ValueError(
            "zeusd's address must be the path of a socket or HOST:PORT,"
            f" not {endpoint[:_MAX_TEXT_LENGTH]!r}"
        )
    return found[1].strip("[]"), port


_CONTROLS = ("auto", "nvml", "zeusd")


@dataclass(frozen=True, kw_only=True)
class ClockSettings:
    """The variables, read.

    Attributes:
        control: `FLYBALL_CLOCK_CONTROL`: `auto`, `nvml` or `zeusd`.
        endpoint: of zeusd, from `ZEUSD_SOCK_PATH` or `ZEUSD_HOST_PORT`; None: nothing is said,
            or it is not wanted.
        token: of zeusd, from `ZEUSD_TOKEN`.
        return_range: `FLYBALL_RETURN_CLOCKS_MHZ`; None: the driver's default.
    """

    control: str
    endpoint: str | None
    token: str | None = field(repr=False)
    return_range: SmClockRange | None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> ClockSettings:
        """The settings; a variable that is empty counts as not set.

        Raises:
            ValueError: a variable cannot be used; the text names it.
        """
        control = environ.get("FLYBALL_CLOCK_CONTROL") or "auto"
        if control not in _CONTROLS:
            raise ValueError(f"FLYBALL_CLOCK_CONTROL must be auto, nvml or zeusd, not {control!r}")
        return_range = _return_range(environ)
        if control == "nvml":
            return cls(control=control, endpoint=None, token=None, return_range=return_range)
        return cls(
            control=control,
            token=_token(environ),
            endpoint=_endpoint(environ),
            return_range=return_range,
        )


def _token(environ: Mapping[str, str]) -> str | None:
    token = environ.get("ZEUSD_TOKEN") or None
    if token is not None:
        _check("ZEUSD_TOKEN", check_token, token)
    return token


def _endpoint(environ: Mapping[str, str]) -> str | None:
    """Return where zeusd is, in the order that Zeus itself goes by: the socket first."""
    socket_path = environ.get("ZEUSD_SOCK_PATH")
    if socket_path:
        # Absolute, since another process may open it from another folder.
        endpoint = str(Path(socket_path).absolute())
        _check("ZEUSD_SOCK_PATH", check_endpoint, endpoint)
        return endpoint
    host_port = environ.get("ZEUSD_HOST_PORT")
    if not host_port:
        return None
    if "/" in host_port:
        raise ValueError(f"ZEUSD_HOST_PORT must be HOST:PORT, not {host_port!r}")
    _check("ZEUSD_HOST_PORT", check_endpoint, host_port)
    return host_port


def _check(variable: str, check: Callable[[str], None], value: str) -> None:
    try:
        check(value)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None


def _return_range(environ: Mapping[str, str]) -> SmClockRange | None:
    text = environ.get("FLYBALL_RETURN_CLOCKS_MHZ")
    if not text:
        return None
    lowest, _, highest = text.partition(":")
    try:
        return SmClockRange(lowest_mhz=int(lowest), highest_mhz=int(highest))
    except ValueError:
        raise ValueError(
            f"FLYBALL_RETURN_CLOCKS_MHZ must be LOWEST:HIGHEST in MHz, as 210:1410, not {text!r}"
        ) from None
