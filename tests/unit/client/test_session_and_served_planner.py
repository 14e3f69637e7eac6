"""A session against a real HTTP server that dies and returns."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal

import pytest
from tests.unit.client.memory_planner import JOB_ID, MemoryPlanner, ServedPlanner
from tests.unit.client.recording_gpu import RESET, RecordingGpu
from tests.unit.client.test_rank_session import PLAN, run_step, run_until_active, wait_until

from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.session.planner_link import LinkTimes
from flyball_client.session.rank_session import RankSession


@pytest.fixture
def served() -> Iterator[tuple[MemoryPlanner, ServedPlanner]]:
    planner = MemoryPlanner()
    server = ServedPlanner(planner)
    server.start()
    yield planner, server
    server.stop()


@pytest.mark.parametrize("without_planner", ["last-plan", "default-clocks"])
def test_training_goes_on_while_the_planner_is_dead_and_plans_come_when_it_returns(
    served: tuple[MemoryPlanner, ServedPlanner],
    caplog: pytest.LogCaptureFixture,
    without_planner: Literal["last-plan", "default-clocks"],
) -> None:
    planner, server = served
    caplog.set_level(logging.INFO, logger="flyball_client")
    gpu = RecordingGpu()
    with (
        PlannerClient(server.url, retries=Retries(num_attempts=1)) as client,
        RankSession(
            gpu=gpu,
            job_id=JOB_ID,
            rank=0,
            stage=0,
            planner=client,
            without_planner=without_planner,
            times=LinkTimes(poll_wait_s=0.1, first_retry_s=0.01, longest_retry_s=0.05),
        ) as session,
    ):
        planner.name_first_step(planner.publish(*PLAN), 0)
        run_until_active(session, planner, 1)

        server.stop()
        wait_until(planner, lambda: any("planner lost" in m for m in caplog.messages))
        died_at = session.current_step
        for _ in range(5):
            run_step(session)
        restores = without_planner == "default-clocks"
        assert session.active_version == (None if restores else 1)
        assert gpu.told[-1] == (RESET if restores else 900)

        planner.name_first_step(planner.publish(("forward", 0, 1400), ("backward", 0, 1400)), 0)
        server.start()
        run_until_active(session, planner, 2)
        returned_at = session.current_step
    assert gpu.told[-2:] == [1400, RESET]
    assert set(range(died_at, returned_at)) <= set(planner.measurements)
    lines = [m for m in caplog.messages if "planner lost" in m or "planner back" in m]
    assert [line.split("planner ")[1].split(",")[0] for line in lines] == ["lost", "back"]
