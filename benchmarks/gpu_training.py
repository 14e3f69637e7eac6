"""Cost of Flyball to a GPU in training: attached in measuring mode against alone, in turn.

Clocks are read, never set.
"""

from __future__ import annotations

import argparse
import math
from statistics import fmean, stdev
from typing import Any

from benchmark_report import Report, run_benchmark, show_progress, table
from measured_process import BenchmarkError, run_script

FRAMEWORKS = ("torch", "deepspeed")
MODELS = ("gpt2", "gpt2-medium")
ALONE = "alone"
ATTACHED = ("synchronize", "stream")
WAYS = ("waits", *ATTACHED)
# Of Student's distribution, two-sided 95 %, by degrees of freedom from 1.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_T95_BEYOND = 2.1
START_S = 120.0


def measure(arguments: argparse.Namespace) -> Report:
    """Each framework and model, by a process of its own."""
    results: list[dict[str, Any]] = []
    for framework in arguments.framework or FRAMEWORKS:
        for model in arguments.model or MODELS:
            show_progress(f"{framework}, {model}")
            results.append(_of(framework, model, arguments))
    rows = [row for result in results for row in _rows(result)]
    columns = ["step ms", "slower %", "95 %", "J per step", "more %", "95 %", "forward ms"]
    text = table(["torch or DeepSpeed, model, way", *columns, "backward ms"], rows)
    device = results[0]["device"]
    return Report(
        figures={"device": device, "results": results},
        text=f"{device}; one stage, measured, and no clock was set\n\n{text}",
    )


def _of(framework: str, model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    problem = {
        "framework": framework,
        "model": model,
        "ways": list(dict.fromkeys(arguments.way or ATTACHED)),
        "seconds": arguments.seconds,
        "microbatch_size": arguments.microbatch_size,
        "tiny_on_cpu": arguments.tiny_on_cpu,
    }
    try:
        result, _ = run_script(
            "gpu_training_rank.py",
            problem=problem,
            give_up_s=START_S + 3 * arguments.seconds,
            environment={"PYTHONFAULTHANDLER": "1"},
        )
    except BenchmarkError as error:
        raise BenchmarkError(f"{framework}, {model}: {error}") from None
    return {**result, "framework": framework, "model": model}


def _rows(result: dict[str, Any]) -> list[list[str]]:
    rows: list[list[str]] = []
    rounds: dict[str, list[dict[str, Any]]] = result["rounds"]
    for way, blocks in rounds.items():
        cells = [f"{1000 * fmean(block['step_s'] for block in blocks):.2f}"]
        for quantity, mean in (("step_s", None), ("step_j", True)):
            values = [block[quantity] for block in blocks]
            if None in values:
                cells += ["not measured"] * (2 + bool(mean))
                continue
            if mean:
                cells.append(f"{fmean(values):.2f}")
            alone = [block[quantity] for block in rounds[ALONE]]
            cells += ["", ""] if way == ALONE else _difference(values, alone)
        times_ms = blocks[-1]["instructions_ms"]
        cells += [
            f"{times_ms[kind]:.3f}" if kind in times_ms else "" for kind in ("forward", "backward")
        ]
        rows.append([f"{result['framework']}, {result['model']}, {way}", *cells])
    return rows


def _difference(values: list[float], alone: list[float]) -> list[str]:
    """Return mean and half interval of the rounds' differences, in percent."""
    percents = [100 * (value / other - 1) for value, other in zip(values, alone, strict=True)]
    if len(percents) < 2:
        return [f"{percents[0]:+.2f}", "?"]
    freedom = len(percents) - 1
    quantile = _T95[freedom - 1] if freedom <= len(_T95) else _T95_BEYOND
    half = quantile * stdev(percents) / math.sqrt(len(percents))
    return [f"{fmean(percents):+.2f}", f"+-{half:.2f}"]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--framework", choices=FRAMEWORKS, action="append")
    options.add_argument("--model", choices=MODELS, action="append")
    options.add_argument(
        "--seconds", type=float, default=60.0, help="of each combination (default: %(default)g)"
    )
    options.add_argument("--microbatch-size", type=int, default=4, help="(default: %(default)s)")
    options.add_argument(
        "--way",
        choices=WAYS,
        action="append",
        help=f"what to compare with training alone (default: {' and '.join(ATTACHED)})",
    )
    options.add_argument(
        "--tiny-on-cpu", action="store_true", help="a small model on the CPU: a trial, no result"
    )
    run_benchmark(options, measure)
