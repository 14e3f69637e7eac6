"""The examples, run on two ranks: they train, and Flyball changes nothing in that."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.integration.rank_server import Findings, RankServer
from tests.planner.live import LivePlanner, live_planner
from tests.planner.ports import free_port

from flyball_wire import routes

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")
pytest.importorskip("transformers", reason="needs the extra 'huggingface'")


ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PLAIN = sorted(file for file in EXAMPLES.glob("train_*.py") if not file.stem.endswith("_flyball"))
RUNS = ("llama", "gpt2", "bert", "resnet", "alexnet", "vgg19")
WITH_PLANNER = "gpt2"


@pytest.fixture(scope="module")
def planner() -> Iterator[LivePlanner]:
    """The planner of one example."""
    with live_planner() as planner:
        yield planner


@pytest.fixture(scope="module")
def ranks(
    planner: LivePlanner, rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory
) -> list[Findings]:
    """Results of each rank for every example; for all but one the planner is away."""
    return rank_server.run(
        "examples_scenarios",
        tmp_path_factory.mktemp("examples"),
        num_ranks=2,
        PLANNER_URL=str(planner.http.base_url),
        NOBODY_THERE=f"http://127.0.0.1:{free_port()}",
    )


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
    assert [line.split(":")[0] for line in found["plain"]["steps"]][:2] == ["step 0", "step 1"]
    assert found["flyball"]["steps"] == found["plain"]["steps"]
    losses = re.findall(r"loss (\d+\.\d{9})$", "\n".join(found["plain"]["steps"]), re.MULTILINE)
    # The weights moved, so equality means something.
    assert len(set(losses)) == len(found["plain"]["steps"])


@pytest.mark.parametrize("name", RUNS)
def test_a_planner_that_is_away_costs_a_line_a_rank_and_one_for_the_job(
    ranks: Sequence[Findings], name: str
) -> None:
    for number, rank in enumerate(ranks):
        assert rank[name]["plain"]["warnings"] == []
        warnings = rank[name]["flyball"]["warnings"]
        if name == WITH_PLANNER:
            # On a busy machine the last measurements may be posted too late, which is logged.
            assert [line for line in warnings if "did not accept them in time" not in line] == []
            continue
        # Rank 0 has the job to register, besides itself.
        assert 1 <= len(warnings) <= 2 - number, warnings
        assert all("planner" in line or "not registered yet" in line for line in warnings)


def test_an_example_registers_at_the_planner_that_the_environment_names(
    planner: LivePlanner, ranks: Sequence[Findings]
) -> None:
    path = routes.fill(routes.JOB, job_id=WITH_PLANNER)
    job = planner.http.get(path).raise_for_status().json()
    registered = job["registration"]
    assert (registered["num_stages"], registered["num_microbatches"]) == (2, 2)
    assert registered["emulated"]
    assert [(rank["rank"], rank["stage"]) for rank in job["ranks"]] == [(0, 0), (1, 1)]
