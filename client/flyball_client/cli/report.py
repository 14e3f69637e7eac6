"""`flyball report`: measured time, energy and savings of a job."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flyball_client.api.errors import PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.cli.planner_access import asked, open_planner
from flyball_client.cli.report_text import (
    converted,
    report_as_markdown,
    report_as_text,
)
from flyball_client.profiling.arguments import WorkLine, quantity
from flyball_wire.closed_loop import ComparisonRequest, ComparisonState, ComparisonStatus
from flyball_wire.codec import encode
from flyball_wire.command.command import Command, CommandError, add_planner
from flyball_wire.energy_factors import CURRENCY_RULE, EnergyFactors, is_currency, kwh_of
from flyball_wire.savings import JobReport

POLL_S = 1.0


def wait_for_comparison(
    planner: PlannerClient,
    job_id: str,
    num_pairs: int,
    *,
    timeout_s: float,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Start a comparison and wait until it is over, at most `timeout_s`.

    A planner that cannot be reached meanwhile is polled again.

    Returns:
        The reason why the comparison is incomplete; None: it is complete.

    Raises:
        PlannerError: It cannot be started.
        KeyboardInterrupt: Ctrl-C, after a message that the comparison continues.
    """
    deadline_s = now_s() + timeout_s
    comparison = planner.put_comparison(job_id, ComparisonRequest(num_pairs=num_pairs))
    is_over = False
    try:
        with WorkLine(sys.stderr, prints_first=True) as line:
            line.show(f"comparing {num_pairs} pairs of steps; Ctrl-C leaves it running")
            while (
                comparison.state == ComparisonState.RUNNING and now_s() < deadline_s and not is_over
            ):
                line.show(_progress(comparison))
                sleep(min(POLL_S, max(0.0, deadline_s - now_s())))
                try:
                    comparison = planner.get_comparison(job_id)
                    is_over = planner.get_job(job_id).state.is_over
                except PlannerUnavailableError as error:
                    line.show(f"comparing: {error}; retrying")
    except KeyboardInterrupt:
        print(_continues(job_id), file=sys.stderr)
        raise
    return _problem(job_id, comparison, timeout_s, is_over=is_over)


def _progress(comparison: ComparisonStatus) -> str:
    done = f"{comparison.num_measured_pairs} of {comparison.num_pairs} pairs of steps measured"
    if comparison.version is None:
        return f"comparing: {done}, waiting for the plan to take effect"
    return f"comparing: {done}; Ctrl-C leaves it running"


def _problem(
    job_id: str, comparison: ComparisonStatus, timeout_s: float, *, is_over: bool
) -> str | None:
    measured = f"{comparison.num_measured_pairs} of {comparison.num_pairs} pairs were measured"
    if comparison.state == ComparisonState.RUNNING and is_over:
        return f"the training is over, {measured}"
    if comparison.state == ComparisonState.RUNNING:
        return f"not over after {timeout_s:g} s, {measured}; {_continues(job_id)}"
    if comparison.state == ComparisonState.DONE:
        return None
    return (
        f"the comparison ended early, {measured}: the plan changed, or its steps could not be"
        " used; start it again"
    )


def _continues(job_id: str) -> str:
    return f"the comparison continues; `flyball report {job_id}` shows its measurements"


_MIN_PAIRS, _MAX_PAIRS = 2, 10_000
_MAX_FACTOR_PER_KWH = 1e6
_FACTORS = ("price_per_kwh", "currency", "co2_g_per_kwh")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say what a job's plans save against the highest clocks, with 95 % confidence intervals;"
        " predicted and emulated figures are labelled."
    )
    factor = quantity(highest=_MAX_FACTOR_PER_KWH)
    parser.add_argument("job", metavar="JOB", help="name of the job")
    add_planner(parser)
    parser.add_argument(
        "--compare",
        metavar="PAIRS",
        type=int,
        help=f"first alternate {_MIN_PAIRS} to {_MAX_PAIRS} steps at the highest clocks with as"
        " many on the plan, and wait for them",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=quantity(may_be_lowest=False),
        default=3600.0,
        help="time limit of --compare in s (default: %(default)g)",
    )
    parser.add_argument(
        "--price-per-kwh",
        metavar="PRICE",
        type=factor,
        help="price of energy per kWh (default: the planner's FLYBALL_PRICE_PER_KWH)",
    )
    parser.add_argument(
        "--currency",
        metavar="NAME",
        help="currency of the price (default: the planner's, or EUR)",
    )
    parser.add_argument(
        "--co2-g-per-kwh",
        metavar="GRAMS",
        type=factor,
        help="CO2 emissions of a kWh in g (default: the planner's FLYBALL_CO2_G_PER_KWH)",
    )
    parser.add_argument(
        "--notes", action="store_true", help="print all notes and plan versions, not only the first"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON only")
    form.add_argument("--markdown", action="store_true", help="print Markdown")


def _run(arguments: argparse.Namespace) -> int:
    pairs = arguments.compare
    if pairs is not None and not _MIN_PAIRS <= pairs <= _MAX_PAIRS:
        raise CommandError(f"--compare must be from {_MIN_PAIRS} to {_MAX_PAIRS}, not {pairs}")
    given = {name: getattr(arguments, name) for name in _FACTORS}
    given = {name: value for name, value in given.items() if value is not None}
    if not is_currency(given.get("currency", "EUR")):
        raise CommandError(f"--currency must be {CURRENCY_RULE}")
    with open_planner(arguments.planner) as planner:
        problem = None if pairs is None else _compare(planner, arguments)
        report = asked(planner, arguments.job, lambda: planner.get_report(arguments.job))
    if not report.num_steps:
        raise CommandError(
            f"job {report.job_id}: no step has been measured by all {report.num_ranks} ranks yet;"
            " try again later"
        )
    print(_printed(report, replace(report.factors, **given), arguments))
    return 0 if problem is None else 1


def _compare(planner: PlannerClient, arguments: argparse.Namespace) -> str | None:
    """Return and print the reason why the comparison is incomplete; None: it is complete."""
    problem = asked(
        planner,
        arguments.job,
        lambda: wait_for_comparison(
            planner, arguments.job, arguments.compare, timeout_s=arguments.timeout
        ),
    )
    if problem is not None:
        print(f"flyball report: {problem}", file=sys.stderr)
    return problem


def _printed(report: JobReport, factors: EnergyFactors, arguments: argparse.Namespace) -> str:
    if arguments.json:
        return json.dumps(_document(report, factors), indent=2)
    if arguments.markdown:
        return report_as_markdown(report, factors, all_notes=arguments.notes)
    return report_as_text(report, factors, all_notes=arguments.notes)


def _document(report: JobReport, factors: EnergyFactors) -> dict[str, Any]:
    """Return the planner's report, with its energies converted by the user's factors."""
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


COMMAND = Command(
    configure=_configure,
    run=_run,
)
