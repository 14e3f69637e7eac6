"""Training starts and goes on where the machine lacks what Flyball needs; `strict` says what."""

from __future__ import annotations

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from tests.integration.rank_server import Findings, RankServer

# The one line that says so, and the error of a strict attach.
SAYINGS = {
    "NVML": (
        "no clock is set and no energy measured, training continues: starting NVML",
        "GpuNotFoundError: starting NVML",
    ),
    "memfd": ("clocks are no longer set, training continues", "PermissionError"),
    "eventfd": ("clocks are no longer set, training continues", "PermissionError"),
    "descriptors": ("Too many open files", "OSError: [Errno 24]"),
    "threads": ("no planner is used, training continues", "RuntimeError: can't start new thread"),
}


@pytest.fixture(scope="module")
def ranks(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> list[Findings]:
    """Results of each rank."""
    return rank_server.run("lacking_scenarios", tmp_path_factory.mktemp("lacking"), num_ranks=2)


@pytest.mark.parametrize(
    ("framework", "lack"), [*(("torch", lack) for lack in SAYINGS), ("envpipe", "NVML")]
)
def test_what_a_machine_lacks_is_one_line_and_training_goes_on_measured(
    ranks: list[Findings], framework: str, lack: str
) -> None:
    saying, error = SAYINGS[lack]
    for rank, found in enumerate(ranks):
        one = found[f"_in_{framework} without {lack}"]
        assert len(one["times_s"]) == 2
        assert min(one["times_s"]) > 0
        assert one["num_switches"] == 0
        assert (one["energies_j"] == [None, None]) == (lack == "NVML")
        lines = [line for line in one["lines"] if "FLYBALL_PLANNER_URL" not in line]
        # Of a job that rank 0 cannot register there is a second line, of rank 0.
        registers = lack == "threads" and rank == 0
        assert len(lines) == 1 + registers, lines
        assert saying in lines[0]
        assert one["strict"].startswith(error)
