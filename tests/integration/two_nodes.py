"""Two "nodes" on this machine: a network namespace each, joined by a cable, or else loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.planner.ports import free_port

_TIMEOUT_S = 60.0
_PORT_IN_NAMESPACE = 29517
# Becomes the command, so that what watches the process watches the command.
_EXEC = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
_NAMED = 'hostname "$0" && exec "$@"'


@dataclass(frozen=True, kw_only=True)
class Node:
    """One of the two.

    Attributes:
        name: what programs there take for the host's name; None: this machine's own.
        namespace: its network's name; None: it is on loopback.
        address: where the other reaches it.
        interface: of that address.
    """

    name: str | None
    namespace: str | None
    address: str
    interface: str

    def arguments(self, python: str, *arguments: str) -> list[str]:
        """Return the arguments for a Python here that starts one there with these arguments."""
        if self.namespace is None or self.name is None:
            return list(arguments)
        there = ("ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", _NAMED)
        return ["-c", _EXEC, *there, self.name, python, *arguments]


@dataclass(frozen=True, kw_only=True)
class TwoNodes:
    """Both nodes, and what is free on the first.

    Attributes:
        described: for people.
        rendezvous_port, planner_port: TCP ports.
    """

    nodes: tuple[Node, Node]
    described: str
    rendezvous_port: int
    planner_port: int


@contextmanager
def two_nodes() -> Iterator[TwoNodes]:
    """In network namespaces where this process may make them; they go with the block."""
    with ExitStack() as made:
        names = tuple(f"flyball-{os.getpid()}-{number}" for number in range(2))
        if not _has_namespaces() or not all(_made(name, made) for name in names):
            made.close()
            yield _on_loopback()
            return
        _join(names)
        nodes = tuple(
            Node(
                name=f"node-{number}",
                namespace=name,
                address=f"10.213.7.{number + 1}",
                interface=f"node{number}",
            )
            for number, name in enumerate(names)
        )
        yield TwoNodes(
            nodes=(nodes[0], nodes[1]),
            described="two network namespaces, joined by a veth pair",
            rendezvous_port=_PORT_IN_NAMESPACE,
            planner_port=_PORT_IN_NAMESPACE + 1,
        )


def _has_namespaces() -> bool:
    return os.geteuid() == 0 and all(shutil.which(name) for name in ("ip", "unshare", "hostname"))


def _made(name: str, made: ExitStack) -> bool:
    if _ip("netns", "add", name) != 0:
        return False
    made.callback(_ip, "netns", "del", name)
    return _ip("netns", "exec", name, "unshare", "--uts", "true") == 0


def _join(names: Sequence[str]) -> None:
    """A cable from one namespace to the other; nothing of it is outside of them."""
    first, second = names
    ends = ("node0", "type", "veth", "peer", "name", "node1", "netns", second)
    commands: list[tuple[str, ...]] = [("-n", first, "link", "add", *ends)]
    for number, name in enumerate(names):
        address = f"10.213.7.{number + 1}/30"
        commands.append(("-n", name, "address", "add", address, "dev", f"node{number}"))
        commands += [("-n", name, "link", "set", end, "up") for end in ("lo", f"node{number}")]
    for command in commands:
        assert _ip(*command) == 0, f"ip {' '.join(command)} failed"


def _on_loopback() -> TwoNodes:
    node = Node(name=None, namespace=None, address="127.0.0.1", interface="lo")
    return TwoNodes(
        nodes=(node, node),
        described="loopback (network namespaces need root and iproute2)",
        rendezvous_port=free_port(),
        planner_port=free_port(),
    )


def _ip(*arguments: str) -> int:
    run = subprocess.run(["ip", *arguments], check=False, capture_output=True, timeout=_TIMEOUT_S)
    return run.returncode
