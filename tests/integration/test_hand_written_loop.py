"""The loop that docs/frameworks.md shows, run on two ranks with a planner."""

from __future__ import annotations

import re
import runpy
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from textwrap import dedent
from typing import Any
from unittest import mock

import pytest
from tests.integration.rank_server import RankServer
from tests.planner.live import live_planner

pytest.importorskip("torch", reason="needs the extra 'torch'")

import torch
from torch import nn

from flyball_wire import routes

_ROOT = Path(__file__).parents[2]
_EXAMPLE = _ROOT / "examples" / "hand_written_loop.py"
_GUIDE = _ROOT / "docs" / "frameworks.md"
_NUM_STEPS = 60  # see the scenarios
_NUM_MICROBATCHES = 2
_WIDTH = 64  # of --tiny
_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """Names of the example."""
    with mock.patch.object(sys, "path", [str(_EXAMPLE.parent), *sys.path]):
        return runpy.run_path(str(_EXAMPLE))


@dataclass(frozen=True, kw_only=True)
class Run:
    """Output of the ranks, and the planner's state of a job at the end."""

    printed: str
    job: dict[str, Any]
    steps: list[dict[str, Any]]
    plan: dict[str, Any]


@pytest.fixture(scope="module")
def runs(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The job that was given its profile, and the one that was profiled online."""
    folder = tmp_path_factory.mktemp("hand-written")
    with live_planner() as planner:
        url = str(planner.http.base_url)
        ranks = rank_server.run("hand_written_scenarios", folder, num_ranks=2, PLANNER_URL=url)
        return {
            name: Run(
                printed="".join(rank[name]["printed"] for rank in ranks),
                job=planner.http.get(routes.fill(routes.JOB, job_id=job_id)).json(),
                steps=planner.http.get(routes.fill(routes.STEPS, job_id=job_id)).json(),
                plan=planner.http.get(routes.fill(routes.PLAN, job_id=job_id, version=1)).json(),
            )
            for name, job_id in (("given", "hand-written"), ("online", "another"))
        }


def test_the_loop_follows_the_plan_on_both_ranks_once_there_is_one(runs: dict[str, Run]) -> None:
    steps = runs["given"].steps
    assert [step["step"] for step in steps] == list(range(_NUM_STEPS))
    versions = [step["plan_versions"] for step in steps]
    first = versions.index([1])
    assert 0 < first < _NUM_STEPS - 1
    assert versions[:first] == [[None]] * first
    # The job may be planned again for the delays that it measures.
    assert all(len(of_step) == 1 and of_step != [None] for of_step in versions[first:])
    assert versions[first:] == sorted(versions[first:])
    assert all(step["num_ranks"] == 2 and step["num_unplanned"] == 0 for step in steps)


def test_a_loop_without_a_profile_runs_probe_plans_in_its_own_order(runs: dict[str, Run]) -> None:
    run = runs["online"]
    # Its state is left open: a busy machine's times may end the profiling before the steps do.
    assert run.job["registration"]["blocking_power_w"] is None
    assert (run.plan["plan"]["policy"], run.plan["plan"]["schedule"]) == ("probe", "1f1b")
    assert any(step["plan_versions"] == [1] for step in run.steps)
    assert all(step["num_unplanned"] == 0 for step in run.steps)
    progress = r"^profiling probing: \d+ steps \(emulated\)$"
    assert re.search(progress, run.printed, re.MULTILINE)


def test_the_loops_losses_are_those_of_the_model_in_one_process(
    runs: dict[str, Run], example: dict[str, Any]
) -> None:
    output = runs["given"].printed
    printed = [float(loss) for loss in re.findall(r"step \d+: loss (\d+\.\d+)", output)]
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = _losses(example)
    torch.set_num_threads(num_threads)
    assert printed == pytest.approx(expected, abs=1e-6)
    assert len(set(printed)) == _NUM_STEPS


def _losses(example: dict[str, Any]) -> list[float]:
    model = nn.Sequential(*(example["build_layer"](stage, width=_WIDTH) for stage in range(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for microbatches in islice(example["samples"](_NUM_MICROBATCHES, width=_WIDTH), _NUM_STEPS):
        parts = [
            nn.functional.mse_loss(model(sample), sample) / len(microbatches)
            for sample in microbatches
        ]
        for part in parts:
            part.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(part.item() for part in parts))
    return losses


def test_the_guide_shows_the_example_as_it_is() -> None:
    guide = _GUIDE.read_text().partition("\n## Any other framework\n")[2]
    example = _EXAMPLE.read_text()
    assert "(../examples/hand_written_loop.py)" in guide
    blocks = _PYTHON_BLOCK.findall(guide)
    assert blocks
    lines = [line.strip() for line in example.splitlines()]
    for block in blocks:
        wanted = [line.strip() for line in dedent(block).splitlines() if line.strip() != "..."]
        # Whole and in this order; `...` in the guide stands for what is left out.
        position = -1
        for line in filter(None, wanted):
            assert line in lines[position + 1 :], f"not in the example: {line}"
            position = lines.index(line, position + 1)
