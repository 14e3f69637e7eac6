"""Every schedule of torch's on four emulated GPUs with a real planner: measured as predicted.

In virtual time, see the scenarios: what is measured is the same on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

from tests.integration.torch_launch import findings_of_ranks
from tests.planner.live import serve_process

_SCENARIOS = Path(__file__).with_name("torch_emulated_scenarios.py")
_TIMEOUT_S = 500
_NUM_RANKS = 4
_WITH_CHUNKS = (
    *("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble"),
    *("ZBVZeroBubble", "DualPipeV"),
)
_RUNS = ("GPipe", "1F1B", *_WITH_CHUNKS, "envpipe")

Findings = dict[str, Any]


class Iteration(NamedTuple):
    """Of the whole pipeline."""

    time_s: float
    energy_j: float


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Findings]:
    """What each rank found, by rank."""
    folder = tmp_path_factory.mktemp("emulated")
    with serve_process(folder / "planner.sqlite") as planner:
        return findings_of_ranks(
            _SCENARIOS,
            folder,
            num_ranks=_NUM_RANKS,
            timeout_s=_TIMEOUT_S,
            environment={"PLANNER_URL": str(planner.http.base_url)},
        )


def _measured(ranks: Sequence[Findings], name: str, *, with_plan: bool) -> list[Iteration]:
    """The steps that all ranks ran with the plan, or all without."""
    steps = zip(*(rank[name]["steps"] for rank in ranks), strict=True)
    return [
        Iteration(
            max(time_s for _, time_s, _, _ in of_ranks),
            sum(energy_j for _, _, energy_j, _ in of_ranks),
        )
        for of_ranks in steps
        if {is_planned for is_planned, *_ in of_ranks} == {with_plan}
    ]


@pytest.mark.parametrize("name", _RUNS)
def test_measured_time_and_energy_are_those_predicted(ranks: Sequence[Findings], name: str) -> None:
    plan = ranks[0][name]["plan"]
    for with_plan, predicted in ((False, plan["baseline"]), (True, plan)):
        iterations = _measured(ranks, name, with_plan=with_plan)
        assert len(iterations) >= 2
        for measured in iterations:
            assert measured.time_s == pytest.approx(predicted["iteration_time_s"], rel=1e-6)
            # The counter moves once a millisecond.
            assert measured.energy_j == pytest.approx(predicted["energy_j"], rel=2e-3)


@pytest.mark.parametrize("name", _RUNS)
def test_the_plan_saves_energy_and_is_not_slower(ranks: Sequence[Findings], name: str) -> None:
    highest = _measured(ranks, name, with_plan=False)[-1]
    planned = _measured(ranks, name, with_plan=True)[-1]
    assert planned.time_s <= (1 + 1e-6) * highest.time_s
    assert planned.energy_j < 0.96 * highest.energy_j


@pytest.mark.parametrize("name", _RUNS)
def test_each_instruction_is_the_one_that_the_plan_expects(
    ranks: Sequence[Findings], name: str
) -> None:
    for rank in ranks:
        assert {num_unplanned for *_, num_unplanned in rank[name]["steps"]} == {0}


@pytest.mark.parametrize("name", _RUNS)
def test_the_plan_is_of_the_schedule_that_runs(ranks: Sequence[Findings], name: str) -> None:
    plan = ranks[0][name]["plan"]
    names = {"GPipe": "gpipe", "1F1B": "1f1b", "envpipe": "envpipe"}
    assert plan["schedule"] == names.get(name, "explicit")
    has_chunks = any(len(entry) > 3 and entry[3] > 0 for entry in plan["stages"][0])
    assert has_chunks == (name in _WITH_CHUNKS)
