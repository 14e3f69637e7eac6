"""A rank's calls are made in another process: what a hostile planner answers stays there."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.governed_rank.processes import send, wait_until
from tests.planner.hostile import (
    Answer,
    HostilePlanner,
    Request,
    dripping_body,
    endless_body,
    hostile_planner,
    packed_lists,
    whole,
)

from flyball_client.api.connection import ConnectionOptions, Retries
from flyball_client.api.errors import PlannerRefusedError, PlannerUnavailableError
from flyball_client.session import process_caller
from flyball_client.session.active_plan import compile_plan
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.planner_procedures import NO_PLAN, KnownPlan, UnusablePlanError
from flyball_client.session.process_caller import ProcessCaller
from flyball_wire.codec import encode
from flyball_wire.messages import RankRegistration
from flyball_wire.rank_plan import MAX_INSTRUCTIONS, RankPlan, rank_plan

SUPPORTED_MHZ = (1980, 1410, 1200, 900)
REGISTRATION = RankRegistration(
    stage=0,
    host="node",
    gpu_name="GPU",
    gpu_uuid="GPU-0",
    emulated=True,
    client_version="1",
    sm_clocks_mhz=SUPPORTED_MHZ,
)
ROOT = Path(__file__).parents[2]
# Others: tests/unit/client/test_bounded_calls.py.
HOSTILE = (dripping_body, endless_body, packed_lists)

pytestmark = pytest.mark.slow


def caller_of(planner: HostilePlanner) -> ProcessCaller:
    options = ConnectionOptions(
        base_url=planner.url,
        token="t",  # noqa: S106 - a test's
        timeout_s=0.25,
        ca_file=None,
        retries=Retries(num_attempts=1),
    )
    return ProcessCaller(options, max_call_s=0.5)


@pytest.fixture(scope="module", autouse=True)
def running_process() -> Iterator[None]:
    """A caller that stays open, so that its process serves all tests."""

    def accept(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
        del planner, request
        return whole(b"", status="204 No Content")

    with hostile_planner(accept) as planner:
        caller = caller_of(planner)
        caller.call("leave", "gpt", 0, None)
        yield
        caller.close()


def newest_plan(caller: ProcessCaller) -> object:
    return caller.call("newest_plan", "gpt", 0, NO_PLAN, 0.0, REGISTRATION)


def caller_pids(parent: int) -> list[int]:
    """Running call processes that this process has started."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_bytes()
            except OSError:  # it has ended
                continue
            if int(stat[1]) == parent and b"caller_process" in command:
                found.append(int(folder.name))
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def large_plan(num_instructions: int) -> RankPlan:
    """Return a plan with a cycle of three rows, of which two are equal."""
    draw = random.Random(1)
    rows = [tuple(draw.choices(SUPPORTED_MHZ, k=num_instructions)) for _ in range(2)]
    return rank_plan(
        [
            ("forward" if number % 2 else "backward", number // 2, mhz, number % 3)
            for number, mhz in enumerate(rows[0])
        ],
        cycle_mhz=(rows[0], rows[1], rows[0]),
        job_id="gpt",
        version=7,
        stage=0,
        first_step=None,
        predicted_iteration_time_s=1.0,
        requests=tuple(
            (number + 1, number, number / 7) for number in range(0, num_instructions, 2)
        ),
        plan_id="65f1c0",
    )


def planner_with(plan: RankPlan) -> Answer:
    body = encode(plan)

    def answer(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
        del planner, request
        return whole(body)

    return answer


@pytest.mark.parametrize("answer", HOSTILE)
def test_a_hostile_answer_is_a_failed_call(answer: Answer) -> None:
    with hostile_planner(answer) as planner:
        caller = caller_of(planner)
        with pytest.raises(PlannerUnavailableError, match=planner.url):
            newest_plan(caller)
        caller.close()


def test_the_largest_plan_arrives_as_it_was_made_and_a_larger_one_is_refused_by_its_version() -> (
    None
):
    plan = large_plan(MAX_INSTRUCTIONS)
    with hostile_planner(planner_with(plan)) as planner:
        caller = caller_of(planner)
        received = newest_plan(caller)
        for closed in (caller, caller_of(planner)):
            closed.close()
            with pytest.raises(PlannerUnavailableError, match="no longer needed"):
                newest_plan(closed)
        assert len(planner.requests) == 1
    assert received == compile_plan(plan, stage=0, supported_mhz=SUPPORTED_MHZ)
    assert isinstance(received, CompiledPlan)
    assert received.cycle_mhz is not None
    # The cursor compares rows by identity.
    assert received.cycle_mhz[0] is received.cycle_mhz[2]
    with hostile_planner(planner_with(large_plan(MAX_INSTRUCTIONS + 1))) as planner:
        caller = caller_of(planner)
        with pytest.raises(UnusablePlanError, match="16385 instructions") as refused:
            newest_plan(caller)
        caller.close()
    assert refused.value.plan == KnownPlan(7, "65f1c0")


def test_a_refusal_keeps_its_status_and_a_part_of_its_text() -> None:
    def refuse(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
        del planner, request
        return whole({"detail": "no " * 10_000}, status="404 Not Found")

    with hostile_planner(refuse) as planner:
        caller = caller_of(planner)
        with pytest.raises(PlannerRefusedError, match="refused") as refused:
            newest_plan(caller)
        caller.close()
    assert refused.value.status == 404
    assert len(str(refused.value)) <= 1000


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_killed_process_is_started_again_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    with hostile_planner(planner_with(large_plan(4))) as planner:
        caller = caller_of(planner)
        newest_plan(caller)
        (pid,) = caller_pids(os.getpid())
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_gone(pid), "its end")
        with pytest.raises(PlannerUnavailableError, match="has ended"):
            newest_plan(caller)
        if not is_seen:  # for a moment, a process that is being killed still runs
            monkeypatch.setattr(process_caller._CallerProcess, "is_running", True)
        assert newest_plan(caller) is not None
        assert caller_pids(os.getpid()) != [pid]
        caller.close()


def test_a_process_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with hostile_planner(planner_with(large_plan(4))) as planner:
        caller = caller_of(planner)
        newest_plan(caller)
        (pid,) = caller_pids(os.getpid())
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(process_caller, "_GRACE_S", 0.0)
        with pytest.raises(PlannerUnavailableError, match="did not end in time and was killed"):
            newest_plan(caller)
        wait_until(lambda: is_gone(pid), "its end")
        caller.close()


RANK = """
import os, sys, time
from tests.integration.test_process_caller import REGISTRATION
from flyball_client.api.planner_client import PlannerClient
from flyball_client.session.planner_calls import RankCalls
calls = RankCalls(PlannerClient(sys.argv[1]), "gpt", 0)
if os.fork() == 0:
    time.sleep(600)
if sys.argv[2] == "forks late":
    try:
        calls.register(REGISTRATION)
    except Exception:
        pass
    if os.fork() == 0:
        time.sleep(600)
calls.newest_plan(0, 60.0)
"""


@pytest.mark.parametrize("when", ["forks early", "forks late"])
def test_no_process_is_left_when_a_rank_with_forked_children_is_killed(when: str) -> None:
    def silent(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
        if "/plan" not in request.target:
            return whole(b"", status="404 Not Found")
        planner.stopping.wait(60.0)
        return ()

    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    }
    with (
        hostile_planner(silent) as planner,
        subprocess.Popen(
            [sys.executable, "-c", RANK, planner.url, when],
            env=environment,
            start_new_session=True,
        ) as rank,
    ):
        try:
            wait_until(
                lambda: any("/plan" in each.target for each in planner.requests), "the long poll"
            )
            (pid,) = caller_pids(rank.pid)
            rank.kill()
            wait_until(lambda: is_gone(pid), "the end of the call process")
        finally:
            # Its forked children are of the same session.
            os.killpg(rank.pid, signal.SIGKILL)
            send(rank.pid, signal.SIGKILL)


def test_answers_of_the_process_are_json_within_their_bounds() -> None:
    from flyball_client.session.call_frames import answer_of, read_answer  # noqa: PLC0415

    def received(header: object, body: bytes = b"", *, num_bytes: int | None = None) -> object:
        content = header if isinstance(header, bytes) else json.dumps(header).encode()
        length = len(body) if num_bytes is None else num_bytes
        left = len(content).to_bytes(4, "big") + length.to_bytes(4, "big") + content + body

        def receive(num: int) -> bytes:
            nonlocal left
            assert num <= len(left), "more was asked for than was announced"
            piece, left = left[:num], left[num:]
            return piece

        return read_answer(receive)

    assert received({"text": "run"}) == "run"
    sizes = {"num_rows": 0, "cycle_length": 0, "num_requests": 0}
    plan = {"version": 1, "kinds": ["forward"], **sizes}
    for wrong in (
        b"\x80\x04.",
        {"text": "a" * 20_000},
        {"plan": plan | {"num_instructions": 2**31}},
        {"plan": plan | {"num_instructions": 1}},
        {"plan": plan | {"num_instructions": 1, "num_rows": 2**30}},
        {"plan": plan | {"num_instructions": 1, "num_requests": 2}},
        {"accepted": {"stored": -1, "next_post_s": 1.0}},
        {"plan_version": {"version": 2**60, "first_step": None}},
        {},
    ):
        with pytest.raises((ValueError, KeyError, TypeError)):
            received(wrong)
    compiled = compile_plan(large_plan(4), stage=0, supported_mhz=SUPPORTED_MHZ)
    for request in ((5, 0, 0.1), (1, 1, 0.1), (1, -1, 0.1), (1, 0, -0.1), (1, 0, math.nan)):
        answer = answer_of(replace(compiled, requests=(request,)))
        length = int.from_bytes(answer[:4], "big")
        with pytest.raises(ValueError, match="a request of a plan is out of its bounds"):
            received(answer[8 : 8 + length], answer[8 + length :])
    with pytest.raises(ValueError, match="only a plan"):
        received({"text": None}, num_bytes=2**31)
