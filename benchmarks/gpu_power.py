"""Power and energy of one stage's instructions at the clocks that the driver chooses itself.

The measuring part of `flyball profile` runs on the real energy counter,
again and again, beside nvidia-smi's power. Clocks are read, never set.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import fmean, stdev
from typing import Any

import torch
from transformers import GPT2Config

from benchmark_report import Report, run_benchmark, show_progress, table
from flyball_client.gpu._base import GpuError
from flyball_client.gpu.nvml.device import NvmlGpu
from flyball_client.gpu.nvml.facts import nvml_session
from flyball_client.gpu.registry import find_gpu
from flyball_client.profiling.counter_window import WindowEstimate
from flyball_client.profiling.repetition import MeasuringRule, Repetition
from flyball_client.profiling.workload import WorkloadError
from flyball_integrations.huggingface import build_causal_lm, stage_module
from flyball_integrations.torch.profile_workloads import torch_workload
from measured_process import BenchmarkError

MODEL = GPT2Config(n_embd=1024, n_layer=24, n_head=16)
SEQUENCE_LENGTH, SEED = 1024, 1788
NUM_STAGES, STAGE = 4, 1
POWERS = ("power.draw.instant", "power.draw.average")
SMI_PERIOD_MS = 50


class Smi:
    """Powers that nvidia-smi prints while it runs, with the time of each line."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, tuple[float | None, ...]]] = []

    def mean_w(self, column: int, begin_s: float, end_s: float) -> float | None:
        """Return the mean in W of a column of `POWERS` over a time; None: nothing was printed."""
        powers_w = [
            power_w
            for moment_s, row in self.lines
            if begin_s <= moment_s <= end_s and (power_w := row[column]) is not None
        ]
        return fmean(powers_w) if powers_w else None

    @contextmanager
    def running(self, uuid: str) -> Generator[Smi]:
        """Read it while entered."""
        command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={','.join(POWERS)}"]
        command += ["--format=csv,noheader,nounits", f"--loop-ms={SMI_PERIOD_MS}"]
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            raise BenchmarkError(f"nvidia-smi: {error.strerror}") from None
        thread = threading.Thread(target=self._read, args=(process,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            process.kill()
            process.wait()
            thread.join()

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self.lines.append((time.monotonic(), tuple(map(_watts, line.split(",")))))


def _watts(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def measure(arguments: argparse.Namespace) -> Report:
    """Forward and backward in turn, several times."""
    if not torch.cuda.is_available():
        raise BenchmarkError("torch sees no GPU here")
    workload = _workload(torch.device("cuda", 0), arguments.microbatch_size)
    figures: dict[str, list[dict[str, Any]]] = {kind: [] for kind in workload.instructions}
    rule = MeasuringRule(wanted_error=0.002, max_point_s=4.0, max_settle_s=6.0)
    try:
        with nvml_session():
            gpu = NvmlGpu.open(uuid=find_gpu(arguments.gpu, os.environ)[2])
        with Smi().running(gpu.uuid) as smi:
            for number in range(arguments.repeats):
                for kind, run_once in workload.instructions.items():
                    show_progress(f"{kind}, {number + 1} of {arguments.repeats}")
                    figures[kind].append(_point(gpu, run_once, rule, smi))
        name = gpu.name
        gpu.close()
    except (GpuError, WorkloadError) as error:
        raise BenchmarkError(str(error)) from None
    rows = [_row(kind, points) for kind, points in figures.items()]
    columns = ["ms", "spread %", "J", "spread %", "expected %", "W", "SM MHz"]
    of_smi = [f"smi {power.rsplit('.', 1)[1]} %" for power in POWERS]
    text = table(["instruction", *columns, *of_smi], rows)
    return Report(
        figures={"gpu": name, "instructions": figures},
        text=f"{name}; {arguments.repeats} times each, measured, and nothing was set\n\n{text}",
    )


def _workload(device: torch.device, microbatch_size: int) -> Any:  # noqa: ANN401 - a Workload
    module = stage_module(build_causal_lm(MODEL, seed=SEED), stage=STAGE, num_stages=NUM_STAGES)
    hidden = torch.randn(
        (microbatch_size, SEQUENCE_LENGTH, MODEL.n_embd), device=device, dtype=torch.bfloat16
    )
    return torch_workload(module.to(device, torch.bfloat16), hidden)


def _point(
    gpu: NvmlGpu, run_once: Callable[[], object], rule: MeasuringRule, smi: Smi
) -> dict[str, Any]:
    repetition = Repetition(gpu, run_once, now_s=time.monotonic, renew_clock=lambda: None)
    is_settled = repetition.settle(rule)
    found: WindowEstimate = repetition.measure(rule)
    begin_s, end_s = found.readings[0].moment_s, found.readings[-1].moment_s
    figures = asdict(found)
    del figures["readings"]
    return figures | {
        "is_settled": is_settled,
        "window_s": end_s - begin_s,
        "limits": sorted({str(reading.limits) for reading in found.readings}),
        "smi_w": [smi.mean_w(column, begin_s, end_s) for column in range(len(POWERS))],
    }


def _row(kind: str, points: Sequence[dict[str, Any]]) -> list[str]:
    def spread(quantity: str) -> str:
        values = [point[quantity] for point in points]
        return f"{100 * stdev(values) / fmean(values):.2f}" if len(values) > 1 else "?"

    energy_j = fmean(point["energy_j"] for point in points)
    expected = fmean(point["energy_error_j"] for point in points) / energy_j
    cells = [
        f"{1000 * fmean(point['time_s'] for point in points):.3f}",
        spread("time_s"),
        f"{energy_j:.3f}",
        spread("energy_j"),
        f"{100 * expected:.2f}",
        f"{fmean(point['power_w'] for point in points):.1f}",
        f"{fmean(point['sm_clock_mhz'] for point in points):.0f}",
    ]
    for column in range(len(POWERS)):
        ratios = [
            100 * (point["smi_w"][column] / point["power_w"] - 1)
            for point in points
            if point["smi_w"][column] is not None
        ]
        cells.append(f"{fmean(ratios):+.2f}" if ratios else "none")
    return [kind, *cells]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--gpu", default="0", metavar="INDEX", help="(default: %(default)s)")
    options.add_argument("--repeats", type=int, default=5, help="(default: %(default)s)")
    options.add_argument("--microbatch-size", type=int, default=4, help="(default: %(default)s)")
    run_benchmark(options, measure)
