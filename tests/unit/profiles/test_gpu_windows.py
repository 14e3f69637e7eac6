"""GPU tables: the shipped figures, a new GPU as a new file, and malformed files."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_profiles.gpu_windows import (
    GpuTableError,
    gpu_names,
    gpu_window_of,
    load_gpu_window,
    window_clocks_mhz,
)

NEW_GPU = """\
filter_max_mhz = { value = 1980, source = "asked of the device" }
filter_min_mhz = { value = 900, source = "chosen" }
granularity_mhz = { value = 90, source = "chosen" }
reconfigure_granularity_mhz = { value = 30, source = "chosen" }
blocking_power_w = { value = 100, source = "measured" }
"""


@pytest.mark.parametrize("name", ["h100", "", "../gpus/a100", "a100.toml", "a\n1\x00"])
def test_an_unknown_gpu_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(GpuTableError) as raised:
        load_gpu_window(name)
    assert str(raised.value) == f"unknown GPU {name!a}; known: {', '.join(gpu_names())}"
    assert {"a100", "h100-sxm", "rtx5090"} <= set(gpu_names())


def test_a_gpu_of_ones_own_is_a_file_in_a_folder_or_anywhere(tmp_path: Path) -> None:
    for file in ("X9.toml", "a100.toml"):
        (tmp_path / file).write_text(NEW_GPU, encoding="utf-8")
    (tmp_path / "notes.md").write_text("not a GPU", encoding="utf-8")
    assert set(gpu_names(folder=tmp_path)) == {*gpu_names(), "x9"}
    mine = load_gpu_window("x9", folder=tmp_path)
    assert (mine.name, mine.filter_max_mhz, mine.blocking_power_w) == ("x9", 1980, 100.0)
    assert mine.sources["blocking_power_w"] == "measured"
    assert load_gpu_window("A100", folder=tmp_path).blocking_power_w == 100.0
    assert load_gpu_window("a40", folder=tmp_path) == load_gpu_window("a40")
    named = gpu_window_of("x9", {"FLYBALL_GPU_FOLDER": str(tmp_path)})
    assert gpu_window_of(str(tmp_path / "X9.toml"), {}) == named == mine


def test_a_file_or_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(GpuTableError, match=r"none\.toml: No such file"):
        gpu_window_of(str(tmp_path / "none.toml"), {})
    with pytest.raises(GpuTableError, match=r"FLYBALL_GPU_FOLDER: .*none: No such file"):
        gpu_names(folder=tmp_path / "none")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("{ value = 1980", "{ value = ", "not TOML: "),
        ("filter_max_mhz", "filter_max", "unknown key filter_max"),
        ("blocking_power_w", "blocking_power", "unknown key blocking_power"),
        (NEW_GPU.splitlines()[2], "", "the key granularity_mhz is missing"),
        ('{ value = 1980, source = "asked of the device" }', "1980", "filter_max_mhz must be a"),
        ("value = 900, ", "", "filter_min_mhz.value must be a number"),
        ("value = 900", 'value = "900"', "filter_min_mhz.value must be a number"),
        ("value = 900", "value = true", "filter_min_mhz.value must be a number"),
        ("value = 900", "value = 900.5", "filter_min_mhz.value must be a whole number of MHz"),
        ("value = 900", "value = 0", "filter_min_mhz must be from 1 to 100000, not 0"),
        ("value = 900", "value = 1980", "filter_min_mhz (1980) must be below filter_max_mhz"),
        ("value = 90,", "value = -90,", "granularity_mhz must be from 1 to 100000, not -90"),
        ("value = 30", "value = 0", "reconfigure_granularity_mhz must be from 1 to "),
        ("value = 100", "value = nan", "blocking_power_w must be above 0 and at most"),
        ("value = 100", "value = -1", "blocking_power_w must be above 0 and at most"),
        (', source = "measured"', "", "blocking_power_w.source must name"),
        ('source = "measured"', 'source = " "', "blocking_power_w.source must name"),
    ],
)
def test_a_malformed_file_names_file_and_key(
    tmp_path: Path, old: str, new: str, fault: str
) -> None:
    assert old in NEW_GPU
    (tmp_path / "h200.toml").write_text(NEW_GPU.replace(old, new), encoding="utf-8")
    with pytest.raises(GpuTableError) as raised:
        load_gpu_window("h200", folder=tmp_path)
    assert str(raised.value).startswith(f"{tmp_path / 'h200.toml'}: {fault}")
    assert len(str(raised.value).splitlines()) == 1


def test_the_a100_grid_falls_from_1410_by_90() -> None:
    supported_mhz = range(210, 1411, 15)
    grid = window_clocks_mhz(load_gpu_window("a100"), supported_mhz)
    assert grid == (1410, 1320, 1230, 1140, 1050, 960, 870, 780)


def test_a_device_without_a_clock_in_the_window_is_refused() -> None:
    with pytest.raises(GpuTableError, match="no SM clock from 1700 to 1900 MHz"):
        window_clocks_mhz(load_gpu_window("a6000"), range(210, 1411, 15))


@given(st.lists(st.integers(min_value=750, max_value=1410), min_size=1))
def test_a_grid_is_supported_falling_and_leaves_no_clock_out(supported_mhz: list[int]) -> None:
    a100 = load_gpu_window("a100")
    grid = window_clocks_mhz(a100, supported_mhz)
    assert set(grid) <= set(supported_mhz)
    assert grid[0] == max(supported_mhz)
    assert all(high - low >= 90 for high, low in itertools.pairwise(grid))
    # Every supported clock is on the grid or less than a step below a clock that is.
    assert all(any(0 <= point - clock < 90 for point in grid) for clock in supported_mhz)
