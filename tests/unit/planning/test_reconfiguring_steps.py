"""The plans that reconfiguration goes through, and how they are printed."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from flyball_profiles.examples import example_profile_path, load_example_profile
from flyball_server.cli.reconfiguration_steps import main
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request
from flyball_server.planning.policies.reconfigure import reconfigure, reconfiguring_steps
from flyball_wire.plan_options import Policy, Reconfigure

from .tiny_pipelines import request_of


def envelope(manner: Reconfigure) -> tuple[PlanRequest, FrequencyPlan]:
    """EnvPipe's plan of four stages of the example."""
    profile = load_example_profile().select_stages((0, 1, 2, 7))
    request = request_of(profile, 4, policy=Policy.ENVELOPE, reconfigure=manner)
    return request, make_plan(request).plan


@pytest.mark.parametrize("manner", ["greedy", "balanced"])
def test_the_steps_lead_from_the_unraised_plan_to_the_reconfigured_one(manner: Reconfigure) -> None:
    request, plan = envelope(manner)
    _, unraised = envelope(Reconfigure.DEFAULT)
    _, start = model_of_plan(request.profile, unraised)
    _, end = model_of_plan(request.profile, plan)
    model = model_of_request(request)
    steps = list(reconfiguring_steps(model, start, manner, 30))
    assert steps[0] == start
    assert steps[-1] == end == reconfigure(model, start, manner, 30)
    assert len(steps) > 2


@pytest.mark.parametrize("manner", ["greedy", "balanced"])
def test_every_step_raises_something_on_the_critical_path_and_nothing_else(
    manner: Reconfigure,
) -> None:
    request, _ = envelope(manner)
    model = model_of_request(request)
    start = [len(points) - 1 for points in model.points]
    steps = list(reconfiguring_steps(model, start, manner, 30))
    for before, after in itertools.pairwise(steps):
        raised = {node for node in range(len(start)) if after[node] != before[node]}
        assert raised
        assert all(after[node] < before[node] for node in raised)
        assert raised <= set(simulate(model, before).critical_path)


def test_they_are_printed_as_envpipe_prints_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(example_profile_path()), "--microbatches", "2", "--gpu", "a100"]
    assert main([*arguments, "--schedule", "envpipe"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "CURRENT_STEP 0"
    row = r"Stage 0 \| \[F0 1410 0\.0\] +F1 1065 0\.0 +\[B0 1065 \d+\.\d\] \[B1 1410 0\.0\]"
    assert re.fullmatch(row, lines[1])
    # Eight rows a step and an empty line; the last step's path is the envelope, all at 1410.
    assert len(lines) % 10 == 0
    on_path = re.findall(r"\[\w+ (\d+) [\d.]+\]", " ".join(lines[-10:]))
    assert set(on_path) == {"1410"}


def test_a_profile_that_cannot_be_read_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--microbatches", "2", "--gpu", "a100"]
    assert main([str(tmp_path / "none.csv"), *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
