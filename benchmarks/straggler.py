"""Time to a plan for a straggler, and the saving of that plan; all savings predicted.

Run `python benchmarks/straggler.py [--profiles DIR] [--json]`; README.md beside this file says how
to read it.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmark_report import Limit, Report, at_most, run_benchmark, show_progress, table
from flyball_client.api.planner_client import PlannerClient
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_server.planning.data_parallel import simulate_jointly
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.plan import FrequencyPlan, Slowdown
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest, make_slowed_plan
from flyball_wire.closed_loop import StragglerAnnouncement
from flyball_wire.plan_options import Effort, PlanOptions
from gpt3_cells import A40, A100, NUM_MICROBATCHES, SCHEDULE, Gpu, add_profiles_argument
from made_profiles import tile_profile
from measured_process import BenchmarkError
from served_planner import put_emulated_job, served_planner

SLOWDOWNS = (1.05, 1.1, 1.2, 1.5)
NUM_PIPELINES = (1, 2, 8)
NUM_STAGES = 8
LARGEST = (64, 256)
LARGEST_SLOWDOWN = 1.2
SEED = 20231
MAX_ANSWER_S = 1.0
SERVE_PATIENCE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One GPU of one pipeline is slow; energies are of all pipelines, predicted.

    Attributes:
        answer_s: of the plan with the least effort, from the request to the plan, s.
        gap_percent: of that plan.
        fastest_time_s: T', what the slow pipeline takes at its highest clocks, s.
        left_time_s, left_energy_j: of an iteration whose clocks are left as they were.
        time_s, energy_j: of one on the plan.
        same_time_energy_j: of one on a plan for `left_time_s`.
    """

    gpu: str
    size: str
    num_pipelines: int
    slowdown: float
    answer_s: float
    gap_percent: float
    fastest_time_s: float
    left_time_s: float
    left_energy_j: float
    time_s: float
    energy_j: float
    same_time_energy_j: float

    @property
    def saving_percent(self) -> float:
        """Of energy at T', against leaving the clocks as they were, which takes longer, %."""
        return 100 * (1 - self.energy_j / self.left_energy_j)

    @property
    def same_time_percent(self) -> float:
        """Likewise, of a plan that takes as long, %."""
        return 100 * (1 - self.same_time_energy_j / self.left_energy_j)

    @property
    def faster_percent(self) -> float:
        """Of the iteration time, likewise, %."""
        return 100 * (1 - self.time_s / self.left_time_s)


@dataclass(frozen=True, kw_only=True)
class Refined:
    """The plan with effort normal that follows a first one.

    Attributes:
        plan_s: to make it, s.
        less_percent: its energy below the first one's, %.
    """

    gpu: str
    size: str
    num_pipelines: int
    plan_s: float
    less_percent: float


@dataclass(frozen=True, kw_only=True)
class Served:
    """From `POST .../stragglers` to the plan at a rank, through a planner of its own process."""

    size: str
    num_pipelines: int
    answered_s: float
    plan_at_rank_s: float


def measure(arguments: argparse.Namespace) -> Report:
    """Every cell, then what a planner that is asked over HTTP takes."""
    cells: list[Cell] = []
    refined: list[Refined] = []
    for gpu in (A100, A40):
        profile = read_stage_profile(gpu.profile(arguments.profiles))
        for num_microbatches in NUM_MICROBATCHES:
            request = _request(gpu, profile, num_microbatches)
            cells += _cells(gpu, request, SLOWDOWNS)
            refined += _refined(gpu, request)
        num_stages, num_microbatches = LARGEST
        largest = _request(gpu, tile_profile(profile, num_stages, SEED), num_microbatches)
        cells += _cells(gpu, largest, (LARGEST_SLOWDOWN,))
    served = list(_served(read_stage_profile(A100.profile(arguments.profiles))))
    return Report(
        figures={
            "predicted": [
                {
                    **asdict(cell),
                    "saving_percent": cell.saving_percent,
                    "same_time_percent": cell.same_time_percent,
                }
                for cell in cells
            ],
            "refined": [asdict(figure) for figure in refined],
            "served": [asdict(figure) for figure in served],
        },
        text=_text(cells, refined, served),
        limits=tuple(_limits(cells, served)),
    )


def _request(gpu: Gpu, profile: StageProfile, num_microbatches: int) -> PlanRequest:
    return PlanRequest(
        profile=profile,
        num_microbatches=num_microbatches,
        options=PlanOptions(
            blocking_power_w=(gpu.blocking_power_w,), schedule=SCHEDULE, effort=Effort.LOW
        ),
    )


def _cells(gpu: Gpu, request: PlanRequest, slowdowns: tuple[float, ...]) -> Iterator[Cell]:
    before = make_plan(request).plan
    for num_pipelines in NUM_PIPELINES:
        for slowdown in slowdowns:
            slowed = _slowed(request, num_pipelines, slowdown)
            show_progress(f"{gpu.name}, {_size(request)}, {num_pipelines} x, {slowdown}")
            began_s = time.perf_counter()
            plan = make_slowed_plan(slowed)
            answer_s = time.perf_counter() - began_s
            left_time_s, left_energy_j = _left_as_it_was(slowed, before)
            as_long = request.with_options(target=f"deadline:{left_time_s!r}")
            at_same_time = make_slowed_plan(dataclasses.replace(slowed, request=as_long))
            yield Cell(
                gpu=gpu.name,
                size=_size(request),
                num_pipelines=num_pipelines,
                slowdown=slowdown,
                answer_s=answer_s,
                gap_percent=plan.gap_percent or 0.0,
                fastest_time_s=plan.baseline_iteration_time_s,
                left_time_s=left_time_s,
                left_energy_j=left_energy_j,
                time_s=plan.iteration_time_s,
                energy_j=plan.energy_j,
                same_time_energy_j=at_same_time.energy_j,
            )


def _refined(gpu: Gpu, request: PlanRequest) -> Iterator[Refined]:
    for num_pipelines in (1, NUM_PIPELINES[-1]):
        slowed = _slowed(request, num_pipelines, LARGEST_SLOWDOWN)
        first = make_slowed_plan(slowed)
        normal = request.with_options(effort=Effort.NORMAL)
        began_s = time.perf_counter()
        plan = make_slowed_plan(_slowed(normal, num_pipelines, LARGEST_SLOWDOWN))
        yield Refined(
            gpu=gpu.name,
            size=_size(request),
            num_pipelines=num_pipelines,
            plan_s=time.perf_counter() - began_s,
            less_percent=100 * (1 - plan.energy_j / first.energy_j),
        )


def _slowed(request: PlanRequest, num_pipelines: int, slowdown: float) -> SlowedRequest:
    """The GPU in the middle of the last pipeline is slow; the profile's energies are of all."""
    slow = Slowdown(
        stage=request.profile.num_stages // 2, dp_rank=num_pipelines - 1, slowdown=slowdown
    )
    return SlowedRequest(request=request, slowdowns=(slow,), num_pipelines=num_pipelines)


def _left_as_it_was(slowed: SlowedRequest, before: FrequencyPlan) -> tuple[float, float]:
    """Time and energy of an iteration on the plan from before, with the slow GPU."""
    [slow] = slowed.slowdowns
    profile, num_others = slowed.request.profile, slowed.num_pipelines - 1
    share = 1 / slowed.num_pipelines
    slow_one = _scaled(profile, share, {slow.stage: slow.slowdown})
    models = [_model(slow_one, before, share)]
    if num_others:
        models.append(_model(_scaled(profile, num_others * share, {}), before, num_others * share))
    pipelines, assignments = zip(*models, strict=True)
    simulation = simulate_jointly(pipelines, assignments).whole
    return simulation.iteration_time_s, simulation.energy_j


def _model(
    profile: StageProfile, before: FrequencyPlan, share: float
) -> tuple[PipelineModel, list[int]]:
    power_w = tuple(share * power_w for power_w in before.blocking_power_w)
    return model_of_plan(profile, before, power_w)


def _scaled(profile: StageProfile, share: float, slowdowns: dict[int, float]) -> StageProfile:
    return dataclasses.replace(
        profile,
        points={
            (stage, kind): tuple(
                dataclasses.replace(
                    point,
                    time_s=slowdowns.get(stage, 1.0) * point.time_s,
                    energy_j=slowdowns.get(stage, 1.0) * share * point.energy_j,
                )
                for point in points
            )
            for (stage, kind), points in profile.points.items()
        },
    )


def _served(profile: StageProfile) -> Iterator[Served]:
    num_microbatches = NUM_MICROBATCHES[-1]
    with (
        tempfile.TemporaryDirectory() as folder,
        served_planner(Path(folder)) as address,
        PlannerClient(address) as client,
    ):
        for num_pipelines in NUM_PIPELINES:
            show_progress(f"through a planner, {num_pipelines} x")
            job_id = f"straggler-{num_pipelines}"
            put_emulated_job(
                client,
                job_id,
                profile,
                num_microbatches=num_microbatches,
                blocking_power_w=A100.blocking_power_w,
                num_pipelines=num_pipelines,
            )
            began_s = time.perf_counter()
            client.post_straggler(job_id, StragglerAnnouncement(rank=NUM_STAGES // 2, slowdown=1.2))
            answered_s = time.perf_counter() - began_s
            plan = client.get_rank_plan(job_id, 0, after_version=1, wait_s=SERVE_PATIENCE_S)
            if plan is None:
                raise BenchmarkError(f"no plan within {SERVE_PATIENCE_S:g} s")
            yield Served(
                size=f"{NUM_STAGES}x{num_microbatches}",
                num_pipelines=num_pipelines,
                answered_s=answered_s,
                plan_at_rank_s=time.perf_counter() - began_s,
            )


def _size(request: PlanRequest) -> str:
    return f"{request.profile.num_stages}x{request.num_microbatches}"


def _limits(cells: list[Cell], served: list[Served]) -> Iterator[Limit]:
    largest = f"{LARGEST[0]}x{LARGEST[1]}"
    for gpu in (A100, A40):
        of_gpu = [cell for cell in cells if cell.gpu == gpu.name]
        small = [cell for cell in of_gpu if cell.size != largest]
        yield at_most(
            f"{gpu.name}, {NUM_STAGES} stages: answer, s",
            max(cell.answer_s for cell in small),
            MAX_ANSWER_S,
        )
        yield at_most(
            f"{gpu.name}: time over T'",
            max(cell.time_s / cell.fastest_time_s for cell in of_gpu),
            1 + 1e-9,
        )
        yield at_most(
            f"{gpu.name}: energy over that of clocks left as they were, at the same time",
            max(cell.same_time_energy_j / cell.left_energy_j for cell in of_gpu),
            1.0,
        )
    for figure in served:
        yield at_most(
            f"{figure.num_pipelines} x {figure.size}: POST to the plan at a rank, s",
            figure.plan_at_rank_s,
            MAX_ANSWER_S,
        )


def _text(cells: list[Cell], refined: list[Refined], served: list[Served]) -> str:
    return (
        "gpt3-175b, 1F1B, target fastest; the GPU in the middle of one pipeline is slow; answers"
        f" with effort low\n{LARGEST[0]}x{LARGEST[1]} is tiled with seeded noise\n\n"
        f"{_answers(cells)}\n\n{_refinements(refined)}\n\n{_over_http(served)}"
    )


def _answers(cells: list[Cell]) -> str:
    return table(
        [
            "one slow GPU; predicted",
            "pipelines",
            "slowdown",
            "answer, s",
            "gap, %",
            "T', s",
            "left: time, s",
            "left: J",
            "planned: J",
            "saved, %",
            "faster, %",
            "saved at that time, %",
        ],
        [
            [
                f"{cell.gpu}, {cell.size}",
                str(cell.num_pipelines),
                f"{cell.slowdown:g}",
                f"{cell.answer_s:.2f}",
                f"{cell.gap_percent:.3f}",
                f"{cell.fastest_time_s:.3f}",
                f"{cell.left_time_s:.3f}",
                f"{cell.left_energy_j:.0f}",
                f"{cell.energy_j:.0f}",
                f"{cell.saving_percent:.2f}",
                f"{cell.faster_percent:.2f}",
                f"{cell.same_time_percent:.2f}",
            ]
            for cell in cells
        ],
    )


def _refinements(refined: list[Refined]) -> str:
    return table(
        [f"effort normal, {LARGEST_SLOWDOWN:g} x", "pipelines", "planning, s", "less energy, %"],
        [
            [
                f"{one.gpu}, {one.size}",
                str(one.num_pipelines),
                f"{one.plan_s:.2f}",
                f"{one.less_percent:.3f}",
            ]
            for one in refined
        ],
    )


def _over_http(served: list[Served]) -> str:
    return table(
        [f"flyball serve, {A100.name}, measured", "pipelines", "answered, s", "plan at a rank, s"],
        [
            [
                one.size,
                str(one.num_pipelines),
                f"{one.answered_s:.3f}",
                f"{one.plan_at_rank_s:.3f}",
            ]
            for one in served
        ],
    )


def main() -> int:
    """Print the figures; 0 where all are within their limits, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_profiles_argument(parser)
    return run_benchmark(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
