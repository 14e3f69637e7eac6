"""A shell in a folder like a fresh clone, in which the commands of a page are run."""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.documentation.blocks import ROOT
from tests.documentation.in_process import PlainCommand, plain_command, run_plain
from tests.planner.forked_command import ForkedCommand

from flyball_profiles.examples import example_profile_path

PATIENCE_S = 150.0
_ENDS_WITHIN_S = 30.0
_POLL_S = 0.05
LINKED = ("benchmarks", "client", "deploy", "docs", "examples", "integrations", "profiles")
# Built into the wheel where a page installs Flyball.
_BUILT = ("client", "integrations", "profiles", "server", "LICENSE", "README.md", "pyproject.toml")
_MAKES_VENV = "python3 -m venv .venv"
# Of pip: it builds and installs Flyball alone, with what this Python has.
_PIP = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
# Hosts of the pages; here all of them are this machine, and the port is a free one.
_ADDRESS = re.compile(r"\b(?:127\.0\.0\.1|localhost|planner|node-1):7787\b")
# Imports torch once for all its ranks; a page that installs Flyball has the real one.
_TORCHRUN_COMMAND = re.compile(r"\btorchrun\b")
_FORKING_TORCHRUN = f"PYTHONPATH={ROOT} python -m tests.integration.forking_torchrun"
# Figures of a comparison vary from run to run, so that fewer pairs show as much.
_PAIRS = re.compile(r"--compare \d+")
_FEW_PAIRS = "--compare 4"
_LISTENING = re.compile(r"listening on https?://127\.0\.0\.1:(\d+)")
# torchrun's place to meet is a free port, as several runs may train on this machine.
_TORCHRUN = {
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "127.0.0.1:0",
    "PET_LOCAL_ADDR": "127.0.0.1",
    "OMP_NUM_THREADS": "1",
}


class CommandError(AssertionError):
    """A command took too long, or what it started has ended early; the text says which."""


@dataclass
class Background:
    """A command in a terminal of its own."""

    command: str
    process: subprocess.Popen[bytes]
    output: Path

    def printed(self) -> str:
        """So far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        """End it and all that it started."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is not None:
                break
            os.killpg(self.process.pid, sent)
            try:
                self.process.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                continue
        self.process.wait(_ENDS_WITHIN_S)


class ForkedPlanner:
    """`flyball serve`, forked from a process that has imported the planner already."""

    def __init__(
        self, command: str, plain: PlainCommand, *, folder: str, variables: Mapping[str, str]
    ) -> None:
        self.command = command
        self.process = ForkedCommand(plain.arguments, {**variables, **plain.variables}, folder)
        os.set_blocking(self.process.stdout.fileno(), False)
        self._said = ""

    def printed(self) -> str:
        """So far."""
        with suppress(BlockingIOError):
            self._said += os.read(self.process.stdout.fileno(), 2**16).decode()
        return self._said + os.pread(self.process.stderr.fileno(), 2**20, 0).decode()

    def end(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(_ENDS_WITHIN_S)


Beside = Background | ForkedPlanner


@dataclass
class Terminal:
    """One shell that lasts for a page, and the commands beside it.

    Attributes:
        folder: like a clone of the repository, for a user who has run nothing yet.
        port: of the planner that the page's addresses mean; None: there is none yet.
        names: what stands in the place of names on the page that were made anew.
        is_bare: the installation is found only after `. .venv/bin/activate`.
        installs: the page installs Flyball; before that there is only the clone.
        number: of several in one folder.
    """

    folder: Path
    home: Path
    port: int | None = None
    names: dict[str, str] = field(default_factory=dict[str, str])
    is_bare: bool = False
    installs: bool = False
    number: str = "1"

    def __post_init__(self) -> None:
        self._count = 0
        self._beside: list[Beside] = []
        if not self.folder.exists():
            self._furnish()
        reading, writing = os.pipe()
        self._statuses = reading
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=self.folder,
            env=_environment(self.home, is_bare=self.is_bare, installs=self.installs),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(writing,),
            start_new_session=True,
        )
        os.close(writing)
        self._writing = writing

    def _furnish(self) -> None:
        self.folder.mkdir()
        self.home.mkdir()
        built = _BUILT if self.installs else ()
        for name in LINKED:
            if name not in built:
                (self.folder / name).symlink_to(ROOT / name)
        for name in built:
            _copy(ROOT / name, self.folder / name)
        if not self.installs:
            (self.folder / ".venv").symlink_to(sys.prefix)
        shutil.copy(example_profile_path(), self.folder / "example.csv")
        # An answer of 400 and above is a failure; no meter of the progress.
        (self.home / ".curlrc").write_text("silent\nfail-with-body\n")

    def close(self) -> None:
        """End the shell and all that was started in it."""
        for background in reversed(self._beside):
            background.end()
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        os.close(self._statuses)
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGTERM)
        self._shell.wait(_ENDS_WITHIN_S)

    def run(self, command: str) -> tuple[int, str]:
        """Run it to its end: its exit status, and what it printed, as the page would show it.

        Raises:
            CommandError: it takes too long.
        """
        plain = None if self.installs else plain_command(self.as_here(command))
        if plain is not None:
            folder, variables = self._folder_and_environment()
            if shutil.which("flyball", path=variables["PATH"]) is None:
                return 127, "flyball: command not found"
            status, said = run_plain(plain, folder=folder, variables=variables)
            return status, self.as_on_the_page(said)
        script, output = self._files(command)
        streams = f">{shlex.quote(str(output))} 2>&1 </dev/null"
        self._send(f". {shlex.quote(str(script))} {streams}; printf '%s\\n' $? >&{self._writing}")
        ready, _, _ = select.select([self._statuses], [], [], PATIENCE_S)
        printed = output.read_text(encoding="utf-8", errors="replace")
        if not ready:
            raise CommandError(f"took more than {PATIENCE_S:g} s:\n{command}\n{printed}")
        told = os.read(self._statuses, 16)
        if not told:
            raise CommandError(f"ended the shell:\n{command}\n{printed}")
        if self.installs and command.startswith(_MAKES_VENV):
            _lend_packages(self.folder / ".venv")
        return int(told), self.as_on_the_page(printed)

    def start(self, command: str) -> Background:
        """Start it in a terminal of its own, in this one's folder and with its variables."""
        folder, environment = self._folder_and_environment()
        script, output = self._files(command)
        with output.open("wb") as stream:
            process = subprocess.Popen(
                ["bash", "--noprofile", "--norc", script],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        background = Background(command, process, output)
        self._beside.append(background)
        return background

    def start_planner(self, command: str) -> Beside:
        """Start `flyball serve`, and go on once it listens; one before it has ended by then."""
        for earlier in [one for one in self._beside if "flyball serve" in one.command]:
            earlier.end()
            self._beside.remove(earlier)
        background = self._started_planner(command)
        wait_for(background, lambda: _LISTENING.search(background.printed()) is not None)
        found = _LISTENING.search(background.printed())
        assert found is not None
        self.port = int(found.group(1))
        return background

    def _started_planner(self, command: str) -> Beside:
        plain = None if self.installs else plain_command(self.as_here(command))
        folder, variables = self._folder_and_environment()
        if plain is None or shutil.which("flyball", path=variables["PATH"]) is None:
            return self.start(command)
        planner = ForkedPlanner(command, plain, folder=folder, variables=variables)
        self._beside.append(planner)
        return planner

    def failed_beside(self) -> list[str]:
        """Return the output of commands in terminals of their own that have ended with an error."""
        return [
            f"{one.command}\n{one.printed()}"
            for one in self._beside
            if one.process.poll() not in {None, 0}
        ]

    def variables(self) -> dict[str, str]:
        """Of the environment, as the page's commands have set it so far."""
        return self._folder_and_environment()[1]

    def as_on_the_page(self, text: str) -> str:
        """With the page's port in the place of the one that was free."""
        return text if self.port is None else text.replace(f":{self.port}", ":7787")

    def as_here(self, command: str) -> str:
        """With this machine's addresses, the names made here, and few pairs of steps."""
        command = _PAIRS.sub(_FEW_PAIRS, command)
        if not self.installs:
            command = _TORCHRUN_COMMAND.sub(_FORKING_TORCHRUN, command)
        if self.port is not None:
            command = _ADDRESS.sub(f"127.0.0.1:{self.port}", command)
        for on_the_page, here in self.names.items():
            command = command.replace(on_the_page, here)
        return command.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - so that nobody else gets in

    def _files(self, command: str) -> tuple[Path, Path]:
        self._count += 1
        script = self.home / f"command-{self.number}-{self._count}.sh"
        script.write_text(f"{self.as_here(command)}\n", encoding="utf-8")
        return script, script.with_suffix(".out")

    def _folder_and_environment(self) -> tuple[str, dict[str, str]]:
        place = self.home / f"environment-{self.number}"
        self._send(
            f"{{ pwd; env -0; }} >{shlex.quote(str(place))}; printf '0\\n' >&{self._writing}"
        )
        os.read(self._statuses, 16)
        folder, _, variables = place.read_text(encoding="utf-8").partition("\n")
        pairs = (one.partition("=") for one in variables.split("\0") if one)
        return folder, {name: value for name, _, value in pairs}

    def _send(self, line: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{line}\n".encode())
        self._shell.stdin.flush()


def wait_for(background: Beside, is_so: Callable[[], bool]) -> None:
    """Wait until what runs beside has come so far.

    Raises:
        CommandError: it has ended before, or takes too long.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        if background.process.poll() is not None and not is_so():
            raise CommandError(f"has ended:\n{background.command}\n{background.printed()}")
        if time.monotonic() > deadline_s:
            raise CommandError(
                f"did not come so far:\n{background.command}\n{background.printed()}"
            )
        time.sleep(_POLL_S)


def search_path(environ: Mapping[str, str]) -> str:
    """Return where a page's programs are looked for: those of this Python's environment first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', '')}"


def _path_without(folder: Path) -> str:
    """Return PATH without this folder, under whatever name."""
    found = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(each for each in found if Path(each).resolve() != folder.resolve())


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _lend_packages(environment: Path) -> None:
    """Let a new environment find the packages of this Python behind its own, and torchrun."""
    folder = sysconfig.get_path("purelib", vars={"base": str(environment)})
    lent = sysconfig.get_path("purelib")
    Path(folder, "lent.pth").write_text(f"{lent}\n", encoding="utf-8")
    torchrun = environment / "bin" / "torchrun"
    python = environment.absolute() / "bin" / "python"
    torchrun.write_text(f"#!{python}\nfrom torch.distributed.run import main\n\nmain()\n")
    torchrun.chmod(0o755)


def _environment(home: Path, *, is_bare: bool, installs: bool) -> dict[str, str]:
    """Of a user who has set nothing of Flyball's.

    A planner without a port takes a free one, and plans without processes of its own.
    """
    installed = Path(sys.executable).parent
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FLYBALL_", "PYTEST_", "XDG_", "PET_"))
    }
    path = _path_without(installed) if is_bare else search_path(kept)
    if installs:
        kept.pop("PYTHONPATH", None)
        kept |= _PIP
        path = f"{Path(sys.base_prefix, 'bin')}{os.pathsep}{path}"
    return (
        kept
        | _TORCHRUN
        | {
            "HOME": str(home),
            "PATH": path,
            "XDG_RUNTIME_DIR": str(home),
            "FLYBALL_PORT": "0",
            "FLYBALL_PLANNING_PROCESSES": "0",
            "NO_PROXY": "127.0.0.1,localhost",
            "LC_ALL": "C.UTF-8",
            # As wide as what the pages show, whatever runs the tests.
            "COLUMNS": "120",
        }
    )
