"""Agreement of real ranks over gloo, and what becomes of it where a rank dies or ends early."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

from flyball_integrations.shared.step_agreement import _groups_of
from flyball_lab.demo.options import child_environment

_ROOT = Path(__file__).parents[2]
_FAULTS = {
    "a_rank_is_killed": [0, -signal.SIGKILL],
    "the_loader_raises": [1, 0],
    "groups_are_destroyed": [0, 0],
    "steps_are_unequal": [0, 0],
}


class Ended:
    """Ranks that have ended: exit status of each, and what they found."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        environment = child_environment(os.environ) | {"PYTHONPATH": str(_ROOT)}
        ran = subprocess.run(
            [sys.executable, "-m", "tests.integration.step_agreement_ranks", str(folder)],
            env=environment,
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
        self.statuses: dict[str, list[int]] = json.loads(ran.stdout)

    def found(self, scenario: str, rank: int) -> Any:  # noqa: ANN401 - JSON
        return json.loads((self._folder / f"{scenario} True" / f"{rank}.json").read_text())


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return Ended(tmp_path_factory.mktemp("ranks"))


def test_a_pipeline_gathers_its_messages_and_all_pipelines_their_greatest_numbers(
    ended: Ended,
) -> None:
    assert ended.statuses["exchanges True"] == [0] * 4
    for rank in range(4):
        pipeline = (0, 1) if rank < 2 else (2, 3)
        # Rank r and r + 2 are peers: the greater is 2 or 3, of the negative ones 0 or -1.
        peer = rank % 2
        assert ended.found("exchanges", rank) == [
            [
                [(bytes([each]) * (number * (1 + each))).hex() for each in pipeline],
                [2 + peer, -peer, number / 3],
            ]
            for number in range(5)
        ] + ["the agreement of the ranks is closed"]


@pytest.mark.parametrize("fault", _FAULTS)
def test_ranks_end_as_they_do_without_step_plans(ended: Ended, fault: str) -> None:
    """No rank waits at its end for another one, which lives until it has ended."""
    assert ended.statuses[f"{fault} True"] == ended.statuses[f"{fault} False"] == _FAULTS[fault]


def test_a_rank_that_is_killed_ends_step_plans_with_one_line(ended: Ended) -> None:
    (line,) = ended.found("a_rank_is_killed", 0)
    assert "steps have no plans of their own from now on" in line
    assert "the exchange with ranks 0, 1 failed: " in line


def test_no_thread_is_left_by_a_session_that_is_closed(ended: Ended) -> None:
    assert ended.found("groups_are_destroyed", 0) is False


def test_a_rank_that_has_more_steps_trains_them_without_an_agreement(ended: Ended) -> None:
    first, second = [ended.found("steps_are_unequal", rank) for rank in (0, 1)]
    # As the exchange of a rank's first step has no time before it, it may have no work yet.
    assert (len(first), len(second)) == (5, 3)
    assert second[1:] == [[[2.0, 4.0]], [[3.0, 9.0]]]


def test_groups_of_several_ranks_are_the_same_on_all_ranks() -> None:
    # Ranks 0 and 1 are a tensor-parallel pair of the first pipeline, 2 and 3 of the second one.
    pairs = [(0, 0, 0, 0), (0, 0, 1, 0), (1, 0, 0, 0), (1, 0, 1, 0)]
    assert _groups_of(pairs) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    # Without pipelines all ranks are peers, and a pipeline of one exchanges nothing.
    assert _groups_of([(rank, 0, 0, 0) for rank in range(3)]) == [(0, 1, 2)]
    # One pipeline has no peers.
    assert _groups_of([(0, stage, 0, 0) for stage in range(3)]) == [(0, 1, 2)]
