"""Announced steps end to end, and what planning a step costs.

`python announced_steps.py` trains on emulated GPUs with DDP, with FSDP2 and with DeepSpeed, in one
run by turns with announced work, at clocks of each step's own, and without, at the highest clocks:
the same steps in both. What the plans save is compared with what replaying these steps predicts.
Then a rank runs a loop that is bound by its launches, with a plan for each step and with one for
all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from announced_cases import BLOCKING_POWER_W, CASES, NUM_STEPS, WAYS, Case
from benchmark_report import Interval, Report, at_least, at_most, run_benchmark, show_progress
from flyball_lab.demo.options import child_environment
from flyball_pipeline.instruction import Instruction, InstructionKind, equal_stages
from flyball_pipeline.schedule import one_chunk_each
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import make_schedule
from flyball_profiles.stage_profile import StageProfile
from flyball_server.replay.steps.judged_steps import AT_ONCE
from flyball_server.replay.steps.predicted_work import EXACT, chosen_reserves, planned_steps
from flyball_server.replay.steps.recorded_steps import (
    RecordedPipeline,
    RecordedStep,
    TimedInstruction,
)
from flyball_server.replay.steps.replayed_steps import compared, highest_steps
from flyball_server.replay.steps.step_models import pipeline_steps
from launch_bound_loop import LOOPS, measure_loop
from measured_process import BENCHMARKS, run_process
from served_planner import served_planner

GIVE_UP_S = 500.0


class Replayed(NamedTuple):
    """Prediction for steps with exact factors and a plan for each step.

    Attributes:
        step_s: mean step at the highest clocks, s.
        step_j: its energy of all GPUs, J.
        saved_percent: energy that the plans save, %.
    """

    step_s: float
    step_j: float
    saved_percent: float


@dataclass(frozen=True, kw_only=True)
class TrainingFigure:
    """Announced steps beside the highest clocks, measured on emulated GPUs.

    Attributes:
        case: name of the training.
        num_pairs: of blocks of the same steps.
        step_s: mean step at the highest clocks, s.
        step_j: its energy of all GPUs, J.
        longer_percent, longer_interval: by how much steps with plans took longer, %, and its 95 %.
        saved_percent, saved_interval: energy that they saved, %, and its 95 %.
        predicted: the same by replay of the true times.
        planned_share: share of the announced steps that had a plan of their own, on all ranks.
        versions: of the plans that were in force at the ends of the blocks.
    """

    case: str
    num_pairs: int
    step_s: float
    step_j: float
    longer_percent: float
    longer_interval: Interval
    saved_percent: float
    saved_interval: Interval
    predicted: Replayed
    planned_share: float
    versions: list[int]


def measure(arguments: argparse.Namespace) -> Report:
    """Measure all of it, or what is asked for."""
    cases = CASES if arguments.case is None else [arguments.case]
    trainings = [] if arguments.only == "loop" else [measure_training(name) for name in cases]
    loops = [] if arguments.only == "training" else [measure_loop(name) for name in LOOPS]
    return Report(
        figures={"trainings": trainings, "loops": loops},
        text="\n".join([*map(_training_text, trainings), *(loop.text for loop in loops)]),
        limits=[
            limit
            for each in trainings
            for limit in (
                at_most(f"{each.case}: steps longer, %", each.longer_percent, 0.5),
                at_least(
                    f"{each.case}: saved over predicted",
                    each.saved_percent / each.predicted.saved_percent,
                    0.9,
                ),
                at_least(f"{each.case}: share of steps with plans", each.planned_share, 1.0),
            )
        ]
        + [limit for loop in loops for limit in loop.limits],
    )


def _training_text(figure: TrainingFigure) -> str:
    predicted = figure.predicted
    return (
        f"{CASES[figure.case].text}: steps of {1000 * figure.step_s:.0f} ms and"
        f" {figure.step_j:.0f} J at the highest clocks (replay: {1000 * predicted.step_s:.0f} ms,"
        f" {predicted.step_j:.0f} J); {figure.longer_percent:+.2f} % {figure.longer_interval} time,"
        f" {figure.saved_percent:.2f} % {figure.saved_interval} energy saved"
        f" (replay: {predicted.saved_percent:.2f} %);"
        f" {100 * figure.planned_share:.0f} % of the steps had plans"
    )


def measure_training(name: str) -> TrainingFigure:
    """Train; about three minutes.

    Raises:
        BenchmarkError: The run failed.
    """
    show_progress(CASES[name].text)
    ranks = _trained(name)
    pairs = [_Pair.of_ranks(each) for each in zip(*ranks, strict=True)]
    blocks = [pair["announced"] for rank in ranks for pair in rank]
    first_steps = [pair["first_step"] for pair in ranks[0]]
    num_steps = len(pairs) * NUM_STEPS
    return TrainingFigure(
        case=name,
        num_pairs=len(pairs),
        step_s=sum(pair.highest_s for pair in pairs) / num_steps,
        step_j=sum(pair.highest_j for pair in pairs) / num_steps,
        longer_percent=_longer_percent(pairs),
        longer_interval=Interval.of(pairs, _longer_percent),
        saved_percent=_saved_percent(pairs),
        saved_interval=Interval.of(pairs, _saved_percent),
        predicted=replayed(
            CASES[name],
            [step for first in first_steps for step in range(first, first + NUM_STEPS)],
        ),
        planned_share=sum(block["num_planned"] for block in blocks) / (len(blocks) * NUM_STEPS),
        versions=sorted({pair[way]["version"] for pair in ranks[0] for way in pair if way in WAYS}),
    )


class _Pair(NamedTuple):
    """Times and energies of two blocks of the same steps."""

    announced_s: float
    highest_s: float
    announced_j: float
    highest_j: float

    @classmethod
    def of_ranks(cls, ranks: Sequence[dict[str, Any]]) -> _Pair:
        """Return the ranks' mean time, since they end a step together, and their whole energy."""
        announced, highest = ([rank[way] for rank in ranks] for way in WAYS)
        return cls(
            *(statistics.fmean(each["time_s"] for each in way) for way in (announced, highest)),
            *(sum(each["energy_j"] for each in way) for way in (announced, highest)),
        )


def _longer_percent(pairs: Sequence[_Pair]) -> float:
    announced_s = sum(pair.announced_s for pair in pairs)
    return 100 * (announced_s / sum(pair.highest_s for pair in pairs) - 1)


def _saved_percent(pairs: Sequence[_Pair]) -> float:
    announced_j = sum(pair.announced_j for pair in pairs)
    return 100 * (1 - announced_j / sum(pair.highest_j for pair in pairs))


def _trained(name: str) -> list[list[dict[str, Any]]]:
    """Run the ranks against a planner; return the pairs of blocks of each."""
    with tempfile.TemporaryDirectory() as path, served_planner(Path(path)) as planner:
        run_process(
            [
                *(sys.executable, "-m", "torch.distributed.run"),
                *("--nproc-per-node", str(CASES[name].num_ranks)),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
                *("--local-addr", "127.0.0.1"),
                *(str(BENCHMARKS / "announced_rank.py"), name, planner.url, path),
            ],
            give_up_s=GIVE_UP_S,
            environment=child_environment({}) | {"TMPDIR": path},
        )
        files = sorted(Path(path).glob("rank-*.json"))
        return [json.loads(each.read_text(encoding="utf-8")) for each in files]


# ---------------------------------------------------------------------- what replay predicts


def replayed(case: Case, numbers: Sequence[int]) -> Replayed:
    """Return these steps as they are replayed."""
    recorded = [part for number in numbers for part in _recorded(case, number)]
    profile = case.profile()
    if case.meets_often:
        # All kinds have one curve.
        curve = profile.points[0, InstructionKind.FORWARD]
        profile = StageProfile(
            points={(0, InstructionKind.STEP): curve},
            num_ranks_per_stage=profile.num_ranks_per_stage,
        )
    steps = pipeline_steps(recorded, profile, [BLOCKING_POWER_W])
    reserves = chosen_reserves(steps, EXACT, seed=0)
    highest = highest_steps(steps)
    planned = AT_ONCE.judged(steps, planned_steps(steps, EXACT, reserves, 0), 0)
    return Replayed(
        step_s=sum(each.time_s for each in highest) / len(numbers),
        step_j=sum(each.energy_j for each in highest) / len(numbers),
        saved_percent=compared(highest, planned).saved_percent,
    )


def _recorded(case: Case, number: int) -> list[RecordedStep]:
    """Return a step as it is recorded; where ranks meet often, each meeting as a step."""
    factors = [
        [case.factor(number, pipeline, microbatch) for microbatch in range(case.num_microbatches)]
        for pipeline in range(case.num_pipelines)
    ]

    def timed(pipeline: int, each: Instruction) -> TimedInstruction:
        recorded = Instruction(InstructionKind.STEP, 0) if case.meets_often else each
        time_s = case.shortest_s[each.kind] * factors[pipeline][each.microbatch]
        return TimedInstruction(recorded, time_s)

    def of_all(stages: Sequence[Sequence[Instruction]]) -> RecordedStep:
        pipelines = (
            RecordedPipeline(
                dp_rank=pipeline,
                stages=tuple(tuple(timed(pipeline, each) for each in stage) for stage in stages),
                virtual_stages=one_chunk_each(len(stages)),
                source=case.text,
            )
            for pipeline in range(case.num_pipelines)
        )
        return RecordedStep(step=number, pipelines=tuple(pipelines))

    kinds = frozenset(case.shortest_s)
    shape = equal_stages(case.num_stages, case.num_microbatches, kinds=kinds)
    name = "step" if InstructionKind.STEP in kinds else "1f1b"
    stages = make_schedule(name, ScheduleInputs(shape=shape)).stages
    if case.meets_often:
        return [of_all([[each]]) for each in stages[0]]
    return [of_all(stages)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("training", "loop"), help="measure only this")
    parser.add_argument("--case", choices=tuple(CASES), help="train only this")
    run_benchmark(parser, measure)
