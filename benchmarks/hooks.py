"""Cost of Flyball's client to a training rank, beside Zeus's client on the same false GPUs."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmark_report import (
    Distribution,
    Limit,
    Report,
    at_most,
    run_benchmark,
    show_progress,
    table_of,
)
from hooks_series import LOADS, SLEEPING, CallRecord, Series
from hooks_training import DEVICES, TrainingFigure, measure_memory, measure_training
from measured_process import BENCHMARKS, BenchmarkError, run_process, run_script
from peer_environments import ZEUS_VERSION, zeus_python

PARTS = ("hooks", "memory", "training")
NUM_ROUNDS = 3
# As measured on a V100, and as if NVML took no time.
LATENCIES_US = (0, 5000)
SERIES_GIVE_UP_S, COMPILE_GIVE_UP_S = 300.0, 60.0
FLYBALL, ZEUS, BARE = "flyball", "zeus", "bare wake"
MAX_GROWTH_MIB, MAX_STEP_RATIO = 1.0, 1.01
# Hooks apart: the controller has done the one when the next comes; crowded, it has not.
SERIES = tuple(
    Series(
        load=load,
        set_latency_us=latency_us,
        pause_s=0.009 if latency_us else 0.002,
        num_steps=2 if latency_us else 4,
    )
    for latency_us in LATENCIES_US
    for load in LOADS
)
CROWDED = Series(load=SLEEPING, set_latency_us=LATENCIES_US[-1], pause_s=0.001, num_steps=1)


class FalseGpus:
    """Two GPUs without a fault: the tests' false NVML with some more calls, see hooks_nvml.c.

    All processes of a measurement share them: the rank, its governor, Zeus.

    Args:
        folder: for the library and what the processes share.

    Raises:
        BenchmarkError: the library cannot be compiled.
    """

    NUM_GPUS = 2
    # `struct state` of false_nvml.c begins with the number of GPUs, and zeros mean no fault.
    _STATE_BYTES = 1 << 16

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise BenchmarkError("the false NVML needs a C compiler, and there is no gcc")
        library, state, calls = folder / "library", folder / "gpus", folder / "calls"
        library.mkdir()
        flags = ["-Wall", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
        target = ["-o", str(library / "libnvidia-ml.so.1"), str(BENCHMARKS / "hooks_nvml.c")]
        run_process([compiler, *flags, *target], give_up_s=COMPILE_GIVE_UP_S)
        state.write_bytes(self.NUM_GPUS.to_bytes(8, "little").ljust(self._STATE_BYTES, b"\0"))
        calls.write_bytes(bytes(CallRecord.NUM_BYTES))
        self.record = CallRecord(calls)
        # What a process needs from its start to use these GPUs.
        self.variables = {
            "LD_LIBRARY_PATH": str(library),
            "FALSE_NVML_STATE": str(state),
            CallRecord.VARIABLE: str(calls),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(self.NUM_GPUS))),
            "FLYBALL_STATE_DIR": str(folder / "records"),
            "FLYBALL_CLOCK_CONTROL": "nvml",
            "PYTHONPATH": str(BENCHMARKS.parent),
            "OMP_NUM_THREADS": "1",
        }


def measure(arguments: argparse.Namespace) -> Report:
    """The chosen parts, one after the other."""
    load_before = os.getloadavg()
    figures: dict[str, Any] = {}
    texts: list[str] = []
    limits: list[Limit] = []
    parts: dict[str, Callable[[FalseGpus], tuple[Any, str, list[Limit]]]] = {
        "hooks": lambda gpus: _hooks(gpus, arguments.rounds),
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
        limits=limits,
    )


# ---------------------------------------------------------------------- hooks


@dataclass(frozen=True, kw_only=True)
class SeriesFigure:
    """One series of one client.

    Attributes:
        others_share: what other processes used of the CPUs meanwhile, 0 to 1.
        controller_share: CPU time of the process that calls NVML, of one CPU, 0 to 1.
        change: the end hook and the next begin hook, where the clock is another than before.
        same: where it is not.
        arrival: from the end hook's beginning to NVML being asked for the clock.
        num_superseded: changes that NVML was never asked for, since a newer one came.
        delivery: from the request to the governor seeing it while it waited for one.
    """

    client: str
    series: Series
    others_share: float
    controller_share: float
    change: Distribution
    same: Distribution
    arrival: Distribution | None
    num_superseded: int | None
    delivery: Distribution | None

    @classmethod
    def of(cls, client: str, series: Series, steps: Sequence[dict[str, Any]]) -> SeriesFigure:
        """Return the figure of those steps, as many as one round has, in which others used least.

        They are chosen by that, not by their own times.
        """
        by_others = sorted(steps, key=lambda step: float(step["others_share"]))
        kept = by_others[: series.num_steps]

        def pooled(name: str) -> list[float]:
            return [sample for step in kept for sample in step[name]]

        change, same, arrival = (
            Distribution.of(pooled(name)) for name in ("change_us", "same_us", "arrival_us")
        )
        if change is None or same is None:
            raise BenchmarkError(f"{client}, {series.load}: no hook was called")
        return cls(
            client=client,
            series=series,
            others_share=statistics.fmean(step["others_share"] for step in kept),
            controller_share=statistics.fmean(step["controller_share"] for step in kept),
            change=change,
            same=same,
            arrival=arrival,
            num_superseded=sum(step["num_superseded"] for step in kept) if arrival else None,
            delivery=Distribution.of(pooled("delivery_us")),
        )


def _hooks(gpus: FalseGpus, num_rounds: int) -> tuple[Any, str, list[Limit]]:
    all_series = (*SERIES, CROWDED)
    drivers = {
        FLYBALL: ("hooks_series.py", FLYBALL, sys.executable),
        ZEUS: ("zeus_driver.py", ZEUS, zeus_python()),
        BARE: ("hooks_series.py", "bare", sys.executable),
    }
    steps: dict[tuple[str, Series], list[dict[str, Any]]] = {}
    for turn in range(num_rounds):
        for client, (script, name, python) in drivers.items():
            show_progress(f"hooks of {client}, round {turn + 1} of {num_rounds}")
            found, _ = run_script(
                script,
                name,
                problem=[asdict(series) for series in all_series],
                give_up_s=SERIES_GIVE_UP_S,
                python=python,
                environment=gpus.variables,
            )
            for series, new in zip(all_series, found, strict=True):
                steps.setdefault((client, series), []).extend(new)
    figures = [
        SeriesFigure.of(client, series, steps[client, series])
        for series in all_series
        for client in drivers
    ]
    text = (
        f"Zeus {ZEUS_VERSION} from PyPI, its own client; its wait for the device before every"
        f" instruction left out.\n{BARE}: one store and one eventfd write to a process that sleeps,"
        " the least that this machine takes for it.\nmedian / 99th percentile, us, of the steps of"
        f" {num_rounds} rounds in which other processes took least of the CPUs"
    )
    blocks = [text, *map(_series_table, _titled(figures))]
    document = {"zeus_version": ZEUS_VERSION, "num_rounds": num_rounds, "series": figures}
    return document, "\n\n".join(blocks), []


def _titled(figures: Iterable[SeriesFigure]) -> Iterable[tuple[str, list[SeriesFigure]]]:
    """Group the series as the tables do."""
    groups: dict[str, list[SeriesFigure]] = {}
    for figure in figures:
        series = figure.series
        spacing = f"another clock every {2000 * series.pause_s:g} ms"
        apart = spacing if series == CROWDED else "hooks apart"
        title = f"setting a clock takes NVML {series.set_latency_us / 1000:g} ms, {apart}"
        groups.setdefault(title, []).append(figure)
    return groups.items()


def _series_table(titled: tuple[str, list[SeriesFigure]]) -> str:
    title, figures = titled
    columns = {
        title: "{client}, {series.load}",
        "hook, other clock": "{change}",
        "hook, same clock": "{same}",
        "request to governor": "{delivery}",
        "hook to NVML": "{arrival}",
        "superseded": "{num_superseded}",
        "CPU of controller": "{controller_share:.1%}",
        "others": "{others_share:.0%}",
    }
    return table_of(figures, columns)


# ---------------------------------------------------------------------- memory and training


def _memory(gpus: FalseGpus) -> tuple[Any, str, list[Limit]]:
    show_progress("millions of hooks")
    gpus.record.begin(set_latency_us=0)
    found = measure_memory(gpus.variables)
    columns = {
        "": "{name}",
        "own memory, MiB": "{own_mib:.2f}",
        "more after": "{growth_mib:+.3f}",
        "descriptors": "{num_descriptors}",
        "more ones after": "{new_descriptors:+d}",
    }
    text = (
        "{num_hooks} hooks, {num_switches} clocks set, {hook_us:.2f} us a hook one after the"
        " other\n".format_map(found)
        + table_of(found["processes"], columns)
    )
    growths_mib, new = zip(
        *((one["growth_mib"], one["new_descriptors"]) for one in found["processes"]), strict=True
    )
    return (
        found,
        text,
        [
            at_most("more memory after the hooks, MiB", max(growths_mib), MAX_GROWTH_MIB),
            at_most("more open descriptors", max(new), 0),
            at_most("instructions that were not followed", found["num_unplanned"], 0),
        ],
    )


def _training(gpus: FalseGpus) -> tuple[Any, str, list[Limit]]:
    figures: list[TrainingFigure] = []
    limits: list[Limit] = []
    for device in DEVICES:
        show_progress(f"DeepSpeed, two stages on {device}")
        figure = measure_training(gpus.variables, gpus.record, device)
        figures.append(figure)
        step = f"DeepSpeed's step on {device}, attached over alone"
        off = f"off the plan on {device}: instructions, and steps without one"
        limits += [
            at_most(step, figure.ratio, MAX_STEP_RATIO),
            at_most(off, figure.num_unplanned, 0),
        ]
    return figures, "\n\n".join(map(_training_text, figures)), limits


def _training_text(figure: TrainingFigure) -> str:
    low, high = figure.ratio_interval
    is_open = low <= MAX_STEP_RATIO < high
    num_cores = os.cpu_count() or 1
    of_all = sum(figure.taken.values()) / num_cores
    parts = ", ".join(f"{part} {share:.2%}" for part, share in figure.taken.items())
    return (
        f"DeepSpeed, two stages on {figure.device}, by turns {figure.num_pairs} times"
        f" {figure.num_steps} steps each\n"
        f"median step alone {1000 * figure.alone_s:.1f} ms, attached"
        f" {1000 * figure.attached_s:.1f} ms; ratio of pairs {figure.ratio:.4f}, 95 % within"
        f" {low:.4f} to {high:.4f}; {figure.switches_per_step:.1f} clocks set a step and rank\n"
        f"Flyball took of one core, beside the hooks: {parts}; together of all {num_cores} cores"
        f" {of_all:.2%}"
        + ("\nthe limit lies within that interval: this run does not decide" if is_open else "")
    )


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if not set(parts) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"must be some of {','.join(PARTS)}, not {text!r}")
    return parts


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--rounds", type=int, default=NUM_ROUNDS, help="runs of each series (default: %(default)s)"
    )
    options.add_argument(
        "--parts", type=_parts, default=list(PARTS), help=f"some of {','.join(PARTS)}"
    )
    run_benchmark(options, measure)
