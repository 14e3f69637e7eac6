"""Hosts of the planner, against DNS rebinding: a foreign name that resolves to its address."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from starlette.types import Scope

# A name or IPv4 address, or an IPv6 literal; then a port.
_HOST = re.compile(
    r"(?P<name>[a-z0-9._-]+)(?::[0-9]{0,5})?|\[(?P<literal>[0-9a-f:.%]+)\](?::[0-9]{0,5})?",
    re.ASCII,
)
_LOOPBACK_NAME = "localhost"


class AllowedHosts:
    """Hosts to which calls without a token are answered.

    They are loopback's, the address that the call arrived at, and those of the settings. Ports,
    capital letters and a trailing dot make no difference.

    Args:
        names: names and addresses of the settings.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(map(_plain, names))

    def permit(self, scope: Scope) -> bool:
        """Return whether all `Host` headers of the call are allowed; browsers always send one."""
        return all(
            self._permit(value.decode("latin-1"), scope)
            for name, value in scope["headers"]
            if name == b"host"
        )

    def _permit(self, header: str, scope: Scope) -> bool:
        found = _HOST.fullmatch(header.strip().lower())
        if found is None:
            return False
        host = _plain(found["name"] or found["literal"])
        arrived_at = scope.get("server")
        return (
            host == _LOOPBACK_NAME
            or _is_loopback(host)
            or host in self._names
            or (arrived_at is not None and host == _plain(arrived_at[0]))
        )


def host_problem(host: str) -> str | None:
    """Return why this is no name or address of a host; None: it is one."""
    plain = _plain(host)
    if ":" in plain and not _is_address(plain):
        return "must be names or addresses without scheme and port, separated by commas"
    if ":" not in plain and (_HOST.fullmatch(plain) is None or plain.strip(".") == ""):
        return "must be names or addresses such as planner.example.org, separated by commas"
    return None


def _plain(host: str) -> str:
    """Return the form of a name or address that is compared."""
    name = host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
    if not _is_address(name):
        return name
    address = ipaddress.ip_address(name)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(plain: str) -> bool:
    return _is_address(plain) and ipaddress.ip_address(plain).is_loopback
