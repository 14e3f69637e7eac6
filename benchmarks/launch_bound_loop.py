"""A loop that is bound by its launches, by turns with a plan for each step and with one for all.

It is the first rank of a pipeline whose plan this serves, so that nothing else computes meanwhile:
`announced_steps.py` measures it, and starts `launch_bound_loop.py PIPELINE URL FOLDER`.
"""

from __future__ import annotations

import json
import operator
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from measured_process import BenchmarkError, run_process


class LoopCase(NamedTuple):
    """Pipeline beside whose steps a loop runs.

    Attributes:
        num_stages, num_microbatches: of it.
        num_changes: clock changes a step of the plan for all, at most those of a step's own plan.
        has_others: True: other pipelines' times are asked for, which are there at once.
        most_percent: limit of what a planned step is longer by, without the processor time of its
            launches, %; None: none.
    """

    num_stages: int
    num_microbatches: int
    num_changes: int
    has_others: bool = False
    most_percent: float | None = None


LOOPS = {
    "2 x 8": LoopCase(2, 8, 8, most_percent=0.2),
    "16 x 64": LoopCase(16, 64, 40, most_percent=0.5),
    "2 x 8 of several": LoopCase(2, 8, 8, has_others=True),
    "16 x 64 of several": LoopCase(16, 64, 40, has_others=True),
}
SUPPORTED_MHZ = tuple(range(HIGHEST_MHZ, 800, -45))
SHORTEST_S = {InstructionKind.FORWARD: 0.05, InstructionKind.BACKWARD: 0.1}
# An A100's.
DELAYS = ChangeDelays(up_s=0.0092, down_s=0.0034)
# Time of the job's slowest pipeline over one's whose microbatches all have a factor of 1.
SLOWEST = 1.4
STEP_S, NUM_ROUNDS = 0.3, 80
# Of the rounds, the quarters with most and least, which other work of the machine has made so.
TRIMMED_SHARE = 0.25
# Of the planned steps, those with a plan of their own at least.
PLANNED_SHARE = 0.95
GIVE_UP_S, WARM_UP_S = 500.0, 60.0
# A plan for each step, and twice the plan for all.
WAYS = ("planned", "static", "control")


class StepFigures(NamedTuple):
    """A step of the loop.

    Attributes:
        time_s: of the step, s.
        launches_s: processor time of its launches, s, which follows how fast the core runs.
        other_s: other processor time of this process, s: of hooks, and of other threads.
        num_changes: of its clock.
        num_plans: 1: the step had a plan of its own; 0: it had not.
        num_stolen: clock ticks for which a virtual machine's host took a core meanwhile.
    """

    time_s: float
    launches_s: float
    other_s: float
    num_changes: int
    num_plans: int
    num_stolen: int

    @property
    def rest_s(self) -> float:
        """Return all other time, s: in hooks, and waiting for Python's lock or for the core."""
        return self.time_s - self.launches_s


Round = dict[str, StepFigures]
"""A step of each way."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """By how much a part of a step is longer, in the same round.

    Attributes:
        percent: mean of the middle half of the rounds, % of a step.
        interval: its 95 %.
        mean_percent: mean of all rounds, % of a step.
    """

    percent: float
    interval: Interval
    mean_percent: float

    @classmethod
    def of(cls, rounds: Sequence[Round], way: str, part: Callable[[StepFigures], float]) -> Growth:
        """Return it for a part of a way's steps, beside those with the plan for all."""
        step_s = fmean(each["static"].time_s for each in rounds)
        longer = [100 * (part(each[way]) - part(each["static"])) / step_s for each in rounds]
        return cls(
            percent=_trimmed_mean(longer),
            interval=Interval.of(longer, _trimmed_mean),
            mean_percent=fmean(longer),
        )

    def __str__(self) -> str:
        return f"{self.percent:+.2f} % {self.interval} (mean of all {self.mean_percent:+.2f})"


def _trimmed_mean(values: Sequence[float]) -> float:
    num_trimmed = round(TRIMMED_SHARE * len(values))
    return fmean(sorted(values)[num_trimmed : len(values) - num_trimmed])


@dataclass(frozen=True, kw_only=True)
class LoopFigure:
    """A loop bound by its launches with a plan for each step, beside a plan for all steps.

    Both sessions are one process's, with one helper: it posts their measurements at any step.

    Attributes:
        pipeline: stages x microbatches with as many instructions.
        step_s: mean step with the plan for all, s.
        num_changes, static_num_changes: mean clock changes of a step, with a plan for each and with
            the plan for all.
        rest, control_rest: by how much all but the processor time of launches is longer: of steps
            with a plan for each, and of more steps with the plan for all.
        launches, control_launches: the same of that processor time, which scatters with the core.
        other, control_other: the same of the process's other processor time, for which the loop
            itself works, or waits for Python's lock; a busy host shifts it least.
        num_rounds: of steps that were compared.
        num_disturbed: rounds with a step in which a virtual machine's host took a core.
        most_percent: limit of `rest`; None: none.
    """

    pipeline: str
    step_s: float
    num_changes: float
    static_num_changes: float
    rest: Growth
    control_rest: Growth
    launches: Growth
    control_launches: Growth
    other: Growth
    control_other: Growth
    num_rounds: int
    num_disturbed: int
    most_percent: float | None

    @property
    def text(self) -> str:
        """For people."""
        rows = {
            "without its launches' processor time": (self.rest, self.control_rest),
            "its launches' processor time": (self.launches, self.control_launches),
            "the process's other processor time": (self.other, self.control_other),
        }
        return (
            f"launch-bound loop beside {self.pipeline}, steps of {1000 * self.step_s:.0f} ms,"
            f" {self.num_changes:.1f} clock changes beside {self.static_num_changes:.1f}; a host"
            f" disturbed {self.num_disturbed} of {self.num_rounds} rounds. Longer:\n"
        ) + "\n".join(
            f"  {name}: {part}; control {control}" for name, (part, control) in rows.items()
        )

    @property
    def limits(self) -> list[Limit]:
        """Return the limit, if there is one."""
        if self.most_percent is None:
            return []
        name = f"loop beside {self.pipeline}: longer, without its launches' time, % of a step"
        return [at_most(name, self.rest.percent, self.most_percent)]


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
        found = json.loads((Path(path) / "rounds.json").read_text(encoding="utf-8"))
    rounds = [{way: StepFigures(*figures) for way, figures in each.items()} for each in found]
    num_planned = sum(each["planned"].num_plans for each in rounds)
    if num_planned < PLANNED_SHARE * len(rounds):
        raise BenchmarkError(f"{num_planned} of {len(rounds)} steps had plans of their own")

    def longer(way: str) -> tuple[Growth, Growth, Growth]:
        return (
            Growth.of(rounds, way, lambda step: step.rest_s),
            Growth.of(rounds, way, lambda step: step.launches_s),
            Growth.of(rounds, way, lambda step: step.other_s),
        )

    rest, launches, other = longer("planned")
    control_rest, control_launches, control_other = longer("control")
    num_changes = fmean(each["planned"].num_changes for each in rounds)
    static_num_changes = fmean(each["static"].num_changes for each in rounds)
    if static_num_changes > num_changes:
        raise BenchmarkError("the plan for all changes clocks more often than steps' own plans")
    return LoopFigure(
        pipeline=pipeline,
        step_s=fmean(each["static"].time_s for each in rounds),
        num_changes=num_changes,
        static_num_changes=static_num_changes,
        rest=rest,
        control_rest=control_rest,
        launches=launches,
        control_launches=control_launches,
        other=other,
        control_other=control_other,
        num_rounds=len(rounds),
        num_disturbed=sum(any(step.num_stolen for step in each.values()) for each in rounds),
        most_percent=LOOPS[pipeline].most_percent,
    )


@contextmanager
def _served(pipeline: str) -> Iterator[str]:
    """Serve the first stage's part of such a pipeline's plans to ranks 0 and 1; yield the address.

    Rank 0 may plan each step, and rank 1 has one plan for all.
    """
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
    rows = [(str(kind), number, HIGHEST_MHZ) for kind, number, _ in schedule.stages[0]]
    planned, static = MemoryPlanner(), MemoryPlanner()
    planned.publish(
        *rows,
        pipeline=packed_pipeline(
            schedule,
            [[HIGHEST_MHZ] * len(stage) for stage in schedule.stages],
            places,
            waiting_power_w=[BLOCKING_POWER_W] * num_stages,
            coefficients=dict.fromkeys(places, TRUE),
            delays=DELAYS,
        ),
    )
    # Its clocks change as evenly as their number permits, the last time for the next step's first.
    num_changes = LOOPS[pipeline].num_changes
    static.publish(
        *(
            (kind, number, SUPPORTED_MHZ[place * num_changes // len(rows) % 2])
            for place, (kind, number, _) in enumerate(rows)
        )
    )
    planners = {f"/ranks/{rank}": memory for rank, memory in enumerate((planned, static))}
    for memory in planners.values():
        memory.name_first_step(1, 0)

    def answer(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
        del planner
        url = httpx.URL(request.target)
        memory = next(memory for rank, memory in planners.items() if rank in url.path)
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

    name, is_emulated, address = "no GPU", False, None

    def __init__(self, number: int) -> None:
        self.uuid = f"GPU-{number}"

    def clock_limits(self) -> ClockLimit:
        """Return none."""
        return ClockLimit.NONE

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Return those of the profile."""
        return SUPPORTED_MHZ

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
        planned: session with a plan for each step, that of the first rank of the pipeline.
        static: session with the plan for all.
        pipeline: which it is.
    """

    def __init__(self, planned: RankSession, static: RankSession, pipeline: str) -> None:
        import torch  # noqa: PLC0415 - in the rank alone

        torch.set_num_threads(1)
        self._planned, self._static = planned, static
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
        while (shortest_s := min(self.step("static").time_s for _ in range(5))) < STEP_S:
            self._num_launches += max(1, int(self._num_launches * min(1, STEP_S / shortest_s - 1)))

    def step(self, way: str) -> StepFigures:
        """Run a step; where each has its plan, the next one is announced, and planned meanwhile."""
        work = [sequence_lengths(self._draw) for _ in range(self._num_microbatches)]
        session = self._planned if way == "planned" else self._static
        counts_before = self._counts(session)
        launches_s = 0.0
        began_s, began_process_s = time.perf_counter(), time.process_time()
        session.on_step_begin()
        if way == "planned":
            session.announce_step(work, slowest_s=self._slowest_s)
        for kind, microbatch, _ in self._instructions:
            session.on_instruction_begin(kind, microbatch=microbatch)
            launching_s = time.thread_time()
            for _ in range(self._num_launches):
                self._operand.mul(1.0)
            launches_s += time.thread_time() - launching_s
            session.on_instruction_end(kind, microbatch=microbatch)
        session.on_step_end()
        time_s = time.perf_counter() - began_s
        other_s = time.process_time() - began_process_s - launches_s
        counts = map(operator.sub, self._counts(session), counts_before)
        return StepFigures(time_s, launches_s, other_s, *counts)

    def _counts(self, session: RankSession) -> tuple[int, int, int]:
        """Return clock changes, steps with plans of their own, and stolen ticks, all so far."""
        num_stolen = int(Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)[8])
        return session.clock_report.num_switches, int(num_planned(session)), num_stolen

    def counted_step(self, way: str) -> StepFigures:
        """Run a step after one that is not counted."""
        self.step(way)
        return self.step(way)


def main() -> None:
    """Run steps by turns, and write their times."""
    pipeline, url, folder = sys.argv[1:]
    with PlannerClient(url) as planner:
        planned, static = (
            RankSession(gpu=NoGpu(rank), job_id=JOB_ID, rank=rank, stage=0, planner=planner)
            for rank in range(2)
        )
        others = OthersAtOnce() if LOOPS[pipeline].has_others else None
        planned.plan_steps(others, coupling="step")
        planned.start()
        static.start()
        loop = Loop(planned, static, pipeline)
        give_up_s = time.monotonic() + WARM_UP_S
        while num_planned(planned) < 2:
            if time.monotonic() > give_up_s:
                raise SystemExit("no step had a plan of its own")
            loop.counted_step("planned")
        # The first steps were slower, while the helper started.
        loop.lengthen()
        draw = random.Random(SEED)
        rounds: list[Round] = []
        for _ in range(NUM_ROUNDS):
            ways = list(WAYS)
            draw.shuffle(ways)
            rounds.append({way: loop.counted_step(way) for way in ways})
        planned.close()
        static.close()
    (Path(folder) / "rounds.json").write_text(json.dumps(rounds), encoding="utf-8")


if __name__ == "__main__":
    main()
