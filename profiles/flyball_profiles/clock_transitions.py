"""Times of clock changes: how long after its request a clock takes effect on a GPU.

A TOML table `[transitions]`, in a file of the GPU table or in a file of its own:

    [transitions.up_ms]
    p5 = 3.5
    p50 = 4.6
    p95 = 6.6
    source = "measured on node 7, 30 repetitions a pair"

    [transitions.down_ms]
    ...

`measured_transitions` has what a measurement adds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

MAX_TRANSITION_S = 10.0
"""Longest time of a clock change, s; beyond it is another unit."""

# Standard deviations of a normal distribution between its median and its 95th percentile.
_NORMAL_P95 = 1.645

# 5th and 95th percentiles over the median, of A40's changes in training (gpus/a40.toml).
_A40_UP, _A40_DOWN = (0.76, 1.43), (0.83, 1.22)

TRANSITIONS = "transitions"
_UP, _DOWN, _CALL, _QUEUE = "up_ms", "down_ms", "call_ms", "queues_in_node"
_DETAILS = ("pairs", "clocks")
_PERCENTILES: Mapping[str, tuple[str, ...]] = {
    _UP: ("p5", "p50", "p95"),
    _DOWN: ("p5", "p50", "p95"),
    _CALL: ("p50", "p95"),
}


class TransitionsError(ValueError):
    """Times of clock changes that cannot be used; the text names the place."""


@dataclass(frozen=True, kw_only=True)
class ClockTransitions:
    """Times of one GPU's clock changes, 0 to 10 s.

    The delay of a change counts from its request, that is from the start of the call that sets
    the clock, to its effect. Until then the GPU runs at the previous clock.

    Attributes:
        up_p5_s, up_p50_s, up_p95_s: percentile of the delay of a change to a higher clock in s.
        down_p5_s, down_p50_s, down_p95_s: percentile of the delay of a change to a lower clock in
            s.
        call_p50_s, call_p95_s: percentile of the duration in s of the call that sets a clock; null:
            unknown.
        queues_in_node: true if calls for GPUs of one node run one at a time; null: unknown.
        starts_settled: true if the first instruction of every iteration begins at its clock,
            since the iteration's tail (optimizer, all-reduce) is longer than any change.

    Raises:
        TransitionsError: a time is out of its bounds, or percentiles fall.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    up_p5_s: float
    up_p50_s: float
    up_p95_s: float
    down_p5_s: float
    down_p50_s: float
    down_p95_s: float
    call_p50_s: float | None = None
    call_p95_s: float | None = None
    queues_in_node: bool | None = None
    starts_settled: bool = False

    def __post_init__(self) -> None:
        if (self.call_p50_s is None) is not (self.call_p95_s is None):
            raise TransitionsError("give call_p50_s and call_p95_s together, or neither")
        for name, percentiles in (("up", _PERCENTILES[_UP]), ("down", _PERCENTILES[_DOWN])):
            _check_rising([f"{name}_{percentile}_s" for percentile in percentiles], self)
        if self.call_p50_s is not None:
            _check_rising(["call_p50_s", "call_p95_s"], self)

    @classmethod
    def exact(cls, delay_s: float) -> Self:
        """Return one delay for every change, with an iteration's first clock always in force.

        Raises:
            TransitionsError: the delay is not from 0 to 10 s.
        """
        return cls(
            up_p5_s=delay_s,
            up_p50_s=delay_s,
            up_p95_s=delay_s,
            down_p5_s=delay_s,
            down_p50_s=delay_s,
            down_p95_s=delay_s,
            starts_settled=True,
        )

    @classmethod
    def of_medians(cls, up_s: float, down_s: float) -> Self:
        """Return times with these medians, in s, and the relative spread of an A40's in training.

        Raises:
            TransitionsError: a time is not from 0 to 10 s.
        """
        return cls(
            up_p5_s=_A40_UP[0] * up_s,
            up_p50_s=up_s,
            up_p95_s=_A40_UP[1] * up_s,
            down_p5_s=_A40_DOWN[0] * down_s,
            down_p50_s=down_s,
            down_p95_s=_A40_DOWN[1] * down_s,
        )

    def with_medians(self, up_s: float | None, down_s: float | None) -> Self:
        """Return the times scaled to other medians, in s; None: the direction stays as it is.

        Raises:
            TransitionsError: a time is not from 0 to 10 s.
        """
        other = self.of_medians(
            self.up_p50_s if up_s is None else up_s, self.down_p50_s if down_s is None else down_s
        )
        up, down = _ratio(up_s, self.up_p50_s), _ratio(down_s, self.down_p50_s)
        return replace(
            self,
            up_p5_s=other.up_p5_s if up is None else up * self.up_p5_s,
            up_p50_s=other.up_p50_s,
            up_p95_s=other.up_p95_s if up is None else up * self.up_p95_s,
            down_p5_s=other.down_p5_s if down is None else down * self.down_p5_s,
            down_p50_s=other.down_p50_s,
            down_p95_s=other.down_p95_s if down is None else down * self.down_p95_s,
        )

    def of_queue(self, num_gpus: int) -> Self:
        """Return the times of a stage whose GPUs in one node change their clocks together.

        Where calls queue, the last GPU's begins after the calls for all others. The stage runs at
        the pace of its slowest GPU, so a higher clock counts from the last GPU and a lower clock
        from the first. Calls are taken as log-normal and independent: times of both add, deviations
        add in quadrature. Without times of calls, or where calls do not queue, nothing changes.

        Args:
            num_gpus: number of these GPUs, at least 1.

        Raises:
            TransitionsError: the last GPU's clock would take more than 10 s.
        """
        median_s, high_s = self.call_p50_s, self.call_p95_s
        if num_gpus < 2 or not (self.is_queued and median_s and high_s):
            return self
        variance = (math.log(high_s / median_s) / _NORMAL_P95) ** 2  # of the logarithm
        mean_s = self.call_mean_s
        deviation_s = mean_s * math.sqrt(math.expm1(variance))
        wait_s = (num_gpus - 1) * mean_s
        spread_s = _NORMAL_P95 * deviation_s * math.sqrt(num_gpus - 1)
        up_p50_s = self.up_p50_s + wait_s
        return replace(
            self,
            up_p5_s=max(
                self.up_p5_s, up_p50_s - math.hypot(self.up_p50_s - self.up_p5_s, spread_s)
            ),
            up_p50_s=up_p50_s,
            up_p95_s=up_p50_s + math.hypot(self.up_p95_s - self.up_p50_s, spread_s),
        )

    def beside_other_stages(self) -> Self:
        """Return the times where GPUs of other stages in the node set their clocks too.

        Where calls queue, a call waits for one of another stage that is under way, and seldom for
        more where calls take at most half of the time. So a late change up counts as later by a
        long call. Without times of calls, or where calls do not queue, nothing changes.

        Raises:
            TransitionsError: a change would take more than 10 s.
        """
        if not (self.is_queued and self.call_p95_s):
            return self
        return replace(self, up_p95_s=self.up_p95_s + self.call_p95_s)

    @property
    def call_mean_s(self) -> float:
        """Return the mean duration of a call in s, log-normal through its percentiles."""
        if not (self.call_p50_s and self.call_p95_s):
            return 0.0
        variance = (math.log(self.call_p95_s / self.call_p50_s) / _NORMAL_P95) ** 2
        return self.call_p50_s * math.exp(variance / 2)

    @property
    def is_queued(self) -> bool:
        """Return whether calls for the GPUs of a node queue, as far as is known, and for how long.

        Where nothing is known of a queue, calls that take time are taken to queue.
        """
        return bool(self.call_p50_s) and self.queues_in_node is not False

    def call_share(self, num_gpus: int, changes_per_stage: float, iteration_time_s: float) -> float:
        """Return the share of an iteration that calls for the GPUs of a node take; 0: not known.

        Args:
            num_gpus: number of GPUs of all stages in the node.
            changes_per_stage: mean number of clock changes of a stage in an iteration.
            iteration_time_s: time of an iteration, s.
        """
        if not self.is_queued:
            return 0.0
        return num_gpus * changes_per_stage * self.call_mean_s / iteration_time_s

    @property
    def exact_s(self) -> float | None:
        """Return the delay of every change in s, up and down; None: they differ."""
        delays_s = {
            *(self.up_p5_s, self.up_p50_s, self.up_p95_s),
            *(self.down_p5_s, self.down_p50_s, self.down_p95_s),
        }
        return delays_s.pop() if len(delays_s) == 1 else None


def _ratio(median_s: float | None, before_s: float) -> float | None:
    """Return the factor from one median to the other; None: there is none."""
    if median_s is None:
        return 1.0
    return median_s / before_s if before_s else None


def _check_rising(names: list[str], transitions: ClockTransitions) -> None:
    least_s, least = 0.0, "0"
    for name in names:
        value_s: float = getattr(transitions, name)
        if not (math.isfinite(value_s) and least_s <= value_s <= MAX_TRANSITION_S):
            raise TransitionsError(
                f"{name} must be from {least} to {MAX_TRANSITION_S:g} s, not {value_s:g}"
            )
        least_s, least = value_s, name


def transitions_of_table(table: object) -> tuple[ClockTransitions, dict[str, str]]:
    """Return the times in a TOML table `[transitions]`, and the source of each figure, as `up_ms`.

    Raises:
        TransitionsError: the table is malformed; the text begins with the key.
    """
    keys = {*_PERCENTILES, _QUEUE, *_DETAILS}
    figures = _mapping(table, TRANSITIONS)
    _check_keys(figures, keys, TRANSITIONS)
    for key in _DETAILS:
        entries = figures.get(key, [])
        is_array = isinstance(entries, list)
        if not (is_array and all(isinstance(each, dict) for each in cast("list[object]", entries))):
            raise TransitionsError(f"{TRANSITIONS}.{key} must be an array of tables")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for figure, percentiles in _PERCENTILES.items():
        where = f"{TRANSITIONS}.{figure}"
        if figure not in figures and figure == _CALL:
            continue
        entry = _mapping(figures.get(figure), where)
        _check_keys(entry, {*percentiles, "source"}, where)
        for percentile in percentiles:
            name = f"{figure.removesuffix('_ms')}_{percentile}_s"
            values[name] = _time_s(entry.get(percentile), f"{where}.{percentile}")
        sources[figure] = _source(entry, where)
    if _QUEUE in figures:
        where = f"{TRANSITIONS}.{_QUEUE}"
        entry = _mapping(figures[_QUEUE], where)
        _check_keys(entry, {"value", "source"}, where)
        if not isinstance(entry.get("value"), bool):
            raise TransitionsError(f"{where}.value must be true or false")
        values[_QUEUE], sources[_QUEUE] = entry["value"], _source(entry, where)
    try:
        return ClockTransitions(**values), sources
    except TransitionsError as error:
        raise TransitionsError(f"{TRANSITIONS}: {error}") from None


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        raise TransitionsError(f"the table {where} is missing")
    if not isinstance(value, dict):
        raise TransitionsError(f"{where} must be a table")
    return cast("Mapping[str, Any]", value)


def _check_keys(table: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        place = f"{where}.{unknown[0]}"
        raise TransitionsError(f"unknown key {place!a}; known: {', '.join(sorted(known))}")


def _time_s(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TransitionsError(f"{where} must be a number of ms")
    if not 0 <= value <= MAX_TRANSITION_S * 1e3:
        raise TransitionsError(f"{where} must be from 0 to {MAX_TRANSITION_S * 1e3:g} ms")
    return value / 1e3


def _source(entry: Mapping[str, Any], where: str) -> str:
    source = str(entry.get("source") or "").strip()
    if not source:
        raise TransitionsError(f"{where}.source must name the origin of the figure")
    return source
