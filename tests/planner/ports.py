"""Ports for servers that are told where to listen."""

from __future__ import annotations

import random
import socket

# Below those that a system gives to connections by itself (Linux: 32768 and above): one that was
# free a moment ago may be the end of another test's connection by the time that a server asks.
_PORTS = range(10_000, 20_000)


def free_port() -> int:
    """A TCP port of 127.0.0.1 where nobody listens."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")
