"""Settings that a rank reads from its environment, and the GPU that it has of `FLYBALL_GPU`."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.recording_gpu import RecordingGpu

from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.gpu.emulated.choice import EmulatedChoice
from flyball_client.session import rank_settings
from flyball_client.session.rank_settings import RankSettings
from flyball_client.session.registration import LaunchedRun, launch_of
from flyball_profiles.gpu_windows import load_gpu_window

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
        local_rank=None,
        timing="stream",
    )
    assert settings.open_planner() is None


@pytest.mark.parametrize(
    ("environ", "local_rank"),
    [
        ({"LOCAL_RANK": "2", "SLURM_LOCALID": "1"}, 2),
        ({"LOCAL_RANK": "", "SLURM_LOCALID": "1"}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "3"}, 3),
        ({"MV2_COMM_WORLD_LOCAL_RANK": "4"}, 4),
        ({"MPI_LOCALRANKID": "0"}, 0),
    ],
)
def test_the_local_rank_is_that_of_the_launcher(environ: dict[str, str], local_rank: int) -> None:
    assert RankSettings.read(environ).local_rank == local_rank


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
    with pytest.raises(ValueError, match="strict: must be true or false, not 'no'"):
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
    with pytest.raises(ValueError, match=f"^{name} must be .*{re.escape(value)}"):
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
        ({}, LaunchedRun()),
        (
            {"TORCHELASTIC_RUN_ID": "train", "TORCHELASTIC_RESTART_COUNT": "2"},
            LaunchedRun(run="train", restart_count=2),
        ),
        # torchrun's name of a run that has none.
        (
            {"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"},
            LaunchedRun(run="4711", restart_count=1),
        ),
        ({"PBS_JOBID": "7.head"}, LaunchedRun(run="7.head")),
        ({"LSB_JOBID": "8"}, LaunchedRun(run="8")),
        ({"SLURM_JOB_ID": "a\nb"}, LaunchedRun()),
        ({"SLURM_JOB_ID": "a" * 1000}, LaunchedRun(run="a" * 256)),
        *(
            ({"TORCHELASTIC_RESTART_COUNT": count}, LaunchedRun())
            for count in ("", "-1", "1.5", "many", "٣", "9" * 30)
        ),
    ],
)
def test_the_run_comes_from_the_launcher_and_unusable_values_are_left_out(
    environ: dict[str, str], launch: LaunchedRun
) -> None:
    assert launch_of(environ) == launch


# The stages differ in their clocks.
PROFILE = """stage,instruction,frequency,time,energy
0,forward,1410,0.1,30
0,backward,1410,0.2,60
1,forward,1410,0.1,30
1,forward,1200,0.11,26
1,backward,1410,0.2,62
1,backward,1200,0.22,54
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a,b=1.csv"
    path.write_text(PROFILE)
    return path


def test_options_follow_the_file() -> None:
    assert EmulatedChoice.parse("emulated:/a,b=1.csv") == EmulatedChoice(profile=Path("/a,b=1.csv"))
    options = "time_scale=0.2,power_limit_w=300,blocking_power_w=0,work_scatter=0.3"
    assert EmulatedChoice.parse(f"emulated:p.csv,{options}") == EmulatedChoice(
        profile=Path("p.csv"),
        time_scale=0.2,
        blocking_power_w=0,
        power_limit_w=300,
        work_scatter=0.3,
    )


def test_without_the_variable_the_gpu_is_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RecordingGpu()
    monkeypatch.setattr(rank_settings, "open_rank_gpu", lambda *_, **__: real)
    for environ in ({}, {"FLYBALL_GPU": ""}):
        assert RankSettings.read(environ).open_gpu(environ, stage=0) is real


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0", "FLYBALL_GPU must be emulated:PROFILE.csv"),
        ("emulated:", "FLYBALL_GPU names no profile"),
        (
            "emulated:p.csv,time_scale=0",
            "FLYBALL_GPU: time_scale must be a number above 0, not 0",
        ),
        ("emulated:p.csv,power_limit_w=0", "power_limit_w must be a number of W above 0"),
        ("emulated:p.csv,blocking_power_w=-1", "blocking_power_w must be a number of W, at"),
        ("emulated:p.csv,blocking_power_w=inf", "blocking_power_w must be a number of W, at"),
        ("emulated:p.csv,work_scatter=-1", "work_scatter must be a number, at least 0"),
        ("emulated:none.csv", r"FLYBALL_GPU: none\.csv: "),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_variables_name(text: str, says: str) -> None:
    environ = {"FLYBALL_GPU": text}
    with pytest.raises(ValueError, match=says):
        RankSettings.read(environ).open_gpu(environ, stage=0)


def opened(file: Path, options: str = "", **given: float) -> EmulatedGpu:
    environ = {"FLYBALL_GPU": f"emulated:{file}{options}"}
    gpu = RankSettings.read(environ).open_gpu(environ, stage=1, **given)  # type: ignore[arg-type]  # blocking_power_w alone
    assert isinstance(gpu, EmulatedGpu)
    return gpu


def test_a_rank_has_the_gpu_of_its_stage_and_logs_it_with_its_blocking_power(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The variable's blocking power wins over the caller's, and that over an A100's."""
    opened(file, ",blocking_power_w=50", blocking_power_w=60)
    opened(file, blocking_power_w=60)
    assert opened(file).supported_sm_clocks_mhz() == (1410, 1200)
    a100_w = load_gpu_window("a100").blocking_power_w
    found = [line.split(", ")[-1].split(" W ")[0] for line in caplog.messages]
    assert found == ["50", "60", f"{a100_w:g}"]
    start = "the GPU of this rank is emulated (FLYBALL_GPU): stage 1 of "
    assert caplog.messages[0].startswith(start)


def test_a_stage_that_the_profile_has_not_and_a_rank_without_one_are_errors(file: Path) -> None:
    environ = {"FLYBALL_GPU": f"emulated:{file}"}
    settings = RankSettings.read(environ)
    with pytest.raises(ValueError, match=r"FLYBALL_GPU: .*a,b=1\.csv: stage must be 0 to 1"):
        settings.open_gpu(environ, stage=2)
    with pytest.raises(ValueError, match=r"needs the stage of its rank: open_gpu\(\.\.\., stage="):
        settings.open_gpu(environ)
    with pytest.raises(ValueError, match=r"FLYBALL_GPU: .*: the profile has no chunks, and 2"):
        settings.open_gpu(environ, stage=1, num_chunks=2)
