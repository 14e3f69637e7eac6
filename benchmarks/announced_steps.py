"""Announced steps end to end: four DDP ranks on emulated GPUs, and what planning a step costs.

`python announced_steps.py` trains in one run by turns with announced work, at clocks of each step's
own, and without, at the highest clocks: the same steps in both. What the plans save is compared
with what retiming predicts for the same steps. Then one rank runs a loop that is bound by its
launches, by turns with steps that are planned and without, beside two blocks without that are
compared with each other.

torchrun starts `announced_steps.py train PROBLEM.json FOLDER`, and this benchmark itself
`announced_steps.py loop PROBLEM.json FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark_report import Limit, Report, run_benchmark
from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu._base import ClockLimit
from flyball_client.gpu.emulated import IDEAL_GPU, EmulatedGpu
from flyball_client.session.rank_session import RankSession
from flyball_lab.demo.options import child_environment
from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.work import WorkCoefficients, step_work
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_profiles.stage_profile_csv import parse_stage_profile, write_stage_profile
from flyball_wire.messages import JobRegistration
from measured_process import run_process
from served_planner import served_planner

NUM_RANKS, NUM_STEPS, NUM_PAIRS = 4, 8, 10
SEED, CONFIDENCE, NUM_RESAMPLES = 1788, 0.95, 2000
GIVE_UP_S, WARM_UP_STEPS = 500.0, 400
BLOCKING_POWER_W = 80.0
HIGHEST_MHZ, JOB_ID = 1410, "announced"
# Of a step's time on the profile's batch: constant, per token, per squared token.
TRUE = WorkCoefficients(0.15, 1.2e-4, 2.2e-8)
MEAN_TOKENS, NUM_SEQUENCES = 420, 8
LOOPS = {"2 x 8": 16, "16 x 64": 1024}  # microbatches of one stage, as many instructions
LOOP_BLOCK_S, LOOP_ROUNDS, LOOP_STEP_S = 2.0, 12, 0.3


def lengths_of(step: int, rank: int) -> list[int]:
    """Return the lengths of a rank's sequences in a step: log-normal, a heavy tail."""
    draw = random.Random(f"{SEED} {step} {rank}")
    return [
        min(4096, 1 + int(draw.lognormvariate(math.log(MEAN_TOKENS), 0.9)))
        for _ in range(NUM_SEQUENCES)
    ]


def factor_of(step: int, rank: int) -> float:
    """Return the time of a rank's step over that in the profile."""
    return TRUE.factor(step_work([lengths_of(step, rank)])[0])


def points(shortest_s: float, scaling: float, num_gpus: int) -> tuple[OperatingPoint, ...]:
    """Return points of which this share of the time shrinks as the clock rises.

    A GPU takes 80 + 220 f^3 W at the share f of its highest clock.
    """
    found: list[OperatingPoint] = []
    for mhz in range(HIGHEST_MHZ, 800, -45):
        share = mhz / HIGHEST_MHZ
        time_s = shortest_s * (1 - scaling + scaling / share)
        energy_j = num_gpus * time_s * (80 + 220 * share**3)
        found.append(OperatingPoint(frequency_mhz=mhz, time_s=time_s, energy_j=energy_j))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class TrainingFigure:
    """Announced steps beside the highest clocks, measured on emulated GPUs.

    Attributes:
        num_pairs: of blocks of `NUM_STEPS` steps of the same work.
        step_s: mean step at the highest clocks, s.
        longer_percent, longer_interval: by how much steps with plans took longer, %, and its 95 %.
        saved_percent, saved_interval: energy that they saved, %, and its 95 %.
        predicted_percent: the same by retiming with the true factors.
        planned_share: share of the steps of these blocks that had a plan of their own.
    """

    num_pairs: int
    step_s: float
    longer_percent: float
    longer_interval: tuple[float, float]
    saved_percent: float
    saved_interval: tuple[float, float]
    predicted_percent: float
    planned_share: float


@dataclass(frozen=True, kw_only=True)
class LoopFigure:
    """A loop bound by its launches, with steps that are planned beside it.

    Attributes:
        pipeline: stages x microbatches with as many instructions.
        longer_percent, longer_interval: by how much its mean step is longer, %, and its 95 %.
        control_percent, control_interval: the same of two blocks without.
    """

    pipeline: str
    longer_percent: float
    longer_interval: tuple[float, float]
    control_percent: float
    control_interval: tuple[float, float]


def measure(arguments: argparse.Namespace) -> Report:
    """Measure both, or the one that is asked for."""
    training = None if arguments.only == "loop" else measure_training()
    loops = [] if arguments.only == "training" else [measure_loop(name) for name in LOOPS]
    lines: list[str] = []
    limits: list[Limit] = []
    if training is not None:
        lines += [
            f"DDP, {NUM_RANKS} ranks, steps of {1000 * training.step_s:.0f} ms, emulated GPUs:"
            f" {_text(training.longer_percent, training.longer_interval)} time,"
            f" {_text(training.saved_percent, training.saved_interval)} energy saved;"
            f" retiming predicts {training.predicted_percent:.2f} %;"
            f" {100 * training.planned_share:.0f} % of the steps had plans",
        ]
        share = training.saved_percent / training.predicted_percent
        limits += [
            Limit(name="steps longer, %", value=training.longer_percent, bound=0.5, is_upper=True),
            Limit(name="saved over predicted", value=share, bound=0.9, is_upper=False),
        ]
    for loop in loops:
        lines.append(
            f"launch-bound loop beside {loop.pipeline}:"
            f" {_text(loop.longer_percent, loop.longer_interval)};"
            f" without beside without: {_text(loop.control_percent, loop.control_interval)}"
        )
        bound = 0.2 if loop.pipeline == "2 x 8" else 0.5
        limits.append(
            Limit(
                name=f"loop longer beside {loop.pipeline}, %",
                value=loop.longer_percent,
                bound=bound,
                is_upper=True,
                peer=("without beside without", loop.control_percent),
            )
        )
    figures = {"training": training, "loops": loops}
    return Report(figures=figures, text="\n".join(lines), limits=limits)


def _text(percent: float, interval: tuple[float, float]) -> str:
    return f"{percent:+.2f} % [{interval[0]:+.2f}, {interval[1]:+.2f}]"


def measure_training() -> TrainingFigure:
    """Train; about three minutes.

    Raises:
        BenchmarkError: The run failed.
    """
    profile = StageProfile(
        points={(0, InstructionKind.STEP): points(0.3, 0.9, NUM_RANKS)},
        num_ranks_per_stage=(NUM_RANKS,),
    )
    ranks = _run(
        "train",
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(NUM_RANKS)),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
            *("--local-addr", "127.0.0.1"),
        ],
        {"csv": write_stage_profile(profile)},
    )
    pairs = list(zip(*(rank["pairs"] for rank in ranks), strict=True))
    # All ranks end a step together, so any rank's time is the step's.
    longer = [pair[0]["announced_s"] / pair[0]["highest_s"] for pair in pairs]
    saved = [
        1 - sum(each["announced_j"] for each in pair) / sum(each["highest_j"] for each in pair)
        for pair in pairs
    ]
    return TrainingFigure(
        num_pairs=len(pairs),
        step_s=statistics.fmean(pair[0]["highest_s"] for pair in pairs) / NUM_STEPS,
        longer_percent=100 * (statistics.fmean(longer) - 1),
        longer_interval=_interval([100 * (each - 1) for each in longer]),
        saved_percent=100 * statistics.fmean(saved),
        saved_interval=_interval([100 * each for each in saved]),
        predicted_percent=100
        * statistics.fmean(_predicted(pair[0]["first_step"], profile) for pair in pairs),
        planned_share=statistics.fmean(rank["planned_share"] for rank in ranks),
    )


def _predicted(first_step: int, profile: StageProfile) -> float:
    """Return the share that steps with these factors save: each rank just meets the slowest."""
    own = profile.points[0, InstructionKind.STEP]
    highest_j = planned_j = 0.0
    for step in range(first_step, first_step + NUM_STEPS):
        factors = [factor_of(step, rank) for rank in range(NUM_RANKS)]
        deadline_s = max(factors) * own[0].time_s
        for factor in factors:
            costs_j = [
                factor * point.energy_j / NUM_RANKS
                + BLOCKING_POWER_W * (deadline_s - factor * point.time_s)
                for point in own
                if factor * point.time_s <= deadline_s * (1 + 1e-9)
            ]
            highest_j += costs_j[0]
            planned_j += min(costs_j)
    return 1 - planned_j / highest_j


def measure_loop(pipeline: str) -> LoopFigure:
    """Run the loop beside steps of a pipeline of as many instructions.

    Raises:
        BenchmarkError: The run failed.
    """
    problem = {"num_microbatches": LOOPS[pipeline]}
    [rank] = _run("loop", [sys.executable], problem)
    rounds = rank["rounds"]
    longer = [100 * (each["on"] / each["off"] - 1) for each in rounds]
    control = [100 * (each["control"] / each["off"] - 1) for each in rounds]
    return LoopFigure(
        pipeline=pipeline,
        longer_percent=statistics.fmean(longer),
        longer_interval=_interval(longer),
        control_percent=statistics.fmean(control),
        control_interval=_interval(control),
    )


def _run(part: str, command: Sequence[str], problem: dict[str, Any]) -> list[dict[str, Any]]:
    """Run ranks against a planner; return what each has written."""
    with tempfile.TemporaryDirectory() as path, served_planner(Path(path)) as planner:
        file = Path(path) / "problem.json"
        file.write_text(json.dumps({**problem, "url": planner.url}), encoding="utf-8")
        environment = child_environment({}) | {"TMPDIR": path, "OMP_NUM_THREADS": "1"}
        run_process(
            [*command, __file__, part, str(file), path],
            give_up_s=GIVE_UP_S,
            environment=environment,
        )
        files = sorted(Path(path).glob("rank-*.json"))
        return [json.loads(each.read_text(encoding="utf-8")) for each in files]


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % of their mean, by resampling."""
    draw = random.Random(SEED)
    means = [statistics.fmean(draw.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES)]
    cuts = statistics.quantiles(means, n=1000, method="inclusive")
    tail = round(1000 * (1 - CONFIDENCE) / 2)
    return cuts[tail - 1], cuts[-tail]


# ---------------------------------------------------------------------- a rank of the training


def train(problem: dict[str, Any], folder: Path) -> None:
    """Train one rank, by turns with announced work and without."""
    import torch.distributed  # noqa: PLC0415 - in the ranks alone

    torch.distributed.init_process_group("gloo")
    training = _Training(problem, torch.distributed.get_rank())
    number = training.warm_up()
    pairs: list[dict[str, Any]] = []
    planned_before, draw = training.num_planned(), random.Random(SEED)
    for _ in range(NUM_PAIRS):
        found: dict[str, Any] = {"first_step": number}
        ways = [True, False]
        draw.shuffle(ways)
        for announces in ways:
            time_s, energy_j = training.block(number, announces=announces)
            name = "announced" if announces else "highest"
            found |= {f"{name}_s": time_s, f"{name}_j": energy_j}
        number += NUM_STEPS
        pairs.append(found)
    share = (training.num_planned() - planned_before) / (NUM_PAIRS * NUM_STEPS)
    _write(folder, training.rank, {"pairs": pairs, "planned_share": share})
    training.close()
    torch.distributed.destroy_process_group()


class _Training:
    """One rank of DDP on an emulated GPU, whose steps take what their sequences need."""

    def __init__(self, problem: dict[str, Any], rank: int) -> None:
        import torch  # noqa: PLC0415 - in the ranks alone
        from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

        from flyball_integrations.data_parallel import attach  # noqa: PLC0415

        self.rank = rank
        # Of the step that a step repeats.
        self._repeated: dict[int, int] = {}
        self._gpu = EmulatedGpu(
            parse_stage_profile(problem["csv"]),
            0,
            blocking_power_w=BLOCKING_POWER_W,
            settings=IDEAL_GPU,
            work=lambda step, _: factor_of(self._repeated.get(step, step), rank),
        )
        self._model = DistributedDataParallel(torch.nn.Linear(8, 8))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._batch = torch.zeros(4, 8)
        self._session = attach(
            self._model,
            job_id=JOB_ID,
            planner_url=problem["url"],
            gpu=self._gpu,
            blocking_power_w=(BLOCKING_POWER_W,),
            announces_work=True,
        )
        if rank == 0:
            _put_profile(problem["url"], problem["csv"])

    def num_planned(self) -> float:
        """Return the number of steps so far that had plans of their own."""
        return self._session.metrics(prefix="")["total_num_steps_with_own_plan"]

    def warm_up(self) -> int:
        """Train until all ranks have plans for their steps; return the next step's number."""
        import torch.distributed  # noqa: PLC0415 - in the ranks alone

        for first in range(0, WARM_UP_STEPS, NUM_STEPS):
            self._run(range(first, first + NUM_STEPS), announces=True)
            said = torch.tensor([int(self.num_planned() >= NUM_STEPS)])
            torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MIN)
            if said.item():
                return first + NUM_STEPS
        raise SystemExit("no step had a plan of its own")

    def block(self, first: int, *, announces: bool) -> tuple[float, float]:
        """Train a block; return its time in s, and this rank's energy in J."""
        # One more step in front, during which the block's first one is announced.
        self._run([first], announces=False)
        if announces:
            self._announce(first)
        self._run([first], announces=False)
        return self._run(range(first, first + NUM_STEPS), announces=announces)

    def close(self) -> None:
        """Detach."""
        from flyball_integrations.data_parallel import detach  # noqa: PLC0415

        detach(self._model)

    def _announce(self, like: int) -> None:
        # The step after the next one.
        step = self._session.current_step + 1
        self._session.announce_step([lengths_of(like, self.rank)], step=step)

    def _run(self, steps: Sequence[int], *, announces: bool) -> tuple[float, float]:
        from flyball_integrations.data_parallel import training_step  # noqa: PLC0415

        gpu, session = self._gpu, self._session
        began_s, began_j = gpu.emulated_time_s(), gpu.total_energy_j()
        for number, like in enumerate(steps):
            self._repeated[session.current_step] = like
            if announces and number + 1 < len(steps):
                self._announce(steps[number + 1])
            with training_step(self._model):
                self._model(self._batch).sum().backward()
                self._optimizer.step()
                self._optimizer.zero_grad()
        return gpu.emulated_time_s() - began_s, gpu.total_energy_j() - began_j


def _put_profile(url: str, csv: str) -> None:
    with PlannerClient(url) as client:
        give_up_s = time.monotonic() + 60.0
        while True:
            try:
                client.put_profile_csv(JOB_ID, csv)
            except Exception:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(0.2)
            else:
                return


# ---------------------------------------------------------------------- the loop


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


def loop(problem: dict[str, Any], folder: Path) -> None:
    """Run steps of many small computations, by turns with planned steps beside them."""
    import torch  # noqa: PLC0415 - in the ranks alone

    torch.set_num_threads(1)
    num_microbatches = problem["num_microbatches"]
    kinds = (InstructionKind.FORWARD, InstructionKind.BACKWARD)
    instructions = [(kind, number) for number in range(num_microbatches) for kind in kinds]
    operand = torch.ones(32, 32)
    registration = JobRegistration(
        num_stages=1,
        num_microbatches=num_microbatches,
        num_ranks=1,
        blocking_power_w=(BLOCKING_POWER_W,),
        # The loop takes as long at every clock.
        max_work_error=1.0,
    )
    with PlannerClient(problem["url"]) as planner:
        planner.put_job(JOB_ID, registration)
        session = RankSession(gpu=NoGpu(), job_id=JOB_ID, rank=0, stage=0, planner=planner)
        session.plan_steps(coupling="step")
        session.start()
        num_launches = 1

        def step(announces: bool) -> float:
            session.on_step_begin()
            if announces:
                session.announce_step([1.0] * num_microbatches, slowest_s=2 * LOOP_STEP_S)
            began_s = time.perf_counter()
            for kind, microbatch in instructions:
                session.on_instruction_begin(kind, microbatch=microbatch)
                for _ in range(num_launches):
                    operand.mul(1.0)
                session.on_instruction_end(kind, microbatch=microbatch)
            took_s = time.perf_counter() - began_s
            session.on_step_end()
            return took_s

        while (took_s := step(False)) < LOOP_STEP_S:
            num_launches += -(-num_launches // 2)
        each = points(took_s / len(instructions), 0.9, 1)
        profile = StageProfile(points={(0, kind): each for kind in kinds}, num_ranks_per_stage=(1,))
        _put_profile(problem["url"], write_stage_profile(profile))

        def block(announces: bool) -> float:
            taken_s: list[float] = []
            until_s = time.monotonic() + LOOP_BLOCK_S
            while time.monotonic() < until_s:
                taken_s.append(step(announces))
            return statistics.fmean(taken_s[1:])

        give_up_s = time.monotonic() + 120.0
        while session.metrics(prefix="")["total_num_steps_with_own_plan"] < 1:
            if time.monotonic() > give_up_s:
                raise SystemExit("no step had a plan of its own")
            block(True)
        draw = random.Random(SEED)
        rounds: list[dict[str, float]] = []
        for _ in range(LOOP_ROUNDS):
            ways = ["on", "off", "control"]
            draw.shuffle(ways)
            rounds.append({way: block(way == "on") for way in ways})
        session.close()
    _write(folder, 0, {"rounds": rounds})


def _write(folder: Path, rank: int, found: dict[str, Any]) -> None:
    (folder / f"rank-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


PARTS: dict[str, Callable[[dict[str, Any], Path], None]] = {"train": train, "loop": loop}


def _part(arguments: Sequence[str]) -> None:
    part, problem, folder = arguments
    PARTS[part](json.loads(Path(problem).read_text(encoding="utf-8")), Path(folder))


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in PARTS:
        _part(sys.argv[1:])
        sys.exit(0)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("training", "loop"), help="measure only this")
    run_benchmark(parser, measure)
