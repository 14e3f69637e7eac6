from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.false_nvml.library import SUPPORTED_MHZ, FalseNvml

from flyball_client.__main__ import main
from flyball_client.clocks_command import describe_clocks

NOT_SUPPORTED = 3

CSV = """stage,instruction,frequency,time,energy
0,forward,1410,0.1,20
0,forward,1395,0.2,19
0,forward,1380,0.3,18
0,backward,1410,0.1,20
0,backward,900,0.2,19
1,forward,1410,0.1,20
1,forward,1200,0.2,19
1,backward,1410,0.1,20
1,backward,1200,0.2,19
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    file = tmp_path / "profile.csv"
    file.write_text(CSV)
    return file


@pytest.mark.parametrize(
    ("clocks_mhz", "text"),
    [
        ((), ""),
        ((1410,), "1410"),
        ((1410, 1200), "1200, 1410"),
        (range(1980, 209, -15), "210..1980 step 15"),
        ((1980, 1965, 1950, 345), "345, 1950..1980 step 15"),
        ((300, 200, 100, 1000), "100..300 step 100, 1000"),
        ((10, 20, 30, 32, 34), "10..30 step 10, 32, 34"),
        ((2, 1, 3, 3), "1..3 step 1"),
    ],
)
def test_clocks_are_drawn_together_where_their_steps_are_equal(
    clocks_mhz: tuple[int, ...], text: str
) -> None:
    assert describe_clocks(clocks_mhz) == text


@given(st.sets(st.integers(1, 300)))
def test_the_description_names_exactly_the_clocks(clocks_mhz: set[int]) -> None:
    named: list[int] = []
    for part in describe_clocks(tuple(clocks_mhz)).split(", "):
        ends, _, step = part.partition(" step ")
        first, _, last = ends.partition("..")
        if step:
            named += range(int(first), int(last) + 1, int(step))
        elif first:
            named.append(int(first))
    assert named == sorted(clocks_mhz)


def test_each_gpu_is_listed_with_its_clocks(
    loaded_nvml: FalseNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clocks"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"GPU 0  False GPU  {loaded_nvml.uuid(0)}",
        "  SM clocks, MHz: 210..1980 step 15 (119 clocks)",
    ]


def test_json_stands_alone_on_stdout(
    loaded_nvml: FalseNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clocks", "--json"]) == 0
    gpus = json.loads(capsys.readouterr().out)["gpus"]
    assert gpus[1] == {
        "index": 1,
        "name": "False GPU",
        "uuid": loaded_nvml.uuid(1),
        "emulated": False,
        "sm_clocks_mhz": list(SUPPORTED_MHZ),
    }


def test_a_gpu_without_lockable_clocks_is_listed_as_such(
    loaded_nvml: FalseNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded_nvml.fail("nvmlDeviceGetSupportedMemoryClocks", NOT_SUPPORTED)
    assert main(["clocks"]) == 0
    assert "this GPU does not list any" in capsys.readouterr().out


def test_a_machine_without_nvml_gets_one_line_and_status_2(false_nvml: FalseNvml) -> None:
    environment = false_nvml.environment
    del environment["FALSE_NVML_STATE"]
    done = subprocess.run(
        [sys.executable, "-m", "flyball_client", "clocks"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("flyball clocks: starting NVML: Driver Not Loaded; ")
    assert done.stderr.count("\n") == 1


def test_an_emulated_gpu_is_called_emulated(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clocks", "--profile", str(profile)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "emulated GPU of stage 0",
        "  SM clocks, MHz: 900, 1380..1410 step 15 (4 clocks)",
        "emulated GPU of stage 1",
        "  SM clocks, MHz: 1200, 1410 (2 clocks)",
    ]


def test_one_stage_of_a_profile_can_be_asked_for(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clocks", "--profile", str(profile), "--stage", "1", "--json"]) == 0
    (gpu,) = json.loads(capsys.readouterr().out)["gpus"]
    assert gpu == {
        "index": 1,
        "name": "emulated GPU of stage 1",
        "uuid": None,
        "emulated": True,
        "sm_clocks_mhz": [1410, 1200],
    }


def test_a_stage_beyond_the_profile_is_refused(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for stage in ("2", "-1"):
        assert main(["clocks", "--profile", str(profile), "--stage", stage]) == 2
        error = capsys.readouterr().err
        assert error == f"flyball clocks: {profile}: no stage {stage}; it has 0 to 1\n"


def test_a_stage_without_a_profile_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clocks", "--stage", "1"]) == 2
    assert "--stage needs --profile" in capsys.readouterr().err


def test_a_broken_profile_is_named_with_its_line(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile.write_text(CSV.replace("1395,0.2", "1395,fast"))
    assert main(["clocks", "--profile", str(profile)]) == 2
    assert capsys.readouterr().err.startswith(f"flyball clocks: {profile}:3: ")
