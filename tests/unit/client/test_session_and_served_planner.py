"""A session over the network, whose planner goes and returns, or never rests."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

import httpx
import pytest
from tests.planner.hostile import HostilePlanner, Request, hostile_planner, whole
from tests.unit.client.memory_planner import MemoryPlanner, SessionMaker
from tests.unit.client.recording_gpu import RESET, RecordingGpu
from tests.unit.client.test_rank_session import PLAN, run_step, run_until_active, wait_until

from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.helper.rank_agent import LinkTimes

pytestmark = pytest.mark.slow


def served(memory: MemoryPlanner, request: Request) -> Iterable[bytes]:
    """The answer of a planner in memory to a request on the network."""
    url = httpx.URL(request.target)
    status, body = memory.answer(url.path, dict(url.params), request.body)
    return whole(b"" if body is None else body, status=f"{status} as it is")


@pytest.mark.parametrize("without_planner", ["last-plan", "default-clocks"])
def test_training_goes_on_while_the_planner_is_dead_and_plans_come_when_it_returns(
    gpu: RecordingGpu,
    caplog: pytest.LogCaptureFixture,
    make_session: SessionMaker,
    without_planner: str,
) -> None:
    planner, is_dead = MemoryPlanner(), threading.Event()

    def answer(_: HostilePlanner, request: Request) -> Iterable[bytes]:
        if is_dead.is_set():
            raise ConnectionAbortedError
        return served(planner, request)

    caplog.set_level(logging.INFO, logger="flyball_client")
    with (
        hostile_planner(answer) as server,
        PlannerClient(server.url, retries=Retries(num_attempts=1)) as client,
        make_session(gpu, planner=client, without_planner=without_planner) as session,
    ):
        planner.name_first_step(planner.publish(*PLAN), 0)
        run_until_active(session, planner, 1)

        is_dead.set()
        wait_until(planner, lambda: any("planner lost" in m for m in caplog.messages))
        died_at = session.current_step
        for _ in range(5):
            run_step(session)
        restores = without_planner == "default-clocks"
        assert session.active_version == (None if restores else 1)
        assert gpu.told[-1] == (RESET if restores else 1200)

        planner.name_first_step(planner.publish(("forward", 0, 1400), ("backward", 0, 1400)), 0)
        is_dead.clear()
        run_until_active(session, planner, 2)
        returned_at = session.current_step
    assert gpu.told[-2:] == [1400, RESET]
    assert set(range(died_at, returned_at)) <= set(planner.measurements)
    lines = [m for m in caplog.messages if "planner lost" in m or "planner back" in m]
    assert [line.split("planner ")[1].split(",")[0] for line in lines] == ["lost", "back"]


def test_a_planner_with_a_new_plan_for_every_call_is_asked_once_a_second(
    gpu: RecordingGpu, make_session: SessionMaker
) -> None:
    memory = MemoryPlanner()
    polled_s: list[float] = []

    def answer(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
        if httpx.URL(request.target).path.endswith("/plan"):
            memory.name_first_step(memory.publish(*PLAN), 0)
            polled_s.append(time.monotonic())
        return served(memory, request)

    with (
        hostile_planner(answer) as planner,
        PlannerClient(planner.url) as client,
        make_session(gpu, planner=client, times=LinkTimes()) as session,
    ):
        session.start()
        wait_until(memory, lambda: len(polled_s) == 2)
    # From the first plan's arrival, not from its request.
    assert polled_s[1] - polled_s[0] >= 1.0
