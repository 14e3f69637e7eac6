"""A container engine of Docker's API: the machine's own, or Debian's, started for the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.debian_packages import find_or_install
from tests.planner.patience import PATIENCE_S, wait_until

# Of a build, which fetches packages, s.
_BUILD_S = 600.0


class EngineError(Exception):
    """A command of the engine failed; the text is what it said."""


@dataclass(frozen=True)
class Engine:
    """Commands of one engine.

    Attributes:
        host: address of its API; None: the command's own default.
    """

    host: str | None = None
    program: str = "docker"

    def __call__(self, *arguments: str, timeout_s: float = PATIENCE_S) -> str:
        """Run a command; return what it prints.

        Raises:
            EngineError: it failed.
        """
        # Buildx, which BuildKit needs from this client on, is no part of Debian's docker.io.
        environment = os.environ | {"DOCKER_BUILDKIT": "0"}
        if self.host is not None:
            environment["DOCKER_HOST"] = self.host
        done = subprocess.run(
            (self.program, *arguments),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env=environment,
        )
        if done.returncode:
            raise EngineError(f"{' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        # What a container has written on stderr is as much its log.
        return (done.stdout + done.stderr * (arguments[0] == "logs")).strip()

    def logs(self, container: str) -> str:
        """Return what a container has written."""
        return self("logs", container)

    def has_image(self, name: str) -> bool:
        """Return whether it has an image of this name."""
        return bool(self("images", "--quiet", name))

    def build(self, folder: Path, name: str, *options: str) -> None:
        """Build the image of a folder."""
        self("build", *options, "--tag", name, str(folder), timeout_s=_BUILD_S)

    def run(self, image: str, *command: str, options: tuple[str, ...] = ()) -> str:
        """Run a command in a container of its own; return what it prints."""
        return self("run", "--rm", *options, image, *command)

    @contextmanager
    def started(self, image: str, *command: str, options: tuple[str, ...] = ()) -> Iterator[str]:
        """A container that runs beside the test; its ID. It is removed with the block."""
        container = self("run", "--detach", *options, image, *command)
        try:
            yield container
        finally:
            self("rm", "--force", "--volumes", container)

    def health(self, container: str) -> str:
        """Return what the container's health check says: `starting`, `healthy`, `unhealthy`."""
        return self("inspect", "--format", "{{.State.Health.Status}}", container)


def running_engine() -> Engine | None:
    """Return the engine that runs on this machine; None: there is none."""
    for program in ("docker", "podman"):
        if shutil.which(program) is not None:
            engine = Engine(program=program)
            try:
                engine("info")
            except EngineError:
                continue
            return engine
    return None


@contextmanager
def installed_engine(folder: Path) -> Iterator[Engine]:
    """Debian's engine, with all that it keeps in this folder; it is ended with the block.

    It changes no firewall, and makes no bridge that containers would have by default.

    Raises:
        MissingProgramError: it is not here, and cannot be installed.
    """
    dockerd = find_or_install(lambda: shutil.which("dockerd"), "dockerd", "docker.io")
    socket = f"unix://{folder}/socket"
    options: tuple[str, ...] = (
        "--iptables=false",
        "--ip6tables=false",
        "--bridge=none",
        "--host",
        socket,
    )
    for name in ("data-root", "exec-root", "pidfile"):
        options += (f"--{name}", str(folder / name))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen((dockerd, *options), stdout=log, stderr=log)
    engine = Engine(socket)

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        try:
            return bool(engine("info"))
        except EngineError:
            return False

    try:
        wait_until(answers)
        yield engine
    finally:
        process.terminate()  # and its containerd with it
        process.wait(PATIENCE_S)
        # Of containers on the host's network; it would keep the folder from being removed.
        subprocess.run(("umount", folder / "exec-root/netns/default"), check=False)
        shutil.rmtree(folder / "data-root", ignore_errors=True)
