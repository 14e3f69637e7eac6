"""A real `flyball serve` for benchmarks, and an emulated job put to it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyball_client.api.errors import PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_wire.messages import JobRegistration, RankRegistration
from gpt3_cells import A100
from measured_process import BenchmarkError, cpu_time_ns

_ENDS_WITHIN_S = _REGISTERS_WITHIN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that listens, Flyball's or Zeus's.

    Attributes:
        database: its SQLite file; None: another database.
    """

    process: subprocess.Popen[str]
    url: str
    database: Path | None = None

    def cpu_s(self) -> float:
        """Return the processor time that it has used, its children's apart, s."""
        return cpu_time_ns(self.process.pid) / 1e9

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
def served_planner(
    folder: Path, *, database: str | None = None, **settings: str
) -> Iterator[Server]:
    """A `flyball serve` on a free loopback port, until the block ends.

    Args:
        folder: for its SQLite file.
        database: URL of another database.
        settings: variables of its environment beside those of this process that are not Flyball's.

    Raises:
        BenchmarkError: it does not start.
    """
    file = folder / "planner.sqlite"
    command = [sys.executable, "-m", "flyball_client", "serve", "--port", "0"]
    kept = {name: text for name, text in os.environ.items() if name[:8] != "FLYBALL_"}
    process = subprocess.Popen(
        [*command, "--database", database or f"sqlite:///{file}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**kept, "FLYBALL_LOG_LEVEL": "error", **settings},
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        url = next((word for word in line.split() if word.startswith("http://")), None)
        if url is None:
            raise BenchmarkError(f"flyball serve does not start: {line!r}")
        yield Server(process=process, url=url, database=None if database else file)
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Have a server end."""
    process.terminate()
    try:
        process.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def put_profile_of_job(url: str, job_id: str, profile: StageProfile) -> None:
    """Put a job's profile as soon as its ranks have registered it."""
    give_up_s = time.monotonic() + _REGISTERS_WITHIN_S
    with PlannerClient(url) as client:
        while True:
            try:
                client.put_profile_csv(job_id, write_stage_profile(profile))
            except PlannerError:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(0.2)
            else:
                return


def put_emulated_job(
    client: PlannerClient,
    job_id: str,
    profile: StageProfile,
    *,
    num_microbatches: int,
    num_pipelines: int = 1,
    **options: Any,  # noqa: ANN401 - of JobRegistration
) -> None:
    """A job on A100s with all its ranks, one GPU a stage and pipeline, and its profile."""
    num_ranks = profile.num_stages * num_pipelines
    registration = JobRegistration(
        num_stages=profile.num_stages,
        num_microbatches=num_microbatches,
        num_ranks=num_ranks,
        blocking_power_w=(A100.blocking_power_w,),
        emulated=True,
        **options,
    )
    client.put_job(job_id, registration)
    for rank in range(num_ranks):
        of_rank = RankRegistration(
            stage=rank % profile.num_stages,
            dp_rank=rank // profile.num_stages,
            host="node",
            gpu_name="emulated",
            gpu_uuid=f"EMULATED-{rank}",
            emulated=True,
            client_version="benchmark",
        )
        client.put_rank(job_id, rank, of_rank)
    client.put_profile_csv(job_id, write_stage_profile(profile))
