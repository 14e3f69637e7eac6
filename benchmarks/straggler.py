"""Processor time of a straggler's plan, and its saving; all savings predicted."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmark_report import Limit, Report, at_most, run_benchmark, show_progress, table_of
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate_jointly
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest, make_slowed_plan
from flyball_wire.plan_options import Effort, PlanOptions
from flyball_wire.plans.plan import Plan, Slowdown
from gpt3_cells import A40, A100, NUM_MICROBATCHES, SCHEDULE, Gpu, add_profiles_argument
from made_profiles import scaled, tile_profile

SLOWDOWNS = (1.05, 1.1, 1.2, 1.5)
NUM_PIPELINES = (1, 2, 8)
NUM_STAGES = 8
LARGEST = (64, 256)
LARGEST_SLOWDOWN = 1.2
SEED = 20231
MAX_PLANNING_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One GPU of one pipeline is slow; energies are of all pipelines, predicted.

    Attributes:
        planning_s: processor time of the plan, s.
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
    planning_s: float
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


def measure(arguments: argparse.Namespace) -> Report:
    """Every cell."""
    cells: list[Cell] = []
    for gpu in (A100, A40):
        profile = read_stage_profile(gpu.profile(arguments.profiles))
        for num_microbatches in NUM_MICROBATCHES:
            request = _request(gpu, profile, num_microbatches, arguments.effort)
            cells += _cells(gpu, request, SLOWDOWNS)
        num_stages, num_microbatches = LARGEST
        tiled = tile_profile(profile, num_stages, SEED)
        largest = _request(gpu, tiled, num_microbatches, arguments.effort)
        cells += _cells(gpu, largest, (LARGEST_SLOWDOWN,))
    return Report(
        figures={"predicted": cells},
        text=_text(cells),
        limits=list(_limits(cells)),
    )


def _request(gpu: Gpu, profile: StageProfile, num_microbatches: int, effort: Effort) -> PlanRequest:
    return PlanRequest(
        profile=profile,
        num_microbatches=num_microbatches,
        options=PlanOptions(
            blocking_power_w=(gpu.blocking_power_w,), schedule=SCHEDULE, effort=effort
        ),
    )


def _cells(gpu: Gpu, request: PlanRequest, slowdowns: tuple[float, ...]) -> Iterator[Cell]:
    before = make_plan(request).plan
    for num_pipelines in NUM_PIPELINES:
        for slowdown in slowdowns:
            slowed = _slowed(request, num_pipelines, slowdown)
            show_progress(f"{gpu.name}, {_size(request)}, {num_pipelines} x, {slowdown}")
            began_s = time.process_time()
            plan = make_slowed_plan(slowed)
            planning_s = time.process_time() - began_s
            left_time_s, left_energy_j = _left_as_it_was(slowed, before)
            as_long = request.with_options(target=f"deadline:{left_time_s!r}")
            at_same_time = make_slowed_plan(replace(slowed, request=as_long))
            yield Cell(
                gpu=gpu.name,
                size=_size(request),
                num_pipelines=num_pipelines,
                slowdown=slowdown,
                planning_s=planning_s,
                gap_percent=plan.predicted.gap_percent or 0.0,
                fastest_time_s=plan.predicted.baseline_iteration_time_s,
                left_time_s=left_time_s,
                left_energy_j=left_energy_j,
                time_s=plan.iteration_time_s,
                energy_j=plan.predicted.energy_j,
                same_time_energy_j=at_same_time.predicted.energy_j,
            )


def _slowed(request: PlanRequest, num_pipelines: int, slowdown: float) -> SlowedRequest:
    """The GPU in the middle of the last pipeline is slow; the profile's energies are of all."""
    slow = Slowdown(
        stage=request.profile.num_stages // 2, dp_rank=num_pipelines - 1, slowdown=slowdown
    )
    return SlowedRequest(request=request, slowdowns=(slow,), num_pipelines=num_pipelines)


def _left_as_it_was(slowed: SlowedRequest, before: Plan) -> tuple[float, float]:
    """Time and energy of an iteration on the plan from before, with the slow GPU."""
    [slow] = slowed.slowdowns
    profile, num_others = slowed.request.profile, slowed.num_pipelines - 1
    share = 1 / slowed.num_pipelines
    slow_one = _share(profile, share, {slow.stage: slow.slowdown})
    models = [_model(slow_one, before, share)]
    if num_others:
        models.append(_model(_share(profile, num_others * share, {}), before, num_others * share))
    pipelines, assignments = zip(*models, strict=True)
    simulation = simulate_jointly(pipelines, assignments).whole
    return simulation.iteration_time_s, simulation.energy_j


def _model(profile: StageProfile, before: Plan, share: float) -> tuple[PipelineModel, list[int]]:
    power_w = tuple(share * power_w for power_w in before.blocking_power_w)
    return model_of_plan(profile, before, power_w)


def _share(profile: StageProfile, share: float, slowdowns: dict[int, float]) -> StageProfile:
    """Return the profile of a share of the pipelines, with slow stages."""
    slow = [slowdowns.get(stage, 1.0) for stage in range(profile.num_stages)]
    return scaled(profile, lambda stage, *_: (slow[stage], slow[stage] * share))


def _size(request: PlanRequest) -> str:
    return f"{request.profile.num_stages}x{request.num_microbatches}"


def _limits(cells: list[Cell]) -> Iterator[Limit]:
    largest = f"{LARGEST[0]}x{LARGEST[1]}"
    for gpu in (A100, A40):
        of_gpu = [cell for cell in cells if cell.gpu == gpu.name]
        small = [cell for cell in of_gpu if cell.size != largest]
        planning_s = max(cell.planning_s for cell in small)
        yield at_most(f"{gpu.name}, {NUM_STAGES} stages: planning, s", planning_s, MAX_PLANNING_S)
        times = [cell.time_s / cell.fastest_time_s for cell in of_gpu]
        yield at_most(f"{gpu.name}: time over T'", max(times), 1 + 1e-9)
        energies = [cell.same_time_energy_j / cell.left_energy_j for cell in of_gpu]
        name = "energy over that of clocks left as they were, at the same time"
        yield at_most(f"{gpu.name}: {name}", max(energies), 1.0)


def _text(cells: list[Cell]) -> str:
    answers = {
        "one slow GPU; predicted": "{gpu}, {size}",
        "pipelines": "{num_pipelines}",
        "slowdown": "{slowdown:g}",
        "planning, s": "{planning_s:.2f}",
        "gap, %": "{gap_percent:.3f}",
        "T', s": "{fastest_time_s:.3f}",
        "left: time, s": "{left_time_s:.3f}",
        "left: J": "{left_energy_j:.0f}",
        "planned: J": "{energy_j:.0f}",
        "saved, %": "{saving_percent:.2f}",
        "faster, %": "{faster_percent:.2f}",
        "saved at that time, %": "{same_time_percent:.2f}",
    }
    return (
        "gpt3-175b, 1F1B, target fastest; the GPU in the middle of one pipeline is slow\n"
        f"{LARGEST[0]}x{LARGEST[1]} is tiled with seeded noise\n\n{table_of(cells, answers)}"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    add_profiles_argument(options)
    options.add_argument(
        "--effort", type=Effort, choices=tuple(Effort), default=Effort.NORMAL, help="of the search"
    )
    run_benchmark(options, measure)
