"""Times and readings of this machine's NVIDIA driver: reads only, sets nothing."""

from __future__ import annotations

import argparse
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any, cast

from benchmark_report import Distribution, Report, run_benchmark, show_progress, table_of
from flyball_client.gpu._base import GpuError
from flyball_client.gpu.nvml.device import NvmlGpu
from flyball_client.gpu.nvml.facts import nvml_session
from flyball_client.gpu.nvml.vendor import NvidiaVendor
from flyball_client.gpu.registry import find_gpu, gpu_argument
from measured_process import BenchmarkError

NUM_CALLS = 400
# So that not every call finds the processor's caches warm from the one before.
CALL_PAUSE_S = 0.002
# Between two readings of the counter; short beside any counter's period, long beside a call.
READING_PAUSE_S = 0.0005
MIN_MOVEMENTS = 5
# A period of fewer times what a movement may be seen too late may be that of the readings.
MIN_PERIOD_OVER_LATE = 3
DEFAULT_SECONDS, WARM_UP_S, KERNELS_START_S = 20.0, 2.0, 120.0
IDLE, BUSY = "no kernels of ours", "matrix products"
# Matrix products until its standard input ends; says `busy` once they run.
KERNELS = """
import select, sys, torch
if not torch.cuda.is_available():
    sys.exit("torch sees no GPU here")
hidden = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
is_told = False
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(50):
        hidden @ hidden
    torch.cuda.synchronize()
    if not is_told:
        print("busy", flush=True)
    is_told = True
"""


@dataclass(frozen=True, kw_only=True)
class CounterFigure:
    """Movement of an energy counter.

    Attributes:
        num_movements: that were seen.
        period_ms: from one movement to the next: median, ms; the 5th percentile; the 95th; the
            longest.
        late_ms: by how much a movement may have been seen too late, median, ms: how far apart the
            reading that saw it and the one before began and ended.
        rise_j: by how much one movement raised it, median, J.
        power_w: the mean from the first to the last movement, W.
    """

    num_movements: int
    period_ms: tuple[float, float, float, float]
    late_ms: float
    rise_j: float
    power_w: float

    @property
    def is_resolved(self) -> bool:
        """True if readings are so frequent that the period is the counter's, not the readings'."""
        return self.period_ms[0] >= MIN_PERIOD_OVER_LATE * self.late_ms


def read_counter(read_j: Callable[[], float], seconds: float) -> CounterFigure:
    """Look at the counter for so long, s.

    Raises:
        BenchmarkError: it moved fewer than five times.
    """
    # Begin and end of each reading, s, and what it showed, J.
    readings: list[tuple[float, float, float]] = []
    until_s = time.perf_counter() + seconds
    while (before_s := time.perf_counter()) < until_s:
        energy_j = read_j()
        readings.append((before_s, time.perf_counter(), energy_j))
        time.sleep(READING_PAUSE_S)
    moved = [(old, new) for old, new in pairwise(readings) if new[2] != old[2]]
    if len(moved) < MIN_MOVEMENTS:
        raise BenchmarkError(
            f"the energy counter moved {len(moved)} times in {seconds:.1f} s, and"
            f" {MIN_MOVEMENTS} are needed; give more --seconds"
        )
    moments_s = [new[1] for _, new in moved]
    periods_ms = sorted(1000 * (later - former) for former, later in pairwise(moments_s))
    last = len(periods_ms) - 1
    return CounterFigure(
        num_movements=len(moved),
        period_ms=(
            statistics.median(periods_ms),
            periods_ms[round(0.05 * last)],
            periods_ms[round(0.95 * last)],
            periods_ms[-1],
        ),
        late_ms=1000 * statistics.median(new[1] - old[0] for old, new in moved),
        rise_j=statistics.median(new[2] - old[2] for old, new in moved),
        power_w=(moved[-1][1][2] - moved[0][1][2]) / (moments_s[-1] - moments_s[0]),
    )


def measure(arguments: argparse.Namespace) -> Report:
    """Without kernels, and with them where they are asked for."""
    try:
        with nvml_session():
            gpu = NvmlGpu.open(uuid=find_gpu(arguments.gpu, os.environ)[2])
            facts = {
                "name": gpu.name,
                "uuid": gpu.uuid,
                "versions": NvidiaVendor().checks().check_driver().found,
                "num_sm_clocks": _num_sm_clocks(gpu),
            }
            try:
                figures = {IDLE: _measure_gpu(gpu, arguments.seconds)}
                if arguments.kernels:
                    with _kernels(gpu.uuid):
                        figures[BUSY] = _measure_gpu(gpu, arguments.seconds)
            finally:
                gpu.close()
    except GpuError as error:
        raise BenchmarkError(str(error)) from None
    return Report(figures={"gpu": facts, "loads": figures}, text=_text(facts, figures))


def _num_sm_clocks(gpu: NvmlGpu) -> int | None:
    """Return how many can be set; None: the driver does not tell."""
    try:
        return len(gpu.supported_sm_clocks_mhz())
    except GpuError:
        return None


def _measure_gpu(gpu: NvmlGpu, seconds: float) -> dict[str, Any]:
    calls: dict[str, Callable[[], object]] = {
        "SM clock": gpu.sm_clock_mhz,
        "what limits it": gpu.clock_limits,
        "energy counter": gpu.total_energy_j,
    }
    show_progress(f"the energy counter, {seconds:g} s")
    counter = read_counter(gpu.total_energy_j, seconds)
    show_progress("NVML's calls")
    return {
        "calls_us": {name: _timed(call) for name, call in calls.items()},
        "counter": counter,
        "sm_clock_mhz": gpu.sm_clock_mhz(),
    }


def _timed(call: Callable[[], object]) -> Distribution | None:
    samples_us: list[float] = []
    for _ in range(NUM_CALLS):
        began_ns = time.perf_counter_ns()
        call()
        samples_us.append((time.perf_counter_ns() - began_ns) / 1000)
        time.sleep(CALL_PAUSE_S)
    return Distribution.of(samples_us)


@contextmanager
def _kernels(uuid: str) -> Generator[None, None, None]:
    """While entered, another process keeps the GPU busy.

    Raises:
        BenchmarkError: it cannot.
    """
    show_progress(f"starting kernels on {uuid}")
    process = subprocess.Popen(
        [sys.executable, "-c", KERNELS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": uuid},
    )
    stdout = cast("IO[str]", process.stdout)
    with process:
        try:
            if not select.select([stdout], [], [], KERNELS_START_S)[0]:
                raise BenchmarkError(f"--kernels: none within {KERNELS_START_S:g} s")
            if stdout.readline() != "busy\n":
                _, stderr = process.communicate()
                last = stderr.strip().splitlines()[-1:] or [f"status {process.returncode}"]
                raise BenchmarkError(f"--kernels: {last[0]}")
            time.sleep(WARM_UP_S)
            yield
            if process.poll() is not None:
                raise BenchmarkError("--kernels: they ended before they had been measured")
        finally:
            # It has nothing to save; killed ourselves, the end of its standard input ends it.
            process.kill()


def _text(facts: dict[str, Any], figures: dict[str, Any]) -> str:
    calls = [
        {"name": f"{name}, {load}", "us": took}
        for load, figure in figures.items()
        for name, took in figure["calls_us"].items()
    ]
    call_columns = {
        f"{NUM_CALLS} calls each": "{name}",
        "median us": "{us.median:.1f}",
        "p99 us": "{us.p99:.1f}",
        "longest us": "{us.longest:.1f}",
    }
    counter_columns = {
        "energy counter": "{load}",
        "movements": "{counter.num_movements}",
        "period ms": "{counter.period_ms[0]:.2f}",
        "p5": "{counter.period_ms[1]:.2f}",
        "p95": "{counter.period_ms[2]:.2f}",
        "longest": "{counter.period_ms[3]:.2f}",
        "seen late ms": "{counter.late_ms:.2f}",
        "rise J": "{counter.rise_j:.3f}",
        "power W": "{counter.power_w:.1f}",
        "SM MHz": "{sm_clock_mhz}",
    }
    counters = [{"load": load, **figure} for load, figure in figures.items()]
    unresolved = [load for load, figure in figures.items() if not figure["counter"].is_resolved]
    note = "\n\nread too seldom to tell its period: " + ", ".join(unresolved) if unresolved else ""
    num_clocks = facts["num_sm_clocks"]
    clocks = "SM clocks not told" if num_clocks is None else f"{num_clocks} SM clocks"
    return (
        f"{facts['name']} ({facts['uuid']}), driver {facts['versions']['driver']}, {clocks};"
        f" measured, and nothing was set\n\n{table_of(calls, call_columns)}\n\n"
        f"{table_of(counters, counter_columns)}{note}"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--gpu", type=gpu_argument, default="0", metavar="INDEX|UUID", help="(default: 0)"
    )
    options.add_argument(
        "--seconds",
        type=float,
        default=DEFAULT_SECONDS,
        help="how long to look at the energy counter, each time (default: %(default)g)",
    )
    options.add_argument(
        "--kernels", action="store_true", help="measure again while torch multiplies matrices on it"
    )
    run_benchmark(options, measure)
