"""Walks of data through our modules, followed as they happen; none may grow past its limit."""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.architecture.walks import HandOver, Walk
from tests.false_nvml.library import FalseNvml
from tests.planner.linked_rank import LinkedRank
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import wait_until
from tests.planner.samples import profile_csv

from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.registry import open_local_gpu
from flyball_client.helper.rank_agent import LinkTimes
from flyball_client.session.rank_session import RankSession
from flyball_server.cli.plan import COMMAND
from flyball_wire import routes

# The search for clocks calls models a thousand times: it counts as a single caller.
SEARCH = (
    "flyball_server.planning.policies",
    "flyball_server.planning.frontier.",
    "flyball_server.planning.schedule_choice",
)
# Called in each long loop, so that a solve can be cancelled there: nothing is handed over.
CALLED_ANYWHERE = {"flyball_server.planning.cancellation"}


def callers(hand_overs: tuple[HandOver, ...]) -> dict[str, set[str]]:
    """Return by module the modules that call its functions or make its objects."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for one in hand_overs:
        is_entry = "." not in one.function or one.function.endswith(".__init__")
        in_search = one.caller.startswith(SEARCH)
        if one.event == "call" and is_entry and not (in_search and one.module.startswith(SEARCH)):
            found[one.module].add("the search" if in_search else one.caller)
    return found


def two_pipelines() -> str:
    """Return the profile of two data-parallel pipelines."""
    header, *rows = profile_csv().splitlines()
    of_ranks = [f"{row},{dp_rank}" for dp_rank in range(2) for row in rows]
    return "\n".join([f"{header},dp_rank", *of_ranks]) + "\n"


SEPARATE = "--data-parallel separate"


@pytest.mark.parametrize("options", ["--timeline", "--schedule auto --json", SEPARATE])
def test_from_a_csv_to_a_printed_plan_each_module_is_entered_at_most_twice(
    options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "profile.csv"
    profile.write_text(two_pipelines() if options == SEPARATE else profile_csv())
    parser = argparse.ArgumentParser()
    COMMAND.configure(parser)
    usual = ["--microbatches", "4", "--gpu", "a100"]
    arguments = parser.parse_args([str(profile), *usual, *options.split()])
    with Walk(tmp_path) as walk:
        walk.begin()
        assert COMMAND.run(arguments) == 0
        found = callers(walk.end())
    assert capsys.readouterr().out
    assert len(found) > 30
    often = {module: sorted(of) for module, of in found.items() if len(of) > 2}
    assert {*often} <= CALLED_ANYWHERE, often


# ------------------------------------------------------------------ a profile to the clocks

# Clocks of the profile, all of which a plan has.
CLOCKS_MHZ = (1395, 1275)
TIMES = LinkTimes(poll_wait_s=10.0, gather_s=10.0, first_retry_s=0.01, longest_retry_s=0.05)
FIRST, LAST = "flyball_server.http.routes.profiles", "flyball_client.gpu.nvml.device"
# Handed over by no call, but by HTTP, pickles, the result of a future or shared memory.
CROSSINGS = (
    ("flyball_server.http.routes.ranks", "flyball_client.api.connection"),
    ("flyball_server.solving.processes", "flyball_server.jobs.reconcile.solve"),
    ("flyball_client.governor.process_governor", "flyball_client.governor.governor_process"),
    ("flyball_client.governor.governor_process", "flyball_client.governor.clock_controller"),
)
# Planning is followed in the walk above; caches and batches of the kit do not read what they hold.
PLANNING, KIT = "flyball_server.planning.", "flyball_server.kit."
MOST_MODULES = 35
FORMS_OF_A_PLAN = {"PipelinePlan", "RankPlan", "CompiledPlan"}
NO_FORMS = {"OperatingPoint", "number", "text"}
# Of a clock that is read back, where a step lasts long enough for that.
READ_BACK = {"ClockReport", "InstructionTiming", "StepMeasurement"}

Graph = Mapping[str, set[str]]


def reached(graph: Graph, start: str) -> set[str]:
    """Return the modules that data of `start` can reach, and `start`."""
    found, waiting = {start}, [start]
    while waiting:
        further = graph.get(waiting.pop(), set()) - found
        found |= further
        waiting += further
    return found


def on_the_way(hand_overs: Sequence[HandOver]) -> set[str]:
    """Return the modules that get the profile or the plan, and hand on what reaches NVML."""
    onward: defaultdict[str, set[str]] = defaultdict(set)
    for one in hand_overs:
        giver, taker = one.caller, one.module
        onward[giver if one.event == "call" else taker].add(taker if one.event == "call" else giver)
    for giver, taker in CROSSINGS:
        onward[giver].add(taker)
    onward.pop(LAST, None)  # it ends there
    backward: defaultdict[str, set[str]] = defaultdict(set)
    for giver, takers in onward.items():
        for taker in takers:
            backward[taker].add(giver)
    return reached(onward, FIRST) & reached(backward, LAST)


@contextmanager
def ranks_of(planner: LivePlanner) -> Iterator[list[RankSession]]:
    """Start sessions of the job's two ranks; they are registered."""
    with ExitStack() as stack:
        gpus = [open_local_gpu(rank, os.environ) for rank in range(2)]
        for gpu in gpus:
            stack.callback(gpu.close)  # else NVML stays open for the tests after this
        sessions = [
            stack.enter_context(
                RankSession(
                    gpu=gpus[rank],
                    planner=stack.enter_context(PlannerClient(str(planner.http.base_url))),
                    job_id="job",
                    rank=rank,
                    stage=rank,
                    times=TIMES,
                )
            )
            for rank in range(2)
        ]
        job = routes.fill(routes.JOB, job_id="job")
        wait_until(lambda: len(planner.http.get(job).json()["ranks"]) == 2)
        yield sessions


# Orders of 1F1B by rank.
ORDERS = (
    (("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1)),
    (("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1)),
)


def train_a_step(ranks: Sequence[RankSession]) -> None:
    for rank, order in zip(ranks, ORDERS, strict=True):
        rank.on_step_begin()
        for kind, microbatch in order:
            rank.on_instruction_begin(kind, microbatch=microbatch)
            rank.on_instruction_end(kind)
        rank.on_step_end()


@pytest.fixture
def walk_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "walk"
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_a_profile_comes_to_nvml_through_at_most_35_modules_in_three_forms_of_a_plan(
    loaded_nvml: FalseNvml, walk_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = Walk(walk_folder, CLOCKS_MHZ)
    for name, value in walk.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FLYBALL_STATE_DIR", str(tmp_path / "state"))
    csv = profile_csv().replace("1410", str(CLOCKS_MHZ[0])).replace("1200", str(CLOCKS_MHZ[1]))

    def is_set() -> bool:
        train_a_step(ranks)
        calls = loaded_nvml.calls("nvmlDeviceSetGpuLockedClocks")
        return any(mhz in CLOCKS_MHZ for _, mhz in calls)

    with walk, live_planner(planning_processes=1) as planner:
        planner.put_job().raise_for_status()
        with ranks_of(planner) as ranks:
            walk.begin()
            planner.put_profile(csv).raise_for_status()
            wait_until(is_set)
            train_a_step(ranks)
            found = [one for one in walk.end() if one.found and is_between_ours(one)]
    way = on_the_way(found)
    assert {FIRST, "flyball_server.planning.planner", LAST} <= way
    among = [one.found for one in found if {one.caller, one.module} <= way]
    assert frozenset[str]().union(*among) - NO_FORMS - READ_BACK == FORMS_OF_A_PLAN
    modules = sorted(module for module in way if not module.startswith(KIT))
    assert len(modules) <= MOST_MODULES, "\n".join(modules)


def is_between_ours(hand_over: HandOver) -> bool:
    """Return whether modules of ours hand over, not both of them planning's."""
    caller, module = hand_over.caller, hand_over.module
    return caller != "" and not (caller.startswith(PLANNING) and module.startswith(PLANNING))


# ------------------------------------------------------------------ a step to the report

# Energy of a step on one rank, and on both, J; no sum over other steps is the same.
OF_RANK_J, OF_BOTH_J = 123.4375, 246.9375
TYPES_OF_A_STEP = {"StepMeasurement", "StepRecord", "StepTotals"}
# Part of the totals: while there are few steps, a batch holds a single step.
TOTALS = {"BatchMeans"}


@pytest.mark.slow
def test_a_step_comes_to_the_report_in_three_types(
    walk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = Walk(walk_folder, (OF_RANK_J, OF_BOTH_J))
    for name, value in walk.environment.items():
        monkeypatch.setenv(name, value)
    report, steps = routes.fill(routes.REPORT, job_id="job"), range(6)
    with walk, live_planner() as planner, ExitStack() as stack:
        planner.put_planned_job()
        ranks = [LinkedRank(str(planner.http.base_url), rank) for rank in range(2)]
        for rank in ranks:
            stack.callback(rank.close)
        wait_until(lambda: all(rank.activated for rank in ranks))
        walk.begin()
        for rank, energy_j in zip(ranks, (OF_RANK_J, OF_BOTH_J - OF_RANK_J), strict=True):
            for step in steps:
                rank.measure(100 + step, rank.activated[0], energy_j if step == 3 else 100.0)
        wait_until(lambda: planner.http.get(report).json()["num_steps"] == len(steps))
        found = walk.end()
    types = frozenset[str]().union(*(one.found for one in found))
    assert types - NO_FORMS - TOTALS == TYPES_OF_A_STEP
