"""`flyball profile`: measures a stage profile on one GPU, and joins parts of profiles."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from flyball_client.cli.planner_access import asked, open_planner
from flyball_client.profiling.arguments import (
    add_output,
)
from flyball_client.profiling.blocking_power import blocking_power, configure_blocking_power
from flyball_client.profiling.run_action import configure_run, run
from flyball_client.profiling.transitions.action import configure_transitions, transitions
from flyball_profiles.profile_forms import joined_text
from flyball_profiles.stage_profile import ProfileError
from flyball_wire.codec import encode
from flyball_wire.command.command import Command, CommandError, add_planner
from flyball_wire.command.whole_file import write_result
from flyball_wire.online_profiling import ProbedPoint, ProfilingState, ProfilingStatus

_STATES = {
    ProfilingState.OFF: "off, the profile was given",
    ProfilingState.WAITING: "waiting for all ranks to register, or for their first steps",
    ProfilingState.PROBING: "probing",
    ProfilingState.FINISHED: "finished",
    ProfilingState.REFUSED: "refused",
}


def configure_online(parser: argparse.ArgumentParser) -> None:
    """Add the action's arguments."""
    parser.add_argument("job", metavar="JOB", help="name of the job")
    add_planner(parser)
    add_output(parser, required=False)
    parser.add_argument("--json", action="store_true", help="print JSON")


def online(arguments: argparse.Namespace) -> int:
    """Print the progress, write the profile to the output file, and return the exit status.

    Raises:
        CommandError: There is no such job, no planner, or no profile yet.
    """
    job: str = arguments.job
    output: Path | None = arguments.output
    with open_planner(arguments.planner) as planner:
        view = asked(planner, job, lambda: planner.get_profiling(job))
        text = None if output is None else asked(planner, job, lambda: planner.get_profile_csv(job))
    if output is not None and text is not None:
        write_result(output, text, replaces=arguments.force)
    if arguments.json:
        document = {**encode(view), "output": None if output is None else str(output)}
        print(json.dumps(document, indent=2))
    else:
        print("\n".join([*_lines(view), *([] if output is None else [f"{output}: written"])]))
    return 0


def _lines(view: ProfilingStatus) -> list[str]:
    kind = "emulated" if view.emulated else "measured"
    lines = [f"online profiling of {view.job_id} ({kind}): {_STATES[view.state]}"]
    if view.problem is not None:
        lines.append(f"  {view.problem}")
    if view.num_steps:
        lines.append(f"  {view.num_steps} steps")
    if view.largest_slowdown is not None:
        lines.append(
            f"  slowest step {100 * view.largest_slowdown:+.1f} % against the highest clocks"
            f" (limit {100 * view.slowdown_limit:+.1f} %)"
        )
    if view.points:
        energy = "unknown" if view.extra_energy_j is None else f"{view.extra_energy_j:+.0f} J"
        lines.append(f"  it added {view.extra_time_s or 0.0:+.1f} s and {energy}")
    for stage, (power_w, error_w) in enumerate(
        zip(view.blocking_power_w or (), view.blocking_power_error_w or (), strict=True)
    ):
        lines.append(f"  stage {stage}: blocking power {power_w:.2f} W +- {error_w:.2f}")
    if view.blocking_power_w is not None:
        # Profile files do not contain it.
        given = ",".join(f"{power_w:.2f}" for power_w in view.blocking_power_w)
        lines.append(f"  use the profile with blocking_power_w (--blocking-power) {given}")
    return [*lines, *_point_lines(view.points)]


def _point_lines(points: tuple[ProbedPoint, ...]) -> list[str]:
    """Return one line per instruction: its window of clocks, and its largest errors."""
    if not points:
        return []
    lines = [
        f"  {'stage instruction':26} {'MHz':>11} {'probed':>7} {'time +-%':>9} {'energy +-%':>11}"
    ]
    by_class = groupby(points, key=lambda point: (point.stage, point.chunk, point.instruction))
    for (stage, chunk, instruction), group in by_class:
        members = list(group)
        probed = [point for point in members if point.num_probes]
        name = f"{stage} {instruction}" + (f" of chunk {chunk}" if chunk else "")
        window = f"{members[0].frequency_mhz}..{members[-1].frequency_mhz}"
        time_percent = 100 * max(_share(p.time_error_s, p.time_s) for p in members)
        energy_percent = 100 * max(_share(p.energy_error_j, p.energy_j) for p in members)
        lines.append(
            f"  {name:26} {window:>11} {f'{len(probed)}/{len(members)}':>7}"
            f" {time_percent:9.2f} {energy_percent:11.2f}"
        )
    return lines


def _share(error: float, value: float) -> float:
    return error / value if value else math.inf


def configure_join(parser: argparse.ArgumentParser) -> None:
    """Add the action's arguments."""
    parser.add_argument(
        "parts", type=Path, nargs="+", metavar="PART.csv", help="parts of one profile"
    )
    add_output(parser, required=True)
    parser.add_argument("--json", action="store_true", help="print JSON")


def join(arguments: argparse.Namespace) -> int:
    """Join parts into one profile, and return the exit status.

    Raises:
        CommandError: They cannot be read, do not fit together, or the file cannot be written.
    """
    try:
        text = joined_text(arguments.parts)
    except ProfileError as error:
        raise CommandError(str(error)) from None
    return _give(text, arguments)


def _give(text: str, arguments: argparse.Namespace) -> int:
    write_result(arguments.output, text, replaces=arguments.force)
    num_rows = text.count("\n") - 1
    if arguments.json:
        print(json.dumps({"output": str(arguments.output), "num_rows": num_rows}))
    else:
        print(f"{arguments.output}: {num_rows} rows")
    return 0


_Action = tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]

_ACTIONS: dict[str, _Action] = {
    "run": ("measure a stage at each clock of a GPU", configure_run, run),
    "online": (
        "show the progress of a job's online profiling, and write its profile",
        configure_online,
        online,
    ),
    "blocking-power": (
        "measure the power of a GPU that waits for another rank",
        configure_blocking_power,
        blocking_power,
    ),
    "transitions": (
        "measure how long clock changes take",
        configure_transitions,
        transitions,
    ),
    "join": ("join parts that were measured separately into one profile", configure_join, join),
}


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (summary, configure, _) in _ACTIONS.items():
        configure(actions.add_parser(name, help=summary, description=summary, allow_abbrev=False))


def _run(arguments: argparse.Namespace) -> int:
    _, _, act = _ACTIONS[arguments.action]
    return act(arguments)


COMMAND = Command(
    configure=_configure,
    run=_run,
)
