"""deploy/slurm/train.sbatch from end to end: a real planner, with Slurm and torchrun played."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.deploy.compose import ROOT
from tests.planner.live import serve_environment
from tests.planner.patience import PATIENCE_S, wait_until

SCRIPT = ROOT / "deploy/slurm/train.sbatch"
SHIMS = Path(__file__).parent / "slurm"

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None and not os.environ.get("CI"), reason="no openssl on PATH"
)


def job_id_of_a_free_port() -> int:
    """A Slurm job's number of which the script makes a port where nobody listens."""
    for number in range(os.getpid() % 10_000, 20_000, 2):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", 20_000 + number)):
                return number
    raise AssertionError("no free port")


@contextmanager
def slurm_job(folder: Path, **changes: str) -> Iterator[subprocess.Popen[str]]:
    """The script as `sbatch train.sbatch train.py --steps 3` runs it on the first of two nodes."""
    number = job_id_of_a_free_port()
    (folder / "tmp").mkdir()
    environment = serve_environment(
        PATH=os.pathsep.join((str(SHIMS), str(Path(sys.executable).parent), os.environ["PATH"])),
        TMPDIR=str(folder / "tmp"),
        SLURM_JOB_ID=str(number),
        SLURM_JOB_NODELIST="localhost,localhost",
        SLURM_NNODES="2",
        SLURM_GPUS_ON_NODE="1",
        SHIM_RECORDS=str(folder),
        FLYBALL_HOST="127.0.0.1",
        **changes,
    )
    process = subprocess.Popen(
        ("bash", str(SCRIPT), "train.py", "--steps", "3"),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit status and all that it said."""
    said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, "".join(said)


def records(folder: Path) -> list[dict[str, object]]:
    """Return what the ranks wrote down."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("rank*.json"))]


def is_listening(url: object) -> bool:
    """Return whether anybody does there."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", urlsplit(str(url)).port or 0)) == 0


def test_ranks_of_all_nodes_reach_the_planner_of_their_job(tmp_path: Path) -> None:
    with slurm_job(tmp_path) as job:
        status, said = ended(job)
    assert status == 0, said
    first, second = records(tmp_path)
    assert "error" not in first
    assert "error" not in second
    assert str(first["url"]).startswith("https://localhost:")
    assert not is_listening(first["url"])
    arguments = first["arguments"]
    assert isinstance(arguments, list)
    assert arguments[-3:] == ["train.py", "--steps", "3"]
    assert {"--nnodes=2", "--nproc-per-node=1"} < set(arguments)
    (kept,) = tmp_path.glob("flyball-*")
    assert {file.name for file in kept.iterdir()} == {
        "certificate.pem",
        "planner.log",
        "planner.sqlite",
    }
    assert kept.stat().st_mode & 0o077 == 0
    assert list((tmp_path / "tmp").glob("flyball-*")) == []
    with sqlite3.connect(kept / "planner.sqlite") as database:
        assert database.execute("select count(*) from ranks").fetchone() == (2,)
    database.close()
    assert "Traceback" not in (kept / "planner.log").read_text()


def test_at_the_end_of_its_time_the_job_ends_its_training_and_its_planner(tmp_path: Path) -> None:
    with slurm_job(tmp_path, SHIM_SLEEPS="1") as job:
        wait_until(lambda: len(records(tmp_path)) == 2 or job.poll() is not None)
        (url, _) = (record["url"] for record in records(tmp_path))
        assert is_listening(url)
        job.terminate()  # the batch shell alone, as --signal=B:TERM does
        status, said = ended(job)  # all that held its output have ended then
    assert status == 143, said
    assert not is_listening(url)
    assert list(tmp_path.glob("flyball-*/token")) == []
    assert list((tmp_path / "tmp").glob("flyball-*")) == []


def test_training_goes_on_where_the_planner_cannot_start(tmp_path: Path) -> None:
    with slurm_job(tmp_path, FLYBALL_MAX_WAIT_S="x") as job:
        status, said = ended(job)
    assert status == 0, said
    assert "FLYBALL_MAX_WAIT_S must be a valid number" in said
    assert "training goes on without it" in said
    first, second = records(tmp_path)
    assert "error" in first
    assert "error" in second
