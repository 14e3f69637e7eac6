"""`flyball profile transitions`: measures how long clock changes take."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

from flyball_client.gpu._base import GpuDevice
from flyball_client.gpu.registry import vendor_of
from flyball_client.profiling.arguments import WorkLine, add_gpu, add_option, add_output, count
from flyball_client.profiling.repetition import clock_grid
from flyball_client.profiling.transitions.bench import TransitionBench
from flyball_client.profiling.transitions.measurement import NUM_REPETITIONS, measure_transitions
from flyball_client.profiling.transitions.opening import check_alone, opened_bench
from flyball_profiles.gpu_windows import gpu_file_text, with_transitions
from flyball_profiles.measured_transitions import MeasuredTransitions, PairTimes, transitions_toml
from flyball_wire.command.command import CommandError
from flyball_wire.command.whole_file import write_result
from flyball_wire.errors import FlyballError

_NUM_CLOCKS = 4


def configure_transitions(parser: argparse.ArgumentParser) -> None:
    """Add the action's arguments."""
    add_gpu(parser)
    parser.add_argument(
        "--clocks",
        type=count(1),
        nargs="+",
        metavar="MHZ",
        help=f"clocks in MHz to change between (default: {_NUM_CLOCKS} of the window)",
    )
    add_option(
        parser,
        *("--fill", str, "NAME"),
        "GPU of the table or file without clock changes: write a copy with them to -o",
    )
    add_output(parser, required=False, metavar="OUT.toml")
    parser.add_argument("--json", action="store_true", help="print JSON")


def transitions(arguments: argparse.Namespace) -> int:
    """Measure, write and print, and return the exit status.

    Raises:
        CommandError: The arguments contradict each other, or the measurement failed.
    """
    output: Path | None = arguments.output
    fill: str | None = arguments.fill
    _check(output, fill, is_forced=arguments.force)
    try:
        to_fill = None if fill is None else gpu_file_text(fill, os.environ)
        if to_fill is not None:
            with_transitions(to_fill, "")
        with opened_bench(arguments.device, os.environ) as bench:
            gpu = bench.gpu
            measured = measured_by(bench, _clocks_mhz(arguments, gpu))
    except (FlyballError, ValueError) as error:
        raise CommandError(str(error)) from None
    # Printed first: a full disk loses no measurement.
    print(_as_json(gpu, measured) if arguments.json else _as_text(gpu, measured))
    if output is not None:
        table = transitions_toml(measured, _source(gpu, measured))
        text = table if to_fill is None else with_transitions(to_fill, table)
        write_result(output, text, replaces=arguments.force)
        if not arguments.json:
            print(f"{output}: written")
    return 0


def _check(output: Path | None, fill: str | None, *, is_forced: bool) -> None:
    if fill is not None and output is None:
        raise CommandError("--fill NAME needs -o OUT.toml")
    if output is not None and output.exists() and not is_forced:
        raise CommandError(f"{output}: exists already; --force overwrites it")
    if output is not None and not os.access(output.parent, os.W_OK):
        raise CommandError(f"{output}: cannot be written (the folder is missing or read-only)")


def measured_by(bench: TransitionBench, clocks_mhz: Sequence[int]) -> MeasuredTransitions:
    """Measure with a progress line on stderr; clocks are restored at the end.

    Raises:
        GpuError: A GPU cannot be read, its clock cannot be set, or it is no longer alone.
        LineProcessError: The load failed.
        TransitionsFailedError: Nothing can be measured.
    """
    with WorkLine(sys.stderr) as line:
        line.show("starting the load")
        with bench:
            measured = measure_transitions(bench, clocks_mhz, show=line.show)
            check_alone(bench.gpu)
    return measured


def _clocks_mhz(arguments: argparse.Namespace, gpu: GpuDevice) -> Sequence[int]:
    given: Sequence[int] | None = arguments.clocks
    if given is None:
        return spread_clocks(gpu, _NUM_CLOCKS, table_name=arguments.gpu)
    missing = sorted(set(given) - set(gpu.supported_sm_clocks_mhz()))
    if missing:
        raise CommandError(
            f"--clocks: {gpu.name} has no {missing[0]} MHz; flyball clocks lists them"
        )
    if len(set(given)) < 2:
        raise CommandError("--clocks: give at least two different clocks")
    return given


def spread_clocks(gpu: GpuDevice, number: int, *, table_name: str | None = None) -> tuple[int, ...]:
    """Return up to this number of clocks, at least 2, about evenly spread, both ends included.

    Raises:
        GpuTableError, ValueError: As for `clock_grid`.
    """
    falling_mhz = clock_grid(
        gpu.supported_sm_clocks_mhz(), table_name=table_name, every_clock=gpu.is_emulated
    )
    number = min(number, len(falling_mhz))
    last = len(falling_mhz) - 1
    return tuple(falling_mhz[round(place * last / (number - 1))] for place in range(number))


_COARSE = "coarse: matrix products were timed by the host"


def _is_coarse(gpu: GpuDevice, measured: MeasuredTransitions) -> bool:
    return not (measured.counts_cycles or gpu.is_emulated)


def _source(gpu: GpuDevice, measured: MeasuredTransitions) -> str:
    driver = ""
    if not gpu.is_emulated:
        driver = f", driver {vendor_of(gpu.uuid).driver_version()}"
    coarse = f"; {_COARSE}" if _is_coarse(gpu, measured) else ""
    return (
        f"flyball profile transitions on {gpu.name}{driver}, {date.today()}: {NUM_REPETITIONS}"
        f" changes of each pair of clocks and direction{coarse}"
    )


def _as_json(gpu: GpuDevice, measured: MeasuredTransitions) -> str:
    document = {"gpu": gpu.name, "emulated": gpu.is_emulated, **asdict(measured)}
    return json.dumps(document, indent=2)


def _as_text(gpu: GpuDevice, measured: MeasuredTransitions) -> str:
    times = measured.times
    how = "emulated" if gpu.is_emulated else "measured"
    columns = "".join(f"{name:>8}" for name in ("p5", "p50", "p95", "max"))
    lines = [
        f"clock changes on {gpu.name} ({how}), ms from the request until the new clock stays"
        " (onset: until the previous clock is left)",
        f"{'MHz':<15}{columns}{'onset':>8}{'left out':>10}",
        *map(_pair_row, measured.pairs),
        *(
            f"{clock.mhz} MHz was not held: it ran at {clock.ran_mhz} MHz ({clock.limit})"
            for clock in measured.clocks
            if clock.limit is not None
        ),
    ]
    if num_alike := math.comb(len(measured.clocks), 2) - len(measured.pairs) // 2:
        lines.append(f"pairs of clocks left out, whose rates do not differ: {num_alike}")
    if _is_coarse(gpu, measured):
        lines.append(_COARSE)
    if times.call_p50_s is not None and times.call_p95_s is not None:
        lines.append(f"call: p50 {1e3 * times.call_p50_s:.2f}, p95 {1e3 * times.call_p95_s:.2f} ms")
    if times.queues_in_node is not None:
        verb = "queued" if times.queues_in_node else "did not queue"
        lines.append(f"calls of two GPUs at once {verb}")
    for name in ("up", "down"):
        figures = [f"{1e3 * getattr(times, f'{name}_p{p}_s'):.2f}" for p in (5, 50, 95)]
        lines.append(f"for plans, {name}: p5 {figures[0]}, p50 {figures[1]}, p95 {figures[2]} ms")
    return "\n".join(lines)


def _pair_row(pair: PairTimes) -> str:
    of = pair.completion
    times_s = (of.p5_s, of.p50_s, of.p95_s, of.max_s, pair.onset.p50_s)
    figures = "".join(f"{1e3 * time_s:8.2f}" for time_s in times_s)
    return f"{f'{pair.from_mhz} to {pair.to_mhz}':<15}{figures}{pair.num_left_out:10}"
