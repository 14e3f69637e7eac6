"""The example of the integration guide, run on two ranks with a planner beside it."""

from __future__ import annotations

import os
import re
import runpy
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from tests.planner.live import LivePlanner, live_planner

pytest.importorskip("torch", reason="needs the extra 'torch'")

import torch
from torch import nn

from flyball_client import routes
from flyball_integrations.demo.child_process import ChildProcess
from flyball_integrations.demo.interruption import Interruption
from flyball_integrations.demo.prerequisites import child_environment
from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile_csv import write_stage_profile

_ROOT = Path(__file__).parents[2]
_EXAMPLE = _ROOT / "examples" / "hand_written_loop.py"
_GUIDE = _ROOT / "docs" / "integration-guide.md"
_NUM_STEPS = 16
_NUM_MICROBATCHES = 2
_WIDTH = 64  # of --tiny
_TIMEOUT_S = 120.0
_POLL_S = 0.1
_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """What the ranks printed, and the job's steps as the planner has them in the end."""
    folder = tmp_path_factory.mktemp("hand-written")
    sizes = ("--tiny", "--steps", str(_NUM_STEPS), "--microbatches", str(_NUM_MICROBATCHES))
    torchrun = (
        *("-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
        *("--local-addr", "127.0.0.1", "--log-dir", str(folder / "torchrun")),
    )
    log = folder / "torchrun.log"
    with live_planner() as planner, Interruption() as interruption:
        environment = child_environment(os.environ)
        environment["FLYBALL_PLANNER_URL"] = str(planner.http.base_url)
        with ChildProcess(
            [*torchrun, str(_EXAMPLE), *sizes], environment=environment, log=log
        ) as ranks:
            while ranks.exit_status() is None and not _profile_is_taken(planner):
                interruption.sleep(_POLL_S)
            status = ranks.wait(interruption, timeout_s=_TIMEOUT_S)
        assert status == 0, log.read_text()[-4000:]
        steps = planner.http.get(routes.fill(routes.STEPS, job_id="hand-written"))
    return log.read_text(), steps.raise_for_status().json()


def _profile_is_taken(planner: LivePlanner) -> bool:
    """Not before the job is known."""
    profile = load_example_profile().select_stages((0, 1))
    return planner.put_profile(write_stage_profile(profile), job_id="hand-written").is_success


def test_the_loop_follows_the_plan_on_both_ranks_once_there_is_one(
    run: tuple[str, list[dict[str, Any]]],
) -> None:
    _, steps = run
    assert [step["step"] for step in steps] == list(range(_NUM_STEPS))
    versions = [step["plan_versions"] for step in steps]
    first = versions.index([1])
    assert 0 < first < _NUM_STEPS - 1
    assert versions == [[None]] * first + [[1]] * (_NUM_STEPS - first)
    assert all(step["num_ranks"] == 2 and step["num_unplanned"] == 0 for step in steps)


def test_the_loops_losses_are_those_of_the_model_in_one_process(
    run: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, _ = run
    monkeypatch.syspath_prepend(str(_EXAMPLE.parent))
    example = runpy.run_path(str(_EXAMPLE))
    printed = [float(loss) for loss in re.findall(r"step \d+: loss (\d+\.\d+)", output)]
    assert printed == pytest.approx(_losses(example["build_layer"], example["samples"]), abs=1e-6)
    assert len(set(printed)) == _NUM_STEPS


def _losses(
    build_layer: Callable[..., nn.Module], samples: Callable[..., Iterator[list[torch.Tensor]]]
) -> list[float]:
    model = nn.Sequential(*(build_layer(stage, width=_WIDTH) for stage in range(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for microbatches in islice(samples(_NUM_MICROBATCHES, width=_WIDTH), _NUM_STEPS):
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
    guide, example = _GUIDE.read_text(), _EXAMPLE.read_text()
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
