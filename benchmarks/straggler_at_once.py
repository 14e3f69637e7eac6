"""Time to the first plan after a straggler in a large pipeline, and the quality of that plan."""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmark_report import Limit, Report, at_most, run_benchmark, show_progress, table_of
from flyball_client.api.planner_client import PlannerClient
from flyball_profiles.examples import EXAMPLE_PROFILE_NAME, load_example_profile
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.planner import PlanRequest
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest, make_slowed_plan
from flyball_wire.closed_loop import StragglerAnnouncement
from flyball_wire.plan_options import Effort, PlanOptions
from flyball_wire.plans.plan import Plan, Slowdown
from gpt3_cells import A100
from made_profiles import tile_profile
from measured_process import BenchmarkError
from served_planner import put_emulated_job, served_planner

SEED = 20231
SIZES = ((8, 32), (64, 256))
SLOWDOWN = 1.2
NUM_PIPELINES = (1, 2, 8)
# Target and reserve. The power budget is a share of the power of the first plan for `fastest`.
CASES = (("fastest", 0.0), ("slowdown:0.05", 0.0), ("least-energy", 0.0), ("fastest", 0.01))
BUDGET_SHARE = 0.95
# A first plan has this long, or one iteration, whichever is longer.
MAX_FIRST_S = 10.0
PATIENCE_S, LONGEST_POLL_S = 300.0, 60.0


@dataclass(frozen=True, kw_only=True)
class FirstPlan:
    """First plan after a GPU has become slow; all but its time is predicted.

    Attributes:
        first_s: time to make it, s.
        iteration_time_s: of that plan, s.
        gap_percent: of its bound.
        beyond_percent: its iteration time above T', or its power above the budget, %.
    """

    size: str
    target: str
    reserve: float
    num_pipelines: int
    first_s: float
    iteration_time_s: float
    gap_percent: float
    beyond_percent: float

    @property
    def limit_s(self) -> float:
        """Time that it may take, s."""
        return max(MAX_FIRST_S, self.iteration_time_s)


@dataclass(frozen=True, kw_only=True)
class Served:
    """Time from a call to the planner until waiting ranks have the new plan; one pipeline.

    Attributes:
        what: `slow`, a rank is announced; `back`, that is withdrawn.
        first_rank_s: until one of the ranks has its part.
        all_ranks_s: until all of them have, one connection each.
        iteration_time_s: of the new plan, predicted, s.
    """

    size: str
    what: str
    answered_s: float
    first_rank_s: float
    all_ranks_s: float
    iteration_time_s: float


def measure(arguments: argparse.Namespace) -> Report:
    """Plans on their own, then through a planner."""
    profile = load_example_profile()
    tiled = [(tile_profile(profile, stages, SEED), number) for stages, number in SIZES]
    plans = [] if arguments.served_only else [plan for one in tiled for plan in _plans(*one)]
    served = [figure for one in tiled for figure in _served(*one)]
    return Report(
        figures={"first_plans": plans, "served": served},
        text=_text(plans, served),
        limits=list(_limits(plans, served)),
    )


def _plans(profile: StageProfile, num_microbatches: int) -> Iterator[FirstPlan]:
    for num_pipelines in NUM_PIPELINES:
        request = PlanRequest(
            profile=profile,
            num_microbatches=num_microbatches,
            options=PlanOptions(blocking_power_w=(A100.blocking_power_w,), effort=Effort.LOW),
        )
        power_w = 0.0
        for target, reserve in CASES:
            asked = request.with_options(target=target, reserve=reserve)
            first, plan = _first_plan(asked, num_pipelines)
            power_w = power_w or plan.predicted.energy_j / plan.iteration_time_s
            yield first
        asked = request.with_options(target=f"power:{BUDGET_SHARE * power_w:.0f}")
        yield _first_plan(asked, num_pipelines)[0]


def _first_plan(request: PlanRequest, num_pipelines: int) -> tuple[FirstPlan, Plan]:
    size = f"{request.profile.num_stages}x{request.num_microbatches}"
    options, reserve = request.options, request.options.reserve or 0.0
    show_progress(f"{size}, {num_pipelines} pipelines, {options.target}, {reserve:g}")
    slow = Slowdown(
        stage=request.profile.num_stages // 2, dp_rank=num_pipelines - 1, slowdown=SLOWDOWN
    )
    slowed = SlowedRequest(request=request, slowdowns=(slow,), num_pipelines=num_pipelines)
    began_s = time.perf_counter()
    plan = make_slowed_plan(slowed)
    first = FirstPlan(
        size=size,
        target=request.options.target,
        reserve=reserve,
        num_pipelines=num_pipelines,
        first_s=time.perf_counter() - began_s,
        iteration_time_s=plan.iteration_time_s,
        gap_percent=plan.predicted.gap_percent or 0.0,
        beyond_percent=_beyond_percent(plan),
    )
    return first, plan


def _beyond_percent(plan: Plan) -> float:
    kind, _, value = plan.target.partition(":")
    match kind:
        case "power":
            return 100 * (plan.predicted.energy_j / plan.iteration_time_s / float(value) - 1)
        case "slowdown":
            return plan.slowdown_percent - 100 * float(value)
        case "fastest":
            return plan.slowdown_percent
        case _:
            return 0.0


def _served(profile: StageProfile, num_microbatches: int) -> Iterator[Served]:
    size = f"{profile.num_stages}x{num_microbatches}"
    show_progress(f"{size}, through a planner")
    rank = profile.num_stages // 2
    with (
        tempfile.TemporaryDirectory() as folder,
        served_planner(Path(folder)) as planner,
        PlannerClient(planner.url, timeout_s=PATIENCE_S) as client,
    ):
        put_emulated_job(client, "job", profile, num_microbatches=num_microbatches)
        report = StragglerAnnouncement(rank=rank, slowdown=SLOWDOWN)
        calls: dict[str, Callable[[], object]] = {
            "slow": lambda: client.post_straggler("job", report),
            "back": lambda: client.delete_straggler("job", rank),
        }
        for what, call in calls.items():
            version = client.get_job("job").newest_version or 0
            answered_s, at_ranks_s = _until_at_ranks(planner.url, profile.num_stages, version, call)
            newest = client.get_job("job").newest_version or 0
            yield Served(
                size=size,
                what=what,
                answered_s=answered_s,
                first_rank_s=min(at_ranks_s),
                all_ranks_s=max(at_ranks_s),
                iteration_time_s=client.get_plan("job", newest).plan["iteration_time_s"],
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


def _limits(plans: list[FirstPlan], served: list[Served]) -> Iterator[Limit]:
    for size in dict.fromkeys(plan.size for plan in plans):
        of_size = [plan for plan in plans if plan.size == size]
        slowest = max(of_size, key=lambda plan: plan.first_s / plan.limit_s)
        yield at_most(f"{size}: the first plan, s", slowest.first_s, slowest.limit_s)
        yield at_most(
            f"{size}: its time over T', or power over its budget, %",
            max(plan.beyond_percent for plan in of_size),
            1e-7,
        )
    for figure in served:
        yield at_most(
            f"{figure.size}, {figure.what}: to the first rank, s",
            figure.first_rank_s,
            max(MAX_FIRST_S, figure.iteration_time_s),
        )


def _text(plans: list[FirstPlan], served: list[Served]) -> str:
    first = {
        "one slow GPU; iteration predicted": "{size}",
        "target": "{target}",
        "reserve": "{reserve:g}",
        "pipelines": "{num_pipelines}",
        "first plan, s": "{first_s:.2f}",
        "iteration, s": "{iteration_time_s:.2f}",
        "gap, %": "{gap_percent:.3f}",
    }
    waits = {
        "flyball serve, measured": "{size}",
        "what": "{what}",
        "answered, s": "{answered_s:.3f}",
        "first rank, s": "{first_rank_s:.3f}",
        "all ranks, s": "{all_ranks_s:.3f}",
    }
    return (
        f"{EXAMPLE_PROFILE_NAME}, tiled with seeded noise, 1F1B; the GPU in the middle of one"
        f" pipeline takes {SLOWDOWN:g} times as long\n\n{table_of(plans, first)}\n\n"
        f"{table_of(served, waits)}"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--served-only", action="store_true", help="through a planner only")
    run_benchmark(options, measure)
