"""docker-compose.yml's services on an engine without compose: with the same options."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.containers.bases import provide
from tests.containers.engine import Engine, EngineError
from tests.deploy.compose import ROOT, SECRETS, read_compose
from tests.planner.patience import wait_until

_INTERVALS = {
    "interval": "--health-interval",
    "timeout": "--health-timeout",
    "start_period": "--health-start-period",
}
_SECRETS_AT = "/run/secrets"


@dataclass(kw_only=True)
class Composed:
    """Running services.

    Attributes:
        prefix: what the names of containers, networks and volumes begin with.
        folder: for files of secrets and certificates.
        values: what the file asks for, by name.
        ports: PORT of a container -> port on loopback.
    """

    engine: Engine
    prefix: str
    folder: Path
    values: Mapping[str, str]
    ports: Mapping[int, int]
    _opened: ExitStack = field(default_factory=ExitStack)

    def name(self, service: str) -> str:
        """Return the name of a service's container."""
        return f"{self.prefix}-{service}"

    def start(self, services: Mapping[str, Any], networks: Mapping[str, Any]) -> None:
        """Start services, each when those that it depends on are healthy."""
        for network in networks:
            internal = ["--internal"] if (networks[network] or {}).get("internal") else []
            self.engine("network", "create", *internal, f"{self.prefix}-{network}")
            self._opened.callback(self.engine, "network", "rm", f"{self.prefix}-{network}")
        for service in _in_order(services):
            self._start(service, services[service])

    def close(self) -> None:
        """Remove everything, volumes too."""
        self._opened.close()

    def _start(self, name: str, service: Mapping[str, Any]) -> None:
        for other in service.get("depends_on", {}):
            self._await_health(self.name(other))
        first, *others = service["networks"]
        alias = ("--network-alias", name)
        network = ("--network", f"{self.prefix}-{first}", *alias)
        options = (*network, *self._options(name, service))
        provide(self.engine, service["image"])
        self.engine("create", "--name", self.name(name), *options, service["image"])
        self._opened.callback(self.engine, "rm", "--force", "--volumes", self.name(name))
        for other in others:
            to = (f"{self.prefix}-{other}", self.name(name))
            self.engine("network", "connect", "--alias", name, *to)
        self.engine("start", self.name(name))

    def _await_health(self, container: str) -> None:
        wait_until(lambda: self.engine.health(container) == "healthy")

    def _options(self, name: str, service: Mapping[str, Any]) -> Iterator[str]:
        for variable, value in service.get("environment", {}).items():
            yield from ("--env", f"{variable}={value}")
        for volume in service.get("volumes", ()):
            yield from ("--volume", self._volume(volume))
        for secret in service.get("secrets", ()):
            yield from ("--volume", f"{self._secret(secret)}:{_SECRETS_AT}/{secret}:ro")
        for option in ("tmpfs", "cap_drop", "cap_add", "security_opt"):
            for value in service.get(option, ()):
                yield from (f"--{option.replace('_', '-')}", str(value))
        for flag in ("read_only", "init"):
            if service.get(flag):
                yield f"--{flag.replace('_', '-')}"
        if "shm_size" in service:
            yield from ("--shm-size", service["shm_size"])
        for published in service.get("ports", ()):
            port = int(published.rpartition(":")[2])
            yield from ("--publish", f"127.0.0.1:{self.ports[port]}:{port}")
        yield from _health(service.get("healthcheck"))
        yield from _limits(service["deploy"]["resources"]["limits"])
        yield from ("--restart", service["restart"])
        assert not set(service) - _UNDERSTOOD, f"{name} has options that nothing here passes on"

    def _volume(self, volume: str) -> str:
        source, at, *mode = volume.split(":")
        if not source.startswith(("/", ".")):
            named = f"{self.prefix}-{source}"
            self._opened.callback(self.engine, "volume", "rm", "--force", named)
            return ":".join((named, at, *mode))
        return ":".join((str((ROOT / source).resolve()), at, *mode))

    def _secret(self, name: str) -> Path:
        variable = read_compose()["secrets"][name]["environment"]
        file = self.folder / name
        file.write_text(self.values[variable], encoding="utf-8")
        return file


_UNDERSTOOD = {
    *("image", "build", "environment", "volumes", "secrets", "tmpfs", "cap_drop", "cap_add"),
    *("security_opt", "read_only", "init", "shm_size", "ports", "healthcheck", "deploy"),
    *("restart", "depends_on", "networks", "stop_grace_period"),
}


def _in_order(services: Mapping[str, Any]) -> Sequence[str]:
    """Return the services, each behind those that it depends on."""
    ordered: list[str] = []
    while len(ordered) < len(services):
        ordered += [
            name
            for name, service in services.items()
            if name not in ordered and set(service.get("depends_on", {})) <= {*ordered}
        ]
    return ordered


def _health(check: Mapping[str, Any] | None) -> Iterator[str]:
    if check is None:
        return
    yield from ("--health-cmd", shlex.join(check["test"][1:]))
    yield from ("--health-retries", str(check["retries"]))
    for key, option in _INTERVALS.items():
        yield from (option, check[key])


def _limits(limits: Mapping[str, Any]) -> Iterator[str]:
    # An engine refuses more cores than there are.
    yield from ("--cpus", str(min(float(limits["cpus"]), os.cpu_count() or 1)))
    yield from ("--memory", limits["memory"])
    if "pids" in limits:
        yield from ("--pids-limit", str(limits["pids"]))


@contextmanager
def composed(
    engine: Engine, *services: str, folder: Path, ports: Mapping[int, int], **values: str
) -> Iterator[Composed]:
    """Those services of docker-compose.yml, with these values for what it asks for."""
    given = SECRETS | values
    document = read_compose(given)
    chosen = {name: document["services"][name] for name in services}
    running = Composed(engine=engine, prefix=folder.name, folder=folder, values=given, ports=ports)
    try:
        running.start(chosen, document["networks"])
        yield running
    except BaseException:
        for name in chosen:
            with suppress(EngineError):
                print(f"{name}: {engine.logs(running.name(name))[-4000:]}")
        raise
    finally:
        running.close()
