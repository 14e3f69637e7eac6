"""Fixtures of the client's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.client.memory_planner import JOB_ID, QUICK_TIMES, MemoryPlanner, SessionMaker
from tests.unit.client.recording_gpu import RecordingGpu

from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.session.rank_session import RankSession


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This user's folder of lock records; no other setting of this machine applies."""
    for name in [*os.environ]:
        if name.startswith(("FLYBALL_", "ZEUSD_", "CUDA_")):
            monkeypatch.delenv(name)
    node_dir = tmp_path / "state"
    monkeypatch.setenv("FLYBALL_STATE_DIR", str(node_dir))
    return node_dir / str(os.geteuid())


@pytest.fixture
def planner() -> MemoryPlanner:
    return MemoryPlanner()


@pytest.fixture
def gpu() -> RecordingGpu:
    return RecordingGpu()


@pytest.fixture
def make_session(planner: MemoryPlanner) -> Iterator[SessionMaker]:
    sessions: list[RankSession] = []

    def make(gpu: RecordingGpu | EmulatedGpu | None, **arguments: object) -> RankSession:
        session = RankSession(
            gpu=gpu,
            job_id=JOB_ID,
            rank=0,
            stage=0,
            **({"planner": planner.client(), "times": QUICK_TIMES} | arguments),  # type: ignore[arg-type] # mixed
        )
        sessions.append(session)
        return session

    yield make
    for session in sessions:
        session.close()
