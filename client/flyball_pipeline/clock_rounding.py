"""Rounding of durations to clocks, where clock changes may take time, and a bound of the end.

A clock is requested when the instruction before it on its stage ends, and takes effect later: a
higher clock at most `up_s` after the request, a lower clock at least `down_s`. Let an instruction
begin at s, its higher clock be requested at r, and let it take t at its clock and t0 at the slowest
one that may still be in force:

    x = min(max(r + up_s - s, 0), t0)        seconds at the old clock, at most
    it takes  x + t (1 - x / t0)

Its end is the later the later r and s are, so one pass with the latest of both bounds every end,
whatever each delay is. A lower clock counts from its instruction's begin, except where that is the
request and nothing slower than the clock before can be in force: there its first `down_s` are at
that clock. A higher clock that may not be in force at the next request is on its way still.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from flyball_pipeline.step_curves import StepCurve
from flyball_pipeline.step_paths import StepPaths

# Sums and quotients of times in another order.
_ROUNDING = 1 + 1e-12
# A clock that is this much too slow may fit where the clock before it is in force for a while.
_FASTER_AT_FIRST = 1.1


@dataclass(frozen=True, kw_only=True)
class ChangeDelays:
    """Delays of a pipeline's clock changes, s.

    Raises:
        ValueError: a delay is negative.
    """

    #: Longest delay of a change to a higher clock, s: its 95th percentile, after the calls of all
    #: other GPUs of the node.
    up_s: float
    #: Shortest delay of a change to a lower clock, s: its 5th percentile.
    down_s: float

    def __post_init__(self) -> None:
        for name in ("up_s", "down_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")

    def in_node(self, call_s: float, num_gpus: int) -> Self:
        """Return the delays where calls for the GPUs of a node are made one at a time.

        When the others call is not known, so all of them count as if they came first.

        Args:
            call_s: mean duration of a call, s.
            num_gpus: GPUs of the node.
        """
        return replace(self, up_s=self.up_s + (num_gpus - 1) * call_s)


class InForce:
    """Clocks that may be in force on a stage as an instruction ends."""

    __slots__ = ("_delays", "effect_s", "number", "since_up_s", "slowest")

    def __init__(self, number: int, delays: ChangeDelays) -> None:
        self._delays = delays
        #: Clock that was requested last, by its number.
        self.number = number
        #: Slowest clock that may be in force until `effect_s`, the latest effect of a higher clock.
        self.slowest = number
        self.effect_s = -math.inf
        #: Least time since the last change up was requested, s.
        self.since_up_s = math.inf

    def end_s(
        self,
        curve: StepCurve,
        choice: int,
        highest_s: float,
        free_s: float,
        input_s: float,
    ) -> float:
        """Return the latest end of the next instruction, s.

        Args:
            curve: its curve.
            choice: its clock, an index into the curve's kept ones.
            highest_s: its time at the highest clock, s.
            free_s: latest end of the instruction before it on its stage, s.
            input_s: latest time at which its input is there, s.
        """
        number, time_s, delays = (
            curve.numbers[choice],
            curve.ratios[choice] * highest_s,
            self._delays,
        )
        begin_s = free_s if free_s > input_s else input_s
        slowest, effect_s = self.slowest, self.effect_s
        if number < self.number:
            if effect_s <= begin_s or slowest < self.number:
                slowest = self.number
            effect_s = free_s + delays.up_s
        elif number > self.number and self.since_up_s >= delays.up_s:
            fast_s = curve.ratio_of_number[self.number] * highest_s
            past_s = delays.down_s if delays.down_s < fast_s else fast_s
            at_once_s = free_s + time_s - past_s * (time_s / fast_s - 1)
            waited_s = input_s + time_s
            return at_once_s if at_once_s > waited_s else waited_s
        past_s = effect_s - begin_s
        if past_s <= 0 or slowest <= number:
            return begin_s + time_s
        slow_s = curve.ratio_of_number[slowest] * highest_s
        past_s = min(past_s, slow_s)
        return begin_s + time_s + past_s * (1 - time_s / slow_s)

    def follow(self, number: int, highest_s: float, free_s: float, input_s: float) -> None:
        """Go on to the end of that instruction, at the clock with this number."""
        if number < self.number:
            if self.slowest < self.number or self.effect_s <= max(free_s, input_s):
                self.slowest = self.number
            self.effect_s = free_s + self._delays.up_s
            self.since_up_s = 0.0
        self.number = number
        self.since_up_s += highest_s

    def meet(self) -> None:
        """Go on to the next segment, whose times count from its begin."""
        self.effect_s = self._delays.up_s - self.since_up_s


class StepStart(NamedTuple):
    """Clocks in force as a step's first clocks are requested, and the time until it begins."""

    #: Per stage, the number of the clock in force.
    in_force: Sequence[int]
    #: Least time until the step begins, s.
    gap_s: float


class ClockRounding:
    """Clocks of a step of one pipeline.

    In all methods:
    `choices` are clocks: per place, an index into its curve's kept clocks, 0 the highest.
    `highest_s` is per place its time at the highest clock in this step, s.
    `start` is how the step starts.

    Args:
        paths: its instructions.
        curves: per place, its curve.
        delays: delays of clock changes; None: they have none.
    """

    def __init__(
        self,
        paths: StepPaths,
        curves: Sequence[StepCurve],
        delays: ChangeDelays | None,
    ) -> None:
        self._paths, self._curves, self._delays = paths, curves, delays
        self._ratios = [curve.ratios for curve in curves]

    def durations_s(self, choices: Sequence[int], highest_s: Sequence[float]) -> list[float]:
        """Return the duration of each place at its clock, s."""
        both = zip(self._ratios, choices, highest_s, strict=True)
        return [ratios[choice] * time_s for ratios, choice, time_s in both]

    def rounded(
        self,
        times_s: Sequence[float],
        highest_s: Sequence[float],
        segments_s: Sequence[float],
        start: StepStart,
        slowest: Mapping[int, int],
    ) -> tuple[list[int], list[float]]:
        """Return clocks at which instructions end as late as they may, and their latest ends, s.

        An instruction that cannot end in time has the highest clock.

        Args:
            times_s: Per place, the duration that places before it allow for, s.
            highest_s: As in all methods.
            segments_s: Time of each segment, s.
            start: As in all methods.
            slowest: Slowest choice of some places, by place; used where changes take time.
        """
        if self._delays is None:
            return self.rounded_at_once(times_s, highest_s, segments_s)
        late = _LateRounding(self._paths, self._curves, self._delays)
        late.aim_at(times_s, highest_s, segments_s)
        return late.rounded(start, slowest)

    def latest_ends_s(
        self, choices: Sequence[int], highest_s: Sequence[float], start: StepStart
    ) -> list[float]:
        """Return the latest end of each place after its segment's begin, s, and a 0."""
        paths, delays = self._paths, self._delays
        if delays is None:
            return paths.ends_s(self.durations_s(choices, highest_s))
        num = len(choices)
        ends_s = [0.0] * (num + 1)
        states = [InForce(number, delays) for number in start.in_force]
        places = zip(paths.edges, choices, highest_s, self._curves, paths.stage, strict=True)
        for place, ((before, source, transfer_s), choice, least_s, curve, stage) in enumerate(
            places
        ):
            state = states[stage]
            if paths.is_first[place]:
                free_s = -start.gap_s
            else:
                free_s = ends_s[before]
                if before == num:
                    state.meet()
            input_s = ends_s[source] + transfer_s
            ends_s[place] = state.end_s(curve, choice, least_s, free_s, input_s)
            state.follow(curve.numbers[choice], least_s, free_s, input_s)
        return ends_s

    def rounded_at_once(
        self, times_s: Sequence[float], highest_s: Sequence[float], segments_s: Sequence[float]
    ) -> tuple[list[int], list[float]]:
        """Return `rounded` clocks and ends as if clocks changed at once."""
        paths = self._paths
        rests_s = paths.rests_s(times_s)
        ends_s = [0.0] * (len(rests_s) + 1)
        choices = [0] * len(rests_s)
        segment_s, is_single = segments_s[0], len(segments_s) == 1
        places = zip(paths.edges, rests_s, highest_s, self._ratios, strict=True)
        for place, ((before, source, transfer_s), rest_s, least_s, ratios) in enumerate(places):
            begin_s = ends_s[before]
            input_s = ends_s[source] + transfer_s
            if input_s > begin_s:  # noqa: PLR1730 - faster than max()
                begin_s = input_s
            if not is_single:
                segment_s = segments_s[paths.meeting[place]]
            most = (segment_s - rest_s - begin_s) / least_s
            choice = bisect_right(ratios, most * _ROUNDING) - 1
            if choice > 0:
                choices[place] = choice
                ends_s[place] = begin_s + ratios[choice] * least_s
            else:
                ends_s[place] = begin_s + least_s
        return choices, ends_s


class _LateRounding:
    """One step's rounding where clock changes take time.

    Of a place no clock is taken after which the next one of its stage, at the clock that its
    duration allows, would end too late: it would begin at the lower clock.
    """

    def __init__(
        self,
        paths: StepPaths,
        curves: Sequence[StepCurve],
        delays: ChangeDelays,
    ) -> None:
        self._paths, self._curves, self._delays = paths, curves, delays

    def aim_at(
        self,
        times_s: Sequence[float],
        highest_s: Sequence[float],
        segments_s: Sequence[float],
    ) -> None:
        """Take durations and segments' times in s, and times at the highest clock."""
        paths, curves = self._paths, self._curves
        self._highest_s = highest_s
        rests_s = paths.rests_s(times_s)
        #: Per place, when it has to end, s.
        self._due_s = [
            (segments_s[meeting] - rest_s) * _ROUNDING
            for meeting, rest_s in zip(paths.meeting, rests_s, strict=True)
        ]
        self._wanted = [
            max(0, bisect_right(curve.ratios, time_s / least_s * _ROUNDING) - 1)
            for curve, time_s, least_s in zip(curves, times_s, highest_s, strict=True)
        ]
        self._ends_s = [0.0] * (len(times_s) + 1)
        # Ends of what comes later in topological order are not known: they end when they have to.
        self._known_s = [*self._due_s, 0.0]

    def rounded(
        self, start: StepStart, slowest: Mapping[int, int]
    ) -> tuple[list[int], list[float]]:
        """See `ClockRounding.rounded`."""
        paths, delays, ends_s = self._paths, self._delays, self._ends_s
        states = [InForce(number, delays) for number in start.in_force]
        choices = [0] * paths.num_places
        for place, curve in enumerate(self._curves):
            stage, least_s = paths.stage[place], self._highest_s[place]
            state = states[stage]
            free_s = ends_s[paths.before[place]]
            if paths.is_first[place]:
                free_s = -start.gap_s
            elif paths.before[place] == paths.num_places:
                state.meet()
            input_s = ends_s[paths.source[place]] + paths.transfer_s[place]
            due_s = self._due_s[place]
            left_s = due_s - (free_s if free_s > input_s else input_s)
            choice = bisect_right(curve.ratios, left_s / least_s * _FASTER_AT_FIRST) - 1
            if place in slowest:
                choice = min(choice, slowest[place])
            while choice > 0:
                end_s = state.end_s(curve, choice, least_s, free_s, input_s)
                if end_s <= due_s and self._leaves_time(place, curve.numbers[choice], end_s):
                    break
                choice -= 1
            else:
                choice = 0
                end_s = state.end_s(curve, 0, least_s, free_s, input_s)
            choices[place] = choice
            ends_s[place] = self._known_s[place] = end_s
            state.follow(curve.numbers[choice], least_s, free_s, input_s)
        return choices, ends_s

    def _leaves_time(self, place: int, number: int, end_s: float) -> bool:
        """Return whether the next place of the stage ends in time if this place has this clock."""
        paths, after = self._paths, self._paths.next_of_stage[place]
        if after == paths.num_places:
            return True
        curve, choice = self._curves[after], self._wanted[after]
        if number <= curve.numbers[choice]:
            return True
        least_s = self._highest_s[after]
        input_s = self._known_s[paths.source[after]] + paths.transfer_s[after]
        if paths.before[after] != place:
            end_s = 0.0  # A meeting is between them.
        begin_s = end_s if end_s > input_s else input_s
        time_s = curve.ratios[choice] * least_s
        past_s = end_s + self._delays.up_s - begin_s
        if past_s > 0:
            slow_s = curve.ratio_of_number[number] * least_s
            past_s = min(past_s, slow_s)
            time_s += past_s * (1 - time_s / slow_s)
        return begin_s + time_s <= self._due_s[after]
