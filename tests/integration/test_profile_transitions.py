"""`flyball profile transitions`: on emulated GPUs, refused ones, and governors on a false NVML."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from tests.false_nvml.library import HIGHEST_MHZ, FalseNvml
from tests.integration.command_in_process import document_of, flyball, refusal
from tests.planner.patience import wait_until

from flyball_client.gpu._base import GPU_VARIABLE, ClockCall, GpuError
from flyball_client.gpu.nvml import vendor
from flyball_client.gpu.nvml.device import NvmlGpu
from flyball_client.gpu.nvml.vendor import NvidiaVendor
from flyball_client.profiling.transitions import measurement, opening
from flyball_client.profiling.transitions.bench import LoopProcess, TransitionBench
from flyball_client.profiling.transitions.detection import Loop
from flyball_client.profiling.transitions.measurement import measure_transitions
from flyball_profiles.examples import example_profile_path
from flyball_profiles.gpu_windows import gpu_window_of, read_transitions

COMMAND = ("profile", "transitions")


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated GPUs with a power limit: a forward takes 475 W at 1410 MHz."""
    monkeypatch.setenv(GPU_VARIABLE, f"emulated:{example_profile_path()},power_limit_w=300")


# ------------------------------------------------------------------ on emulated GPUs


@pytest.mark.usefixtures("emulated")
def test_a_measured_table_plans_and_fills_a_file_of_ones_own(tmp_path: Path) -> None:
    table, filled = tmp_path / "changes.toml", tmp_path / "mine.toml"
    done = flyball(*COMMAND, "--clocks", "1410", "1230", "900", "-o", table)
    assert (done.returncode, done.stderr) == (0, "")
    assert "(emulated)" in done.stdout
    assert "1410 MHz was not held: it ran at 1110 MHz (power)" in done.stdout
    assert "pairs of clocks left out, whose rates do not differ: 1" in done.stdout
    assert "calls of two GPUs at once queued" in done.stdout
    times = read_transitions(table)
    assert 4 < 1e3 * times.up_p50_s < 6
    assert times.queues_in_node is True
    done = flyball(*COMMAND, "--clocks", "1230", "900", "--fill", "a6000", "-o", filled)
    assert done.returncode == 0, done.stderr
    window = gpu_window_of(str(filled), {})
    assert window.transitions is not None
    assert window.transitions.up_p50_s == pytest.approx(times.up_p50_s, rel=0.1)
    assert window.filter_max_mhz == gpu_window_of("a6000", {}).filter_max_mhz
    planned = document_of(
        *("plan", example_profile_path(), "--microbatches", "8", "--blocking-power", "80"),
        *("--policy", "envelope", "--transitions", table),
    )
    assert planned["transitions"]["up_p95_s"] == times.up_p95_s


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--clocks", "1410", "1411"), "has no 1411 MHz"),
        (("--clocks", "1410"), "two different clocks"),
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
    refused = refusal(flyball(*COMMAND, "--device", "1"))
    assert "process 4321 computes on False GPU (GPU-1-of-the-false-nvml)" in refused
    assert "this torch sees no CUDA device" in refusal(flyball(*COMMAND))
    loaded_nvml.set_mig(1)
    assert "divided by MIG" in refusal(flyball(*COMMAND))
    loaded_nvml.set_mig(0)
    monkeypatch.setattr(vendor, "may_set_clocks", lambda _: False)
    refused = refusal(flyball(*COMMAND))
    assert "no right to set clocks; run as root" in refused
    assert loaded_nvml.calls("nvmlDeviceSetGpuLockedClocks") == []


def test_a_process_that_begins_to_compute_voids_the_measurement(
    loaded_nvml: FalseNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYBALL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(opening, "LoopProcess", lambda device: WatchedClock(loaded_nvml, device))
    computing: tuple[int, ...] = ()
    monkeypatch.setattr(NvidiaVendor, "computing_processes", lambda _, uuid: computing)

    def change() -> None:
        nonlocal computing
        with opening.opened_bench(0, os.environ) as bench, bench:
            bench.change(900, lead_s=0.01, window_s=0.1)
            computing = (17, 4321)[:num_computing]
            opening.check_alone(bench.gpu)

    num_computing = 1  # the load itself
    change()
    computing, num_computing = (), 2
    with pytest.raises(GpuError, match="is void: one of 17, 4321"):
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
def two_gpus(
    loaded_nvml: FalseNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TransitionBench]:
    """The first of two false GPUs, with a load that has the rate of its clock."""
    monkeypatch.setenv("FLYBALL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(opening, "LoopProcess", lambda device: WatchedClock(loaded_nvml, device))
    with opening.opened_bench(0, os.environ) as bench:
        yield bench


def test_changes_are_measured_through_governor_processes(
    two_gpus: TransitionBench, loaded_nvml: FalseNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls take 20 ms."""
    monkeypatch.setattr(measurement, "NUM_REPETITIONS", 6)
    loaded_nvml.set_latency_us(20_000, queues=True)
    with two_gpus as bench:
        found = measure_transitions(bench, (1410, 1050))
    times = found.times
    # The false NVML sets a clock at the end of a call; a busy machine adds to it.
    assert found.counts_cycles
    assert times.call_p50_s is not None
    assert min(times.call_p50_s, times.up_p50_s, times.down_p50_s) >= 0.02
    assert {(clock.mhz, clock.ran_mhz) for clock in found.clocks} == {(1410, 1410), (1050, 1050)}
    assert [loaded_nvml.locked_mhz(index) for index in range(2)] == [0, 0]


def test_calls_of_two_gpus_that_queue_never_run_at_once(
    two_gpus: TransitionBench, loaded_nvml: FalseNvml
) -> None:
    """Calls take 20 ms: two that wait for each other take 40 ms, others may take less."""
    with two_gpus as bench:
        loaded_nvml.set_latency_us(20_000, queues=True)
        assert all(time_of_both_s(*pair) >= 0.04 for pair in bench.calls_at_once((1050, 1410) * 4))
        loaded_nvml.set_latency_us(20_000, queues=False)
        # On a busy machine few calls meet.
        wait_until(
            lambda: any(
                time_of_both_s(*pair) < 0.04 for pair in bench.calls_at_once((1050, 1410) * 2)
            )
        )


def time_of_both_s(first: ClockCall, last: ClockCall) -> float:
    return last.returned_s - min(first.began_s, last.began_s)


def test_a_gpu_alone_or_beside_a_busy_one_is_measured_without_a_check_of_the_queue(
    loaded_nvml: FalseNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded_nvml.set_computing(4321, index=1)
    with opening.opened_bench(0, os.environ) as bench:
        assert bench.calls_at_once((1050, 1410)) == []
    loaded_nvml.set_computing(0, index=1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with opening.opened_bench(0, os.environ) as bench:
        assert bench.gpu.uuid == loaded_nvml.uuid(1)
        assert bench.calls_at_once((1050, 1410)) == []


def test_clocks_are_restored_when_the_measurement_is_interrupted(
    loaded_nvml: FalseNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYBALL_STATE_DIR", str(tmp_path / "state"))
    gpu = NvmlGpu.open(uuid=loaded_nvml.uuid(0))
    bench = TransitionBench(gpu, WatchedClock(loaded_nvml, 0))
    num_shown = 0

    def interrupt(_: str) -> None:
        nonlocal num_shown
        num_shown += 1
        if num_shown > 4:
            assert loaded_nvml.locked_mhz()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), bench:
        measure_transitions(bench, (1410, 1050), show=interrupt)
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
