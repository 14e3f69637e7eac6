"""A loop that is bound by its launches, by turns with steps that are planned beside it and without.

`announced_steps.py` measures it; this starts `launch_bound_loop.py NUM_MICROBATCHES URL FOLDER`.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from announced_cases import BLOCKING_POWER_W, HIGHEST_MHZ, SEED, points
from benchmark_report import Interval, Limit, at_most
from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu._base import ClockLimit
from flyball_client.session.rank_session import RankSession
from flyball_lab.demo.options import child_environment
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import StageProfile
from flyball_wire.messages import JobRegistration
from measured_process import run_process
from served_planner import put_profile_of_job, served_planner

JOB_ID = "loop"
# Number of microbatches of one stage, which has as many instructions, and the limit in %.
LOOPS = {"2 x 8": (16, 0.2), "16 x 64": (1024, 0.5)}
STEP_S, BLOCK_STEPS, NUM_ROUNDS = 0.3, 3, 50
# Of the steps of all blocks, which the machine's other work has made longer or shorter.
TRIMMED_SHARE = 0.1
GIVE_UP_S, WARM_UP_S = 500.0, 120.0
WAYS = ("planned", "alone", "control")


@dataclass(frozen=True, kw_only=True)
class LoopFigure:
    """A loop bound by its launches, with steps that are planned beside it.

    Attributes:
        pipeline: stages x microbatches with as many instructions.
        step_s: mean step without, s.
        longer_percent, longer_interval: by how much its mean step is longer, %, and its 95 %.
        control_percent, control_interval: the same of blocks without beside others without.
        threads_ms: processor time that a planned step takes more in the rank's other threads, ms.
        most_percent: limit.
    """

    pipeline: str
    step_s: float
    longer_percent: float
    longer_interval: Interval
    control_percent: float
    control_interval: Interval
    threads_ms: float
    most_percent: float

    @property
    def text(self) -> str:
        """For people."""
        return (
            f"launch-bound loop, steps of {1000 * self.step_s:.0f} ms, beside {self.pipeline}:"
            f" {self.longer_percent:+.2f} % {self.longer_interval} longer"
            f" (without beside without: {self.control_percent:+.2f} % {self.control_interval});"
            f" {self.threads_ms:.2f} ms a step in the rank's other threads"
        )

    @property
    def limit(self) -> Limit:
        """Of the mean step."""
        return at_most(
            f"loop longer beside {self.pipeline}, %",
            self.longer_percent,
            self.most_percent,
            peer=("without beside without", self.control_percent),
        )


Round = dict[str, list[tuple[float, float]]]
"""By way, of each step its time and the processor time of the rank's other threads, s."""


def measure_loop(pipeline: str) -> LoopFigure:
    """Run the loop beside steps of a pipeline of as many instructions.

    Raises:
        BenchmarkError: The run failed.
    """
    num_microbatches, most_percent = LOOPS[pipeline]
    with tempfile.TemporaryDirectory() as path, served_planner(Path(path)) as planner:
        run_process(
            [sys.executable, __file__, str(num_microbatches), planner.url, path],
            give_up_s=GIVE_UP_S,
            environment=child_environment({}) | {"TMPDIR": path},
        )
        rounds: list[Round] = json.loads((Path(path) / "rounds.json").read_text(encoding="utf-8"))

    def longer_percent(way: str) -> Callable[[Sequence[Round]], float]:
        return lambda rounds: 100 * (_mean_s(rounds, way) / _mean_s(rounds, "alone") - 1)

    threads_ms = {
        way: 1000 * fmean(thread_s for each in rounds for _, thread_s in each[way]) for way in WAYS
    }
    return LoopFigure(
        pipeline=pipeline,
        step_s=_mean_s(rounds, "alone"),
        longer_percent=longer_percent("planned")(rounds),
        longer_interval=Interval.of(rounds, longer_percent("planned")),
        control_percent=longer_percent("control")(rounds),
        control_interval=Interval.of(rounds, longer_percent("control")),
        threads_ms=threads_ms["planned"] - threads_ms["alone"],
        most_percent=most_percent,
    )


def _mean_s(rounds: Sequence[Round], way: str) -> float:
    """Return the trimmed mean of a way's steps, s."""
    taken_s = sorted(time_s for each in rounds for time_s, _ in each[way])
    num_trimmed = round(TRIMMED_SHARE * len(taken_s))
    return fmean(taken_s[num_trimmed : len(taken_s) - num_trimmed])


# ---------------------------------------------------------------------- the rank


class NoGpu:
    """A GPU whose clocks take no time, for a loop that computes on the processor."""

    name, uuid, is_emulated, address = "no GPU", "GPU-none", False, None

    def clock_limits(self) -> ClockLimit:
        """Return none."""
        return ClockLimit.NONE

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Return those of the profile."""
        return tuple(range(HIGHEST_MHZ, 800, -45))

    def lock_sm_clock_mhz(self, sm_clock_mhz: int) -> None:
        """Do nothing."""

    def reset_sm_clock(self) -> None:
        """Do nothing."""

    def sm_clock_mhz(self) -> int:
        """Return the highest."""
        return HIGHEST_MHZ

    def total_energy_j(self) -> float:
        """Return nothing used."""
        return 0.0

    def energy_scope(self) -> None:
        """Return that it is not known."""

    def conditions(self) -> GpuConditions:
        """Return none."""
        return GpuConditions()

    def close(self) -> None:
        """Do nothing."""


class Loop:
    """Steps of many small computations, two for each microbatch.

    Args:
        session: session of the rank.
        num_microbatches: of a step.
    """

    def __init__(self, session: RankSession, num_microbatches: int) -> None:
        import torch  # noqa: PLC0415 - in the rank alone

        torch.set_num_threads(1)
        self._session = session
        self._operand: Any = torch.ones(32, 32)
        self._work = [1.0] * num_microbatches
        self._num_launches = 1
        while (took_s := self.step(is_planned=False)[0]) < STEP_S:
            self._num_launches += -(-self._num_launches // 2)
        #: Time of an instruction, s.
        self.instruction_s = took_s / (2 * num_microbatches)

    def step(self, *, is_planned: bool) -> tuple[float, float]:
        """Run a step; return its time and the processor time of other threads, s.

        Args:
            is_planned: True: the next step is announced, and planned meanwhile.
        """
        began_s, began_threads_s = time.perf_counter(), time.process_time() - time.thread_time()
        session = self._session
        session.on_step_begin()
        if is_planned:
            session.announce_step(self._work, slowest_s=2 * STEP_S)
        for microbatch in range(len(self._work)):
            for kind in (InstructionKind.FORWARD, InstructionKind.BACKWARD):
                session.on_instruction_begin(kind, microbatch=microbatch)
                for _ in range(self._num_launches):
                    self._operand.mul(1.0)
                session.on_instruction_end(kind, microbatch=microbatch)
        session.on_step_end()
        took_s = time.perf_counter() - began_s
        return took_s, time.process_time() - time.thread_time() - began_threads_s

    def block(self, way: str) -> list[tuple[float, float]]:
        """Run a block of steps after one that is not counted."""
        taken = [self.step(is_planned=way == "planned") for _ in range(1 + BLOCK_STEPS)]
        return taken[1:]


def main() -> None:
    """Run blocks by turns, and write their times."""
    num_microbatches, url, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    registration = JobRegistration(
        num_stages=1,
        num_microbatches=num_microbatches,
        num_ranks=1,
        blocking_power_w=(BLOCKING_POWER_W,),
        # The loop takes as long at every clock.
        max_work_error=1.0,
    )
    with PlannerClient(url) as planner:
        planner.put_job(JOB_ID, registration)
        session = RankSession(gpu=NoGpu(), job_id=JOB_ID, rank=0, stage=0, planner=planner)
        session.plan_steps(coupling="step")
        session.start()
        loop = Loop(session, num_microbatches)
        kinds = (InstructionKind.FORWARD, InstructionKind.BACKWARD)
        curve = points(loop.instruction_s, 0.9, 1)
        put_profile_of_job(
            url,
            JOB_ID,
            StageProfile(
                points={(0, kind): curve for kind in kinds},
                num_ranks_per_stage=(1,),
            ),
        )
        give_up_s = time.monotonic() + WARM_UP_S
        while session.metrics(prefix="")["total_num_steps_with_own_plan"] < 1:
            if time.monotonic() > give_up_s:
                raise SystemExit("no step had a plan of its own")
            loop.block("planned")
        draw = random.Random(SEED)
        rounds: list[Round] = []
        for _ in range(NUM_ROUNDS):
            ways = list(WAYS)
            draw.shuffle(ways)
            rounds.append({way: loop.block(way) for way in ways})
        session.close()
    (folder / "rounds.json").write_text(json.dumps(rounds), encoding="utf-8")


if __name__ == "__main__":
    main()
