"""A child process that trains on a clock which a session has locked; see test_clock_release.

Its arguments: how training ends. It prints `locked` once the clock is locked.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

from tests.unit.client.memory_planner import JOB_ID, MemoryPlanner
from tests.unit.client.test_rank_session import run_until_active

from flyball_client.gpu.nvml import NvmlGpu
from flyball_client.rank_session import RankSession


def own_handler(number: int, _frame: FrameType | None) -> None:
    """A handler that the script had before the session came."""
    print(f"own handler {number}", flush=True)


def main() -> None:
    """Lock a clock through a session, then end as asked."""
    way = sys.argv[1]
    if way == "own-handler":
        signal.signal(signal.SIGTERM, own_handler)
    if way == "ignored":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    planner = MemoryPlanner()
    planner.name_first_step(planner.publish(("forward", 0, 1410), ("backward", 0, 1410)), 0)
    session = RankSession(
        gpu=NvmlGpu.open(index=0),
        job_id=JOB_ID,
        rank=0,
        stage=0,
        planner=planner.client(),
        poll_wait_s=0.1,
    )
    session.start()
    run_until_active(session, planner, 1)
    print("locked", flush=True)
    end(way, session)


def end(way: str, session: RankSession) -> None:
    """The ways in which training ends."""
    if way == "exit":
        return
    if way == "sys-exit":
        sys.exit(7)
    if way == "exception":
        raise RuntimeError("training failed")
    if way == "fork":
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        print(f"child {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
    if way == "restored":
        session.close()
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True)
        print(signal.getsignal(signal.SIGINT) == signal.default_int_handler, flush=True)
        return
    # Wait for the test's signal, or in vain.
    sys.stdin.readline()
    print(f"goes on, active {session.active_version}", flush=True)


if __name__ == "__main__":
    main()
