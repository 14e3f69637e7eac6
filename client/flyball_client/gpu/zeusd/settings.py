"""Environment variables of zeusd."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_PORT = 4938
DEFAULT_SOCKET = Path("/run/zeusd/zeusd.sock")

_MAX_TEXT_LENGTH = 200
_LABEL = r"[A-Za-z0-9_-]{1,63}"
_HOST_AND_PORT = re.compile(rf"(\[[0-9A-Fa-f:.]+\]|{_LABEL}(?:\.{_LABEL})*)(?::([0-9]{{1,5}}))?")


def check_token(token: str) -> None:
    """Raise ValueError, whose text does not contain the token, unless it can be sent."""
    if not (token.isascii() and token.isprintable() and token.strip()):
        raise ValueError("zeusd's token must be printable ASCII")


def parse_endpoint(endpoint: str) -> tuple[str, int] | None:
    """Return host and port; None: the endpoint is the path of a Unix socket.

    Raises:
        ValueError: It is neither.
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


@dataclass(frozen=True, kw_only=True)
class ZeusdSettings:
    """Address of zeusd, read from environment variables.

    Attributes:
        endpoint: Path of zeusd's Unix socket (`ZEUSD_SOCK_PATH`), else TCP address of zeusd,
            `HOST:PORT` (`ZEUSD_HOST_PORT`); None: not set, or not used.
        token: Token for zeusd (`ZEUSD_TOKEN`).
    """

    endpoint: str | None
    token: str | None = field(repr=False)

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> ZeusdSettings:
        """Read the settings; an empty variable counts as not set.

        Raises:
            ValueError: A variable cannot be used; the text names it.
        """
        return cls(token=_token(environ), endpoint=_endpoint(environ))


def socket_exists(socket: Path) -> bool:
    """Return whether zeusd's socket exists; False in a folder that cannot be read."""
    try:
        return socket.exists()
    except OSError:
        return False


def _token(environ: Mapping[str, str]) -> str | None:
    token = environ.get("ZEUSD_TOKEN") or None
    if token is not None:
        _check("ZEUSD_TOKEN", check_token, token)
    return token


def _endpoint(environ: Mapping[str, str]) -> str | None:
    """Return the address of zeusd; as in Zeus, the socket takes precedence."""
    socket_path = environ.get("ZEUSD_SOCK_PATH")
    if socket_path:
        # Absolute, for processes with another working folder.
        endpoint = str(Path(socket_path).absolute())
        _check("ZEUSD_SOCK_PATH", parse_endpoint, endpoint)
        return endpoint
    host_port = environ.get("ZEUSD_HOST_PORT")
    if not host_port:
        return None
    if "/" in host_port:
        raise ValueError(f"ZEUSD_HOST_PORT must be HOST:PORT, not {host_port!r}")
    _check("ZEUSD_HOST_PORT", parse_endpoint, host_port)
    return host_port


def _check(variable: str, check: Callable[[str], object], value: str) -> None:
    try:
        check(value)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None
