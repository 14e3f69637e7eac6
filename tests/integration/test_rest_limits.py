"""The planner's limits: each is kept, and says in one line what to do."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import pytest
import uvicorn
from starlette.types import Receive, Send
from tests.planner.live import live_planner
from tests.planner.patience import PATIENCE_S, wait_until

from flyball_client.api.errors import PlannerBusyError, PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.helper.planner_calls import PlannerReachability
from flyball_server.jobs.versions import rank_plans
from flyball_server.serving.planner_server import request_deadline_protocol
from flyball_wire import routes

RANK_PLAN = routes.fill(routes.RANK_PLAN, job_id="job", rank=0)
LONG = {"wait_s": "500", "after_version": "1"}


def test_more_instructions_or_points_than_are_planned_are_a_422() -> None:
    # Two stages of 5 microbatches: 10 forwards and 10 backwards. Two kinds, two clocks: 8 points.
    with live_planner(max_instructions=20, max_profile_points=7) as planner:
        assert planner.put_job(num_microbatches=5).status_code == 201
        answer = planner.put_job(num_microbatches=6)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["loc"] == "num_microbatches"
        assert "at most 5 with 2 stages" in answer.json()["detail"]
        answer = planner.put_profile()
        assert answer.status_code == 422
        assert "at most 7 points (FLYBALL_MAX_PROFILE_POINTS)" in answer.json()["detail"]
    with live_planner(max_instructions=20, max_profile_points=8) as planner:
        planner.put_job(num_microbatches=5)
        assert planner.put_profile().status_code == 200


def test_a_plan_whose_part_no_rank_would_take_is_a_422_and_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_plans, "MAX_PART_BYTES", 4200)
    with live_planner() as planner:
        assert planner.put_job(num_microbatches=5).status_code == 201
        answer = planner.put_profile()
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["loc"] == "num_microbatches"
        assert "the plan of stage 0 has 10 instructions and takes up to" in answer.json()["detail"]
        job = planner.http.get(routes.fill(routes.JOB, job_id="job")).json()
        assert (job["state"], job["newest_version"]) == ("planning-failed", None)


def test_one_long_poll_more_than_are_held_is_a_503_that_says_when_to_come_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "flyball_client")
    presence, pauses = PlannerReachability("rank 0"), list[float]()
    with live_planner(max_waiting=1) as planner, ThreadPoolExecutor(1) as threads:
        planner.put_planned_job()
        held = threads.submit(planner.http.get, RANK_PLAN, params=LONG)
        wait_until(lambda: planner.state.waiters.num_waiting == 1)
        answer = planner.http.get(RANK_PLAN, params=LONG)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert "retry in 5 s" in answer.json()["detail"]
        # What need not be held is answered as ever.
        assert planner.http.get(RANK_PLAN).status_code == 200
        assert planner.http.get(RANK_PLAN, params={"after_version": "1"}).status_code == 204
        # The client takes a busy planner for one that is there, and does not ask again at once.
        with PlannerClient(str(planner.http.base_url), sleep=pauses.append) as client:
            with pytest.raises(PlannerBusyError, match="is busy: The planner's limit") as caught:
                client.get_rank_plan("job", 0, after_version=1, wait_s=30)
            presence.lost("plans", caught.value)
        assert caught.value.retry_after_s == 5
        assert isinstance(caught.value, PlannerUnavailableError)
        target = routes.fill(routes.TARGET, job_id="job")
        planner.http.put(target, json={"policy": "uniform"}).raise_for_status()
        assert held.result(PATIENCE_S).json()["version"] == 2
    assert (presence.is_lost, pauses) == (False, [])
    assert [line for line in caplog.messages if "rank 0" in line] == []


async def answer_late(_scope: object, receive: Receive, send: Send) -> None:
    """An app that reads the whole request, takes its time and then answers."""
    while (message := await receive()).get("more_body", False):
        pass
    if message["type"] == "http.request":
        await asyncio.sleep(0.5)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


@contextmanager
def served_patiently(timeout_s: float) -> Iterator[tuple[str, int]]:
    """Serve that app through the protocol of `flyball serve`; yield its address."""
    config = uvicorn.Config(
        answer_late,
        http=request_deadline_protocol(timeout_s),
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
    assert not thread.is_alive()


def is_broken_off(connection: socket.socket) -> bool:
    """Return whether the other side ends the connection and says nothing more."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_request_that_never_arrives_does_not_hold_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flyball_server.serving.planner_server._MARGIN_S", 0.0)
    head = b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n"
    with served_patiently(0.2) as address, ExitStack() as opened:
        # Silent, half a head, half a body.
        for begun in (b"", head[:20], head + b"abc"):
            made = socket.create_connection(address, PATIENCE_S)
            connection = opened.enter_context(closing(made))
            connection.sendall(begun)
            assert is_broken_off(connection)


def test_a_request_that_has_arrived_may_be_answered_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball_server.serving.planner_server._MARGIN_S", 0.0)
    with (
        served_patiently(0.2) as address,
        closing(socket.create_connection(address, PATIENCE_S)) as connection,
    ):
        for _ in range(2):  # the connection is kept
            connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert connection.recv(2**16).startswith(b"HTTP/1.1 204 ")
