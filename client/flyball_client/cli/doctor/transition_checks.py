"""Half a minute of `flyball profile transitions`, compared with the table that plans use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from flyball_client.gpu.checks import CheckResult, ok, warning
from flyball_client.profiling.transitions.action import measured_by, spread_clocks
from flyball_client.profiling.transitions.opening import opened_bench
from flyball_profiles.clock_transitions import ClockTransitions, TransitionsError
from flyball_profiles.gpu_windows import (
    GpuTableError,
    gpu_folder,
    load_gpu_window,
    read_transitions,
)
from flyball_profiles.measured_transitions import MeasuredTransitions
from flyball_wire.command.command import CommandError
from flyball_wire.errors import FlyballError

_NAME = "clock changes"
_MEASURE = (
    "measure a table: flyball profile transitions -o changes.toml, and plan with --transitions"
    " changes.toml"
)
# Of percentiles of 30 changes.
_TOLERANCE = 1.2


class AppliedTable(NamedTuple):
    """Times of clock changes that plans use here, and the option or variable that names them."""

    times: ClockTransitions
    origin: str


def applied_table(given: str, environ: Mapping[str, str]) -> AppliedTable | None:
    """Return the table that applies; None: no option or variable names one.

    Args:
        given: Name in the GPU table, or TOML file; empty: the ranks' variables say.
        environ: Environment of the ranks.

    Raises:
        CommandError: It cannot be read, or has no clock changes.
    """
    named = {"--transitions": given} | {
        name: environ.get(name, "") for name in ("FLYBALL_TRANSITIONS", "FLYBALL_GPU_TYPE")
    }
    for where, text in named.items():
        if not text:
            continue
        try:
            if where == "FLYBALL_TRANSITIONS" or text.endswith(".toml"):
                return AppliedTable(read_transitions(Path(text)), f"{where} {text}")
            times = load_gpu_window(text, folder=gpu_folder(environ)).transitions
        except (TransitionsError, GpuTableError) as error:
            raise CommandError(f"{where}: {error}") from None
        if times is not None:
            return AppliedTable(times, f"{where} {text}")
        if where == "--transitions":
            raise CommandError(f"--transitions: the table of {text} has no clock changes")
    return None


def check_transitions(
    table: AppliedTable | None, environ: Mapping[str, str]
) -> Iterator[CheckResult]:
    """Measure changes between two clocks, which sets and restores them, and compare.

    Args:
        table: Table that plans use; None: clocks are taken to change at once.
        environ: Environment of the ranks.
    """
    try:
        with opened_bench(0, environ) as bench:
            clocks_mhz = spread_clocks(bench.gpu, 2)
            measured = measured_by(bench, clocks_mhz)
    except (FlyballError, ValueError) as error:
        yield CheckResult.of_error(_NAME, error)
        return
    clocks = " and ".join(map(str, clocks_mhz))
    found = f"measured between {clocks} MHz on {bench.gpu.name}"
    if table is None:
        advice = f"plans assume that clocks change at once; {_MEASURE}"
        yield warning(_NAME, f"{found}; no table applies", advice)
    else:
        yield ok(_NAME, f"{found}; the table is that of {table.origin}")
    yield from compared(measured, None if table is None else table.times)


def compared(
    measured: MeasuredTransitions, table: ClockTransitions | None
) -> Iterator[CheckResult]:
    """Yield the measured times, compared with a table's; None: there is none."""
    times = measured.times
    yield _compared_delays("up", times, table)
    yield _compared_delays("down", times, table)
    yield from _compared_calls(times, table)
    for clock in measured.clocks:
        if clock.limit is not None:
            yield warning(
                f"{_NAME}, {clock.mhz} MHz",
                f"not held: the GPU ran at {clock.ran_mhz} MHz ({clock.limit})",
                "profile under the same power limit as in training, and plan without this clock",
            )


def _compared_delays(
    direction: str, times: ClockTransitions, table: ClockTransitions | None
) -> CheckResult:
    name = f"{_NAME} {direction}"
    p5_s, p50_s, p95_s = _percentiles_s(direction, times)
    found = f"p5 {1e3 * p5_s:.1f}, p50 {1e3 * p50_s:.1f}, p95 {1e3 * p95_s:.1f} ms"
    if table is None:
        return ok(name, found)
    low_s, middle_s, high_s = _percentiles_s(direction, table)
    found += f"; in the table {1e3 * low_s:.1f}, {1e3 * middle_s:.1f}, {1e3 * high_s:.1f}"
    is_late = p95_s > _TOLERANCE * high_s
    is_early = p5_s * _TOLERANCE < low_s
    # Plans hold for ups until their p95 and for downs from their p5 on.
    if is_late if direction == "up" else is_early:
        word = "later" if direction == "up" else "earlier"
        advice = f"plans made with the table take longer than predicted; {_MEASURE}"
        return warning(name, f"{found}: {word} than in the table", advice)
    if p50_s * _TOLERANCE < low_s or p50_s > _TOLERANCE * high_s:
        advice = f"plans made with the table save less than they could; {_MEASURE}"
        return warning(name, f"{found}: other times than in the table", advice)
    return ok(name, found)


def _percentiles_s(direction: str, times: ClockTransitions) -> tuple[float, float, float]:
    if direction == "up":
        return times.up_p5_s, times.up_p50_s, times.up_p95_s
    return times.down_p5_s, times.down_p50_s, times.down_p95_s


def _compared_calls(
    times: ClockTransitions, table: ClockTransitions | None
) -> Iterator[CheckResult]:
    name = f"{_NAME}, calls"
    if times.call_p50_s is None or times.call_p95_s is None:
        return
    found = f"p50 {1e3 * times.call_p50_s:.1f}, p95 {1e3 * times.call_p95_s:.1f} ms"
    if times.queues_in_node is not None:
        found += f"; those of the node {'queue' if times.queues_in_node else 'do not queue'}"
    expected = None if table is None else table.queues_in_node
    if None not in {expected, times.queues_in_node} and expected is not times.queues_in_node:
        yield warning(name, f"{found}, unlike in the table", _MEASURE)
    else:
        yield ok(name, found)
