"""Flyball in torchtitan's trainer, as its recipe attaches it, on two ranks over gloo."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.integration.rank_server import Findings, RankServer

pytest.importorskip("torch", reason="needs the extra 'torch'")

# The Makefile puts one there, beside the environment.
TORCHTITAN = max(Path(sys.prefix).glob("torchtitan-*"), default=None)
if TORCHTITAN is None:
    pytest.skip(f"needs torchtitan in {sys.prefix}: make test", allow_module_level=True)


@pytest.fixture(scope="module")
def ranks(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> list[Findings]:
    """Results of each rank."""
    return rank_server.run(
        "torchtitan_scenarios",
        tmp_path_factory.mktemp("torchtitan"),
        num_ranks=2,
        TORCHTITAN=str(TORCHTITAN),
    )


def test_its_training_follows_the_plan_and_is_the_same_to_the_last_bit(
    ranks: Sequence[Findings],
) -> None:
    for rank in ranks:
        assert rank["flyball"]["losses"] == rank["stock"]["losses"]
        assert rank["flyball"]["parameters"] == rank["stock"]["parameters"]
        assert rank["flyball"]["steps"] == [[None, 0], [1, 0], [1, 0]]
    # Of four microbatches in three steps, on the last stage.
    assert [len(rank["stock"]["losses"]) for rank in ranks] == [0, 12]


def test_the_recipe_has_the_line_that_is_run_here() -> None:
    root = Path(__file__).parents[2]
    recipe = (root / "docs" / "frameworks.md").read_text()
    line = 'trainer.pp_schedule, job_id="llama3", optimizer=trainer.optimizers'
    assert line in recipe
    ran = (root / "tests" / "integration" / "torchtitan_scenarios.py").read_text()
    assert line.replace("llama3", "titan") in ran
