"""Measured clock changes: details in the table `[transitions]`, and its text.

Beside the times of `clock_transitions` the table has

    [[transitions.pairs]]      one pair of clocks of a computing GPU
    from_mhz = 1410
    to_mhz = 1050
    num = 30                   changes that count
    num_left_out = 0           outliers, and changes that were not seen
    onset_ms = { p5 = 3.2, p50 = 4.0, p95 = 5.0, max = 5.4 }
    completion_ms = { p5 = 3.2, p50 = 4.0, p95 = 5.0, max = 5.4 }

    [[transitions.clocks]]     one clock
    mhz = 1410
    ran_mhz = 1395             clock that it ran at
    limit = "power"            why it ran at another; left out where it was held

Plans use the times alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles
from typing import Self

from flyball_profiles.clock_transitions import (
    MAX_TRANSITION_S,
    TRANSITIONS,
    ClockTransitions,
    TransitionsError,
)
from flyball_profiles.printable_text import toml_string


@dataclass(frozen=True, kw_only=True)
class TimeSpread:
    """Percentiles and maximum of a measured time, s.

    Raises:
        TransitionsError: They are not within 0 to 10 s, or fall.
    """

    p5_s: float
    p50_s: float
    p95_s: float
    max_s: float

    def __post_init__(self) -> None:
        rising_s = (0.0, self.p5_s, self.p50_s, self.p95_s, self.max_s, MAX_TRANSITION_S)
        # A nan is in no order.
        if not all(low_s <= high_s for low_s, high_s in pairwise(rising_s)):
            raise TransitionsError(
                f"p5, p50, p95 and max must rise from 0 to {MAX_TRANSITION_S:g} s, not {self}"
            )

    @classmethod
    def of(cls, times_s: list[float]) -> Self:
        """Return the spread of at least two times in s."""
        cuts_s = quantiles(times_s, n=20, method="inclusive")
        return cls(p5_s=cuts_s[0], p50_s=cuts_s[9], p95_s=cuts_s[18], max_s=max(times_s))


@dataclass(frozen=True, kw_only=True)
class PairTimes:
    """Changes between two clocks of a computing GPU; delays count from the request.

    Attributes:
        from_mhz, to_mhz: Clocks in MHz.
        num: Number of changes.
        num_left_out: Number of outliers, and of changes that were not seen, beside those.
        onset: Delay until the GPU left the clock before.
        completion: Delay until it stayed at the new clock.
    """

    from_mhz: int
    to_mhz: int
    num: int
    num_left_out: int
    onset: TimeSpread
    completion: TimeSpread


@dataclass(frozen=True, kw_only=True)
class ClockFacts:
    """One clock, under the load of the measurement.

    Attributes:
        mhz: Clock that was set, MHz.
        ran_mhz: Clock that the GPU ran at, MHz.
        limit: Reason for running at another clock; None: the clock was held.
    """

    mhz: int
    ran_mhz: int
    limit: str | None


@dataclass(frozen=True, kw_only=True)
class MeasuredTransitions:
    """Result of a measurement.

    Attributes:
        times: Times that plans use. Of a gradual change an up counts to its end, a down to its
            beginning.
        pairs: Pairs of clocks.
        clocks: Clocks, falling.
        counts_cycles: True: the SM cycles of loops were counted; False: equal loops were timed.
    """

    times: ClockTransitions
    pairs: tuple[PairTimes, ...]
    clocks: tuple[ClockFacts, ...]
    counts_cycles: bool


def transitions_toml(measured: MeasuredTransitions, source: str) -> str:
    """Return the table `[transitions]` as TOML, which `read_transitions` reads."""
    times, quoted = measured.times, toml_string(source)
    lines: list[str] = []
    for name, percentiles in (("up", (5, 50, 95)), ("down", (5, 50, 95)), ("call", (50, 95))):
        values = {f"p{number}": getattr(times, f"{name}_p{number}_s") for number in percentiles}
        if None not in values.values():
            figures = [f"{key} = {_ms(value_s)}" for key, value_s in values.items()]
            lines += [f"[{TRANSITIONS}.{name}_ms]", *figures, f"source = {quoted}", ""]
    if times.queues_in_node is not None:
        value = str(times.queues_in_node).lower()
        lines += [f"[{TRANSITIONS}.queues_in_node]", f"value = {value}", f"source = {quoted}", ""]
    for name, rows in (
        ("pairs", [_pair(pair) for pair in measured.pairs]),
        ("clocks", [_clock(clock) for clock in measured.clocks]),
    ):
        for row in rows:
            lines += [f"[[{TRANSITIONS}.{name}]]", *(f"{k} = {v}" for k, v in row.items()), ""]
    return "\n".join(lines)


def _pair(pair: PairTimes) -> dict[str, str]:
    return {
        "from_mhz": str(pair.from_mhz),
        "to_mhz": str(pair.to_mhz),
        "num": str(pair.num),
        "num_left_out": str(pair.num_left_out),
        "onset_ms": _spread(pair.onset),
        "completion_ms": _spread(pair.completion),
    }


def _clock(clock: ClockFacts) -> dict[str, str]:
    row = {"mhz": str(clock.mhz), "ran_mhz": str(clock.ran_mhz)}
    if clock.limit is not None:
        row["limit"] = toml_string(clock.limit)
    return row


def _spread(spread: TimeSpread) -> str:
    figures = {"p5": spread.p5_s, "p50": spread.p50_s, "p95": spread.p95_s, "max": spread.max_s}
    return "{ " + ", ".join(f"{key} = {_ms(value_s)}" for key, value_s in figures.items()) + " }"


def _ms(time_s: float) -> str:
    return f"{1e3 * time_s:.3f}"
