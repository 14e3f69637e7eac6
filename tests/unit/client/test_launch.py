"""What launchers tell of a start in the environment."""

from __future__ import annotations

import pytest

from flyball_client.session.rank_settings import Launch, launch_of


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, Launch()),
        (
            {"TORCHELASTIC_RUN_ID": "train", "TORCHELASTIC_RESTART_COUNT": "2"},
            Launch(run="train", restart_count=2),
        ),
        # What torchrun says where nobody has named the run.
        (
            {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"},
            Launch(restart_count=0),
        ),
        (
            {"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"},
            Launch(run="4711", restart_count=1),
        ),
        ({"PBS_JOBID": "7.head"}, Launch(run="7.head")),
        ({"LSB_JOBID": "8"}, Launch(run="8")),
    ],
)
def test_a_launchers_name_for_the_run_and_its_restarts(
    environ: dict[str, str], launch: Launch
) -> None:
    assert launch_of(environ) == launch


@pytest.mark.parametrize("count", ["", "-1", "1.5", "many", "٣", "9" * 30])
def test_a_count_that_is_none_is_left_out(count: str) -> None:
    assert launch_of({"TORCHELASTIC_RESTART_COUNT": count}) == Launch()


def test_a_name_that_the_planner_would_refuse_is_left_out_or_cut() -> None:
    assert launch_of({"SLURM_JOB_ID": "a\nb"}) == Launch()
    assert launch_of({"SLURM_JOB_ID": "a" * 1000}) == Launch(run="a" * 256)
