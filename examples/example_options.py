"""The command line that all examples have."""

from __future__ import annotations

import argparse
import math
import os


def example_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every example takes."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--steps", type=count, default=20, help="default: 20")
    parser.add_argument("--stages", type=count, default=2, help="of the pipeline; default: 2")
    parser.add_argument("--microbatches", type=count, default=4, help="of a step; default: 4")
    parser.add_argument("--tiny", action="store_true", help="a model small enough for any CPU")
    return parser


def parse_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return what the command line says; the ranks beyond one pipeline are data-parallel ones."""
    options = parser.parse_args()
    num_ranks = int(os.environ.get("WORLD_SIZE", "0"))
    if num_ranks == 0:
        parser.error("start it with torchrun, as examples/README.md shows")
    if num_ranks % options.stages:
        parser.error(f"--stages {options.stages} does not divide the {num_ranks} ranks")
    return options


def count(text: str) -> int:
    """A whole number above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def share(text: str) -> float:
    """A number above 0 and at most 1."""
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, not {text}")
    return number


def positive_number(text: str) -> float:
    """A finite number above 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return number
