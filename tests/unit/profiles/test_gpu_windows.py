"""GPU tables and times of clock changes: the shipped ones, files of one's own, malformed ones."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_profiles.clock_transitions import ClockTransitions, TransitionsError
from flyball_profiles.gpu_windows import (
    GpuTableError,
    gpu_names,
    gpu_window_of,
    load_gpu_file,
    load_gpu_window,
    read_transitions,
    window_clocks_mhz,
    with_blocking_power,
)

NEW_GPU = """\
filter_max_mhz = { value = 1980, source = "asked of the device" }
filter_min_mhz = { value = 900, source = "chosen" }
granularity_mhz = { value = 90, source = "chosen" }
reconfigure_granularity_mhz = { value = 30, source = "chosen" }
blocking_power_w = { value = 100, source = "measured" }
gpus_in_node = { value = 8, source = "of a rack" }
"""


def test_a_blocking_power_is_added_with_its_source_on_one_line(tmp_path: Path) -> None:
    lines = NEW_GPU.splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("blocking_power_w"))
    file = tmp_path / "new.toml"
    file.write_text(with_blocking_power(text, 71.25, "a 'GPU' of \"Ä\",\nmeasured"))
    window = load_gpu_file(file)
    assert window.blocking_power_w == 71.25
    assert window.sources["blocking_power_w"] == "a 'GPU' of \"Ä\",?measured"


@pytest.mark.parametrize("name", ["h1", "", "-", "../gpus/a100", "a100.toml", "a\n1\x00"])
def test_an_unknown_gpu_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(GpuTableError) as raised:
        load_gpu_window(name)
    assert str(raised.value) == f"unknown GPU {name!a}; known: {', '.join(gpu_names())}"
    assert {"a100", "h100-sxm", "rtx5090"} <= set(gpu_names())


def test_a_name_before_the_hyphen_means_the_only_variant_or_lists_them(tmp_path: Path) -> None:
    with pytest.raises(GpuTableError) as raised:
        load_gpu_window("H100")
    variants = "h100-nvl, h100-pcie, h100-sxm"
    assert str(raised.value) == f"GPU 'H100' may be {variants}; name one of them"
    with pytest.raises(GpuTableError, match="may be rtx-pro-6000, rtx3090, rtx4090, rtx5090; "):
        load_gpu_window("rtx")
    assert load_gpu_window("rtx-pro").name == "rtx-pro-6000"
    (tmp_path / "x9-sxm.toml").write_text(NEW_GPU, encoding="utf-8")
    assert load_gpu_window("x9", folder=tmp_path).name == "x9-sxm"
    # A file of that very name counts before its variants.
    (tmp_path / "h100.toml").write_text(NEW_GPU, encoding="utf-8")
    assert load_gpu_window("h100", folder=tmp_path).name == "h100"


def test_which_gpus_come_in_nodes_of_how_many() -> None:
    in_node = {name: load_gpu_window(name).gpus_in_node for name in gpu_names()}
    assert {name for name, num in in_node.items() if num == 8} == {
        *("a100", "a800", "b200", "b300", "h100-sxm", "h200", "h800-sxm"),
    }
    assert {name for name, num in in_node.items() if num == 4} == {"gb200", "gb300"}


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
        (NEW_GPU.splitlines()[2], "", "the key granularity_mhz is missing"),
        ('{ value = 1980, source = "asked of the device" }', "1980", "filter_max_mhz must be a"),
        ("value = 900", "value = true", "filter_min_mhz.value must be a number"),
        ("value = 900", "value = 900.5", "filter_min_mhz.value must be a whole number of MHz"),
        ("value = 900", "value = 0", "filter_min_mhz must be from 1 to 100000, not 0"),
        ("value = 900", "value = 1980", "filter_min_mhz (1980) must be below filter_max_mhz"),
        ("value = 30", "value = 0", "reconfigure_granularity_mhz must be from 1 to "),
        ("value = 100", "value = nan", "blocking_power_w must be above 0 and at most"),
        ("value = 8,", "value = 0,", "gpus_in_node must be from 1 to 1024, not 0"),
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


OWN = """\
[transitions]
up_ms = { p5 = 3, p50 = 5, p95 = 6.5, source = "measured" }
down_ms = { p5 = 2, p50 = 4, p95 = 5, source = "measured" }
call_ms = { p50 = 1, p95 = 2, source = "measured" }
queues_in_node = { value = false, source = "measured" }
"""
OWN_TIMES = ClockTransitions(
    up_p5_s=0.003,
    up_p50_s=0.005,
    up_p95_s=0.0065,
    down_p5_s=0.002,
    down_p50_s=0.004,
    down_p95_s=0.005,
    call_p50_s=0.001,
    call_p95_s=0.002,
    queues_in_node=False,
)


def test_what_is_published_of_three_gpus_is_shipped_and_the_others_are_unknown() -> None:
    shipped = {name: load_gpu_window(name).transitions for name in gpu_names()}
    medians_ms = {
        name: (round(times.up_p50_s * 1e3, 3), round(times.down_p50_s * 1e3, 3))
        for name, times in shipped.items()
        if times is not None
    }
    assert medians_ms == {"a100": (5.8, 4.1), "a40": (4.6, 3.6), "v100": (4.8, 4.8)}
    a100 = load_gpu_window("a100")
    assert a100.transitions is not None
    assert a100.transitions.queues_in_node
    assert "A800" in a100.sources["transitions.queues_in_node"]


def test_a_file_of_ones_own_may_hold_the_table_of_clock_changes_alone(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    assert read_transitions(path) == OWN_TIMES
    path.write_text("".join(OWN.splitlines(keepends=True)[:3]), encoding="utf-8")
    times = read_transitions(path)
    assert (times.call_p50_s, times.queues_in_node, times.starts_settled) == (None, None, False)
    with pytest.raises(TransitionsError, match=r"none\.toml: No such file or directory"):
        read_transitions(tmp_path / "none.toml")


def test_the_last_of_several_gpus_waits_for_the_calls_of_the_others() -> None:
    """Calls of exactly 6 ms: an up of the eighth GPU comes 42 ms later, a down of the first not."""
    alone = replace(OWN_TIMES, call_p50_s=0.006, call_p95_s=0.006, queues_in_node=None)
    eighth = alone.of_queue(8)
    ups_s = (eighth.up_p5_s, eighth.up_p50_s, eighth.up_p95_s)
    assert ups_s == pytest.approx((0.045, 0.047, 0.0485))
    assert replace(eighth, up_p5_s=0.003, up_p50_s=0.005, up_p95_s=0.0065) == alone
    assert alone.of_queue(1) == alone
    for changes in ({"queues_in_node": False}, {"call_p50_s": None, "call_p95_s": None}):
        unqueued = replace(alone, **{"queues_in_node": True} | changes)
        assert unqueued.of_queue(8) == unqueued
        assert not unqueued.is_queued
    # As published of the A800: 46 ms until the last of eight.
    a100 = load_gpu_window("a100").transitions
    assert a100 is not None
    assert a100.of_queue(8).up_p50_s == pytest.approx(0.046, rel=0.15)


def test_the_calls_of_a_nodes_gpus_take_a_share_of_an_iteration_where_they_queue() -> None:
    queued = replace(OWN_TIMES, call_p50_s=0.006, call_p95_s=0.006, queues_in_node=True)
    # Eight GPUs with five changes each, of 6 ms: 0.24 s of 2 s.
    assert queued.call_share(8, 5.0, 2.0) == pytest.approx(0.12)
    assert replace(queued, queues_in_node=False).call_share(8, 5.0, 2.0) == 0.0


def test_a_clock_waits_for_a_long_call_of_another_stage() -> None:
    queued = replace(OWN_TIMES, queues_in_node=True)
    assert queued.beside_other_stages() == replace(queued, up_p95_s=0.0085)
    assert OWN_TIMES.beside_other_stages() == OWN_TIMES
    unknown = replace(queued, call_p50_s=None, call_p95_s=None)
    assert unknown.beside_other_stages() == unknown
    # Log-normal: the median times e to half the variance of the logarithm.
    assert queued.call_mean_s == pytest.approx(0.001 * 2 ** (0.5 * 0.6931472 / 1.645**2))


def test_measured_medians_scale_the_percentiles_of_their_direction() -> None:
    later = OWN_TIMES.with_medians(0.010, None)
    assert (later.up_p5_s, later.up_p50_s, later.up_p95_s) == pytest.approx((0.006, 0.010, 0.013))
    assert replace(later, up_p5_s=0.003, up_p50_s=0.005, up_p95_s=0.0065) == OWN_TIMES
    # From no delay at all they are as far from the median as A40's.
    a40 = load_gpu_window("a40").transitions
    assert a40 is not None
    like_a40 = ClockTransitions.exact(0.0).with_medians(a40.up_p50_s, a40.down_p50_s)
    found_s = (like_a40.up_p5_s, like_a40.up_p95_s, like_a40.down_p5_s, like_a40.down_p95_s)
    of_a40_s = (a40.up_p5_s, a40.up_p95_s, a40.down_p5_s, a40.down_p95_s)
    assert found_s == pytest.approx(of_a40_s, rel=0.01)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("[transitions]", "[transitions", "not TOML: "),
        ("[transitions]", "[transition]", "the table transitions is missing"),
        ("down_ms", "fall_ms", "unknown key 'transitions.fall_ms'; known: call_ms, clocks, "),
        (OWN.splitlines()[2], "", "the table transitions.down_ms is missing"),
        ('{ p5 = 2, p50 = 4, p95 = 5, source = "measured" }', "4", "transitions.down_ms must be a"),
        ("p50 = 5", "p50 = true", "transitions.up_ms.p50 must be a number of ms"),
        ("p50 = 5", "p50 = 1_000_000", "transitions.up_ms.p50 must be from 0 to 10000 ms"),
        ("p50 = 5", "p50 = 7", "transitions: up_p95_s must be from up_p50_s to 10 s, not 0.0065"),
        ("p50 = 5", "p50 = 5, p99 = 9", "unknown key 'transitions.up_ms.p99'; known: p5, "),
        ("value = false", "value = 1", "transitions.queues_in_node.value must be true or false"),
        ("[transitions]\n", "[transitions]\npairs = 3\n", "transitions.pairs must be an array of"),
        ("measured", " ", "transitions.up_ms.source must name the origin of the figure"),
    ],
)
def test_malformed_times_of_clock_changes_are_refused_with_file_and_key(
    tmp_path: Path, old: str, new: str, fault: str
) -> None:
    assert old in OWN
    path = tmp_path / "own.toml"
    path.write_text(OWN.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(TransitionsError) as raised:
        read_transitions(path)
    assert str(raised.value).startswith(f"{path}: {fault}")
    assert len(str(raised.value).splitlines()) == 1


def test_a_gpus_own_file_names_the_place_too(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[3] / "profiles/flyball_profiles/gpus/a40.toml"
    text = shipped.read_text(encoding="utf-8").replace("p50 = 4.6", "p50 = 0.46")
    (tmp_path / "a40.toml").write_text(text, encoding="utf-8")
    with pytest.raises(
        GpuTableError, match=r"/a40\.toml: transitions: up_p50_s must be from up_p5"
    ):
        load_gpu_window("a40", folder=tmp_path)


def test_one_percentile_of_a_call_is_refused() -> None:
    with pytest.raises(TransitionsError, match=r"^give call_p50_s and call_p95_s together, or"):
        replace(OWN_TIMES, call_p95_s=None)


@pytest.mark.parametrize("delay_s", [-0.001, float("nan"), 11.0])
def test_a_delay_that_no_gpu_has_is_refused(delay_s: float) -> None:
    with pytest.raises(TransitionsError, match=r"^up_p5_s must be from 0 to 10 s, not "):
        ClockTransitions.exact(delay_s)
