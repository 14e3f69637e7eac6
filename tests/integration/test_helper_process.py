"""A rank's calls are made in its helper: what a hostile planner answers stays there."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.governed_rank.processes import send, wait_until
from tests.planner.hostile import (
    Answer,
    HostilePlanner,
    Request,
    dripping_body,
    dripping_head,
    endless_body,
    endless_interim,
    hostile_planner,
    packed_lists,
    whole,
)
from tests.planner.live import live_planner
from tests.unit.client.memory_planner import JOB_ID, MemoryPlanner, plan_of
from tests.unit.client.step_parts import LIGHT, part_of_stage

from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.helper import link as links
from flyball_client.helper.frames import (
    Received,
    helper_frame,
    plan_parts,
    rank_frame,
    read_header,
    read_plan,
    read_times,
)
from flyball_client.helper.process import _Helper
from flyball_client.helper.rank_agent import LinkTimes, RankSpec
from flyball_client.helper.step_packets import (
    HelperPackets,
    StepPackets,
    plan_packet,
    read_plan_packet,
)
from flyball_client.session.active_plan import compile_plan
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.planner_link import PlannerLink
from flyball_client.session.registration import JobRegistrar, named_start
from flyball_client.steps.step_plans import (
    AsksForSteps,
    PlanKey,
    StepDeadlines,
    StepLoad,
    StepPlan,
)
from flyball_pipeline.work import step_work
from flyball_wire import routes
from flyball_wire.codec import encode
from flyball_wire.measurements import StepMeasurement
from flyball_wire.messages import JobRegistration, RankRegistration
from flyball_wire.plans.rank_plan import MAX_ANSWER_BYTES, MAX_INSTRUCTIONS, RankPlan

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
TIMES = LinkTimes(
    poll_wait_s=1.0,
    gather_s=0.01,
    first_retry_s=0.02,
    longest_retry_s=0.1,
    flush_timeout_s=30.0,
)
ROOT = Path(__file__).parents[2]
PLAN = (("forward", 0, 1200), ("backward", 0, 900))

pytestmark = pytest.mark.slow


class HelpedRank:
    """A rank whose steps the test makes; what it was given is kept."""

    def __init__(self, url: str, steps: AsksForSteps | None = None) -> None:
        self.activated: list[tuple[CompiledPlan, int]] = []
        self._planner = PlannerClient(url, timeout_s=0.25, retries=Retries(num_attempts=1))
        self.link = PlannerLink(
            self._planner,
            RankSpec(job_id=JOB_ID, rank=0, registration=REGISTRATION, times=TIMES),
            named_start({}, None),
            current_step=lambda: 5,
            activate=lambda plan, first_step: self.activated.append((plan, first_step)),
        )
        if steps is not None:
            self.link.plan_steps(steps, "step")
        self.link.start()

    def measure(self, steps: Iterable[int]) -> None:
        for step in steps:
            self.link.outbox.put(
                StepMeasurement(step=step, plan_version=None, time_s=1.0, energy_j=None)
            )

    def close(self) -> None:
        self.link.stop()
        self._planner.close()


@contextmanager
def helped_rank(
    answer: Answer, steps: AsksForSteps | None = None
) -> Iterator[tuple[HelpedRank, HostilePlanner]]:
    with hostile_planner(answer) as planner:
        rank = HelpedRank(planner.url, steps)
        try:
            yield rank, planner
        finally:
            rank.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper shows life every 0.1 s, and another one starts at once."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setattr(links, "_PROGRAM", "tests.planner.quick_helper")
    monkeypatch.setattr(links, "_FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(links, "_LONGEST_PAUSE_S", 0.05)


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="flyball_client")
    return caplog


def honest(memory: MemoryPlanner) -> Answer:
    def answer(_: HostilePlanner, request: Request) -> Iterable[bytes]:
        url = httpx.URL(request.target)
        status, body = memory.answer(url.path, dict(url.params), request.body)
        return whole(b"" if body is None else body, status=f"{status} as it is")

    return answer


def honest_but(target: str, hostile: Answer, memory: MemoryPlanner) -> Answer:
    """A planner whose answers to some calls are hostile until `memory` has a plan."""

    def answer(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
        is_hostile = target in request.target and not memory.plans
        return (hostile if is_hostile else honest(memory))(planner, request)

    return answer


def helper_pids(parent: int) -> list[int]:
    """Running helpers that this process has started."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_bytes()
            except OSError:  # it has ended
                continue
            is_helper = b"helper.process" in command or b"quick_helper" in command
            if int(stat[1]) == parent and stat[0] != "Z" and is_helper:
                found.append(int(folder.name))
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def helper_pid() -> int:
    wait_until(lambda: len(helper_pids(os.getpid())) == 1, "the helper")
    return helper_pids(os.getpid())[0]


# ------------------------------------------------------------------ hostile planners


@pytest.mark.parametrize("hostile", [dripping_head, dripping_body, endless_interim])
def test_a_helper_whose_call_outlasts_its_deadline_ends_and_another_one_starts(
    quick: None, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hostile: Answer
) -> None:
    monkeypatch.setenv("MAX_CALL_S", "1")
    memory = MemoryPlanner()
    with helped_rank(honest_but("/plan", hostile, memory)) as (rank, _):
        first = helper_pid()
        wait_until(lambda: "planner lost" in log.text, "the loss of the planner")
        wait_until(lambda: "since a call took longer than its time" in log.text, "the reason")
        wait_until(lambda: helper_pids(os.getpid()) not in ([first], []), "another helper")
        memory.name_first_step(memory.publish(*PLAN), 7)
        wait_until(lambda: bool(rank.activated), "the plan")
        wait_until(lambda: not rank.link.is_lost, "the planner's return")
    # The rank has stayed registered.
    assert len(memory.registrations) == 1


@pytest.mark.parametrize(
    ("hostile", "text"),
    [
        (endless_body, f"body is larger than {MAX_ANSWER_BYTES} bytes"),
        (packed_lists, "body is compressed, which was not requested"),
    ],
)
def test_an_answer_that_is_too_large_is_a_failed_call_of_the_same_helper(
    log: pytest.LogCaptureFixture, hostile: Answer, text: str
) -> None:
    memory = MemoryPlanner()
    with helped_rank(honest_but("/plan", hostile, memory)) as (rank, planner):
        first = helper_pid()
        wait_until(lambda: text in log.text, "the loss of the planner")
        assert planner.url in log.text
        memory.name_first_step(memory.publish(*PLAN), 7)
        wait_until(lambda: bool(rank.activated), "the plan")
        assert helper_pids(os.getpid()) == [first]


def test_a_body_of_a_mebibyte_is_read_and_one_byte_more_is_not(
    log: pytest.LogCaptureFixture,
) -> None:
    memory = MemoryPlanner()
    plan = plan_of(*PLAN, version=1)
    memory.name_first_step(1, 0)
    num_more = 1

    def padded(_: HostilePlanner, request: Request) -> Iterable[bytes]:
        if "after_version=1" in request.target:
            return whole(b"", status="204 No Content")
        body = json.dumps(encode(plan)).encode()
        return whole(body + b" " * (MAX_ANSWER_BYTES + num_more - len(body)))

    with helped_rank(honest_but("/plan", padded, memory)) as (rank, _):
        text = f"body is larger than {MAX_ANSWER_BYTES} bytes"
        wait_until(lambda: text in log.text, "the loss of the planner")
        num_more = 0
        wait_until(lambda: bool(rank.activated), "the plan")


def large_plan(num_instructions: int) -> RankPlan:
    """Return a plan with a cycle of three rows, of which two are equal."""
    draw = random.Random(1)
    rows = [tuple(draw.choices(SUPPORTED_MHZ, k=num_instructions)) for _ in range(2)]
    return plan_of(
        *(
            ("forward" if number % 2 else "backward", number // 2, mhz, number % 3)
            for number, mhz in enumerate(rows[0])
        ),
        cycle_mhz=(rows[0], rows[1], rows[0]),
        version=7,
        requests=tuple(
            (number + 1, number, number / 7) for number in range(0, num_instructions, 2)
        ),
        plan_id="65f1c0",
    )


def test_the_largest_plan_arrives_as_it_was_made_and_a_larger_one_is_refused_by_its_version(
    log: pytest.LogCaptureFixture,
) -> None:
    memory, plan = MemoryPlanner(), large_plan(MAX_INSTRUCTIONS)
    memory.name_first_step(7, 9)
    offered = [large_plan(MAX_INSTRUCTIONS + 1)]

    def answer(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
        if "/plan" not in request.target:
            return honest(memory)(planner, request)
        is_known = f"plan_id={offered[0].plan_id}" in request.target
        return whole(b"", status="204 None") if is_known else whole(encode(offered[0]))

    with helped_rank(answer) as (rank, planner):
        refused = f"plan version 7 refused: it has {MAX_INSTRUCTIONS + 1} instructions"
        wait_until(lambda: refused in log.text, "the refusal")
        wait_until(
            lambda: any("plan_id=65f1c0" in each.target for each in planner.requests),
            "a call for a plan after it",
        )
        offered[0] = plan = replace(plan, plan_id="65f1c1")
        wait_until(lambda: bool(rank.activated), "the plan")
    ((received, first_step),) = rank.activated
    assert first_step == 9
    assert received == compile_plan(plan, stage=0, supported_mhz=SUPPORTED_MHZ)
    assert received.cycle_mhz is not None
    # The cursor compares rows by identity.
    assert received.cycle_mhz[0] is received.cycle_mhz[2]


# ------------------------------------------------------------------ the helper's life


def num_back(log: pytest.LogCaptureFixture) -> int:
    return len([line for line in log.messages if "planner back" in line])


def test_helpers_that_are_killed_are_started_again_and_no_measurement_is_lost(
    quick: None, log: pytest.LogCaptureFixture
) -> None:
    memory = MemoryPlanner()
    memory.name_first_step(memory.publish(*PLAN), 7)
    with helped_rank(honest(memory)) as (rank, _):
        wait_until(lambda: bool(rank.activated), "the plan")
        for number in range(4):
            begin, end = 1000 * number, 1000 * (number + 1)
            rank.measure(range(begin, end))
            pid = helper_pid()
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: is_gone(pid), "its end")  # type: ignore[misc] # bound now
            wait_until(lambda end=end: end - 1 in memory.measurements, "the steps")  # type: ignore[misc]
            wait_until(lambda number=number: num_back(log) == number + 1, "it is back")  # type: ignore[misc]
        rank.measure([4000])
        wait_until(lambda: 4000 in memory.measurements, "the last step")
    assert sorted(memory.measurements) == list(range(4001))
    assert rank.link.outbox.num_dropped == 0
    assert len(rank.activated) == 1, "the plan was not handed over again"
    assert memory.posting_starts == {"65f1c0"}
    assert len(memory.registrations) == 1
    lost = [line for line in log.messages if "planner lost" in line]
    assert len(lost) == num_back(log) == 4
    assert all("the process that calls it has ended" in line for line in lost)


def test_a_helper_that_shows_no_life_is_killed_and_started_again(
    quick: None, log: pytest.LogCaptureFixture
) -> None:
    memory = MemoryPlanner()
    with helped_rank(honest(memory)) as (rank, _):
        wait_until(lambda: bool(memory.registrations), "the registration")
        link = links._Shared.link
        assert link is not None
        assert link._process is not None
        # Of this helper alone, once it runs: a start on a busy machine takes longer.
        link._process._socket.settimeout(1.0)
        rank.measure([0])
        wait_until(lambda: bool(memory.measurements), "a step, for which its thread waits anew")
        pid = helper_pid()
        os.kill(pid, signal.SIGSTOP)
        rank.measure([1, 2])
        wait_until(lambda: is_gone(pid), "its end")
        wait_until(
            lambda: "gave no sign of life for 60 s and was killed" in log.text, "the log's line"
        )
        wait_until(lambda: len(memory.measurements) == 3, "the steps")


def test_a_rank_ends_though_another_thread_waits_for_a_frozen_helper_to_read(quick: None) -> None:
    with helped_rank(honest(MemoryPlanner())) as (rank, _):
        pid = helper_pid()
        os.kill(pid, signal.SIGSTOP)
        link = links._Shared.link
        assert link is not None
        # More than a socket holds.
        answering = threading.Thread(
            target=link._answer, args=(0, "current_step", b"0" * 5_000_000)
        )
        answering.start()
        rank.link.stop()
        answering.join(10.0)
        assert not answering.is_alive()
        wait_until(lambda: is_gone(pid), "its end")


def test_sessions_and_registrars_share_a_helper_that_signals_do_not_end() -> None:
    memory = MemoryPlanner()

    def answer(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
        if request.target.endswith(f"/jobs/{JOB_ID}"):
            # More than is read of an answer: the status is enough.
            return whole(b"[" + b" " * 2 * MAX_ANSWER_BYTES + b"]")
        return honest(memory)(planner, request)

    with helped_rank(answer) as (rank, planner):
        pid = helper_pid()
        client = PlannerClient(planner.url)
        registrar = JobRegistrar(
            client, job_id=JOB_ID, registration=JobRegistration(num_stages=1, num_microbatches=1)
        )
        wait_until(
            lambda: any(
                each.method == "PUT" and each.target.endswith(JOB_ID) for each in planner.requests
            ),
            "the job's registration",
        )
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
        registrar.close(timeout_s=30.0)
        client.close()
        rank.measure([1])
        wait_until(lambda: 1 in memory.measurements, "the step")
        assert helper_pids(os.getpid()) == [pid]
        rank.close()
        wait_until(lambda: is_gone(pid), "its end with the last agent")
    assert memory.left_start == "65f1c0"
    assert "flyball-helper" not in {each.name for each in threading.enumerate()}


def test_the_helper_imports_nothing_heavy() -> None:
    script = (
        "import sys, flyball_client.helper.process;"
        "print({'torch', 'numpy', 'pydantic', 'textual'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


RANK = """
import os, sys, time
from tests.planner.linked_rank import LinkedRank
if os.fork() == 0:
    time.sleep(600)
rank = LinkedRank(sys.argv[1], 0)
# While the helper starts, and after it: as loaders' workers do, each lives on.
for _ in range(100):
    if os.fork() == 0:
        time.sleep(600)
    time.sleep(0.002)
time.sleep(600)
"""


def test_a_rank_that_forks_has_a_helper_and_none_is_left_when_it_is_killed() -> None:
    def silent(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
        planner.stopping.wait(60.0)
        return ()

    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    }
    with (
        hostile_planner(silent) as planner,
        subprocess.Popen(
            [sys.executable, "-c", RANK, planner.url],
            env=environment,
            start_new_session=True,
        ) as rank,
    ):
        try:
            # The helper is nice: where all cores are busy, it takes long to start.
            wait_until(lambda: bool(planner.requests), "a call", patience_s=120.0)
            (pid,) = helper_pids(rank.pid)
            rank.kill()
            wait_until(lambda: is_gone(pid), "the helper's end")
        finally:
            # Its forked children are of the same session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            send(rank.pid, signal.SIGKILL)


LIVE_RANK = """
import sys, time
from flyball_client.api.planner_client import PlannerClient
from flyball_client.helper.rank_agent import LinkTimes
from flyball_client.session.rank_session import RankSession
RankSession(
    gpu=None,
    planner=PlannerClient(sys.argv[1]),
    job_id="job",
    rank=0,
    stage=0,
    times=LinkTimes(poll_wait_s=0.2, first_retry_s=0.01, longest_retry_s=0.05),
    start_id=sys.argv[2],
).start()
time.sleep(600)
"""


def test_the_planner_is_told_of_a_killed_rank_and_the_next_start_begins_at_once() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with live_planner() as planner:

        def have_left() -> list[bool]:
            job = planner.http.get(routes.fill(routes.JOB, job_id="job")).json()
            return [rank["has_left"] for rank in job["ranks"]]

        for start in ("first", "second"):
            planner.put_job(start_id=start).raise_for_status()
            command = [sys.executable, "-c", LIVE_RANK, str(planner.http.base_url), start]
            with subprocess.Popen(command, env=environment) as rank:
                try:
                    wait_until(
                        lambda: have_left() == [False], "the rank", patience_s=120.0, pause_s=0.05
                    )
                    rank.kill()
                    wait_until(lambda: have_left() == [True], "its departure", pause_s=0.05)
                finally:
                    rank.kill()


def test_a_rank_may_have_more_files_open_than_select_takes() -> None:
    memory = MemoryPlanner()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1100):
            files.enter_context(Path(os.devnull).open("rb"))
        with helped_rank(honest(memory)) as (rank, _):
            rank.measure([1])
            wait_until(lambda: 1 in memory.measurements, "the step")


def test_a_forked_child_leaves_the_helper_alone() -> None:
    memory = MemoryPlanner()
    with helped_rank(honest(memory)) as (rank, _):
        helper_pid()
        link = links._Shared.link
        assert link is not None
        packets = link._packets
        assert packets is not None
        child = os.fork()
        if child == 0:
            is_open = packets.ask(0, QUESTIONS[0]) or packets.helper.fileno() >= 0
            os._exit(is_open or links._Shared.link is not None)
        assert os.waitpid(child, 0)[1] == 0
        rank.measure([1])
        wait_until(lambda: 1 in memory.measurements, "the step")


# ------------------------------------------------------------------ frames


def test_frames_that_come_together_or_in_pieces_are_read_one_by_one() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        received = Received(ours)
        first, second = (
            helper_frame({"event": name}, name.encode() * 30_000) for name in ("a", "b")
        )
        sending = threading.Thread(target=theirs.sendall, args=(first + second,))
        sending.start()
        for name in ("a", "b"):
            header, num_bytes = read_header(received)
            assert (header, received(num_bytes)) == ({"event": name}, name.encode() * 30_000)
        sending.join()
        theirs.sendall(first[:50])
        assert received(40) == first[:40]
        assert received.has_more
        assert received(10) == first[40:50]
        assert not received.has_more
        theirs.sendall(b"end")
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            received(4)


class _Agent:
    """Agent that counts how often it is stopped."""

    latest: _Agent | None = None

    def __init__(self, *_: object) -> None:
        self.num_stops = 0
        _Agent.latest = self

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Count it."""
        self.num_stops += 1


def test_frames_that_come_at_once_are_all_taken_before_the_helper_waits_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A helper takes over its process's log.
    log = logging.getLogger("flyball_client.helper")
    for name, value in {"handlers": [], "propagate": True, "level": log.level}.items():
        monkeypatch.setattr(log, name, value)
    _Agent.latest = None  # of a run before
    ours, theirs = socket.socketpair()
    options = PlannerClient("http://planner.test").options
    opening, stopping = rank_frame(0, "open", (options, _Agent)), rank_frame(0, "stop", None)
    packets = StepPackets()
    with ours, theirs:
        ours.sendall(opening + 2 * stopping)
        ends = theirs, HelperPackets(packets.helper)
        serving = threading.Thread(target=_Helper(os.getppid(), *ends, logging.INFO).serve)
        serving.start()
        wait_until(lambda: _Agent.latest and _Agent.latest.num_stops == 2, "both frames")
        ours.shutdown(socket.SHUT_RDWR)
        serving.join()
    packets.close()


# ------------------------------------------------------------------ packets of steps


@pytest.fixture
def packets() -> Iterator[tuple[StepPackets, HelperPackets]]:
    """Both ends of the packets."""
    ours = StepPackets()
    yield ours, HelperPackets(ours.helper)
    ours.close()


QUESTIONS: list[StepLoad | StepDeadlines] = [
    StepLoad(3, PlanKey(1, "a"), ((2.0,),), (1.0,), 0.0, deadlines=StepDeadlines(3)),
    StepLoad(4, PlanKey(1, None), ((8.0, 64.0),), (1.0,), 0.1, coupling="step"),
    StepDeadlines(4, (0.5,), (1410,), 0.01, 0.6),
]


def test_questions_and_plans_of_steps_come_through_as_they_were_sent(
    packets: tuple[StepPackets, HelperPackets],
) -> None:
    ours, helpers = packets
    assert (ours.take(), helpers.take()) == (None, None)
    for agent, question in enumerate(QUESTIONS):
        assert ours.ask(agent, question)
    assert [helpers.take() for _ in QUESTIONS] == list(enumerate(QUESTIONS))
    plans = [
        StepPlan(7, (1400, 1200, 1200), 0.25, 3.5, 1.1, 0.2, 0.4, counts_changes=True),
        StepPlan(8),
        StepPlan(9, (1410,) * MAX_INSTRUCTIONS),
    ]
    for agent, plan in enumerate(plans):
        helpers.answer(agent, plan)
    assert [ours.take() for _ in plans] == list(enumerate(plans))
    assert (ours.take(), helpers.take()) == (None, None)


def test_the_work_of_the_longest_step_that_is_planned_fits_a_packet(
    packets: tuple[StepPackets, HelperPackets],
) -> None:
    ours, helpers = packets
    work = tuple((1e6 + number / 7, 1e12 + number / 7) for number in range(16_500))
    question = StepLoad(1, PlanKey(1, "a" * 64), work, (1.1,) * 64, 0.1, None, StepDeadlines(1))
    assert ours.ask(0, question)
    assert helpers.take() == (0, question)


def test_a_helper_that_takes_nothing_holds_no_hook_and_leaves_no_part_of_a_packet(
    packets: tuple[StepPackets, HelperPackets],
) -> None:
    ours, helpers = packets
    num_sent = 0
    while ours.ask(num_sent, QUESTIONS[1]):
        num_sent += 1
        assert num_sent < 100_000
    assert not ours.ask(0, QUESTIONS[0])
    assert [helpers.take() for _ in range(num_sent)] == [
        (number, QUESTIONS[1]) for number in range(num_sent)
    ]
    assert helpers.take() is None
    assert ours.ask(0, QUESTIONS[0])
    assert helpers.take() == (0, QUESTIONS[0])
    ours.close()
    assert not ours.ask(0, QUESTIONS[0])
    assert ours.take() is None


class KeptPlans:
    """Rank that keeps what it is answered."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []
        self.timed: list[int] = []

    def step_timed(self, step: int, times_s: tuple[float, ...]) -> None:
        """Keep the step."""
        self.timed += [step] if times_s else []

    def step_planned(self, plan: StepPlan) -> None:
        """Keep the plan."""
        self.plans.append(plan)


def test_steps_are_planned_by_each_helper_after_the_other(quick: None) -> None:
    memory, kept = MemoryPlanner(), KeptPlans()
    part = part_of_stage(0, 1, deadline_ratio=1.25)
    rows = [(part.kinds[kind], number, 1400) for kind, number, *_ in part.instructions]
    memory.name_first_step(memory.publish(*rows, pipeline=part.pipeline), 0)
    steps = itertools.count()

    def ask(rank: HelpedRank) -> bool:
        """Ask for one more step, and for times; return whether both have come of some steps."""
        plan, _ = rank.activated[-1]
        step, key = next(steps), PlanKey(plan.version, plan.plan_id)
        load = StepLoad(step, key, step_work(LIGHT), (1.0,), 0.0)
        rank.link.ask(load._replace(deadlines=StepDeadlines(step)))
        rank.link.ask(load)
        while rank.link.take_step_plan():
            pass
        return bool(kept.timed) and any(plan.clocks_mhz for plan in kept.plans)

    with helped_rank(honest(memory), kept) as (rank, _):
        wait_until(lambda: bool(rank.activated), "the plan")
        link, pairs = links._Shared.link, set[StepPackets]()
        assert link is not None
        for _ in range(4):
            wait_until(lambda: ask(rank), "a step's plan and times")
            assert all(set(plan.clocks_mhz) < set(SUPPORTED_MHZ) for plan in kept.plans)
            assert link._packets is not None
            pairs.add(link._packets)
            assert not link._packets.helper.get_inheritable()
            # Agents that are not there: closed, or not opened yet.
            link._packets.ask(99, QUESTIONS[0])
            HelperPackets(link._packets.helper).answer(99, StepPlan(1, (7,)))
            pid = helper_pid()
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: is_gone(pid), "its end")  # noqa: B023 - called at once
            kept.plans.clear()
            kept.timed.clear()
        assert len(pairs) == 1, "each helper has sockets of its own, and nobody closes them"


def test_plans_are_handed_to_the_rank_that_asked_and_what_is_none_is_left(
    packets: tuple[StepPackets, HelperPackets],
) -> None:
    link, (ours, helpers) = links._Link(), packets
    assert not link.ask(0, QUESTIONS[0])
    assert not link.take_step_plan()
    link._packets = ours
    assert not link.ask(0, QUESTIONS[0]), "there is no helper"
    first, second, no_rank = KeptPlans(), KeptPlans(), object()
    options = PlannerClient("http://planner.test").options
    assert options is not None
    owners: Any = (first, second, no_rank)
    link._owners = {number: (options, owner) for number, owner in enumerate(owners)}
    for number in (1, 2, 3, 0):
        helpers.answer(number, StepPlan(number, (1400,)))
    ours.helper.send(b"no plan")
    for _ in range(5):
        assert link.take_step_plan()
    assert not link.take_step_plan()
    assert first.plans == [StepPlan(0, (1400,))]
    assert second.plans == [StepPlan(1, (1400,))]


def test_a_question_that_no_helper_would_read_whole_is_not_sent(
    packets: tuple[StepPackets, HelperPackets],
) -> None:
    ours, helpers = packets
    work = ((1.5, 2.5),) * 2 + tuple((float(number), 0.5) for number in range(40_000))
    assert not ours.ask(0, StepLoad(1, PlanKey(1, None), work, (1.0,), 0.0))
    assert helpers.take() is None


@pytest.mark.parametrize("length", [0, 52, 54, 53 + 4 * (MAX_INSTRUCTIONS + 1)])
def test_a_packet_that_is_no_plan_is_refused(length: int) -> None:
    whole = plan_packet(0, StepPlan(7, (1400,) * (MAX_INSTRUCTIONS + 2)))
    with pytest.raises(ValueError, match="out of its bounds"):
        read_plan_packet(whole[:length])


def test_the_times_of_a_step_come_through_as_they_were_sent() -> None:
    times_s = array("d", (0.5, 1.5)).tobytes()
    assert read_times(16, lambda num: times_s[:num]) == (0.5, 1.5)
    for num_bytes in (15, 8 * (MAX_INSTRUCTIONS + 1)):
        with pytest.raises(ValueError, match="out of its bounds"):
            read_times(num_bytes, lambda num: times_s[:num])


def test_frames_of_the_helper_are_json_within_their_bounds() -> None:
    def received(header: object, body: bytes = b"", *, num_bytes: int | None = None) -> object:
        content = header if isinstance(header, bytes) else json.dumps(header).encode()
        length = len(body) if num_bytes is None else num_bytes
        left = len(content).to_bytes(4, "big") + length.to_bytes(4, "big") + content + body

        def receive(num: int) -> bytes:
            nonlocal left
            assert num <= len(left), "more was asked for than was announced"
            piece, left = left[:num], left[num:]
            return piece

        got, num_received = read_header(receive)
        return read_plan(got, num_received, receive)

    compiled = compile_plan(large_plan(4), stage=0, supported_mhz=SUPPORTED_MHZ)
    header, body = plan_parts(compiled)
    assert received(header, body) == compiled
    in_comparison = replace(compiled, has_step_plans=True, baseline_cycle=(False, True))
    assert received(*plan_parts(in_comparison)) == in_comparison
    for wrong in (
        b"\x80\x04.",
        {"text": "a" * 20_000},
        header | {"num_instructions": 2**31},
        header | {"num_instructions": 1},
        header | {"num_rows": 2**30},
        header | {"num_requests": 3},
        header | {"version": -1},
        header | {"version": 2**60},
        {},
    ):
        with pytest.raises((ValueError, KeyError, TypeError)):
            received(wrong, body)
    for request in ((5, 0, 0.1), (1, 1, 0.1), (1, -1, 0.1), (1, 0, -0.1), (1, 0, math.nan)):
        with pytest.raises(ValueError, match="a request of a plan is out of its bounds"):
            received(*plan_parts(replace(compiled, requests=(request,))))
    assert helper_frame({"a": 1}, b"xy") == b"\0\0\0\x08\0\0\0\x02" + b'{"a": 1}xy'
