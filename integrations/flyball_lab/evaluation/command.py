"""`flyball evaluate`: EnvPipe's evaluation on emulated GPUs, with Flyball's frontier added."""

from __future__ import annotations

import argparse
import math
from importlib.util import find_spec
from pathlib import Path

from flyball_wire.command import Command, CommandError

_FIGURES = ("9", "10", "11", "12", "13", "orders", "all")
_PACKAGES = ("fastapi", "uvicorn", "sqlalchemy", "highspy", "numba", "matplotlib")
_MAX_STEPS = 1000
_MAX_LATENCY_MS = 1000.0
_DEFAULT_OUTPUT = "flyball-evaluation"


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Trains pipelines of emulated GPUs in virtual time under EnvPipe's policies and Flyball's,"
        " as EnvPipe's figures 9 to 13 do, and compares what they took with the prediction. Exit"
        " status 0: everything agreed within 3 %."
    )
    parser.add_argument(
        "--figure",
        choices=_FIGURES,
        default="all",
        help="9 models, 10 breakdown, 11 reconfiguration, 12 data-parallel x pipeline-parallel,"
        " 13 microbatches, orders: EnvPipe's order against 1F1B (default: %(default)s)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        default=Path(_DEFAULT_OUTPUT),
        help=f"where CSV files and plots go (default: {_DEFAULT_OUTPUT})",
    )
    parser.add_argument(
        "--profiles",
        metavar="DIR",
        type=Path,
        help="add the stage profiles (*.csv) of this folder; a file's name says the GPU, as a100",
    )
    parser.add_argument(
        "--steps",
        metavar="N",
        type=int,
        default=3,
        help=f"steps averaged in each run, 1 to {_MAX_STEPS} (default: %(default)s)",
    )
    parser.add_argument(
        "--switch-latency",
        metavar="MS",
        type=float,
        default=0.0,
        help="ms from setting a clock to its taking effect (default: %(default)s)",
    )
    parser.add_argument(
        "--print-plans",
        action="store_true",
        help="print EnvPipe's plan after each reconfiguring step",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON, alone")


def _run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.steps <= _MAX_STEPS:
        raise CommandError(f"--steps must be from 1 to {_MAX_STEPS}, not {arguments.steps}")
    latency_ms = arguments.switch_latency
    if not (math.isfinite(latency_ms) and 0 <= latency_ms <= _MAX_LATENCY_MS):
        raise CommandError(f"--switch-latency must be from 0 to {_MAX_LATENCY_MS:g} ms")
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise CommandError(
            f"missing: {', '.join(missing)}, of the extra 'plot': pip install '.[plot]' in a"
            " clone of Flyball"
        )
    # matplotlib takes a second to import, and --help needs none of it.
    from flyball_lab.evaluation.evaluation_run import (  # noqa: PLC0415
        EvaluationOptions,
        evaluate,
    )

    return evaluate(
        EvaluationOptions(
            figure_names=_FIGURES[:-1] if arguments.figure == "all" else (arguments.figure,),
            output=arguments.output,
            profiles=arguments.profiles,
            num_steps=arguments.steps,
            switch_latency_s=latency_ms / 1e3,
            prints_plans=arguments.print_plans,
            as_json=arguments.json,
        )
    )


COMMAND = Command(
    summary="EnvPipe's evaluation on emulated GPUs, with Flyball's plans added",
    configure=_configure,
    run=_run,
)
