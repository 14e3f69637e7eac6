"""`flyball profile transitions`: on emulated GPUs, refused ones, and governors on a false NVML."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest
from tests.false_nvml.fixtures import false_nvml, false_nvml_library, loaded_nvml
from tests.false_nvml.library import HIGHEST_MHZ, FalseNvml
from tests.integration.command_in_process import document_of, flyball, refusal

from flyball_client.gpu._base import GPU_VARIABLE
from flyball_client.gpu.nvml import NvmlGpu
from flyball_client.profiling.transitions import opening
from flyball_client.profiling.transitions._base import Loop
from flyball_client.profiling.transitions.gpu_bench import GpuBench
from flyball_client.profiling.transitions.loop_process import LoopProcess
from flyball_client.profiling.transitions.measurement import TransitionRule, measure_transitions
from flyball_profiles.examples import example_profile_path
from flyball_profiles.gpu_windows import gpu_window_of, read_transitions
from flyball_profiles.measured_transitions import TransitionLoad

__all__ = ["false_nvml", "false_nvml_library", "loaded_nvml"]

COMMAND = ("profile", "transitions")


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated GPUs with a power limit: a forward takes 475 W at 1410 MHz."""
    monkeypatch.setenv(GPU_VARIABLE, f"emulated:{example_profile_path()},power_limit_w=300")


# ------------------------------------------------------------------ on emulated GPUs


@pytest.mark.usefixtures("emulated")
def test_a_measured_table_plans_and_fills_a_file_of_ones_own(tmp_path: Path) -> None:
    table, filled = tmp_path / "changes.toml", tmp_path / "mine.toml"
    options = ("--clocks", "1410", "900", "--devices", "0")
    done = flyball(*COMMAND, *options, "1", "-o", table)
    assert (done.returncode, done.stderr) == (0, "")
    assert "(emulated)" in done.stdout
    assert "1410 MHz was not held: it ran at 1110 MHz (power)" in done.stdout
    assert "calls to the GPUs of this node queue" in done.stdout
    times = read_transitions(table)
    assert 4 < 1e3 * times.up_p50_s < 6
    assert times.queues_in_node is True
    done = flyball(*COMMAND, *options, "--fill", "a6000", "-o", filled)
    assert done.returncode == 0, done.stderr
    of_one_gpu = replace(times, queues_in_node=None)
    window = gpu_window_of(str(filled), {})
    assert window.transitions is not None
    assert window.transitions == of_one_gpu
    planned = document_of(
        *("plan", example_profile_path(), "--microbatches", "8", "--blocking-power", "80"),
        *("--policy", "envelope", "--transitions", table),
    )
    assert planned["transitions"]["up_p95_s"] == times.up_p95_s


@pytest.mark.usefixtures("emulated")
def test_a_dry_run_says_what_it_would_do(tmp_path: Path) -> None:
    planned = document_of(*COMMAND, "--dry-run", "--clocks", "1410", "1050")
    assert planned["num_changes"] == 2 * 2 * 30 + 3 * 2 * 30
    assert planned["nums_at_once"] == [1, 2, 4]
    assert 10 < planned["expected_s"] < 100
    done = flyball(*COMMAND, "--dry-run", "-o", tmp_path / "none.toml")
    assert done.stdout.endswith("nothing was changed\n")
    assert not (tmp_path / "none.toml").exists()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--clocks", "1410", "1411"), "has no 1411 MHz"),
        (("--clocks", "1410"), "two different clocks"),
        (("--devices", "1", "1"), "give each GPU once"),
        (("--stage", "8"), "no stage 8; it has 0 to 7"),
        (("--fill", "a6000"), "needs -o"),
        (("--fill", "a100", "-o", "OUT.toml"), "has transitions already"),
        (("--gpu", "a999"), "unknown GPU 'a999'"),
        (("-o", "/nowhere/out.toml"), "cannot be written"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    options: tuple[str, ...], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert named in refusal(flyball(*COMMAND, *options))


# ------------------------------------------------------------------ on real GPUs


def test_gpus_that_compute_or_are_divided_and_processes_without_rights_or_cuda_are_refused(
    loaded_nvml: FalseNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded_nvml.set_computing(4321, index=1)
    refused = refusal(flyball(*COMMAND))
    assert "process 4321 computes on False GPU (GPU-1-of-the-false-nvml)" in refused
    assert "nothing was changed" in flyball(*COMMAND, "--dry-run", "--devices", "0").stdout
    assert "this torch sees no CUDA device" in refusal(flyball(*COMMAND, "--devices", "0"))
    loaded_nvml.set_mig(1)
    assert "divided by MIG" in refusal(flyball(*COMMAND))
    loaded_nvml.set_mig(0)
    monkeypatch.setattr(opening, "may_set_clocks", lambda: False)
    refused = refusal(flyball(*COMMAND, "--devices", "0"))
    assert "no right to set clocks; run as root" in refused
    assert loaded_nvml.calls("nvmlDeviceSetGpuLockedClocks") == []


def test_a_process_that_begins_to_compute_voids_the_measurement(
    loaded_nvml: FalseNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYBALL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(
        opening, "LoopProcess", lambda device, *, is_coarse: WatchedClock(loaded_nvml, device)
    )
    computing: tuple[int, ...] = ()
    monkeypatch.setattr(opening, "computing_processes", lambda uuid: computing)

    def change() -> None:
        with opening.opened_gpus([0], os.environ) as opened, opened.governed as bench:
            nonlocal computing
            bench.change((0,), 900, load=TransitionLoad.COMPUTING, lead_s=0.01, window_s=0.1)
            computing = (17, 4321)[:num_computing]

    num_computing = 1  # the load itself
    change()
    computing, num_computing = (), 2
    with pytest.raises(opening.GpuBusyError, match="is void: one of 17, 4321"):
        change()
    assert len(loaded_nvml.calls("nvmlDeviceSetGpuLockedClocks")) == 2
    assert loaded_nvml.locked_mhz() == 0


class WatchedClock:
    """LoopSource whose loops have the rate of the clock that a false NVML has, looked at often."""

    counts_cycles = True

    def __init__(self, nvml: FalseNvml, index: int) -> None:
        self._nvml = nvml
        self._index = index
        self._found: list[Loop] = []
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.join()

    def begin(self, time_s: float) -> None:
        self._thread = threading.Thread(target=self._watch, args=(time_s,))
        self._thread.start()

    def loops(self) -> tuple[Loop, ...]:
        assert self._thread is not None
        self._thread.join()
        return tuple(self._found)

    def _watch(self, time_s: float) -> None:
        self._found = []
        begin_s = time.monotonic()
        until_s = begin_s + time_s
        while begin_s < until_s:
            time.sleep(2e-4)
            mhz = self._nvml.locked_mhz(self._index) or HIGHEST_MHZ
            end_s = time.monotonic()
            self._found.append(Loop(begin_s, end_s, 1e6 * mhz * (end_s - begin_s)))
            begin_s = end_s


@pytest.fixture
def bench(
    loaded_nvml: FalseNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GpuBench]:
    """Two false GPUs whose calls take 6 ms, with governor processes."""
    monkeypatch.setenv("FLYBALL_STATE_DIR", str(tmp_path / "state"))
    loaded_nvml.set_latency_us(6000)
    with ExitStack() as stack:
        gpus = [NvmlGpu.open(index=index) for index in range(2)]
        for gpu in gpus:
            stack.callback(gpu.close)
        bench = GpuBench(gpus, [WatchedClock(loaded_nvml, index) for index in range(2)])
        yield stack.enter_context(bench.governed())


def test_changes_are_measured_through_governor_processes(
    bench: GpuBench, loaded_nvml: FalseNvml
) -> None:
    rule = TransitionRule(clocks_mhz=(1410, 1050), loads=(TransitionLoad.COMPUTING,))
    found = measure_transitions(bench, rule)
    times = found.times
    # The false NVML sets a clock at the end of a call; a busy machine adds to it.
    assert found.counts_cycles
    assert times.call_p50_s is not None
    assert times.call_p50_s >= 0.006
    assert times.up_p50_s >= 0.006
    assert times.down_p50_s >= 0.006
    assert {(clock.mhz, clock.ran_mhz) for clock in found.clocks} == {(1410, 1410), (1050, 1050)}
    both = bench.change((0, 1), 900, load=TransitionLoad.IDLE, lead_s=0.01, window_s=0.1)
    assert [loaded_nvml.locked_mhz(index) for index in range(2)] == [900, 900]
    first_s = min(each.call.requested_s for each in both)
    assert all(each.loops[0].begin_s >= first_s for each in both)


def test_clocks_are_restored_when_the_measurement_is_interrupted(
    loaded_nvml: FalseNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYBALL_STATE_DIR", str(tmp_path / "state"))
    gpu = NvmlGpu.open(index=0)
    bench = GpuBench([gpu], [WatchedClock(loaded_nvml, 0)])
    num_shown = 0

    def interrupt(_: str) -> None:
        nonlocal num_shown
        num_shown += 1
        if num_shown > 4:
            assert loaded_nvml.locked_mhz()
            raise KeyboardInterrupt

    rule = TransitionRule(clocks_mhz=(1410, 1050))
    with pytest.raises(KeyboardInterrupt), bench.governed():
        measure_transitions(bench, rule, show=interrupt)
    assert loaded_nvml.locked_mhz() == 0
    gpu.close()


def test_a_load_in_a_process_of_its_own_times_its_loops() -> None:
    with LoopProcess(None) as load:
        assert not load.counts_cycles
        for _ in range(2):
            began_s = time.monotonic()
            load.begin(0.1)
            loops = load.loops()
            assert began_s <= loops[0].begin_s
            assert loops[-1].end_s - loops[0].begin_s >= 0.1
            assert loops[-1].end_s <= time.monotonic()
            assert all(loop.work == 1 for loop in loops)
