"""How soon a slow GPU of a large pipeline is answered, and how good the first plan is.

Run `python benchmarks/straggler_at_once.py [--json] [--served-only]`; README.md beside this file
says how to read it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import flyball_profiles
from benchmark_report import Limit, Report, at_most, run_benchmark, show_progress, table
from flyball_client.api.planner_client import PlannerClient
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.request_options import Effort
from flyball_server.planning.stragglers.first_plans import (
    RunningClocks,
    make_plan_at_once,
    running_clocks,
)
from flyball_server.planning.stragglers.slowed_pipelines import (
    Slowdown,
    SlowedRequest,
    make_slowed_plan,
)
from flyball_server.planning.warm_up import warm_up
from flyball_wire.closed_loop import StragglerReport
from measured_process import BenchmarkError
from served_planner import put_emulated_job, served_planner
from tiled_profile import tile_profile

PROFILE = "gpt3-175b-a100-sxm-fitted.csv"
BLOCKING_POWER_W = 83.64
SEED = 20231
SIZES = ((8, 32), (16, 64), (64, 256))
CASES = ((1, 1.05), (1, 1.2), (2, 1.2))
# Of these sizes, with two pipelines and the slowdown below; a budget is a share of what the first
# plan for the fastest iteration draws, W.
OTHERS_SIZES = ((16, 64), (64, 256))
OTHERS = (("fastest", 0.01), ("least-energy", 0.0), ("power", 0.0))
BUDGET_SHARE = 0.95
SLOWDOWN = 1.2
MAX_AT_ONCE_S = 1.0
MAX_FOR_BUDGET_S = 3.0  # several deadlines are tried
MAX_ABOVE_PERCENT = 5.0
PATIENCE_S, LONGEST_POLL_S = 300.0, 60.0

AnyPlan = FrequencyPlan | DataParallelPlan


@dataclass(frozen=True, kw_only=True)
class AtOnce:
    """One GPU is slow; energies predicted, of all pipelines.

    Attributes:
        first_s: to make the plan that is made at once, the pipeline being known, s.
        first_gap_percent: of its certificate.
        searched_s: to search with the job's own effort, normal, s.
        above_percent: the first plan's energy above the searched one's, %.
        late_percent: its iteration time over T', or its power over the budget, %; not above 0.
        longer_percent: its iteration time above the searched one's, %.
    """

    size: str
    target: str
    reserve: float
    num_pipelines: int
    slowdown: float
    first_s: float
    first_gap_percent: float
    searched_s: float
    searched_gap_percent: float
    above_percent: float
    late_percent: float
    longer_percent: float

    @property
    def has_budget(self) -> bool:
        """Return whether the target is a power budget."""
        return self.target.startswith("power")


@dataclass(frozen=True, kw_only=True)
class Served:
    """From a call to the planner until ranks that wait have the new plan, s; one pipeline.

    Attributes:
        what: `slow`, a rank is announced; `back`, that is withdrawn.
        first_rank_s: until one of the ranks has its part.
        all_ranks_s: until all of them have, one connection each.
    """

    size: str
    what: str
    answered_s: float
    first_rank_s: float
    all_ranks_s: float


def measure(arguments: argparse.Namespace) -> Report:
    """Plans on their own, then through a planner."""
    warm_up()
    folder = Path(flyball_profiles.__file__).parent / "stages"
    profile = read_stage_profile(folder / PROFILE)
    tiled = [(tile_profile(profile, stages, SEED), number) for stages, number in SIZES]
    cells = [] if arguments.served_only else [cell for one in tiled for cell in _cells(*one)]
    served = [figure for one in tiled for figure in _served(*one)]
    return Report(
        figures={
            "at_once": [asdict(cell) for cell in cells],
            "served": [asdict(figure) for figure in served],
        },
        text=_text(cells, served),
        limits=tuple(_limits(cells, served)),
    )


def _cells(profile: StageProfile, num_microbatches: int) -> Iterator[AtOnce]:
    request = PlanRequest(
        profile=profile,
        num_microbatches=num_microbatches,
        blocking_power_w=(BLOCKING_POWER_W,),
        effort=Effort.LOW,
    )
    size = f"{profile.num_stages}x{num_microbatches}"
    show_progress(f"{size}: the plan before")
    running = running_clocks(make_plan(request).plan)
    for num_pipelines, slowdown in CASES:
        show_progress(f"{size}, {num_pipelines} x, {slowdown}")
        yield _cell(size, _slowed(request, num_pipelines, slowdown), running, slowdown)
    if (request.profile.num_stages, num_microbatches) not in OTHERS_SIZES:
        return
    fastest = make_plan_at_once(_slowed(request, 2, SLOWDOWN), running)
    budget_w = BUDGET_SHARE * fastest.energy_j / fastest.iteration_time_s
    for kind, reserve in OTHERS:
        target = f"power:{budget_w:.0f}" if kind == "power" else kind
        show_progress(f"{size}, target {target}, reserve {reserve:g}")
        asked = replace(request, target=target, reserve=reserve)
        yield _cell(size, _slowed(asked, 2, SLOWDOWN), running, SLOWDOWN)


def _slowed(request: PlanRequest, num_pipelines: int, slowdown: float) -> SlowedRequest:
    slow = Slowdown(
        stage=request.profile.num_stages // 2, dp_rank=num_pipelines - 1, slowdown=slowdown
    )
    return SlowedRequest(request=request, slowdowns=(slow,), num_pipelines=num_pipelines)


def _cell(size: str, slowed: SlowedRequest, running: RunningClocks, slowdown: float) -> AtOnce:
    request = slowed.request
    normal = replace(slowed, request=replace(request, effort=Effort.NORMAL))
    first, first_s = _timed(lambda: make_plan_at_once(slowed, running))
    searched, searched_s = _timed(lambda: make_slowed_plan(normal))
    return AtOnce(
        size=size,
        target=request.target,
        reserve=request.reserve,
        num_pipelines=slowed.num_pipelines,
        slowdown=slowdown,
        first_s=first_s,
        first_gap_percent=first.gap_percent or 0.0,
        searched_s=searched_s,
        searched_gap_percent=searched.gap_percent or 0.0,
        above_percent=100 * (first.energy_j / searched.energy_j - 1),
        late_percent=_late_percent(first),
        longer_percent=100 * (first.iteration_time_s / searched.iteration_time_s - 1),
    )


def _late_percent(plan: AnyPlan) -> float:
    kind, _, value = plan.target.partition(":")
    if kind == "power":
        return 100 * (plan.energy_j / plan.iteration_time_s / float(value) - 1)
    return plan.slowdown_percent if kind == "fastest" else 0.0


def _timed(make: Callable[[], AnyPlan]) -> tuple[AnyPlan, float]:
    began_s = time.perf_counter()
    plan = make()
    return plan, time.perf_counter() - began_s


def _served(profile: StageProfile, num_microbatches: int) -> Iterator[Served]:
    size = f"{profile.num_stages}x{num_microbatches}"
    show_progress(f"{size}, through a planner")
    rank = profile.num_stages // 2
    with (
        tempfile.TemporaryDirectory() as folder,
        served_planner(Path(folder)) as address,
        PlannerClient(address, timeout_s=PATIENCE_S) as client,
    ):
        put_emulated_job(
            client,
            "job",
            profile,
            num_microbatches=num_microbatches,
            blocking_power_w=BLOCKING_POWER_W,
        )
        report = StragglerReport(rank=rank, slowdown=SLOWDOWN)
        calls: dict[str, Callable[[], object]] = {
            "slow": lambda: client.post_straggler("job", report),
            "back": lambda: client.delete_straggler("job", rank),
        }
        for what, call in calls.items():
            version = client.get_job("job").newest_version or 0
            answered_s, at_ranks_s = _until_at_ranks(address, profile.num_stages, version, call)
            yield Served(
                size=size,
                what=what,
                answered_s=answered_s,
                first_rank_s=min(at_ranks_s),
                all_ranks_s=max(at_ranks_s),
            )


def _until_at_ranks(
    address: str, num_ranks: int, version: int, call: Callable[[], object]
) -> tuple[float, list[float]]:
    """Until the call is answered, and until each rank has a newer version than this, s."""
    arrived_s: dict[int, float] = {}
    waiting = threading.Barrier(num_ranks + 1)

    def wait_for_plan(rank: int) -> None:
        with PlannerClient(address, timeout_s=PATIENCE_S) as client:
            client.get_rank_plan("job", rank)  # the connection is there
            waiting.wait(PATIENCE_S)
            plan = client.get_rank_plan("job", rank, after_version=version, wait_s=LONGEST_POLL_S)
        if plan is not None:
            arrived_s[rank] = time.perf_counter()

    ranks = [threading.Thread(target=wait_for_plan, args=(rank,)) for rank in range(num_ranks)]
    for rank in ranks:
        rank.start()
    waiting.wait(PATIENCE_S)
    time.sleep(1.0)  # until all of them wait in the planner
    began_s = time.perf_counter()
    call()
    answered_s = time.perf_counter() - began_s
    for rank in ranks:
        rank.join(PATIENCE_S)
    if len(arrived_s) < num_ranks:
        raise BenchmarkError(f"{num_ranks - len(arrived_s)} ranks have got no plan")
    return answered_s, [moment_s - began_s for moment_s in arrived_s.values()]


def _limits(cells: list[AtOnce], served: list[Served]) -> Iterator[Limit]:
    for size in dict.fromkeys(cell.size for cell in cells):
        of_size = [cell for cell in cells if cell.size == size]
        for_budgets_s = [cell.first_s for cell in of_size if cell.has_budget]
        others_s = [cell.first_s for cell in of_size if not cell.has_budget]
        yield at_most(f"{size}: the first plan, s", max(others_s), MAX_AT_ONCE_S)
        if for_budgets_s:
            yield at_most(
                f"{size}: the first plan for a power budget, s",
                max(for_budgets_s),
                MAX_FOR_BUDGET_S,
            )
        yield at_most(
            f"{size}: its energy above the searched one's, %",
            max(cell.above_percent for cell in of_size),
            MAX_ABOVE_PERCENT,
        )
        yield at_most(
            f"{size}: its time over T', or power over its budget, %",
            max(cell.late_percent for cell in of_size),
            1e-7,
        )
    for figure in served:
        yield at_most(
            f"{figure.size}, {figure.what}: to the first rank, s",
            figure.first_rank_s,
            MAX_AT_ONCE_S,
        )


def _text(cells: list[AtOnce], served: list[Served]) -> str:
    return (
        f"{PROFILE}, tiled with seeded noise, 1F1B; the GPU in the middle of one"
        f" pipeline is slow\n\n{_plans(cells)}\n\n{_waits(served)}"
    )


def _plans(cells: list[AtOnce]) -> str:
    return table(
        [
            "one slow GPU; energies predicted",
            "target",
            "reserve",
            "pipelines",
            "slowdown",
            "first plan, s",
            "gap, %",
            "searched, s",
            "gap, %",
            "first above searched, %",
            "longer, %",
        ],
        [
            [
                cell.size,
                cell.target,
                f"{cell.reserve:g}",
                str(cell.num_pipelines),
                f"{cell.slowdown:g}",
                f"{cell.first_s:.2f}",
                f"{cell.first_gap_percent:.2f}",
                f"{cell.searched_s:.2f}",
                f"{cell.searched_gap_percent:.3f}",
                f"{cell.above_percent:.2f}",
                f"{cell.longer_percent:.2f}",
            ]
            for cell in cells
        ],
    )


def _waits(served: list[Served]) -> str:
    return table(
        ["flyball serve, measured", "what", "answered, s", "first rank, s", "all ranks, s"],
        [
            [
                one.size,
                one.what,
                f"{one.answered_s:.3f}",
                f"{one.first_rank_s:.3f}",
                f"{one.all_ranks_s:.3f}",
            ]
            for one in served
        ],
    )


def main() -> int:
    """Print the figures; 0 where all are within their limits, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--served-only", action="store_true", help="through a planner only")
    return run_benchmark(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
