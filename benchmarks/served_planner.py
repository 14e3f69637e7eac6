"""A real `flyball serve` for benchmarks, and an emulated job put to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flyball_client.api.planner_client import PlannerClient
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_wire.messages import JobRegistration, RankRegistration
from measured_process import BenchmarkError

_ENDS_WITHIN_S = 60.0


@contextmanager
def served_planner(folder: Path, **environment: str) -> Iterator[str]:
    """The address of a `flyball serve` with SQLite on a free loopback port, until the block ends.

    Raises:
        BenchmarkError: it does not start.
    """
    command = [sys.executable, "-m", "flyball_client", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--database", f"sqlite:///{folder / 'planner.sqlite'}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        address = next((word for word in line.split() if word.startswith("http://")), None)
        if address is None:
            raise BenchmarkError(f"flyball serve does not start: {line!r}")
        yield address
    finally:
        process.terminate()
        process.wait(_ENDS_WITHIN_S)


def put_emulated_job(
    client: PlannerClient,
    job_id: str,
    profile: StageProfile,
    *,
    num_microbatches: int,
    blocking_power_w: float,
    num_pipelines: int = 1,
) -> None:
    """A job with all its ranks, one GPU a stage and pipeline, and its profile."""
    num_ranks = profile.num_stages * num_pipelines
    registration = JobRegistration(
        num_stages=profile.num_stages,
        num_microbatches=num_microbatches,
        num_ranks=num_ranks,
        blocking_power_w=(blocking_power_w,),
        emulated=True,
    )
    client.put_job(job_id, registration)
    for rank in range(num_ranks):
        client.put_rank(
            job_id,
            rank,
            RankRegistration(
                stage=rank % profile.num_stages,
                dp_rank=rank // profile.num_stages,
                host="node",
                gpu_name="emulated",
                gpu_uuid=f"EMULATED-{rank}",
                emulated=True,
                client_version="benchmark",
            ),
        )
    client.put_profile_csv(job_id, write_stage_profile(profile))
