"""Schedules of torch and Megatron on three emulated GPUs with a real planner: as predicted.

In virtual time (virtual_training.py): what is measured is the same on any machine.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import pytest
from tests.integration.rank_server import Findings, RankServer
from tests.planner.live import serve_process

pytest.importorskip("torch", reason="needs the extra 'torch'")

# Framework, its schedule, and the planner's name of it.
# test_torch_pipelining.py runs all of torch's.
_RUNS = [
    ("torch", "1F1B", "1f1b"),
    ("torch", "envpipe", "envpipe"),
    ("torch", "ZBVZeroBubble", "explicit"),
    ("torch", "DualPipeV", "explicit"),
    ("megatron", "1f1b", "1f1b"),
    ("megatron", "interleaved", "explicit"),
]


class Iteration(NamedTuple):
    """Time and energy of the whole pipeline."""

    time_s: float
    energy_j: float


class Run(NamedTuple):
    """One schedule and what each rank found."""

    registered: str
    ranks: list[Findings]

    def measured(self, *, with_plan: bool) -> list[Iteration]:
        """The steps that all ranks ran with the plan, or all without."""
        return [
            Iteration(
                max(time_s for _, time_s, _, _ in of_ranks),
                sum(energy_j for _, _, energy_j, _ in of_ranks),
            )
            for of_ranks in zip(*(rank["steps"] for rank in self.ranks), strict=True)
            if {is_planned for is_planned, *_ in of_ranks} == {with_plan}
        ]


@pytest.fixture(scope="module")
def findings(
    rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Findings]]:
    """Results of each rank with each framework that is installed."""
    found = {}
    folder = tmp_path_factory.mktemp("emulated")
    frameworks = ("torch", "megatron") if find_spec("megatron") is not None else ("torch",)
    with serve_process(folder / "planner.sqlite") as planner:
        for framework in frameworks:
            found[framework] = rank_server.run(
                f"{framework}_emulated_scenarios",
                tmp_path_factory.mktemp(framework),
                num_ranks=3,
                PLANNER_URL=str(planner.http.base_url),
                MOMENTS_FILE=str(folder / framework),
            )
    return found


@pytest.fixture(params=_RUNS, ids=lambda run: f"{run[0]} {run[1]}")
def run(request: pytest.FixtureRequest, findings: dict[str, list[Findings]]) -> Run:
    """One schedule's run."""
    framework, name, registered = request.param
    if framework not in findings:
        pytest.skip(f"needs {framework}")
    return Run(registered, [rank[name] for rank in findings[framework]])


def test_measured_time_and_energy_are_those_predicted(run: Run) -> None:
    plan = run.ranks[0]["plan"]
    for with_plan, predicted in ((False, plan["baseline"]), (True, plan)):
        iterations = run.measured(with_plan=with_plan)
        assert len(iterations) >= 2
        for measured in iterations:
            assert measured.time_s == pytest.approx(predicted["iteration_time_s"], rel=1e-6)
            # The counter moves once a millisecond.
            assert measured.energy_j == pytest.approx(predicted["energy_j"], rel=2e-3)
    # The plan saves energy and is not slower.
    highest, planned = (run.measured(with_plan=with_plan)[-1] for with_plan in (False, True))
    assert planned.time_s <= (1 + 1e-6) * highest.time_s
    assert planned.energy_j < 0.96 * highest.energy_j


def test_the_order_that_is_registered_is_planned_and_run(run: Run) -> None:
    plan, registration = run.ranks[0]["plan"], run.ranks[0]["registration"]
    assert plan["schedule"] == registration["schedule"] == run.registered
    for stage, rank in enumerate(run.ranks):
        planned = [
            [kind, microbatch, *(chunk or [0])]
            for kind, microbatch, _, *chunk in plan["stages"][stage]
        ]
        assert rank["ran"] == planned
        assert {num_unplanned for *_, num_unplanned in rank["steps"]} == {0}
        if run.registered == "explicit":
            assert [list(entry) for entry in registration["order"][stage]] == planned
    has_chunks = {chunk for _, _, chunk in run.ranks[0]["ran"]} == {0, 1}
    assert has_chunks == (run.registered == "explicit")


def test_every_rank_follows_the_plan_from_the_same_step(run: Run) -> None:
    by_rank = [[is_planned for is_planned, *_ in rank["steps"]] for rank in run.ranks]
    assert by_rank == [sorted(by_rank[0])] * len(by_rank)
    assert by_rank[0].index(True) >= 2
