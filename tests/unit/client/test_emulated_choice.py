"""`FLYBALL_GPU`: how it is read, and the GPU that a rank has of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.client.recording_gpu import RecordingGpu

from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.gpu.emulated_choice import EmulatedChoice
from flyball_client.session import rank_settings
from flyball_client.session.rank_settings import RankSettings
from flyball_profiles.gpu_windows import load_gpu_window

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
    options = "time_scale=0.2,power_limit_w=300,blocking_power_w=0"
    assert EmulatedChoice.parse(f"emulated:p.csv,{options}") == EmulatedChoice(
        profile=Path("p.csv"), time_scale=0.2, blocking_power_w=0, power_limit_w=300
    )


def test_without_the_variable_the_gpu_is_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RecordingGpu()
    monkeypatch.setattr(rank_settings, "open_local_gpu", lambda *_: real)
    for environ in ({}, {"FLYBALL_GPU": ""}):
        assert RankSettings.read(environ).open_gpu(environ, stage=0) is real


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0", "FLYBALL_GPU must be emulated:PROFILE.csv"),
        ("emulated:", "FLYBALL_GPU names no profile"),
        (
            "emulated:p.csv,time_scale=0",
            "FLYBALL_GPU: time_scale must be a number, above 0, not '0'",
        ),
        ("emulated:p.csv,power_limit_w=0", "power_limit_w must be a number, above 0"),
        ("emulated:p.csv,blocking_power_w=x", "blocking_power_w must be a number, at least 0"),
        ("emulated:p.csv,blocking_power_w=-1", "blocking_power_w must be a number, at least 0"),
        ("emulated:p.csv,blocking_power_w=inf", "blocking_power_w must be a number, at least 0"),
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
