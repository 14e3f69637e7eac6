"""`flyball profile transitions`: measures how long clock changes take."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

from flyball_client.gpu._base import GpuError
from flyball_client.profiling.arguments import (
    WorkLine,
    add_option,
    add_output,
    count,
)
from flyball_client.profiling.repetition import clock_grid
from flyball_client.profiling.transitions.loop_process import LoopError
from flyball_client.profiling.transitions.measurement import (
    FEWEST_REPETITIONS,
    TransitionRule,
    TransitionsFailedError,
    measure_transitions,
    nums_at_once,
)
from flyball_client.profiling.transitions.opening import OpenedGpus, opened_gpus
from flyball_profiles.gpu_windows import GpuTableError, gpu_file_text, with_transitions
from flyball_profiles.measured_transitions import (
    MeasuredTransitions,
    PairTimes,
    QueueTimes,
    TimeSpread,
    transitions_toml,
)
from flyball_wire.command import CommandError
from flyball_wire.whole_file import write_result

_NUM_CLOCKS = 4


def configure_transitions(parser: argparse.ArgumentParser) -> None:
    """Add the action's arguments."""
    parser.add_argument(
        "--devices",
        type=count(0),
        nargs="+",
        metavar="N",
        help="CUDA device numbers of GPUs of this node (default: all)",
    )
    add_option(
        parser,
        *("--gpu", str, "NAME"),
        "take the window of clocks from this entry of the GPU table (a100) or file (./mine.toml)",
    )
    parser.add_argument(
        "--clocks",
        type=count(1),
        nargs="+",
        metavar="MHZ",
        help=f"clocks in MHz to change between (default: {_NUM_CLOCKS} of the window)",
    )
    add_option(
        parser,
        *("--repetitions", count(FEWEST_REPETITIONS), "N"),
        "number of changes per pair of clocks and load",
        default=FEWEST_REPETITIONS,
    )
    parser.add_argument(
        "--coarse",
        action="store_true",
        help="time matrix products on the host instead of compiling a kernel",
    )
    add_option(parser, "--stage", count(0), "S", "emulated: stage of the profile", default=0)
    add_option(
        parser,
        *("--fill", str, "NAME"),
        "GPU of the table or file without clock changes: write a copy with them to -o",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check, print the planned measurements, and change nothing",
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
    _check(arguments)
    try:
        to_fill = None if fill is None else gpu_file_text(fill, os.environ)
        if to_fill is not None:
            with_transitions(to_fill, "")
        with opened_gpus(
            arguments.devices, os.environ, stage=arguments.stage, is_coarse=arguments.coarse
        ) as opened:
            rule = _rule(arguments, opened)
            if arguments.dry_run:
                _print_plan(opened, rule, as_json=arguments.json)
                return 0
            measured = measured_by(opened, rule)
    except (GpuError, LoopError, TransitionsFailedError, GpuTableError, ValueError) as error:
        raise CommandError(str(error)) from None
    # Printed first: a full disk loses no measurement.
    print(_as_json(opened, measured) if arguments.json else _as_text(opened, measured))
    if output is not None:
        table = transitions_toml(measured, _source(opened, rule, measured))
        text = table if to_fill is None else with_transitions(to_fill, table)
        write_result(output, text, replaces=arguments.force)
        if not arguments.json:
            print(f"{output}: written")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    output: Path | None = arguments.output
    if arguments.fill is not None and output is None:
        raise CommandError("--fill NAME needs -o OUT.toml")
    if output is not None and output.exists() and not arguments.force:
        raise CommandError(f"{output}: exists already; --force overwrites it")
    if output is not None and not os.access(output.parent, os.W_OK):
        raise CommandError(f"{output}: cannot be written (the folder is missing or read-only)")
    devices: Sequence[int] = arguments.devices or ()
    if len(set(devices)) < len(devices):
        raise CommandError("--devices: give each GPU once")


def measured_by(opened: OpenedGpus, rule: TransitionRule) -> MeasuredTransitions:
    """Measure with a progress line on stderr; clocks are restored at the end.

    Raises:
        GpuError: A GPU cannot be read, its clock cannot be set, or it is no longer alone.
        LoopError: The load failed.
        TransitionsFailedError: Nothing can be measured.
    """
    with WorkLine(sys.stderr) as line:
        line.show("starting the load of each GPU")
        with opened.governed as bench:
            return measure_transitions(bench, rule, show=line.show)


def _rule(arguments: argparse.Namespace, opened: OpenedGpus) -> TransitionRule:
    given: Sequence[int] | None = arguments.clocks
    if given is None:
        grid_mhz = clock_grid(
            opened.supported_mhz, table_name=arguments.gpu, every_clock=opened.is_emulated
        )
        clocks_mhz = spread_clocks(grid_mhz, _NUM_CLOCKS)
    else:
        missing = sorted(set(given) - set(opened.supported_mhz))
        if missing:
            raise CommandError(
                f"--clocks: {opened.name} has no {missing[0]} MHz; flyball clocks lists them"
            )
        if len(set(given)) < 2:
            raise CommandError("--clocks: give at least two different clocks")
        clocks_mhz = tuple(given)
    return TransitionRule(
        clocks_mhz=clocks_mhz,
        num_repetitions=arguments.repetitions,
        nums_at_once=nums_at_once(opened.num_gpus),
    )


def spread_clocks(falling_mhz: Sequence[int], number: int) -> tuple[int, ...]:
    """Return up to this number of clocks, at least 2, about evenly spread, both ends included."""
    number = min(number, len(falling_mhz))
    last = len(falling_mhz) - 1
    return tuple(falling_mhz[round(place * last / (number - 1))] for place in range(number))


def _source(opened: OpenedGpus, rule: TransitionRule, measured: MeasuredTransitions) -> str:
    coarse = f"; {_COARSE}" if _is_coarse(opened, measured) else ""
    return (
        f"flyball profile transitions on {opened.origin}, {date.today()}: {_gpus(opened.num_gpus)},"
        f" {rule.num_repetitions} changes of each pair of clocks under each load{coarse}"
    )


_COARSE = "coarse: matrix products were timed by the host"


def _is_coarse(opened: OpenedGpus, measured: MeasuredTransitions) -> bool:
    return not (measured.counts_cycles or opened.is_emulated)


def _print_plan(opened: OpenedGpus, rule: TransitionRule, *, as_json: bool) -> None:
    if as_json:
        document = {
            "gpu": opened.name,
            "emulated": opened.is_emulated,
            "num_gpus": opened.num_gpus,
            "clocks_mhz": rule.clocks_mhz,
            "loads": rule.loads,
            "num_repetitions": rule.num_repetitions,
            "nums_at_once": rule.nums_at_once,
            "num_changes": rule.num_changes,
            "expected_s": rule.expected_s,
        }
        print(json.dumps(document, indent=2))
        return
    clocks = ", ".join(map(str, rule.clocks_mhz))
    lines = [
        f"{opened.name}, {_gpus(opened.num_gpus)}:",
        f"  changes between {clocks} MHz, {' and '.join(rule.loads)}, {rule.num_repetitions} of"
        " each pair and direction",
    ]
    if rule.nums_at_once:
        lines.append(f"  {', '.join(map(str, rule.nums_at_once))} GPUs at once")
    how = " emulated" if opened.is_emulated else ""
    lines.append(f"  {rule.num_changes} changes, about {rule.expected_s:.0f}{how} s")
    print("\n".join([*lines, "nothing was changed"]))


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _as_json(opened: OpenedGpus, measured: MeasuredTransitions) -> str:
    document = {
        "gpu": opened.name,
        "emulated": opened.is_emulated,
        "num_gpus": opened.num_gpus,
        **asdict(measured),
    }
    return json.dumps(document, indent=2)


_COLUMNS = "".join(f"{name:>8}" for name in ("p5", "p50", "p95", "max"))


def _as_text(opened: OpenedGpus, measured: MeasuredTransitions) -> str:
    times = measured.times
    how = "emulated" if opened.is_emulated else "measured"
    lines = [
        f"clock changes on {opened.name} ({how}), ms from the request until the new clock stays"
        " (onset: until the one before is left)",
        f"{'MHz':<15}{'load':<11}{_COLUMNS}{'onset':>8}{'left out':>10}",
        *(_pair_row(pair) for pair in measured.pairs),
    ]
    if measured.at_once:
        lines += [
            "the last of several that change at once",
            *(_queue_row(queue) for queue in measured.at_once),
        ]
    if times.queues_in_node is not None:
        verb = "queue" if times.queues_in_node else "do not queue"
        lines.append(f"calls to the GPUs of this node {verb}")
    lines += _clock_lines(measured)
    if _is_coarse(opened, measured):
        lines.append(_COARSE)
    if (stall_s := max(pair.stall_s for pair in measured.pairs)) > 1e-4:
        lines.append(f"longest time without progress: {1e3 * stall_s:.2f} ms")
    if times.call_p50_s is not None and times.call_p95_s is not None:
        lines.append(f"call: p50 {1e3 * times.call_p50_s:.2f}, p95 {1e3 * times.call_p95_s:.2f} ms")
    for name in ("up", "down"):
        figures = [f"{1e3 * getattr(times, f'{name}_p{p}_s'):.2f}" for p in (5, 50, 95)]
        lines.append(f"for plans, {name}: p5 {figures[0]}, p50 {figures[1]}, p95 {figures[2]} ms")
    return "\n".join(lines)


def _pair_row(pair: PairTimes) -> str:
    return (
        f"{f'{pair.from_mhz} to {pair.to_mhz}':<15}{pair.load:<11}{_figures(pair.completion)}"
        f"{1e3 * pair.onset.p50_s:8.2f}{pair.num_left_out:10}"
    )


def _queue_row(queue: QueueTimes) -> str:
    return f"{_gpus(queue.num_gpus):<15}{'computing':<11}{_figures(queue.last)}"


def _figures(spread: TimeSpread) -> str:
    times_s = (spread.p5_s, spread.p50_s, spread.p95_s, spread.max_s)
    return "".join(f"{1e3 * time_s:8.2f}" for time_s in times_s)


def _clock_lines(measured: MeasuredTransitions) -> list[str]:
    distinct = {(pair.from_mhz, pair.to_mhz) for pair in measured.pairs}
    alike = [
        f"{high.mhz} and {low.mhz}"
        for place, high in enumerate(measured.clocks)
        for low in measured.clocks[place + 1 :]
        if (high.mhz, low.mhz) not in distinct and (low.mhz, high.mhz) not in distinct
    ]
    return [
        *(
            f"{clock.mhz} MHz was not held: it ran at {clock.ran_mhz} MHz ({clock.limit})"
            for clock in measured.clocks
            if clock.limit is not None
        ),
        *(
            [f"clocks that run at the same rate, left out, MHz: {', '.join(alike)}"]
            if alike
            else []
        ),
    ]
