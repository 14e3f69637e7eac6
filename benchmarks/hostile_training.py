"""A training loop whose planner may be hostile, and that planner; each a process of its own.

`python hostile_training.py URL SECONDS [threads]` prints figures of the training as JSON;
`threads`: the rank's own threads call the planner.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx
from tests.planner import hostile
from tests.planner.hostile import HostilePlanner, Request, hostile_planner, whole
from tests.unit.client.memory_planner import JOB_ID, MemoryPlanner
from tests.unit.client.recording_gpu import RecordingGpu

from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.helper.rank_agent import LinkTimes
from flyball_client.session.active_plan import MAX_PLAN_CLOCKS
from flyball_client.session.rank_session import RankSession
from flyball_wire.codec import encode
from flyball_wire.plans.rank_plan import MAX_ANSWER_BYTES, MAX_INSTRUCTIONS, rank_plan

NUM_MICROBATCHES = 16
COMPUTED_S = 100e-6
# The training gives up Python's lock between instructions, as torch does.
SLEPT_S = 50e-6
# Longer than any piece of work: no thread is asked to give the lock to another one, so that a wait
# for it is as long as the piece of work that another thread held it for.
NO_SWITCH_S = 60.0
WARM_UP_STEPS = 50
TIMES = LinkTimes(first_retry_s=0.1, longest_retry_s=0.5, flush_timeout_s=0.2)

PLANNED = tuple(
    (kind, microbatch, mhz)
    for microbatch in range(NUM_MICROBATCHES)
    for kind, mhz in (("forward", 1200), ("backward", 900))
)


# ------------------------------------------------------------------ the planner


def serve(name: str, send_url: Callable[[str], None]) -> None:
    """Serve as this planner until this process is ended."""
    os.nice(19)  # it stands for another machine
    with hostile_planner(PLANNERS[name]()) as planner:
        send_url(planner.url)
        while planner.pause():
            pass


def _honest() -> hostile.Answer:
    memory = MemoryPlanner()
    memory.name_first_step(memory.publish(*PLANNED), 0)

    def answer(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
        del planner
        url = httpx.URL(request.target)
        status, body = memory.answer(url.path, dict(url.params), request.body)
        return whole(b"" if body is None else body, status=f"{status} as it is")

    return answer


def _hostile_once_registered(hostile_answer: hostile.Answer) -> Callable[[], hostile.Answer]:
    """Return a planner that registers the rank, gives it a plan, and then answers in this way."""

    def make() -> hostile.Answer:
        honest = _honest()
        num_plans = 0

        def answer(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
            nonlocal num_plans
            num_plans += "/plan" in request.target
            if request.method == "PUT" or num_plans < 2:
                return honest(planner, request)
            return hostile_answer(planner, request)

        return answer

    return make


def _lists(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
    """JSON of the largest size that is read, of a million lists."""
    del planner, request
    return whole(b"[" + b"[]," * (MAX_ANSWER_BYTES // 3 - 2) + b"[]]")


def _new_plans(num_instructions: int, num_rows: int = 0) -> Callable[[], hostile.Answer]:
    """Return a planner with a new version for every call, which holds at once."""

    def make() -> hostile.Answer:
        honest = _honest()
        rows = [
            tuple(
                (900, 1200)[((number >> row % 14) + row // 14) & 1]
                for number in range(num_instructions)
            )
            for row in range(num_rows)
        ]
        plan = rank_plan(
            [("forward", number, (900, 1200)[number % 2], 0) for number in range(num_instructions)],
            cycle_mhz=rows,
            job_id=JOB_ID,
            version=0,
            stage=0,
            first_step=None,
            predicted_iteration_time_s=1.0,
        )
        fields = json.dumps(encode(plan), separators=(",", ":")).encode()
        version = 0

        def answer(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
            nonlocal version
            if "/plan" in request.target:
                version += 1
                return whole(fields.replace(b'"version":0', b'"version":%d' % version))
            if "/acknowledgement" in request.target:
                return whole({"version": version, "first_step": 0})
            return honest(planner, request)

        return answer

    return make


PLANNERS: dict[str, Callable[[], hostile.Answer]] = {
    "honest": _honest,
    "32 KB of gzip": _hostile_once_registered(hostile.packed_lists),
    "gzip in gzip": _hostile_once_registered(hostile.twice_packed),
    "1 MiB of lists": _hostile_once_registered(_lists),
    "endless body": _hostile_once_registered(hostile.endless_body),
    "chunks of one byte": _hostile_once_registered(hostile.endless_chunks),
    "endless 100 Continue": _hostile_once_registered(hostile.endless_interim),
    "endless head": _hostile_once_registered(hostile.endless_head),
    "dripping head": _hostile_once_registered(hostile.dripping_head),
    "new plan each call, 20,000": _new_plans(20_000),
    "new plan each call, largest": _new_plans(
        MAX_INSTRUCTIONS, MAX_PLAN_CLOCKS // MAX_INSTRUCTIONS
    ),
}


# ------------------------------------------------------------------ the training


class Loop:
    """Training steps of short computations, between which another thread may take Python's lock.

    Attributes:
        waits_s: Time in s of each pause beyond its sleep.
        held_s: Processor time in s that the rank's other threads took in each pause. The lock
            cannot have been held for longer, but where the machine was doing something else.
    """

    def __init__(self, session: RankSession) -> None:
        self._session = session
        self.waits_s: list[float] = []
        self.held_s: list[float] = []

    def step(self) -> float:
        """Run a step; return its time in s."""
        session, waits_s, held_s = self._session, self.waits_s, self.held_s
        began_s = time.perf_counter()
        session.on_step_begin()
        for kind, microbatch, _ in PLANNED:
            session.on_instruction_begin(kind, microbatch=microbatch)
            until_s = time.perf_counter() + COMPUTED_S
            while time.perf_counter() < until_s:
                pass
            session.on_instruction_end(kind)
            slept_s, others_s = time.perf_counter(), _others_s()
            time.sleep(SLEPT_S)
            waits_s.append(time.perf_counter() - slept_s - SLEPT_S)
            held_s.append(_others_s() - others_s)
        session.on_step_end()
        return time.perf_counter() - began_s

    def run_for(self, time_s: float) -> Iterator[float]:
        """Run steps for so long; yield their times in s."""
        until_s = time.perf_counter() + time_s
        while time.perf_counter() < until_s:
            yield self.step()


def _others_s() -> float:
    """Return the processor time in s of this process's other threads."""
    return time.process_time() - time.thread_time()


def train(url: str, time_s: float) -> dict[str, object]:
    """Return the figures of trainings with this planner, between two with none.

    Args:
        url: Its address.
        time_s: Time in s of each training.
    """
    none_s = _steps_s("", time_s)
    none_mib = _peak_mib("self")
    figures, steps_s = _with_planner(url, time_s)
    steps_s += _steps_s(url, time_s)
    none_s += _steps_s("", time_s)
    return figures | {
        "num_steps": len(steps_s),
        "step_ms": 1e3 * statistics.median(steps_s),
        "slow_step_ms": 1e3 * sorted(steps_s)[int(0.99 * len(steps_s))],
        "step_ratio": statistics.median(steps_s) / statistics.median(none_s),
        "growth_mib": _peak_mib("self") - none_mib,
    }


def _steps_s(url: str, time_s: float) -> list[float]:
    with _loop(url) as loop:
        return list(loop.run_for(time_s))


def _with_planner(url: str, time_s: float) -> tuple[dict[str, object], list[float]]:
    """Return figures of the rank's other threads, and its steps' times in s."""
    with _loop(url) as loop:
        began_s, others_s = time.perf_counter(), _others_s()
        steps_s = list(loop.run_for(time_s))
        share = (_others_s() - others_s) / (time.perf_counter() - began_s)
        loop.waits_s.clear()
        loop.held_s.clear()
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(NO_SWITCH_S)
        for _ in loop.run_for(time_s):
            pass
        sys.setswitchinterval(interval_s)
        waits_s, held_s = sorted(loop.waits_s), sorted(loop.held_s)
        figures: dict[str, object] = {
            "share_percent": 100 * share,
            "num_waits": len(waits_s),
            "wait_ms": 1e3 * waits_s[int(0.999 * len(waits_s))],
            "held_ms": 1e3 * held_s[int(0.999 * len(held_s))],
            "longest_held_ms": 1e3 * held_s[-1],
            "calling_mib": max(map(_peak_mib, _children()), default=0.0),
        }
        return figures, steps_s


@contextmanager
def _loop(url: str) -> Iterator[Loop]:
    """A training with this planner (empty: none), warmed up."""
    planner = None
    if url:
        # A client with a transport of its own calls on the session's threads.
        transport = httpx.HTTPTransport() if "threads" in sys.argv else None
        planner = PlannerClient(url, retries=Retries(num_attempts=1), transport=transport)
    with RankSession(
        gpu=RecordingGpu(), job_id=JOB_ID, rank=0, stage=0, planner=planner, times=TIMES
    ) as session:
        loop = Loop(session)
        for _ in range(WARM_UP_STEPS):
            loop.step()
        yield loop


def _children() -> list[str]:
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    tasks = path.parent.parent.glob("*/children")
    return [pid for task in tasks for pid in task.read_text(encoding="ascii").split()]


def _peak_mib(pid: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1], float(sys.argv[2]))))
