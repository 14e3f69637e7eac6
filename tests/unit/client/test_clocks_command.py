from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.false_nvml.library import SUPPORTED_MHZ, FalseNvml
from tests.integration.command_in_process import document_of, flyball, refusal

from flyball_client.cli.clocks import describe_clocks
from flyball_client.gpu.nvml import vendor
from flyball_client.gpu.window_draft import draft_window, window_toml
from flyball_profiles.gpu_windows import load_gpu_window, window_clocks_mhz

pytestmark = pytest.mark.slow

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


def test_each_gpu_is_listed_with_its_clocks(loaded_nvml: FalseNvml) -> None:
    loaded_nvml.set_conditions(limit_w=500)
    assert flyball("clocks").stdout.splitlines()[:3] == [
        f"GPU 0  False GPU  {loaded_nvml.uuid(0)}",
        "  SM clocks, MHz: 210..1980 step 15 (119 clocks)",
        "  Conditions: power limit 500 W, default power limit 700 W, power profile none, memory"
        " clock 2619 MHz, application clock 1980 MHz, ECC on, persistence mode on, driver false-0",
    ]
    (gpu,) = document_of("clocks", "--gpu", loaded_nvml.uuid(1))["gpus"]
    expected = {"index": 1, "name": "False GPU", "uuid": loaded_nvml.uuid(1), "emulated": False}
    assert gpu.pop("conditions")["power_limit_w"] == 700.0
    assert gpu == expected | {"sm_clocks_mhz": list(SUPPORTED_MHZ)}
    loaded_nvml.fail("nvmlDeviceGetSupportedMemoryClocks", NOT_SUPPORTED)
    assert "this GPU lists none" in flyball("clocks").stdout
    refused = refusal(flyball("clocks", "--toml", "h200"))
    assert "a window needs two SM clocks, and the GPU lists 0" in refused


def test_an_emulated_gpu_is_called_emulated(tmp_path: Path) -> None:
    profile = tmp_path / "profile.csv"
    profile.write_text(CSV)
    assert flyball("clocks", "--profile", profile).stdout.splitlines() == [
        "emulated GPU of stage 0",
        "  SM clocks, MHz: 900, 1380..1410 step 15 (4 clocks)",
        "emulated GPU of stage 1",
        "  SM clocks, MHz: 1200, 1410 (2 clocks)",
    ]
    for stage in ("2", "-1"):
        refused = refusal(flyball("clocks", "--profile", profile, "--stage", stage))
        assert refused == f"flyball clocks: {profile}: no stage {stage}; it has 0 to 1"


# ------------------------------------------------------------------ a file for the GPU table


@pytest.mark.usefixtures("loaded_nvml")
def test_the_table_reads_the_file_that_is_written_and_it_fits_the_gpu(tmp_path: Path) -> None:
    done = flyball("clocks", "--toml", "false", "-o", tmp_path / "false.toml")
    assert (done.returncode, done.stdout) == (0, "")
    window = load_gpu_window("False", folder=tmp_path)
    # 1980 - 11 x 90 = 990 is half of 1980.
    assert (window.filter_max_mhz, window.filter_min_mhz) == (1980, 990)
    assert (window.granularity_mhz, window.reconfigure_granularity_mhz) == (90, 30)
    assert window.blocking_power_w is None
    assert "False GPU itself through NVML (driver false-0, 2" in window.sources["filter_max_mhz"]
    assert window_clocks_mhz(window, SUPPORTED_MHZ) == tuple(range(1980, 989, -90))


@pytest.mark.usefixtures("loaded_nvml")
def test_a_file_that_is_there_is_written_over_only_by_force(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("measured for a week")
    command = ("clocks", "--toml", "mine", "-o", file)
    refused = refusal(flyball(*command))
    assert refused == f"flyball clocks: {file}: exists already; --force overwrites it"
    assert file.read_text() == "measured for a week"
    assert flyball(*command, "--force").returncode == 0
    assert load_gpu_window("mine", folder=tmp_path).filter_max_mhz == 1980


@pytest.mark.usefixtures("loaded_nvml")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--toml", "h200", "-o", "no/such/folder.toml"], "cannot be written (No such file"),
        (["--toml", "h200", "-o", "."], "is a folder; name a file in it"),
        (["--toml", "H200"], "'H200' cannot be a GPU's name in the table"),
        (["--toml", "../h200"], "cannot be a GPU's name in the table"),
        (["--toml", "h200", "--json"], "--toml prints TOML"),
        (["--gpu", "0", "--profile", "p.csv"], "remove --profile"),
        (["--stage", "1"], "--stage needs --profile"),
        (["-o", "h200.toml"], "-o and --force need --toml NAME"),
        (["--force"], "-o and --force need --toml NAME"),
        (["--gpu", "2"], "there is no GPU 2; NVML counts 2, from 0"),
        (["--gpu", "first"], "neither a GPU's index nor its UUID"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert text in refusal(flyball("clocks", *arguments))
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "calls.log"}


@pytest.mark.usefixtures("loaded_nvml")
def test_among_different_gpus_one_must_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["False GPU", "Other GPU", "Other GPU"])
    monkeypatch.setattr(vendor, "name_of", lambda _: next(names))
    command = ("clocks", "--toml", "h200")
    assert "GPUs of this machine differ; choose one with --gpu" in refusal(flyball(*command))
    assert flyball(*command, "--gpu", "1").stdout.startswith("# Other GPU: ")


@pytest.mark.parametrize(
    ("clocks_mhz", "figures"),
    [
        # As a V100 lists them, 7 and 8 MHz apart in turn: 12 steps of 7.5 are 90.
        ([1530 - 15 * i // 2 for i in range(187)], (1530, 810, 90, 30)),
        # 20 MHz apart: 80 is as near to 90 as 100 is, and 30 lies between 20 and 40.
        (range(200, 1401, 20), (1400, 680, 80, 40)),
        # Steps wider than the granularity stay single.
        ((500, 650, 800), (800, 500, 150, 150)),
        ((1000, 999), (1000, 999, 90, 30)),
    ],
)
def test_a_windows_figures_follow_the_gpus_own_step(
    clocks_mhz: list[int], figures: tuple[int, int, int, int]
) -> None:
    window = draft_window("new", clocks_mhz, origin="told")
    assert figures == (
        window.filter_max_mhz,
        window.filter_min_mhz,
        window.granularity_mhz,
        window.reconfigure_granularity_mhz,
    )


@given(st.sets(st.integers(1, 100_000), min_size=2))
def test_every_gpu_has_a_window_that_ends_at_its_own_clocks(clocks_mhz: set[int]) -> None:
    window = draft_window("new", tuple(clocks_mhz), origin="told")
    assert window.filter_max_mhz == max(clocks_mhz)
    assert window.filter_min_mhz in clocks_mhz


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("table")


@settings(max_examples=20)
@given(product=st.text(max_size=40))
def test_a_gpus_name_cannot_break_the_file(table: Path, product: str) -> None:
    window = draft_window("new", (1410, 1395), origin=f"told by {product}")
    (table / "new.toml").write_text(window_toml(window, product), encoding="utf-8")
    read = load_gpu_window("new", folder=table)
    assert (read.filter_max_mhz, read.filter_min_mhz) == (1410, 1395)
