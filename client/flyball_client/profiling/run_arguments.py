"""What `flyball profile run` takes, and what of it does not go together."""

from __future__ import annotations

import argparse
from pathlib import Path

from flyball_client.profiling.arguments import add_force, add_labels, count, quantity
from flyball_client.profiling.repetition import MeasuringRule
from flyball_client.profiling.sweep import DEFAULT_NUM_RISES
from flyball_wire.command import CommandError

DEFAULT_WARM_UP_S = 20.0
_DEFAULTS = MeasuringRule()


def configure_run(parser: argparse.ArgumentParser) -> None:
    """Add the action's arguments."""
    parser.add_argument(
        "workload",
        nargs="?",
        metavar="MODULE:FUNCTION",
        help="called with stage=, chunk= and device=, returns the Workload to measure",
    )
    parser.add_argument(
        "--emulated",
        type=Path,
        metavar="PROFILE.csv",
        help="profile an emulated GPU of this stage profile instead of a real one",
    )
    parser.add_argument("--stage", type=count(0), required=True, metavar="S", help="which stage")
    parser.add_argument("--chunk", type=count(0), metavar="C", help="which of its model chunks")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT.csv", required=True, help="write this file"
    )
    _add_writing(parser)
    _add_clocks(parser)
    _add_measuring(parser)
    add_labels(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_writing(parser: argparse.ArgumentParser) -> None:
    add_force(parser)
    parser.add_argument(
        "--resume", action="store_true", help="go on with the file of an interrupted run"
    )
    parser.add_argument(
        "--keep-held",
        action="store_true",
        help="keep points whose clock was held below the lock, instead of putting them aside",
    )


def _add_clocks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        type=count(0),
        default=0,
        metavar="N",
        help="the GPU that CUDA calls cuda:N (default: %(default)s)",
    )
    parser.add_argument("--gpu", metavar="NAME", help="the GPU table's window of clocks")
    parser.add_argument("--min-mhz", type=count(1), metavar="MHZ", help="lowest clock")
    parser.add_argument("--max-mhz", type=count(1), metavar="MHZ", help="highest clock")
    parser.add_argument("--step-mhz", type=count(1), metavar="MHZ", help="least step")
    parser.add_argument(
        "--rises",
        type=count(0),
        default=DEFAULT_NUM_RISES,
        metavar="N",
        help="stop an instruction after so many rises of energy in a row; 0: never"
        " (default: %(default)s)",
    )


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    positive = quantity(may_be_lowest=False)
    parser.add_argument(
        "--error",
        type=positive,
        default=_DEFAULTS.wanted_error,
        metavar="SHARE",
        help="wanted relative standard error of time and energy (default: %(default)s)",
    )
    parser.add_argument(
        "--periods",
        type=count(4),
        default=_DEFAULTS.min_periods,
        metavar="N",
        help="movements of the energy counter at least (default: %(default)s)",
    )
    parser.add_argument(
        "--max-point-s",
        type=positive,
        default=_DEFAULTS.max_point_s,
        metavar="S",
        help="measure no point longer (default: %(default)s)",
    )
    parser.add_argument(
        "--settle-s",
        type=positive,
        default=_DEFAULTS.settle_window_s,
        metavar="S",
        help="two windows of this length must agree before measuring (default: %(default)s)",
    )
    parser.add_argument(
        "--max-settle-s",
        type=positive,
        default=_DEFAULTS.max_settle_s,
        metavar="S",
        help="measure after so long in any case, and mark the point (default: %(default)s)",
    )
    parser.add_argument(
        "--warm-up-s",
        type=quantity(),
        metavar="S",
        help=f"run each instruction for so long first (default: {DEFAULT_WARM_UP_S:g}; emulated 0)",
    )
    parser.add_argument(
        "--time-scale",
        type=quantity(),
        metavar="X",
        help="emulated: wall seconds per emulated second; 0: nothing is waited for (default: 1)",
    )
    parser.add_argument(
        "--blocking-power",
        type=quantity(),
        metavar="W",
        help="emulated: what the GPU draws between instructions (default: from --gpu, else 0)",
    )


def check_run(arguments: argparse.Namespace) -> None:
    """See whether the arguments go together.

    Raises:
        CommandError: they do not.
    """
    if (arguments.workload is None) == (arguments.emulated is None):
        raise CommandError("give either MODULE:FUNCTION or --emulated PROFILE.csv")
    if arguments.emulated is None:
        for option in ("time_scale", "blocking_power"):
            if getattr(arguments, option) is not None:
                raise CommandError(f"--{option.replace('_', '-')} needs --emulated PROFILE.csv")
    if arguments.error >= 1:
        raise CommandError("--error must be a share below 1, as 0.005 for 0.5 %")
    if arguments.resume and arguments.force:
        raise CommandError("--resume goes on with a file, --force writes it anew; give one of them")
    if arguments.output.exists() and not (arguments.resume or arguments.force):
        raise CommandError(
            f"{arguments.output}: is there already; --resume goes on with it, --force writes it"
            " anew"
        )


def rule_of(arguments: argparse.Namespace) -> MeasuringRule:
    """How long each instruction is repeated."""
    return MeasuringRule(
        wanted_error=arguments.error,
        min_periods=arguments.periods,
        max_point_s=arguments.max_point_s,
        settle_window_s=arguments.settle_s,
        max_settle_s=arguments.max_settle_s,
    )
