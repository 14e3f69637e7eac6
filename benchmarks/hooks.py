"""Cost of Flyball's client to a training rank, beside Zeus's client on the same false GPUs.

Run `python benchmarks/hooks.py [--json] [--rounds N] [--parts hooks,memory,training]
[--judged] [--kernels]`; README.md beside this file says how to read it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmark_report import Limit, Report, at_most, run_benchmark, show_progress, table
from hooks_deepspeed import DEVICES, TrainingFigure, measure_training
from hooks_figures import Distribution, SeriesFigure
from hooks_gpus import FalseGpus
from hooks_limits import HOOK_LOADS, hook_limits
from hooks_load import GPU_KERNELS, LOADS, SLEEPING
from hooks_process import run_driver
from hooks_series import Series
from hooks_zeus import VERSION, zeus_python
from measured_process import BenchmarkError

PARTS = ("hooks", "memory", "training")
NUM_ROUNDS = 3
# As measured on a V100, and as if NVML took no time.
LATENCIES_US = (0, 5000)
SERIES_GIVE_UP_S = 300.0
BARE = "bare wake"

NUM_HOOKS, NUM_WARM_UP_HOOKS = 10_000_000, 1_000_000
HOOKS_GIVE_UP_S = 300.0
MIB = 1 << 20

NUM_PAIRS, NUM_STEPS = 24, 10

MAX_GROWTH_MIB = 1.0
MAX_STEP_RATIO = 1.01

CROWDED = Series(load=SLEEPING, set_latency_us=LATENCIES_US[-1], pause_s=0.001, num_steps=1)


def spread(loads: Iterable[str]) -> tuple[Series, ...]:
    """Hooks apart: the controller has done the one when the next comes; crowded, it has not."""
    return tuple(
        Series(
            load=load,
            set_latency_us=latency_us,
            pause_s=0.009 if latency_us else 0.002,
            num_steps=2 if latency_us else 4,
        )
        for latency_us in LATENCIES_US
        for load in loads
    )


def measure(arguments: argparse.Namespace) -> Report:
    """The chosen parts, one after the other."""
    if (arguments.kernels or arguments.judged) and "hooks" not in arguments.parts:
        option = "--kernels" if arguments.kernels else "--judged"
        raise BenchmarkError(f"{option} belongs to the part hooks, which --parts leaves out")
    load_before = os.getloadavg()
    figures: dict[str, Any] = {}
    texts: list[str] = []
    limits: list[Limit] = []
    parts: dict[str, Callable[[FalseGpus], tuple[Any, str, list[Limit]]]] = {
        "hooks": lambda gpus: _hooks(gpus, arguments.rounds, _hook_loads(gpus, arguments)),
        "memory": _memory,
        "training": _training,
    }
    for name in arguments.parts:
        try:
            with tempfile.TemporaryDirectory() as folder:
                figures[name], text, found = parts[name](FalseGpus(Path(folder)))
        except BenchmarkError as error:
            if len(arguments.parts) == 1:
                raise
            # The other parts took half an hour.
            text, found = f"{name}: {error}", [at_most(f"{name}: failures", 1, 0)]
        texts.append(text)
        limits += found
    load_after = os.getloadavg()
    shown = " ".join(f"{load:.2f}" for load in (*load_before, *load_after))
    return Report(
        figures={"load_before": load_before, "load_after": load_after, **figures},
        text="\n\n".join([f"load averages before and after (1, 5, 15 min): {shown}", *texts]),
        limits=tuple(limits),
    )


# ---------------------------------------------------------------------- hooks


def _hook_loads(gpus: FalseGpus, arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return what the rank does between hooks; the false NVML stands beside a GPU's kernels too.

    Raises:
        BenchmarkError: kernels are wanted, and torch sees no GPU.
    """
    loads = tuple(load for load in LOADS if load in HOOK_LOADS or not arguments.judged)
    if not arguments.kernels:
        return loads
    # In the environment in which it is loaded later.
    seen = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("hooks_load.py"))],
        env=os.environ | gpus.variables,
        capture_output=True,
        check=False,
    )
    if seen.returncode:
        raise BenchmarkError("--kernels: torch sees no GPU here")
    return (*loads, GPU_KERNELS)


def _hooks(gpus: FalseGpus, num_rounds: int, loads: Sequence[str]) -> tuple[Any, str, list[Limit]]:
    all_series = (*spread(loads), CROWDED)
    clients = {
        "flyball": (sys.executable, "hooks_driver.py"),
        "zeus": (zeus_python(), "zeus_driver.py"),
        BARE: (sys.executable, "hooks_bare.py"),
    }
    steps: dict[str, list[list[dict[str, Any]]]] = {
        client: [[] for _ in all_series] for client in clients
    }
    for turn in range(num_rounds):
        for client, (python, driver) in clients.items():
            show_progress(f"hooks of {client}, round {turn + 1} of {num_rounds}")
            found = run_driver(
                python,
                driver,
                [asdict(series) for series in all_series],
                variables=gpus.variables,
                give_up_s=SERIES_GIVE_UP_S,
            )
            for number, new in enumerate(found):
                steps[client][number] += new
    chosen = [
        SeriesFigure.of(client, series, steps[client][number])
        for number, series in enumerate(all_series)
        for client in clients
    ]
    figures = {
        "zeus_version": VERSION,
        "num_rounds": num_rounds,
        "series": [asdict(figure) for figure in chosen],
    }
    apart = [figure for figure in chosen if figure.series != CROWDED]
    limits = hook_limits(*(_of(client, apart) for client in ("flyball", BARE)))
    return figures, _hooks_text(chosen, num_rounds), limits


def _of(client: str, figures: Iterable[SeriesFigure]) -> list[SeriesFigure]:
    return [figure for figure in figures if figure.client == client]


def _hooks_text(figures: Sequence[SeriesFigure], num_rounds: int) -> str:
    blocks = [
        f"Zeus {VERSION} from PyPI, its own client; its wait for the device before every"
        " instruction left out.\n"
        f"{BARE}: one store and one eventfd write to a process that sleeps, the least that this"
        " machine takes for it.\n"
        f"median / 99th percentile, us, of the steps of {num_rounds} rounds in which other"
        " processes took least of the CPUs"
    ]
    header = [
        "",
        "hook, other clock",
        "hook, same clock",
        "request to governor",
        "hook to NVML",
        "superseded",
        "CPU of controller, %",
        "others, %",
    ]
    for latency_us in LATENCIES_US:
        rows = [
            _series_row(figure)
            for figure in figures
            if figure.series != CROWDED and figure.series.set_latency_us == latency_us
        ]
        title = f"setting a clock takes NVML {latency_us / 1000:g} ms, hooks apart"
        blocks.append(f"{title}\n{table(header, rows)}")
    rows = [_series_row(figure) for figure in figures if figure.series == CROWDED]
    title = (
        f"setting a clock takes NVML {CROWDED.set_latency_us / 1000:g} ms, another clock every"
        f" {2000 * CROWDED.pause_s:g} ms"
    )
    blocks.append(f"{title}\n{table(header, rows)}")
    blocks.append(_comparison(figures))
    return "\n\n".join(blocks)


def _series_row(figure: SeriesFigure) -> list[str]:
    return [
        f"{figure.client}, {figure.series.load}",
        _pair(figure.change),
        _pair(figure.same),
        _pair(figure.delivery),
        _pair(figure.arrival),
        "-" if figure.arrival is None else str(figure.num_superseded),
        f"{100 * figure.controller_share:.1f}",
        f"{100 * figure.others_share:.0f}",
    ]


def _pair(distribution: Distribution | None) -> str:
    if distribution is None:
        return "-"
    return f"{distribution.median_us:.1f} / {distribution.p99_us:.0f}"


def _comparison(figures: Sequence[SeriesFigure]) -> str:
    """Zeus's figures over ours, series by series."""
    rows: list[list[str]] = []
    for series in dict.fromkeys(figure.series for figure in figures):
        ours, theirs = (
            next(f for f in figures if f.client == client and f.series == series)
            for client in ("flyball", "zeus")
        )
        crowded = ", crowded" if series == CROWDED else ""
        rows.append(
            [
                f"{series.load}, {series.set_latency_us / 1000:g} ms{crowded}",
                _ratio(theirs.change, ours.change),
                _ratio(theirs.same, ours.same),
                _ratio(theirs.arrival, ours.arrival),
            ]
        )
    header = ["Zeus over Flyball, median / 99th percentile", "other clock", "same", "to NVML"]
    return table(header, rows)


def _ratio(theirs: Distribution | None, ours: Distribution | None) -> str:
    if theirs is None or ours is None:
        return "-"
    return f"{theirs.median_us / ours.median_us:.2f} / {theirs.p99_us / ours.p99_us:.2f}"


# ---------------------------------------------------------------------- memory


def _memory(gpus: FalseGpus) -> tuple[Any, str, list[Limit]]:
    show_progress(f"{NUM_HOOKS} hooks")
    gpus.record.begin(set_latency_us=0)
    found = run_driver(
        sys.executable,
        "hooks_leak.py",
        {"num_hooks": NUM_HOOKS, "num_warm_up_hooks": NUM_WARM_UP_HOOKS},
        variables=gpus.variables,
        give_up_s=HOOKS_GIVE_UP_S,
    )
    if not found["same_governor"]:
        raise BenchmarkError("the governor was replaced while its memory was measured")
    before, after = found["before"], found["after"]
    growth_mib = {
        name: (after[name]["private_bytes"] - before[name]["private_bytes"]) / MIB
        for name in before
    }
    new_descriptors = {
        name: after[name]["num_descriptors"] - before[name]["num_descriptors"] for name in before
    }
    rows = [
        [
            name,
            f"{before[name]['private_bytes'] / MIB:.2f}",
            f"{growth_mib[name]:+.3f}",
            str(before[name]["num_descriptors"]),
            f"{new_descriptors[name]:+d}",
        ]
        for name in before
    ]
    hooks_s = 1e6 * found["took_s"] / found["num_hooks"]
    text = (
        f"{found['num_hooks']} hooks, {found['num_switches']} clocks set, {hooks_s:.2f} us a hook"
        f" one after the other\n"
        + table(["", "own memory, MiB", "more after", "descriptors", "more after"], rows)
    )
    limits = [
        at_most(
            f"more memory after {NUM_HOOKS} hooks, MiB", max(growth_mib.values()), MAX_GROWTH_MIB
        ),
        at_most("more open descriptors", max(new_descriptors.values()), 0),
        at_most("instructions that were not followed", found["num_unplanned"], 0),
    ]
    return found | {"growth_mib": growth_mib, "new_descriptors": new_descriptors}, text, limits


# ---------------------------------------------------------------------- training


def _training(gpus: FalseGpus) -> tuple[Any, str, list[Limit]]:
    figures: list[TrainingFigure] = []
    limits: list[Limit] = []
    for device in DEVICES:
        show_progress(f"DeepSpeed, two stages on {device}")
        figure = measure_training(gpus, device, num_pairs=NUM_PAIRS, num_steps=NUM_STEPS)
        figures.append(figure)
        limits += [
            at_most(
                f"DeepSpeed's step on {device}, attached over alone", figure.ratio, MAX_STEP_RATIO
            ),
            at_most(
                f"off the plan on {device}: instructions, and steps without one",
                figure.num_unplanned,
                0,
            ),
        ]
    return (
        [asdict(figure) for figure in figures],
        "\n\n".join(map(_training_text, figures)),
        limits,
    )


def _training_text(figure: TrainingFigure) -> str:
    low, high = figure.ratio_interval
    is_open = low <= MAX_STEP_RATIO < high
    return (
        f"DeepSpeed, two stages on {figure.device}, by turns {figure.num_pairs} times"
        f" {figure.num_steps} steps each\n"
        f"median step alone {1000 * figure.alone_s:.1f} ms, attached"
        f" {1000 * figure.attached_s:.1f} ms; ratio of pairs {figure.ratio:.4f}, 95 % within"
        f" {low:.4f} to {high:.4f}; {figure.switches_per_step:.1f} clocks set a step and rank\n"
        + _taken_text(figure.taken)
        + ("\nthe limit lies within that interval: this run does not decide" if is_open else "")
    )


def _taken_text(taken: dict[str, float]) -> str:
    parts = ", ".join(f"{part} {100 * share:.2f} %" for part, share in taken.items())
    num_cores = os.cpu_count() or 1
    of_all = 100 * sum(taken.values()) / num_cores
    return (
        f"Flyball took of one core, beside the hooks: {parts};"
        f" together of all {num_cores} cores {of_all:.2f} %"
    )


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if not set(parts) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"must be some of {','.join(PARTS)}, not {text!r}")
    return parts


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return rounds


if __name__ == "__main__":
    argument_parser = argparse.ArgumentParser(description=__doc__)
    argument_parser.add_argument(
        "--rounds", type=_rounds, default=NUM_ROUNDS, help="runs of each series of hooks"
    )
    argument_parser.add_argument(
        "--parts", type=_parts, default=list(PARTS), help=f"some of {','.join(PARTS)}"
    )
    argument_parser.add_argument(
        "--judged", action="store_true", help="hooks only under the loads that have limits"
    )
    argument_parser.add_argument(
        "--kernels",
        action="store_true",
        help="hooks also while torch launches kernels on a GPU, whose own clocks stay alone",
    )
    sys.exit(run_benchmark(argument_parser, measure))
