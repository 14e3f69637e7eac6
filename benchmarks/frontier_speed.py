"""Time of a whole frontier beside lowtime 0.3.0, and the quality of both.

Run `python benchmarks/frontier_speed.py [--json] [--lowtime-bound-s S] [--profiles DIR]`;
README.md beside this file says how to read it.
"""

from __future__ import annotations

import argparse
import bisect
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmark_report import Report, at_least, run_benchmark, show_progress, table
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.planner import PlanRequest, model_of_request
from flyball_wire.plan_options import PlanOptions
from gpt3_cells import A100, add_profiles_argument
from lowtime_peer import (
    JudgedPlan,
    LowtimeRun,
    best_within,
    judge,
    not_slower_clocks,
    own_clocks,
    run_lowtime,
)
from measured_process import BenchmarkError, FlyballRun, run_flyball

SMALL, LARGE = 12, 96
NUM_POINTS = 100
NUM_RUNS = 5
UNIT_TIME_S = 0.001
FULL_RUN_BOUND_S = 600.0
GIVE_UP_S = 120.0
MIN_TIMES_FASTER = 100.0


@dataclass(frozen=True, kw_only=True)
class FrontierFigure:
    """Our frontier at one size.

    Attributes:
        solve_s: of each run, the planning as the command reports it, s.
        process_s: of each run, the whole process, s.
    """

    num_microbatches: int
    num_plans: int
    solve_s: tuple[float, ...]
    process_s: tuple[float, ...]

    @property
    def median_solve_s(self) -> float:
        """Of the runs, s."""
        return statistics.median(self.solve_s)

    @property
    def median_process_s(self) -> float:
        """Of the runs, s."""
        return statistics.median(self.process_s)


@dataclass(frozen=True, kw_only=True)
class LowtimeFigure:
    """lowtime at one size.

    Attributes:
        num_plans: that it yielded.
        fit_s: fitting its curves, s.
        run_s: its iterations alone, s.
        process_s: the whole process, with starting Python and writing the plans, s.
        is_finished: it ended by itself.
        done_percent: of the way from its slowest to its fastest iteration time, %.
    """

    num_microbatches: int
    num_plans: int
    fit_s: float
    run_s: float
    process_s: float
    is_finished: bool
    done_percent: float

    @property
    def full_run_s(self) -> float:
        """From the profile to the plans as our `solve_s` counts it: fit and iterations, s."""
        return self.fit_s + self.run_s


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The fastest plans at `SMALL` microbatches, on the measured points, baseline's deadline.

    Attributes:
        flyball_saving_percent: ours, effort normal, %.
        lowtime_saving_percent: lowtime's, clocks not slower than planned, %; None: no plan of
            it is as fast.
        lowtime_own_saving_percent: likewise with the clocks that lowtime itself assigns, %.
        lowtime_own_fastest: lowtime's last plan with its own clocks, whatever its time: saving
            and slowdown against the baseline, %.
        num_lowtime_plans: of either rounding, in the span of our frontier.
        num_lowtime_plans_better: of these, plans with less energy than our plan of the frontier
            that is next faster.
        num_lowtime_plans_below_bound: of these, plans below the bound that our point next
            slower has; must be none.
    """

    flyball_saving_percent: float
    lowtime_saving_percent: float | None
    lowtime_own_saving_percent: float | None
    lowtime_own_fastest: tuple[float, float]
    num_lowtime_plans: int
    num_lowtime_plans_better: int
    num_lowtime_plans_below_bound: int


def measure(arguments: argparse.Namespace) -> Report:
    """Both solvers in the same run."""
    folder: Path = arguments.profiles
    model = _model(folder, SMALL)
    small_runs, small = _frontier(folder, SMALL)
    _, large = _frontier(folder, LARGE)
    show_progress(f"lowtime, {SMALL} microbatches, to its end")
    peer = run_lowtime(model, unit_time_s=UNIT_TIME_S, bound_s=FULL_RUN_BOUND_S)
    if not peer.is_finished:
        raise BenchmarkError(f"lowtime had not finished {SMALL} microbatches in its bound")
    show_progress(f"lowtime, {LARGE} microbatches, at most {arguments.lowtime_bound_s:g} s")
    bounded = run_lowtime(
        _model(folder, LARGE), unit_time_s=UNIT_TIME_S, bound_s=arguments.lowtime_bound_s
    )
    peers = (_lowtime_figure(SMALL, peer), _lowtime_figure(LARGE, bounded))
    quality = _quality(folder, model, peer, small_runs)
    times_faster = _times_faster(small, large, peers[0])
    lowtime_saving = max(
        quality.lowtime_saving_percent or 0.0, quality.lowtime_own_saving_percent or 0.0
    )
    return Report(
        figures={
            "flyball": [asdict(small), asdict(large)],
            "lowtime": [asdict(figure) for figure in peers],
            "times_faster": times_faster,
            "quality": asdict(quality),
        },
        text=_text((small, large), peers, times_faster, quality),
        limits=(
            at_least(f"plans at {SMALL} microbatches", small.num_plans, NUM_POINTS),
            at_least(f"plans at {LARGE} microbatches", large.num_plans, NUM_POINTS),
            at_least(
                f"times faster than lowtime's full run at {SMALL}",
                times_faster["full_run_small"],
                MIN_TIMES_FASTER,
            ),
            at_least(
                f"times faster at {LARGE} than lowtime's full run at {SMALL}",
                times_faster["full_run_large_against_small"],
                1.0,
            ),
            at_least(
                f"saving at {SMALL} (lowtime), %", quality.flyball_saving_percent, lowtime_saving
            ),
            at_least(
                "minus lowtime plans below our bound", -quality.num_lowtime_plans_below_bound, 0
            ),
        ),
    )


def _times_faster(
    small: FrontierFigure, large: FrontierFigure, lowtime: LowtimeFigure
) -> dict[str, float]:
    """Our planning beside lowtime's full run, beside its iterations alone; whole processes."""
    return {
        "full_run_small": lowtime.full_run_s / small.median_solve_s,
        "iterations_small": lowtime.run_s / small.median_solve_s,
        "process_small": lowtime.process_s / small.median_process_s,
        "full_run_large_against_small": lowtime.full_run_s / large.median_solve_s,
        "iterations_large_against_small": lowtime.run_s / large.median_solve_s,
        "process_large_against_small": lowtime.process_s / large.median_process_s,
    }


def _model(folder: Path, num_microbatches: int) -> PipelineModel:
    return model_of_request(
        PlanRequest(
            profile=read_stage_profile(A100.profile(folder)),
            num_microbatches=num_microbatches,
            options=PlanOptions(blocking_power_w=(A100.blocking_power_w,)),
        )
    )


def _frontier(folder: Path, num_microbatches: int) -> tuple[FlyballRun, FrontierFigure]:
    """The median of several runs; one before them, that they find all compiled, is not counted."""
    pipeline = A100.pipeline_arguments(folder, num_microbatches)
    runs: list[FlyballRun] = []
    for run in range(NUM_RUNS + 1):
        show_progress(f"flyball frontier, {num_microbatches} microbatches, run {run}")
        arguments = ["frontier", *pipeline, "--points", str(NUM_POINTS)]
        runs.append(run_flyball(arguments, give_up_s=GIVE_UP_S))
    counted = runs[1:]
    return counted[-1], FrontierFigure(
        num_microbatches=num_microbatches,
        num_plans=min(len(run.document["points"]) for run in counted),
        solve_s=tuple(run.solve_s for run in counted),
        process_s=tuple(run.process.process_s for run in counted),
    )


def _lowtime_figure(num_microbatches: int, run: LowtimeRun) -> LowtimeFigure:
    return LowtimeFigure(
        num_microbatches=num_microbatches,
        num_plans=len(run.plans),
        fit_s=run.fit_s,
        run_s=run.run_s,
        process_s=run.process_s,
        is_finished=run.is_finished,
        done_percent=100 * run.done_share,
    )


def _quality(folder: Path, model: PipelineModel, peer: LowtimeRun, ours: FlyballRun) -> Quality:
    pipeline = A100.pipeline_arguments(folder, SMALL)
    fastest = run_flyball(["plan", *pipeline, "--policy", "frontier"], give_up_s=GIVE_UP_S)
    baseline = fastest.document["baseline"]
    strict = judge(model, peer, not_slower_clocks)
    own = judge(model, peer, own_clocks)

    baseline_s, baseline_j = baseline["iteration_time_s"], baseline["energy_j"]

    def saving_percent(plan: JudgedPlan | None) -> float | None:
        return None if plan is None else 100 * (1 - plan.energy_j / baseline_j)

    points = ours.document["points"]
    times_s = [point["iteration_time_s"] for point in points]
    inside = [
        plan for plan in [*strict, *own] if times_s[0] <= plan.iteration_time_s <= times_s[-1]
    ]
    better = below = 0
    for plan in inside:
        faster = points[bisect.bisect_right(times_s, plan.iteration_time_s) - 1]
        slower = points[bisect.bisect_left(times_s, plan.iteration_time_s)]
        better += plan.energy_j < faster["energy_j"]
        # The bound falls with time: at a later deadline it holds for this plan too.
        below += plan.energy_j < slower["lower_bound_j"]
    return Quality(
        flyball_saving_percent=fastest.document["saving_percent"],
        lowtime_saving_percent=saving_percent(best_within(strict, baseline_s)),
        lowtime_own_saving_percent=saving_percent(best_within(own, baseline_s)),
        lowtime_own_fastest=(
            100 * (1 - own[-1].energy_j / baseline_j),
            100 * (own[-1].iteration_time_s / baseline_s - 1),
        ),
        num_lowtime_plans=len(inside),
        num_lowtime_plans_better=better,
        num_lowtime_plans_below_bound=below,
    )


def _text(
    ours: tuple[FrontierFigure, ...],
    peers: tuple[LowtimeFigure, ...],
    times_faster: dict[str, float],
    quality: Quality,
) -> str:
    speed = table(
        [f"{A100.name}, microbatches", "plans", "solving, s", "whole process, s", "how far"],
        [
            *(
                [
                    f"flyball frontier, {figure.num_microbatches}",
                    str(figure.num_plans),
                    f"{figure.median_solve_s:.3f}",
                    f"{figure.median_process_s:.3f}",
                    "whole",
                ]
                for figure in ours
            ),
            *(
                [
                    f"lowtime, {figure.num_microbatches}",
                    str(figure.num_plans),
                    f"{figure.full_run_s:.2f}",
                    f"{figure.process_s:.2f}",
                    "whole" if figure.is_finished else f"{figure.done_percent:.1f} %",
                ]
                for figure in peers
            ),
        ],
    )
    return (
        f"gpt3-175b, 8 stages, 1F1B; flyball: median of {NUM_RUNS} runs; lowtime: unit"
        f" {UNIT_TIME_S:g} s, solving is its fit and its iterations\n\n{speed}\n\n"
        f"times faster at {SMALL}: {_factors(times_faster, 'small')}\n"
        f"times faster at {LARGE} than lowtime at {SMALL}:"
        f" {_factors(times_faster, 'large_against_small')}\n\n"
        f"saving of the fastest plan at {SMALL}, measured points, no slower than the baseline:\n"
        f"  flyball {quality.flyball_saving_percent:.3f} %;"
        f" lowtime {_percent(quality.lowtime_saving_percent)} with clocks not slower than planned,"
        f" {_percent(quality.lowtime_own_saving_percent)} with its own clocks\n"
        f"  lowtime's last plan with its own clocks, whatever its time:"
        f" {quality.lowtime_own_fastest[0]:.3f} % at {quality.lowtime_own_fastest[1]:+.3f} % time\n"
        f"lowtime's plans within our frontier's span, both ways of rounding:"
        f" {quality.num_lowtime_plans};"
        f" better than our next faster plan: {quality.num_lowtime_plans_better};"
        f" below our bound: {quality.num_lowtime_plans_below_bound}"
    )


def _factors(times_faster: dict[str, float], size: str) -> str:
    return (
        f"{times_faster[f'full_run_{size}']:.1f} than its full run,"
        f" {times_faster[f'iterations_{size}']:.1f} than its iterations alone,"
        f" {times_faster[f'process_{size}']:.1f} as whole processes"
    )


def _percent(value: float | None) -> str:
    return "none as fast" if value is None else f"{value:.3f} %"


def main() -> int:
    """Print the figures; 0 where all are within their limits, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_profiles_argument(parser)
    parser.add_argument(
        "--lowtime-bound-s",
        metavar="S",
        type=float,
        default=60.0,
        help=f"after so long lowtime is stopped at {LARGE} microbatches (default 60)",
    )
    return run_benchmark(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
