"""The servers under load as processes of their own: `flyball serve`, and Zeus's from PyPI."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from hooks_zeus import VERSION, run_installing, show_torch
from measured_process import BenchmarkError

_UP_WITHIN_S = 60.0
_END_WITHIN_S = 20.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Zeus's server needs pydantic 1, so it cannot be installed beside ours; torch, which it imports
# and does not use, is ours.
_ZEUS_ENVIRONMENT = Path(__file__).resolve().parent.parent / ".bench" / f"zeus-server-{VERSION}"
_ZEUS_REQUIREMENTS = (f"zeus[pfo]=={VERSION}", "fastapi", "uvicorn", "lowtime", "aiofiles")
_ZEUS_APP = "zeus.optimizer.pipeline_frequency.server.router:app"


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that listens."""

    process: subprocess.Popen[bytes]
    host: str
    port: int
    database: Path | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{self.host}:{self.port}"

    def cpu_s(self) -> float:
        """Processor time that it has used, its children's apart, s."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def database_bytes(self) -> int | None:
        """Return the size of its SQLite file with the log beside it; None: no such file."""
        if self.database is None:
            return None
        files = self.database.parent.glob(f"{self.database.name}*")
        return sum(file.stat().st_size for file in files)

    def memory_mib(self) -> float:
        """Return what it holds now, resident, MiB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise BenchmarkError("the server has ended")


@contextmanager
def flyball_server(database: str | None) -> Iterator[Server]:
    """`flyball serve` on this database; None: a SQLite file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        url = database or f"sqlite:///{folder}/planner.sqlite"
        port = _free_port()
        command = [sys.executable, "-m", "flyball_client", "serve", "--port", str(port)]
        kept = {name: text for name, text in os.environ.items() if name[:8] != "FLYBALL_"}
        environment = {**kept, "FLYBALL_DATABASE": url, "FLYBALL_LOG_LEVEL": "error"}
        with _running(command, environment, port, "/healthz", folder) as server:
            file = None if database else Path(folder) / "planner.sqlite"
            yield replace(server, database=file)


@contextmanager
def zeus_server() -> Iterator[Server]:
    """Zeus's server, as its documentation starts it; it writes no log and dumps no data."""
    python = _zeus_python()
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        # It asks for a plan's file at the start, and reads it once all ranks are there.
        solution = Path(folder) / "solution.py"
        solution.write_text("[]", encoding="utf-8")
        environment = {
            **os.environ,
            "ZEUS_PFO_LOG_LEVEL": "CRITICAL",
            "ZEUS_PFO_DUMP_DATA": "false",
            "ZEUS_PFO_SCHEDULER_ARGS": f'{{"solution_path": "{solution}"}}',
        }
        command = [python, "-W", "ignore", "-m", "uvicorn", _ZEUS_APP, "--port", str(port)]
        command += ["--log-level", "critical", "--no-access-log"]
        with _running(command, environment, port, "/openapi.json", folder) as server:
            yield server


def _zeus_python() -> str:
    python, installed = _ZEUS_ENVIRONMENT / "bin" / "python", _ZEUS_ENVIRONMENT / "installed"
    if not installed.is_file():
        print(
            f"installing {' '.join(_ZEUS_REQUIREMENTS)} into {_ZEUS_ENVIRONMENT}", file=sys.stderr
        )
        run_installing([sys.executable, "-m", "venv", "--clear", str(_ZEUS_ENVIRONMENT)])
        run_installing([str(python), "-m", "pip", "install", "--quiet", *_ZEUS_REQUIREMENTS])
        show_torch(_ZEUS_ENVIRONMENT)
        installed.touch()
    return str(python)


@contextmanager
def _running(
    command: list[str], environment: dict[str, str], port: int, probe: str, folder: str
) -> Iterator[Server]:
    with (Path(folder) / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment,
            cwd=folder,
        )
    server = Server(process=process, host="127.0.0.1", port=port)
    try:
        _await_answer(server, probe, Path(folder) / "stderr")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_answer(server: Server, probe: str, stderr: Path) -> None:
    give_up_s = time.monotonic() + _UP_WITHIN_S
    while time.monotonic() < give_up_s and server.process.poll() is None:
        try:
            httpx.get(server.url + probe, timeout=2.0, trust_env=False).raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return
    last = " | ".join(stderr.read_text(errors="replace").strip().splitlines()[-5:])
    raise BenchmarkError(f"{server.process.args!r} does not answer: {last}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
