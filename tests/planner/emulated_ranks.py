"""Emulated ranks in virtual time that train while a planner works in real time.

A step of seconds passes in milliseconds here. So that the planner has as many steps to answer in
as it would have in real training, the ranks wait for it where it is at work: after the last step
of a probe plan's cycle for what comes next, and while a version is on its way to the ranks a
little in each step.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tests.planner.patience import PATIENCE_S, wait_until
from tests.unit.replay.synthetic_runs import one_f_one_b

from flyball_client.api.errors import PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import (
    IDEAL_GPU,
    EmulatedGpu,
    EmulatedGpuSettings,
    EmulatedNode,
    LeapingClock,
)
from flyball_client.helper.rank_agent import LinkTimes
from flyball_client.session.rank_session import RankSession
from flyball_lab.emulation.emulated_pipeline import EmulatedRank, Order, Work, run_step
from flyball_profiles.stage_profile import StageProfile
from flyball_wire.measurements import StepMeasurement

# Real time in each step while a version is on its way: a few calls take that.
ON_ITS_WAY_S = 0.05
# A step's real time at least, once there is a plan: the planner looks at a job ten times a second.
AT_LEAST_S = 0.02
# A step's real time where the planner may have something to decide: at most while it lacks the
# step, and once it has it.
LACKING_S, DECIDING_S = 20.0, 1.0
# Longest wait in real time for a version to reach all ranks; some never do.
ARRIVAL_S = 5.0
# Looked at of any version, also of one whose cycle is shorter.
FEWEST_STEPS = 12
LINK_TIMES = LinkTimes(poll_wait_s=5.0, gather_s=0.05, first_retry_s=0.05, longest_retry_s=0.2)


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """One step of all ranks, as the emulated GPUs had it.

    Attributes:
        exact_energy_j: without the counters' coarseness, all GPUs, J.
        clocks_mhz: that any instruction ran at; None: the driver's choice.
    """

    measured: tuple[StepMeasurement, ...]
    clocks_mhz: set[int | None]
    exact_energy_j: float

    @property
    def time_s(self) -> float:
        """Of the slowest rank, s."""
        return max(of_rank.time_s for of_rank in self.measured)

    @property
    def versions(self) -> set[int | None]:
        """Plan versions that the ranks ran."""
        return {of_rank.plan_version for of_rank in self.measured}


@dataclass(kw_only=True)
class EmulatedTraining:
    """Ranks of one job, pipeline after pipeline, and the steps that they have trained.

    Attributes:
        planner: what the test itself asks; the ranks have clients of their own.
        tail_s, hops_s: times beside the instructions, as of `run_step`.
        work: draws a microbatch's work; None: all are as profiled.
        work_of_step: work of a step by its number, in place of `work`.
        _ends: version of a probe plan -> the step after its cycle.
        _sent: versions whose arrival at the ranks was waited for.
    """

    job_id: str
    planner: PlannerClient
    ranks: Sequence[EmulatedRank]
    gpus: Sequence[EmulatedGpu]
    num_stages: int
    tail_s: float = 0.0
    hops_s: float | Sequence[float] = 0.0
    work: Callable[[], float] | None = None
    work_of_step: Callable[[int], Work] | None = None
    steps: list[TrainedStep] = field(default_factory=list[TrainedStep])
    _ends: dict[int, int] = field(default_factory=dict[int, int])
    _sent: set[int] = field(default_factory=set[int])

    def train(self, num_steps: int) -> list[TrainedStep]:
        """Train so many steps."""
        return [self._step() for _ in range(num_steps)]

    def train_until(self, is_so: Callable[[], bool], *, max_steps: int = 500) -> None:
        """Train until it is so; fail after more than `max_steps` steps and `PATIENCE_S`."""
        first, deadline_s = len(self.steps), time.monotonic() + PATIENCE_S
        while not is_so():
            is_in_time = time.monotonic() < deadline_s
            assert is_in_time or len(self.steps) - first < max_steps, f"not in {max_steps} steps"
            self._step()

    def train_until_in_force(self, version: int, *, max_steps: int = 200) -> None:
        """Train until all ranks run just this version."""
        self.train_until(
            lambda: bool(self.steps) and self.steps[-1].versions == {version}, max_steps=max_steps
        )

    def train_until_newest_in_force(
        self, is_so: Callable[[], bool] = lambda: True, *, max_steps: int = 200
    ) -> int:
        """Train until it is so and all ranks run the newest version; which that is."""
        self.train_until(
            lambda: is_so() and self.steps[-1].versions == {self.newest_version()},
            max_steps=max_steps,
        )
        return self.newest_version()

    def times_s(self) -> dict[int, list[float]]:
        """By version, what steps took that all ranks ran on it, without its first one."""
        times_s: dict[int, list[float]] = defaultdict(list)
        for before, step in pairwise(self.steps):
            version = min(step.versions, key=str)
            if version is not None and step.versions == before.versions == {version}:
                times_s[version].append(step.time_s)
        return times_s

    def predicted_time_s(self) -> float:
        """Of an iteration on the newest plan."""
        plan = self.planner.get_plan(self.job_id, self.newest_version()).plan
        return float(plan["iteration_time_s"])

    def state(self) -> str:
        """Of the job, at the planner."""
        return self.planner.get_job(self.job_id).state

    def steps_of_comparison(self, version: int) -> tuple[list[TrainedStep], list[TrainedStep]]:
        """The steps on a version that were on its plan, and those at the highest clocks."""
        highest_mhz = max(self.gpus[0].supported_sm_clocks_mhz())
        on_plan: list[TrainedStep] = []
        at_baseline: list[TrainedStep] = []
        for step in self.steps:
            if step.versions == {version}:
                (at_baseline if step.clocks_mhz == {highest_mhz} else on_plan).append(step)
        return on_plan, at_baseline

    def newest_version(self) -> int:
        """Of the job's plans; 0: none."""
        return self.planner.get_job(self.job_id).newest_version or 0

    def await_measured(self) -> None:
        """Wait, without training, until the planner has all steps so far."""
        wait_until(self._is_measured)

    def _is_measured(self) -> bool:
        newest = self.planner.list_steps(self.job_id, limit=1)
        last = len(self.steps) - 1, len(self.ranks)
        return bool(newest) and (newest[-1].step, newest[-1].num_ranks) == last

    def _step(self) -> TrainedStep:
        before_j = sum(gpu.exact_energy_j() for gpu in self.gpus)
        measured = run_step(
            self.ranks,
            num_stages=self.num_stages,
            transfer_time_s=self.hops_s,
            tail_time_s=self.tail_s,
            work=self._work_of_step(),
        )
        step = TrainedStep(
            measured=measured,
            clocks_mhz={
                timing.sm_clock_mhz
                for rank in self.ranks
                for timing in rank.session.last_step_timings
            },
            exact_energy_j=sum(gpu.exact_energy_j() for gpu in self.gpus) - before_j,
        )
        self.steps.append(step)
        self._let_planner_work()
        return step

    def _work_of_step(self) -> Work | None:
        if self.work_of_step is not None:
            return self.work_of_step(len(self.steps))
        draw = self.work
        if draw is None:
            return None
        drawn: dict[tuple[int, int], float] = {}

        def factor(pipeline: int, microbatch: int) -> float:
            return drawn.setdefault((pipeline, microbatch), draw())

        return factor

    def _let_planner_work(self) -> None:
        try:
            job = self.planner.get_job(self.job_id)
            newest = job.newest_version
            if newest is not None and newest not in self._sent:
                self._sent.add(newest)
                self._await_arrival(newest)
            if newest is None or job.active_version != newest:
                time.sleep(ON_ITS_WAY_S)
            elif job.state == "profiling":
                self._await_next_move(newest)
            else:
                time.sleep(AT_LEAST_S)
        except PlannerError:
            time.sleep(ON_ITS_WAY_S)  # it is away, and training goes on

    def _await_arrival(self, version: int) -> None:
        """Wait until all ranks have received a version, which on a busy machine takes long."""
        deadline_s = time.monotonic() + ARRIVAL_S
        for rank in self.ranks:
            while time.monotonic() < deadline_s and not (
                len(rank.session.plans) or rank.session.history[-1].plan_version == version
            ):
                time.sleep(0.005)

    def _await_next_move(self, version: int) -> None:
        if version not in self._ends:
            plan = self.planner.get_plan(self.job_id, version)
            if plan.plan["policy"] != "probe" or plan.first_step is None:
                return
            num_steps = max(len(plan.plan["cycle"]), FEWEST_STEPS)
            self._ends[version] = plan.first_step + num_steps
        if len(self.steps) >= self._ends[version]:
            # Where steps of the cycle could not be used, it wants more of them.
            deadline_s, has_step = time.monotonic() + LACKING_S, False
            while time.monotonic() < deadline_s and not self._has_moved(version):
                time.sleep(0.05)
                if not has_step and self._is_measured():
                    deadline_s, has_step = time.monotonic() + DECIDING_S, True

    def _has_moved(self, version: int) -> bool:
        job = self.planner.get_job(self.job_id)
        return job.newest_version != version or job.state != "profiling"


class BackgroundTraining:
    """Ranks that train step after step, in a thread, until the block ends or they are stopped.

    Args:
        training: the ranks.
        pause_s: returns the pause before the next step, s.
    """

    def __init__(
        self, training: EmulatedTraining, pause_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.training = training
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._train)

    def __enter__(self) -> BackgroundTraining:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _train(self) -> None:
        while not self._stopping.wait(self._pause_s()):
            self.training.train(1)

    def versions(self) -> set[int | None]:
        """Return the plan versions of the ranks' last step."""
        return self.training.steps[-1].versions if self.training.steps else set()

    def await_version(self, version: int) -> None:
        """Wait until all ranks run this version."""
        wait_until(lambda: self.versions() == {version})

    def go_on(self, num_steps: int = 8) -> None:
        """Wait until the ranks have trained so many steps more."""
        wanted = len(self.training.steps) + num_steps
        wait_until(lambda: len(self.training.steps) >= wanted or not self._thread.is_alive())
        assert self._thread.is_alive()

    def stop(self) -> int:
        """End training; return the number of trained steps."""
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return len(self.training.steps)


@contextmanager
def emulated_training(
    planner_urls: str | Sequence[str],
    job_id: str,
    truth: StageProfile,
    orders: Sequence[Order],
    *,
    blocking_power_w: float,
    num_pipelines: int = 1,
    settings: EmulatedGpuSettings = IDEAL_GPU,
    noise: float = 0.0,
    token: str | None = None,
    rank_token: str | None = None,
    prepare: Callable[[RankSession, int, int], None] = lambda *_: None,
) -> Iterator[EmulatedTraining]:
    """Ranks on emulated GPUs of `truth`, the profile of one pipeline, known to the planner.

    Each GPU's noise (relative) has a seed of its own; `orders` are what each stage runs in a step.
    All GPUs are of one node.
    Of several planners each rank calls the next. `token` is for all calls but the ranks', which
    have `rank_token`. `prepare` gets each session with its pipeline and stage before it starts.
    """
    urls = [planner_urls] if isinstance(planner_urls, str) else planner_urls
    with ExitStack() as opened:
        planner = opened.enter_context(PlannerClient(urls[0], token=token, timeout_s=PATIENCE_S))
        ranks: list[EmulatedRank] = []
        gpus: list[EmulatedGpu] = []
        node = EmulatedNode()
        for number in range(num_pipelines * truth.num_stages):
            pipeline, stage = divmod(number, truth.num_stages)
            clock = LeapingClock()
            gpu = EmulatedGpu(
                truth,
                stage,
                blocking_power_w=blocking_power_w,
                settings=replace(settings, noise=noise, seed=number),
                node=node,
                clock=clock,
            )
            rank_planner = PlannerClient(urls[number % len(urls)], token=rank_token)
            session = RankSession(
                gpu=gpu,
                job_id=job_id,
                rank=number,
                stage=stage,
                dp_rank=pipeline,
                planner=opened.enter_context(rank_planner),
                times=LINK_TIMES,
            )
            prepare(session, pipeline, stage)
            opened.enter_context(session)
            gpus.append(gpu)
            ranks.append(
                EmulatedRank(
                    pipeline=pipeline,
                    stage=stage,
                    order=orders[stage],
                    session=session,
                    gpu=gpu,
                    clock=clock,
                )
            )
        yield EmulatedTraining(
            job_id=job_id,
            planner=planner,
            ranks=ranks,
            gpus=gpus,
            num_stages=truth.num_stages,
        )


def one_forward_one_backward(num_stages: int, num_microbatches: int) -> list[Order]:
    """1F1B, as a training script runs it."""
    return [tuple(one_f_one_b(stage, num_stages, num_microbatches)) for stage in range(num_stages)]
