"""Runs series of hooks through Flyball's real client; a process of its own, on the false GPUs.

`python hooks_driver.py SERIES.json RESULT.json`, with the environment of `FalseGpus.variables`
and the repository's root in PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.unit.client.memory_planner import JOB_ID, MemoryPlanner

from flyball_client.governor import shared_state as word
from flyball_client.governor.process_governor import ProcessGovernor
from flyball_client.gpu.nvml import NvmlGpu, visible_gpu_uuid
from flyball_client.session.rank_session import RankSession
from hooks_gpus import CallRecord
from hooks_series import INSTRUCTIONS, Series, run_series
from measured_process import BenchmarkError

START_GIVE_UP_S = 20.0
Instruction = tuple[str, int, int]


class FlyballRank:
    """A session with its governor, a plan in force."""

    wants_microbatch = True

    def __init__(self, session: RankSession, governor: ProcessGovernor) -> None:
        self._session = session
        self.begin_hook: Callable[..., None] = session.on_instruction_begin
        self.end_hook = session.on_instruction_end
        self._governor = governor
        # What they share is nobody's business but theirs; here it is what is measured.
        self._words = governor._shared_state.words
        self._last_request = 0

    def on_step_begin(self) -> None:
        """A step begins."""
        self._session.on_step_begin()

    def on_step_end(self) -> None:
        """A step is over."""
        self._session.on_step_end()

    @property
    def controller_pid(self) -> int:
        """The governor's."""
        return self._governor.pids[0]

    def take_delivery_ns(self) -> tuple[int, int] | None:
        """Of the newest request, once: when it was made and when the governor saw it, ns."""
        words = self._words
        request = words[word.REQUEST]
        if request == self._last_request or words[word.SERVED] != request:
            return None
        self._last_request = request
        return words[word.REQUESTED_NS], words[word.DELIVERED_NS]


@contextmanager
def planned_session(
    instructions: tuple[Instruction, ...], *, history_length: int = 1024
) -> Iterator[tuple[RankSession, ProcessGovernor, MemoryPlanner]]:
    """A session that follows a plan of these instructions, its governor at work.

    Raises:
        BenchmarkError: the governor did not start, or the plan did not come into force.
    """
    planner = MemoryPlanner()
    planner.name_first_step(planner.publish(*instructions), 0)
    gpu = NvmlGpu.open(uuid=visible_gpu_uuid(0, os.environ))
    governor = ProcessGovernor(gpu.address, "hooks")
    with planner.client() as client:
        session = RankSession(
            gpu=gpu,
            job_id=JOB_ID,
            rank=0,
            stage=0,
            planner=client,
            governor=governor,
            history_length=history_length,
        )
        with session:
            _wait_until_planned(session, governor)
            yield session, governor, planner
    gpu.close()


def run_step(session: RankSession, instructions: tuple[Instruction, ...]) -> None:
    """One step through the plan, without a pause."""
    session.on_step_begin()
    for kind, microbatch, _ in instructions:
        session.on_instruction_begin(kind, microbatch=microbatch)
        session.on_instruction_end(kind, microbatch=microbatch)
    session.on_step_end()


def _wait_until_planned(session: RankSession, governor: ProcessGovernor) -> None:
    give_up_s = time.monotonic() + START_GIVE_UP_S
    while session.active_version is None or not all(governor.pids):
        if time.monotonic() > give_up_s or governor.is_over:
            raise BenchmarkError(f"no plan is in force after {START_GIVE_UP_S:g} s")
        session.on_step_begin()
        session.on_step_end()
        time.sleep(0.01)


def main(series_file: Path, result_file: Path) -> None:
    """Run them all, one after the other."""
    wanted = [Series(**fields) for fields in json.loads(series_file.read_text(encoding="utf-8"))]
    with planned_session(INSTRUCTIONS) as (session, governor, _):
        rank = FlyballRank(session, governor)
        record = CallRecord.of_environment()
        results = [run_series(series, rank, record) for series in wanted]
    result_file.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
