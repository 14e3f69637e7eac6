from __future__ import annotations

import os
import re
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flyball_client.session.rank_settings import RankSettings
from flyball_client.session.registration import Launch, launch_of

VARIABLES = {
    "FLYBALL_PLANNER_URL": "http://127.0.0.1:1",
    "FLYBALL_TOKEN": "one",
    "FLYBALL_LEASE_S": "2.5",
    "FLYBALL_WITHOUT_PLANNER": "default-clocks",
    "FLYBALL_STRICT": "True",
    "FLYBALL_TIMING": "synchronize",
    "LOCAL_RANK": "3",
}


@pytest.mark.parametrize("environ", [{}, dict.fromkeys(VARIABLES, "")], ids=["unset", "empty"])
def test_without_variables_there_is_no_planner_and_the_last_plan_holds(
    environ: dict[str, str],
) -> None:
    settings = RankSettings.read(environ)
    assert settings == RankSettings(
        planner_url=None,
        token=None,
        lease_s=30.0,
        without_planner="last-plan",
        local_rank=0,
        timing="stream",
    )
    assert settings.open_planner() is None


def test_variables_are_read_and_arguments_win() -> None:
    read = RankSettings.read(VARIABLES)
    assert read == RankSettings(
        planner_url="http://127.0.0.1:1",
        token="one",  # noqa: S106 - no token of anything
        lease_s=2.5,
        without_planner="default-clocks",
        local_rank=3,
        strict=True,
        timing="synchronize",
    )
    planner = read.open_planner()
    assert planner is not None
    assert planner.base_url == "http://127.0.0.1:1"
    planner.close()
    arguments: dict[str, Any] = {
        "planner_url": "http://127.0.0.1:2",
        "token": "two",
        "lease_s": 7.0,
        "without_planner": "last-plan",
        "strict": False,
        "timing": "stream",
    }
    assert RankSettings.read(VARIABLES, **arguments) == replace(read, **arguments)
    with pytest.raises(ValueError, match="strict must be True or False, not 'no'"):
        RankSettings.read({}, strict="no")  # type: ignore[arg-type] # as a script may have it


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FLYBALL_LEASE_S", "soon"),
        ("FLYBALL_LEASE_S", "0"),
        ("FLYBALL_LEASE_S", "inf"),
        ("FLYBALL_WITHOUT_PLANNER", "panic"),
        ("FLYBALL_STRICT", "maybe"),
        ("FLYBALL_TIMING", "never"),
        ("LOCAL_RANK", "-1"),
        ("LOCAL_RANK", "one"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be .*{re.escape(repr(value))}"):
        RankSettings.read({name: value})


def test_where_no_file_can_be_opened_no_planner_is_asked_unless_strictly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cas = tmp_path / "ca.pem"
    cas.write_text("is not read")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    environ = {"FLYBALL_PLANNER_URL": "https://planner:7787"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FLYBALL_CA_FILE", str(cas))
        next_fd = os.dup(0)
        os.close(next_fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_fd, limits[1]))
        try:
            planner = RankSettings.read(environ).open_planner()
            with pytest.raises(OSError, match="Too many open files"):
                RankSettings.read(environ, strict=True).open_planner()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert planner is None
    (line,) = caplog.messages
    assert line.startswith("no planner is used, training continues: [Errno 24]")


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, Launch()),
        (
            {"TORCHELASTIC_RUN_ID": "train", "TORCHELASTIC_RESTART_COUNT": "2"},
            Launch(run="train", restart_count=2),
        ),
        # torchrun's name of a run that has none.
        (
            {"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"},
            Launch(run="4711", restart_count=1),
        ),
        ({"PBS_JOBID": "7.head"}, Launch(run="7.head")),
        ({"LSB_JOBID": "8"}, Launch(run="8")),
        ({"SLURM_JOB_ID": "a\nb"}, Launch()),
        ({"SLURM_JOB_ID": "a" * 1000}, Launch(run="a" * 256)),
        *(
            ({"TORCHELASTIC_RESTART_COUNT": count}, Launch())
            for count in ("", "-1", "1.5", "many", "٣", "9" * 30)
        ),
    ],
)
def test_the_run_comes_from_the_launcher_and_unusable_values_are_left_out(
    environ: dict[str, str], launch: Launch
) -> None:
    assert launch_of(environ) == launch
