"""`flyball report`: what a job was measured to take and to save."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flyball_client.api.errors import PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.cli.planner_access import add_planner, asked, open_planner
from flyball_client.cli.report_text import (
    Factors,
    converted,
    kwh_of,
    report_as_markdown,
    report_as_text,
)
from flyball_wire.closed_loop import ComparisonRequest, ComparisonStatus, JobReport
from flyball_wire.codec import encode
from flyball_wire.command import Command, CommandError

if TYPE_CHECKING:
    from flyball_client.api.planner_client import PlannerClient


POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Waited:
    """Outcome of waiting.

    Attributes:
        comparison: as it stood at the end.
        problem: why it is not whole; None: it is.
    """

    comparison: ComparisonStatus
    problem: str | None


class ProgressLine:
    """One line on stderr that is written over, where stderr is a terminal; else written once."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._length = 0

    def show(self, text: str) -> None:
        """Show this in the place of what stood there."""
        if self._is_terminal:
            print(f"\r{text:<{self._length}}", end="", file=sys.stderr, flush=True)
        elif not self._length:
            print(text, file=sys.stderr, flush=True)
        self._length = len(text)

    def clear(self) -> None:
        """Leave an empty line behind, where there is one to be wiped."""
        if self._is_terminal and self._length:
            print(f"\r{'':<{self._length}}\r", end="", file=sys.stderr, flush=True)


def wait_for_comparison(
    planner: PlannerClient,
    job_id: str,
    num_pairs: int,
    *,
    timeout_s: float,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Waited:
    """Ask for a comparison and wait until it is over, or for so long.

    A planner that is away for a while is waited for too.

    Raises:
        PlannerError: it cannot be asked for.
        KeyboardInterrupt: Ctrl-C; that the comparison goes on has been said on stderr.
    """
    deadline_s = now_s() + timeout_s
    line = ProgressLine()
    comparison = planner.put_comparison(job_id, ComparisonRequest(num_pairs=num_pairs))
    try:
        while comparison.state == "running" and now_s() < deadline_s:
            line.show(_progress(comparison))
            sleep(min(POLL_S, max(0.0, deadline_s - now_s())))
            comparison = _look(planner, job_id, comparison, line)
    except KeyboardInterrupt:
        line.clear()
        print(_goes_on(job_id), file=sys.stderr)
        raise
    line.clear()
    return Waited(comparison=comparison, problem=_problem(job_id, comparison, timeout_s))


def _look(
    planner: PlannerClient, job_id: str, known: ComparisonStatus, line: ProgressLine
) -> ComparisonStatus:
    try:
        return planner.get_comparison(job_id)
    except PlannerUnavailableError as error:
        line.show(f"comparing: {error}; waiting for it")
        return known


def _progress(comparison: ComparisonStatus) -> str:
    done = f"{comparison.num_measured_pairs} of {comparison.num_pairs} pairs of steps measured"
    where = "" if comparison.version is not None else ", waiting for the plan to take effect"
    return f"comparing: {done}{where}; Ctrl-C leaves it running"


def _problem(job_id: str, comparison: ComparisonStatus, timeout_s: float) -> str | None:
    measured = f"{comparison.num_measured_pairs} of {comparison.num_pairs} pairs were measured"
    if comparison.state == "running":
        return f"not over after {timeout_s:g} s, {measured}; {_goes_on(job_id)}"
    if comparison.state == "done":
        return None
    return (
        f"the comparison has ended early, {measured}: another plan came, or its steps could not"
        " be used; ask for it again"
    )


def _goes_on(job_id: str) -> str:
    return f"the comparison goes on; `flyball report {job_id}` shows what it has measured"


_MIN_PAIRS, _MAX_PAIRS = 2, 10_000
# Of money or CO2 per kWh.
_MAX_FACTOR = 1e6


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measured time and energy of a job's plans against the highest clocks, with 95 %"
        " confidence intervals; what is predicted or emulated is called so."
    )
    parser.add_argument("job", metavar="JOB", help="the job's name")
    add_planner(parser)
    parser.add_argument(
        "--compare",
        metavar="PAIRS",
        type=int,
        help="first let the job run so many steps at the highest clocks in turn with as many on"
        f" the plan, {_MIN_PAIRS} to {_MAX_PAIRS}, and wait for them",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=_positive,
        default=3600.0,
        help="wait so long for --compare, s (default: %(default)s)",
    )
    parser.add_argument(
        "--price-per-kwh", metavar="PRICE", type=_amount, help="also print what energy costs"
    )
    parser.add_argument(
        "--currency", metavar="NAME", default="EUR", help="of the price (default: %(default)s)"
    )
    parser.add_argument(
        "--co2-g-per-kwh",
        metavar="GRAMS",
        type=_amount,
        help="also print the CO2 that energy causes",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON, alone")
    form.add_argument("--markdown", action="store_true", help="print Markdown")


def _run(arguments: argparse.Namespace) -> int:
    pairs = arguments.compare
    if pairs is not None and not _MIN_PAIRS <= pairs <= _MAX_PAIRS:
        raise CommandError(f"--compare must be from {_MIN_PAIRS} to {_MAX_PAIRS}, not {pairs}")
    factors = Factors(
        price_per_kwh=arguments.price_per_kwh,
        currency=_currency(arguments.currency),
        co2_g_per_kwh=arguments.co2_g_per_kwh,
    )
    with open_planner(arguments.planner) as planner:
        problem = None if pairs is None else _compare(planner, arguments)
        report = asked(planner, arguments.job, lambda: planner.get_report(arguments.job))
    if not report.num_steps:
        raise CommandError(
            f"job {report.job_id} has no steps that all of its {report.num_ranks} ranks measured;"
            " ask again when it has trained a few"
        )
    print(_printed(report, factors, arguments))
    return 0 if problem is None else 1


def _compare(planner: PlannerClient, arguments: argparse.Namespace) -> str | None:
    """Why the comparison is not whole, told on stderr too; None: it is."""
    waited = asked(
        planner,
        arguments.job,
        lambda: wait_for_comparison(
            planner, arguments.job, arguments.compare, timeout_s=arguments.timeout
        ),
    )
    if waited.problem is not None:
        print(f"flyball report: {waited.problem}", file=sys.stderr)
    return waited.problem


def _printed(report: JobReport, factors: Factors, arguments: argparse.Namespace) -> str:
    if arguments.json:
        return json.dumps(_document(report, factors), indent=2)
    if arguments.markdown:
        return report_as_markdown(report, factors)
    return report_as_text(report, factors)


def _document(report: JobReport, factors: Factors) -> dict[str, Any]:
    """The planner's report, and what its joules come to by the user's factors."""
    energy_j, saved_j = report.energy_j, report.saved_j
    conversions: dict[str, Callable[[float], float | None]] = {
        "kwh": kwh_of,
        "cost": factors.cost_of,
        "co2_g": factors.co2_g_of,
    }
    return {
        **encode(report),
        "factors": encode(factors),
        "used": {
            name: None if energy_j is None else convert(energy_j)
            for name, convert in conversions.items()
        },
        "saved": {
            name: None if saved_j is None else encode(converted(saved_j, convert))
            for name, convert in conversions.items()
        },
    }


def _amount(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= _MAX_FACTOR:
        raise argparse.ArgumentTypeError(f"must be from 0 to {_MAX_FACTOR:.0f}, not {text!r}")
    return value


def _positive(text: str) -> float:
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _currency(name: str) -> str:
    # Nothing that means something in Markdown or HTML.
    if not (name.strip() and len(name) <= 12 and all(map(_is_of_currency, name))):
        raise CommandError(
            "--currency must be 1 to 12 letters, digits, spaces and currency signs, such as EUR"
        )
    return name


def _is_of_currency(character: str) -> bool:
    is_sign = unicodedata.category(character) == "Sc"
    return is_sign or character == " " or character.isalnum()


COMMAND = Command(
    summary="what a job was measured to take and to save, against the highest clocks",
    configure=_configure,
    run=_run,
)
