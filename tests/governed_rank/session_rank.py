"""A rank with a session, that goes through one event of a process's life.

Run as a script: `session_rank.py EVENT`; it prints one line of JSON for a test to check.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context

from tests.governed_rank.processes import wait_until

from flyball_client.governor import shared_state as word
from flyball_client.governor.process_governor import ProcessGovernor
from flyball_client.gpu.registry import open_local_gpu
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.rank_session import RankSession

PLAN = CompiledPlan(
    version=1,
    kinds=("forward",),
    microbatches=(0,),
    chunks=(0,),
    sm_clocks_mhz=(1410,),
    highest_sm_clock_mhz=1980,
    num_raised=0,
)
SECOND_MHZ = 1200


class Rank:
    """A started session, and the clock that is in force on its GPU."""

    def __init__(self, plan: CompiledPlan = PLAN) -> None:
        gpu = open_local_gpu(0, os.environ)
        assert gpu.address is not None
        self.governor = ProcessGovernor(gpu.address, "rank 0")
        self.session = RankSession(
            gpu=gpu, job_id="gpt", rank=0, stage=0, planner=None, governor=self.governor
        )
        self.session.plans.put(plan, 0)
        self.session.start()
        self.clock_mhz = plan.sm_clocks_mhz[0]

    def train_a_step(self) -> None:
        """Run one instruction, and wait until its clock is in force."""
        self.session.on_step_begin()
        self.session.on_instruction_begin("forward", microbatch=0)
        words = self.governor._words
        wait_until(
            lambda: self.governor.is_over or words[word.IN_FORCE_MHZ] == self.clock_mhz, "in force"
        )
        self.session.on_instruction_end("forward")
        self.session.on_step_end()

    def state(self) -> tuple[int, ...]:
        """Return what a second session would change: the pair, and its state."""
        wait_until(lambda: all(self.governor.pids), "there is a standby")
        return (*self.governor.pids, self.governor._words[word.STATE])


def _leave(rank: Rank) -> None:
    with rank.session:
        rank.session.on_step_begin()
        rank.session.on_instruction_begin("forward", microbatch=0)
        sys.exit(0)


def _fork(rank: Rank) -> None:
    rank.train_a_step()
    before, after = rank.state(), {}
    children: dict[str, Callable[[], object]] = {
        "leaves the block": lambda: _leave(rank),
        "ends": lambda: None,
        "closes": rank.session.close,
    }
    for what, in_child in children.items():
        if os.fork() == 0:
            in_child()
            sys.exit(0)
        os.wait()
        for _ in range(3):
            rank.train_a_step()
        after[what] = rank.state()
    print(json.dumps({"before": before, "after": after}))


def _execute(rank: Rank) -> None:
    rank.train_a_step()
    os.execv(sys.executable, [sys.executable, __file__, "executed"])  # noqa: S606 - no shell


def _executed() -> None:
    rank = Rank(replace(PLAN, sm_clocks_mhz=(SECOND_MHZ,)))
    rank.train_a_step()
    rank.train_a_step()
    print(json.dumps({"is_over": rank.governor.is_over}))
    rank.session.close()


def _begin_again() -> None:
    """Run a second session beside one that a failed trial left open."""
    first = Rank()
    first.train_a_step()
    second = Rank(replace(PLAN, sm_clocks_mhz=(SECOND_MHZ,)))
    for _ in range(3):
        second.train_a_step()
    first.session.on_step_begin()  # of a script that kept it: without effect
    first.session.on_step_end()
    are_over = [first.governor.is_over, second.governor.is_over]
    print(json.dumps({"are_over": are_over, "in_force_mhz": second.clock_mhz}))
    second.session.close()


def _end(how: str) -> None:
    rank = Rank()
    rank.train_a_step()
    rank.state()
    print(json.dumps({"in_force_mhz": rank.clock_mhz}), flush=True)
    if how == "raises":
        raise RuntimeError("the training script is wrong")


def main(event: str) -> None:
    """Go through the event."""
    logging.basicConfig(level=logging.INFO)
    match event:
        case "forks":
            _fork(Rank())
        case "executes":
            _execute(Rank())
        case "executed":
            _executed()
        case "begins again":
            _begin_again()
        case "multiprocessing":
            process = get_context("fork").Process(target=_end, args=("ends",))
            process.start()
            process.join()
            os._exit(0)  # before its governor has seen the end of the child by itself
        case how:
            _end(how)


if __name__ == "__main__":
    main(sys.argv[1])
