"""The examples, run by torchrun on two ranks: they train, and Flyball changes nothing in that."""

from __future__ import annotations

import difflib
import json
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.two_ranks import run_on_two_ranks
from tests.planner.live import LivePlanner, live_planner

from flyball_wire import routes

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")
pytest.importorskip("transformers", reason="needs the extra 'huggingface'")


ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PLAIN = sorted(file for file in EXAMPLES.glob("train_*.py") if not file.stem.endswith("_flyball"))
RUNS = ("llama", "gpt2", "bert", "resnet", "alexnet", "vgg19")
_RANKS = Path(__file__).with_name("examples_ranks.py")

Findings = dict[str, Any]


@pytest.fixture(scope="module")
def planner() -> Iterator[LivePlanner]:
    """That of the last example which is run."""
    with live_planner() as planner:
        yield planner


@pytest.fixture(scope="module")
def ranks(planner: LivePlanner, tmp_path_factory: pytest.TempPathFactory) -> list[Findings]:
    """What each rank saw of every example, with a planner's address where nobody listens."""
    folder = tmp_path_factory.mktemp("examples")
    url = str(planner.http.base_url)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{listener.getsockname()[1]}"
    run_on_two_ranks(folder, str(_RANKS), str(folder), url, FLYBALL_PLANNER_URL=nobody)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("plain", PLAIN, ids=lambda file: file.stem)
def test_flyball_is_a_few_lines_more_and_none_less(plain: Path) -> None:
    before = plain.read_text().splitlines()
    after = plain.with_name(f"{plain.stem}_flyball.py").read_text().splitlines()
    changes = [
        line
        for line in difflib.ndiff(before, after)
        if line[0] in "+-" and line[1:].strip() and "torchrun" not in line
    ]
    assert [line[2:].strip() for line in changes] == [
        "import flyball_integrations.deepspeed as flyball",
        "from emulated_gpu import emulated_gpu_on_cpu",
        "gpu = emulated_gpu_on_cpu(engine.stage_id)",
        f'flyball.attach(engine, job_id="{plain.stem[6:]}", gpu_type="a100", gpu=gpu)',
        "flyball.detach(engine)",
    ]
    assert all(line[0] == "+" for line in changes)


def test_every_example_is_run_here_and_shown_in_the_readme() -> None:
    assert {file.stem for file in PLAIN} == {f"train_{name}" for name in RUNS if name != "vgg19"}
    readme = (EXAMPLES / "README.md").read_text()
    assert all(file.name in readme for file in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", RUNS)
def test_an_example_trains_with_flyball_to_the_same_bits(
    ranks: Sequence[Findings], name: str
) -> None:
    found = ranks[0][name]
    assert [line.split(":")[0] for line in found["plain"]["steps"]] == ["step 0", "step 1"]
    assert found["flyball"]["steps"] == found["plain"]["steps"]
    losses = re.findall(r"loss (\d+\.\d{9})$", "\n".join(found["plain"]["steps"]), re.MULTILINE)
    assert len(set(losses)) == 2  # the weights moved, so equality means something


@pytest.mark.parametrize("name", RUNS)
def test_a_planner_that_is_away_costs_a_line_a_rank_and_one_for_the_job(
    ranks: Sequence[Findings], name: str
) -> None:
    for number, rank in enumerate(ranks):
        assert rank[name]["plain"]["warnings"] == []
        warnings = rank[name]["flyball"]["warnings"]
        # Rank 0 has the job to register, besides itself.
        assert 1 <= len(warnings) <= 2 - number, warnings
        assert all("planner" in line or "not registered yet" in line for line in warnings)


def test_an_example_registers_at_the_planner_that_the_environment_names(
    planner: LivePlanner, ranks: Sequence[Findings]
) -> None:
    job = planner.http.get(routes.fill(routes.JOB, job_id="llama")).raise_for_status().json()
    assert ranks[0]["with a planner"]["steps"][1].startswith("step 1: loss")
    registered = job["registration"]
    assert (registered["num_stages"], registered["num_microbatches"]) == (2, 3)
    assert registered["emulated"]
    assert [(rank["rank"], rank["stage"]) for rank in job["ranks"]] == [(0, 0), (1, 1)]
