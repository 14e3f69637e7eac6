"""Times and readings of this machine's NVIDIA driver: reads only, sets nothing.

Run `python benchmarks/gpu_driver.py [--json] [--gpu INDEX|UUID] [--seconds S] [--kernels]`;
README.md beside this file says how to read it.
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, cast

from benchmark_report import Report, run_benchmark, show_progress, table
from counter_movements import CounterFigure, read_counter
from flyball_client.gpu._base import GpuError
from flyball_client.gpu.nvml import NvmlGpu
from flyball_client.gpu.nvml_facts import nvml_session, nvml_versions
from flyball_client.gpu.open_gpu import gpu_argument, uuid_of
from hooks_figures import Distribution
from measured_process import BenchmarkError

NUM_CALLS = 400
# So that not every call finds the processor's caches warm from the one before.
PAUSE_S = 0.002
WARM_UP_S = 2.0
DEFAULT_SECONDS = 20.0
LONGEST_SECONDS = 600.0
KERNELS = Path(__file__).with_name("gpu_kernels.py")
KERNELS_START_S = 120.0
IDLE, BUSY = "no kernels of ours", "matrix products"


def measure(arguments: argparse.Namespace) -> Report:
    """Without kernels, and with them where they are asked for."""
    try:
        with nvml_session():
            gpu = NvmlGpu.open(uuid=uuid_of(arguments.gpu))
            facts = {
                "name": gpu.name,
                "uuid": gpu.uuid,
                "versions": asdict(nvml_versions()),
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
    return Report(figures={"gpu": facts, "loads": figures}, text=_text(facts, figures), limits=())


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
    counter = CounterFigure.of(read_counter(gpu.total_energy_j, seconds))
    show_progress("NVML's calls")
    took = {name: _timed(call) for name, call in calls.items()}
    return {
        "calls_us": {name: asdict(figure) for name, figure in took.items()},
        "counter": asdict(counter) | {"is_resolved": counter.is_resolved},
        "sm_clock_mhz": gpu.sm_clock_mhz(),
    }


def _timed(call: Callable[[], object]) -> Distribution:
    samples_us: list[float] = []
    for _ in range(NUM_CALLS):
        began_ns = time.perf_counter_ns()
        call()
        samples_us.append((time.perf_counter_ns() - began_ns) / 1000)
        time.sleep(PAUSE_S)
    return cast("Distribution", Distribution.of(samples_us))


@contextmanager
def _kernels(uuid: str) -> Generator[None, None, None]:
    """While entered, another process keeps the GPU busy.

    Raises:
        BenchmarkError: it cannot.
    """
    show_progress(f"starting kernels on {uuid}")
    process = subprocess.Popen(
        [sys.executable, str(KERNELS)],
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
    versions = facts["versions"]
    call_rows: list[list[str]] = []
    counter_rows: list[list[str]] = []
    for load, figure in figures.items():
        for name, took in figure["calls_us"].items():
            cells = [f"{took[key]:.1f}" for key in ("median_us", "p99_us", "max_us")]
            call_rows.append([f"{name}, {load}", *cells])
        counter = figure["counter"]
        counter_rows.append(
            [
                load,
                str(counter["num_movements"]),
                *(f"{period_ms:.2f}" for period_ms in counter["period_ms"]),
                f"{counter['late_ms']:.2f}",
                f"{counter['rise_j']:.3f}",
                f"{counter['power_w']:.1f}",
                str(figure["sm_clock_mhz"]),
            ]
        )
    unresolved = [load for load, figure in figures.items() if not figure["counter"]["is_resolved"]]
    note = "\n\nread too seldom to tell its period: " + ", ".join(unresolved) if unresolved else ""
    num_clocks = facts["num_sm_clocks"]
    clocks = "SM clocks not told" if num_clocks is None else f"{num_clocks} SM clocks"
    calls = table([f"{NUM_CALLS} calls each", "median us", "p99 us", "longest us"], call_rows)
    columns = ["movements", "period ms", "p5", "p95", "longest", "seen late ms", "rise J"]
    counters = table(["energy counter", *columns, "power W", "SM MHz"], counter_rows)
    return (
        f"{facts['name']} ({facts['uuid']}), driver {versions['driver']},"
        f" {clocks}; measured, and nothing was set\n\n{calls}\n\n{counters}{note}"
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds <= LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of seconds above 0 and at most {LONGEST_SECONDS:g}"
        )
    return seconds


def main() -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(prog="gpu_driver.py", description=__doc__)
    parser.add_argument(
        "--gpu", type=gpu_argument, default="0", metavar="INDEX|UUID", help="(default: 0)"
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=DEFAULT_SECONDS,
        help="how long to look at the energy counter, each time (default: %(default)g)",
    )
    parser.add_argument(
        "--kernels", action="store_true", help="measure again while torch multiplies matrices on it"
    )
    return run_benchmark(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
