"""`flyball profile`: a stage profile measured on one GPU, and a profile's file in every form."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from flyball_client.profiling.blocking_power import blocking_power, configure_blocking_power
from flyball_client.profiling.convert_action import (
    configure_convert,
    configure_join,
    convert,
    join,
)
from flyball_client.profiling.online_action import configure_online, online
from flyball_client.profiling.run_action import configure_run, run
from flyball_wire.command import Command

_Action = tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]

_ACTIONS: dict[str, _Action] = {
    "run": ("measure a stage at each clock of a GPU", configure_run, run),
    "online": (
        "how far the profiling of a training job is, and the profile it found",
        configure_online,
        online,
    ),
    "blocking-power": (
        "measure what a GPU draws while it waits for another rank",
        configure_blocking_power,
        blocking_power,
    ),
    "convert": ("write a profile's file in another form", configure_convert, convert),
    "join": ("put parts that were measured apart into one profile", configure_join, join),
}


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (summary, configure, _) in _ACTIONS.items():
        configure(actions.add_parser(name, help=summary, description=summary, allow_abbrev=False))


def _run(arguments: argparse.Namespace) -> int:
    _, _, act = _ACTIONS[arguments.action]
    return act(arguments)


COMMAND = Command(
    summary="measure a stage profile on a GPU, or look at one being measured; convert and join",
    configure=_configure,
    run=_run,
)
