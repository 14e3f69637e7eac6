"""`flyball guard`: restores the clocks of ranks that ended together with their governors."""

from __future__ import annotations

import argparse
import contextlib
import grp
import os
import signal

from flyball_client.governor.guard import PERIOD_S, Guard, OtherGuardError, prepare_node_dir
from flyball_client.governor.state_folder import StateRefusedError, node_state_dir
from flyball_client.gpu.registry import read_clock_settings
from flyball_wire.command.command import NOT_NOW, Command, CommandError

_END_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def _group(text: str) -> int:
    """Return the number of a group; argparse's `type`."""
    if text.isdecimal():
        return int(text)
    try:
        return grp.getgrnam(text).gr_gid
    except KeyError:
        raise argparse.ArgumentTypeError(f"there is no group {text!r}") from None


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--group",
        type=_group,
        metavar="NAME|GID",
        help="group whose ranks may keep records in the watched folder, such as zeusd's"
        " (default: only root's ranks)",
    )


def _run(arguments: argparse.Namespace) -> int:
    try:
        read_clock_settings(os.environ)
    except ValueError as error:
        raise CommandError(str(error)) from None
    node_dir = node_state_dir(os.environ)
    try:
        fd = prepare_node_dir(node_dir, arguments.group)
    except OtherGuardError as error:
        raise CommandError(str(error), status=NOT_NOW) from None
    except (StateRefusedError, OSError) as error:
        raise CommandError(str(error)) from None
    guard = Guard(node_dir, os.environ, _say)
    signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
    with os.fdopen(fd), contextlib.closing(guard):
        _say(f"watching {node_dir}")
        guard.check()
        while signal.sigtimedwait(_END_SIGNALS, PERIOD_S) is None:
            guard.check()
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


COMMAND = Command(
    configure=_configure,
    run=_run,
)
