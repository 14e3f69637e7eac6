"""A loop that is bound by its launches, by turns with steps that are planned beside it and without.

It is the first rank of a pipeline whose plan this serves, so that nothing else computes meanwhile:
`announced_steps.py` measures it, and starts `launch_bound_loop.py PIPELINE URL FOLDER`.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx
from tests.planner.hostile import HostilePlanner, Request, hostile_planner, whole
from tests.unit.client.memory_planner import JOB_ID, MemoryPlanner

from announced_cases import (
    BLOCKING_POWER_W,
    HIGHEST_MHZ,
    SEED,
    TRUE,
    num_planned,
    points,
    sequence_lengths,
)
from benchmark_report import Interval, Limit, at_most, show_progress
from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu._base import ClockLimit
from flyball_client.session.rank_session import RankSession
from flyball_lab.demo.options import child_environment
from flyball_pipeline.clock_rounding import ChangeDelays
from flyball_pipeline.instruction import InstructionKind, equal_stages
from flyball_pipeline.schedule import Schedule
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import make_schedule
from flyball_pipeline.step_curves import ClockPoint
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_wire.plans.rank_pipeline import packed_pipeline
from measured_process import run_process


class LoopCase(NamedTuple):
    """Pipeline beside whose steps a loop runs.

    Attributes:
        num_stages, num_microbatches: of it.
        has_others: True: other pipelines' times are asked for, which are there at once.
        most_percent: limit of the added processor time, % of a step; None: none.
    """

    num_stages: int
    num_microbatches: int
    has_others: bool = False
    most_percent: float | None = None


LOOPS = {
    "2 x 8": LoopCase(2, 8, most_percent=0.2),
    "16 x 64": LoopCase(16, 64, most_percent=0.5),
    "2 x 8 of several": LoopCase(2, 8, has_others=True),
    "16 x 64 of several": LoopCase(16, 64, has_others=True),
}
SHORTEST_S = {InstructionKind.FORWARD: 0.05, InstructionKind.BACKWARD: 0.1}
# An A100's.
DELAYS = ChangeDelays(up_s=0.0092, down_s=0.0034)
# Time of the job's slowest pipeline over one's whose microbatches all have a factor of 1.
SLOWEST = 1.4
STEP_S, NUM_ROUNDS = 0.3, 80
# Of the rounds, the longest and the shortest ratios, which other work of the machine has made so.
TRIMMED_SHARE = 0.1
GIVE_UP_S, WARM_UP_S = 500.0, 60.0
WAYS = ("planned", "alone", "control")


@dataclass(frozen=True, kw_only=True)
class LoopFigure:
    """A loop bound by its launches, with steps that are planned beside it.

    Attributes:
        pipeline: stages x microbatches with as many instructions.
        step_s: mean step without, s.
        longer_percent, longer_interval: by how much a step is longer than those without just
            before or after it, %, mean without the tails, and its 95 %.
        control_percent, control_interval: the same of steps without.
        added_percent, added_interval: processor time that a planned step takes more in the
            announcement and in the rank's other threads, % of a step, and its 95 %.
        most_percent: limit of that; None: none. Steps alone scatter by more on two cores.
    """

    pipeline: str
    step_s: float
    longer_percent: float
    longer_interval: Interval
    control_percent: float
    control_interval: Interval
    added_percent: float
    added_interval: Interval
    most_percent: float | None

    @property
    def text(self) -> str:
        """For people."""
        added_ms = 10 * self.added_percent * self.step_s
        return (
            f"launch-bound loop, steps of {1000 * self.step_s:.0f} ms, beside {self.pipeline}:"
            f" {self.added_percent:.2f} % {self.added_interval} of a step in the announcement and"
            f" the rank's other threads, {added_ms:.2f} ms;"
            f" {self.longer_percent:+.2f} % {self.longer_interval}"
            f" longer (without beside without: {self.control_percent:+.2f} %"
            f" {self.control_interval})"
        )

    @property
    def limits(self) -> list[Limit]:
        """Of the added processor time."""
        if self.most_percent is None:
            return []
        name = f"loop beside {self.pipeline}: added processor time, % of a step"
        return [at_most(name, self.added_percent, self.most_percent)]


Round = dict[str, tuple[float, float]]
"""By way, a step's time and the processor time of its planning in the rank's process, s."""


def measure_loop(pipeline: str) -> LoopFigure:
    """Run the loop beside steps of a pipeline of as many instructions.

    Raises:
        BenchmarkError: The run failed.
    """
    show_progress(f"loop beside {pipeline}")
    with tempfile.TemporaryDirectory() as path, _served(pipeline) as url:
        run_process(
            [sys.executable, __file__, pipeline, url, path],
            give_up_s=GIVE_UP_S,
            environment=child_environment({}) | {"TMPDIR": path},
        )
        rounds: list[Round] = json.loads((Path(path) / "rounds.json").read_text(encoding="utf-8"))

    longer, control = (
        [100 * (each[way][0] / each["alone"][0] - 1) for each in rounds]
        for way in ("planned", "control")
    )
    step_s = fmean(each["alone"][0] for each in rounds)
    added = [100 * (each["planned"][1] - each["alone"][1]) / step_s for each in rounds]
    return LoopFigure(
        pipeline=pipeline,
        step_s=step_s,
        longer_percent=_trimmed_mean(longer),
        longer_interval=Interval.of(longer, _trimmed_mean),
        control_percent=_trimmed_mean(control),
        control_interval=Interval.of(control, _trimmed_mean),
        added_percent=fmean(added),
        added_interval=Interval.of(added, fmean),
        most_percent=LOOPS[pipeline].most_percent,
    )


def _trimmed_mean(values: Sequence[float]) -> float:
    num_trimmed = round(TRIMMED_SHARE * len(values))
    return fmean(sorted(values)[num_trimmed : len(values) - num_trimmed])


@contextmanager
def _served(pipeline: str) -> Iterator[str]:
    """Serve the first stage's part of a plan of such a pipeline; yield the address."""
    schedule = schedule_of(pipeline)
    num_stages = len(schedule.stages)
    curves = {
        kind: [
            ClockPoint(point.frequency_mhz, point.time_s, point.energy_j)
            for point in points(time_s, 1)
        ]
        for kind, time_s in SHORTEST_S.items()
    }
    places = {
        (stage, kind, 0): curve for stage in range(num_stages) for kind, curve in curves.items()
    }
    memory = MemoryPlanner()
    version = memory.publish(
        *((str(kind), number, HIGHEST_MHZ) for kind, number, _ in schedule.stages[0]),
        pipeline=packed_pipeline(
            schedule,
            [[HIGHEST_MHZ] * len(stage) for stage in schedule.stages],
            places,
            waiting_power_w=[BLOCKING_POWER_W] * num_stages,
            coefficients=dict.fromkeys(places, TRUE),
            delays=DELAYS,
        ),
    )
    memory.name_first_step(version, 0)

    def answer(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
        del planner
        url = httpx.URL(request.target)
        status, body = memory.answer(url.path, dict(url.params), request.body)
        return whole(b"" if body is None else body, status=f"{status} as it is")

    with hostile_planner(answer) as planner:
        yield planner.url


def schedule_of(pipeline: str) -> Schedule:
    """Return the order of a pipeline."""
    case = LOOPS[pipeline]
    shape = equal_stages(case.num_stages, case.num_microbatches)
    return make_schedule("1f1b", ScheduleInputs(shape=shape))


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


class OthersAtOnce:
    """Agreement with other pipelines of the same time, which are there at once."""

    gather = None

    def greatest(self, numbers: Sequence[float]) -> OthersAtOnce:
        """Return the same numbers."""
        self._numbers = list(numbers)
        return self

    def result(self) -> list[float]:
        """Return the numbers of the last exchange."""
        return self._numbers

    def close(self) -> None:
        """Do nothing."""


class Loop:
    """Steps of many small computations, two for each microbatch.

    Args:
        session: session of the rank.
        pipeline: of which it is the first rank.
    """

    def __init__(self, session: RankSession, pipeline: str) -> None:
        import torch  # noqa: PLC0415 - in the rank alone

        torch.set_num_threads(1)
        self._session = session
        self._operand: Any = torch.ones(32, 32)
        self._draw = random.Random(SEED)
        case = LOOPS[pipeline]
        self._num_microbatches = case.num_microbatches
        num_in_turn = case.num_stages + case.num_microbatches - 1
        self._slowest_s = SLOWEST * num_in_turn * sum(SHORTEST_S.values())
        self._instructions = schedule_of(pipeline).stages[0]
        self._num_launches = 1
        self.lengthen()

    def lengthen(self) -> None:
        """Make steps as long as they are to be."""
        while min(self.step(is_planned=False) for _ in range(3))[0] < STEP_S:
            self._num_launches += -(-self._num_launches // 4)

    def step(self, *, is_planned: bool) -> tuple[float, float]:
        """Run a step; return its time, and the processor time of planning in this process, s.

        Args:
            is_planned: True: the next step is announced, and planned meanwhile.
        """
        work = [sequence_lengths(self._draw) for _ in range(self._num_microbatches)]
        session = self._session
        began_s, began_threads_s = time.perf_counter(), time.process_time() - time.thread_time()
        session.on_step_begin()
        announcing_s = time.thread_time()
        if is_planned:
            session.announce_step(work, slowest_s=self._slowest_s)
        announcing_s = time.thread_time() - announcing_s
        for kind, microbatch, _ in self._instructions:
            session.on_instruction_begin(kind, microbatch=microbatch)
            for _ in range(self._num_launches):
                self._operand.mul(1.0)
            session.on_instruction_end(kind, microbatch=microbatch)
        session.on_step_end()
        took_s = time.perf_counter() - began_s
        threads_s = time.process_time() - time.thread_time() - began_threads_s
        return took_s, announcing_s + threads_s

    def counted_step(self, way: str) -> tuple[float, float]:
        """Run a step after one that is not counted."""
        self.step(is_planned=way == "planned")
        return self.step(is_planned=way == "planned")


def main() -> None:
    """Run steps by turns, and write their times."""
    pipeline, url, folder = sys.argv[1:]
    with PlannerClient(url) as planner:
        session = RankSession(gpu=NoGpu(), job_id=JOB_ID, rank=0, stage=0, planner=planner)
        others = OthersAtOnce() if LOOPS[pipeline].has_others else None
        session.plan_steps(others, coupling="step")
        session.start()
        loop = Loop(session, pipeline)
        give_up_s = time.monotonic() + WARM_UP_S
        while num_planned(session) < 2:
            if time.monotonic() > give_up_s:
                raise SystemExit("no step had a plan of its own")
            loop.counted_step("planned")
        # The first steps were slower, while the helper started.
        loop.lengthen()
        draw, planned_before = random.Random(SEED), num_planned(session)
        rounds: list[Round] = []
        for _ in range(NUM_ROUNDS):
            ways = list(WAYS)
            draw.shuffle(ways)
            rounds.append({way: loop.counted_step(way) for way in ways})
        num = num_planned(session) - planned_before
        session.close()
    if num < NUM_ROUNDS:
        raise SystemExit(f"{num:.0f} of {NUM_ROUNDS} steps had plans of their own")
    (Path(folder) / "rounds.json").write_text(json.dumps(rounds), encoding="utf-8")


if __name__ == "__main__":
    main()
