"""Where zeusd is and what it is told, as an operator writes them: checked without reaching it."""

from __future__ import annotations

import re

DEFAULT_PORT = 4938

_MAX_TEXT_LENGTH = 200
_LABEL = r"[A-Za-z0-9_-]{1,63}"
_HOST_AND_PORT = re.compile(rf"(\[[0-9A-Fa-f:.]+\]|{_LABEL}(?:\.{_LABEL})*)(?::([0-9]{{1,5}}))?")


def check_endpoint(endpoint: str) -> None:
    """Whether it is the path of a socket, or `HOST:PORT`.

    Raises:
        ValueError: it is neither.
    """
    parse_endpoint(endpoint)


def check_token(token: str) -> None:
    """Whether it can be sent.

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
