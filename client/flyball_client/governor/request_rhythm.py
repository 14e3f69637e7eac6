"""When a rank's next request is due, learned from the steps before.

A step makes its requests in the same order as the last one, and about as long apart. Which
position of its step a request has, the rank tells on the board.
"""

from __future__ import annotations

from dataclasses import dataclass

NUM_REMEMBERED = 5
# Of a step; what comes after them has no rhythm, so that memory is bounded whoever asks.
MAX_POSITIONS = 4096
# Below, a window would be open most of the time; requests so close find the governor at work.
SHORTEST_GAP_NS = 1_000_000
# How far its usual half may be spread: of the gap, and at most. To look out for longer takes more
# of a core than a wake-up takes of the rank, tens of times as much.
MAX_SPREAD, MAX_SPREAD_NS = 1 / 8, 1_000_000
# How far ahead of the earliest moment a window opens: whatever the gap, at first; of the gap, the
# less the more gaps are remembered; and at most.
LEAD_NS, LEAD, MAX_LEAD_NS = 100_000, 1 / 16, 1_000_000
# The first of these follows how regular this rank's requests are: longer by so much where one came
# just before its window, shorter by so much where one did not, so that one of 200 does; and at
# most. A request that came sooner than MISSED_NS before it had other reasons.
MORE_LEAD_NS, LESS_LEAD_NS, LONGEST_LEAD_NS = 100_000, 500, 300_000
MISSED_NS = 300_000
# From a window's begin until the governor really polls, about.
OPENING_NS = 50_000
# How long it stays open for a late request: of the gap, and at most.
MAX_LATENESS, MAX_LATENESS_NS = 1 / 4, 2_000_000
# So no window is longer, whatever the gap.
MAX_WINDOW_NS = MAX_SPREAD_NS + 2 * MAX_LEAD_NS + MAX_LATENESS_NS


@dataclass(frozen=True, kw_only=True)
class RequestWindow:
    """When the next request may come, CLOCK_MONOTONIC, ns; at most `MAX_WINDOW_NS` long.

    Attributes:
        begin_ns: hardly before.
        usual_ns: about then.
        end_ns: what has not come by then is not waited for in particular.
    """

    begin_ns: int
    usual_ns: int
    end_ns: int


class RequestRhythm:
    """The gaps between a request and the next one, by the former's position in its step."""

    def __init__(self) -> None:
        self._gaps_ns: dict[int, list[int]] = {}
        self._lead_ns = LEAD_NS
        self._window: RequestWindow | None = None
        self._number: int | None = None
        self._position = 0
        self._requested_ns = 0

    def note(self, number: int, position: int, requested_ns: int) -> None:
        """A request came.

        Args:
            number: of the request; where it does not follow the last one noted, what lies
                between is not known and not learned from.
            position: in its step, from 0.
            requested_ns: CLOCK_MONOTONIC, ns.
        """
        if self._number is not None and number == self._number + 1:
            if self._window is not None:
                self._learn_lead(self._window.begin_ns + OPENING_NS - requested_ns)
            gaps_ns = self._gaps_ns.setdefault(self._position, [])
            gaps_ns.append(requested_ns - self._requested_ns)
            if _has_changed(gaps_ns):
                del gaps_ns[:-2]
            elif len(gaps_ns) > NUM_REMEMBERED:
                del gaps_ns[0]
        self._window = None
        self._number = number if 0 <= position < MAX_POSITIONS else None
        self._position = position
        self._requested_ns = requested_ns

    def next_window(self) -> RequestWindow | None:
        """When the one after the last is due; None: not known, or too irregular to say.

        Of the gaps remembered only the shorter half counts: what holds a step up makes a gap
        longer, and says nothing of the next step.
        """
        gaps_ns = self._gaps_ns.get(self._position)
        if self._number is None or not gaps_ns:
            return None
        rising_ns = sorted(gaps_ns)
        shortest_ns, median_ns = rising_ns[0], rising_ns[(len(rising_ns) - 1) // 2]
        spread_ns = median_ns - shortest_ns
        max_spread_ns = min(MAX_SPREAD * shortest_ns, MAX_SPREAD_NS)
        if shortest_ns < SHORTEST_GAP_NS or spread_ns > max_spread_ns:
            return None
        lead_ns = self._lead_ns + spread_ns // 2 + int(LEAD * shortest_ns / len(gaps_ns))
        lead_ns = min(lead_ns, MAX_LEAD_NS)
        usual_ns = self._requested_ns + median_ns
        lateness_ns = min(int(MAX_LATENESS * median_ns), MAX_LATENESS_NS)
        self._window = RequestWindow(
            begin_ns=self._requested_ns + shortest_ns - lead_ns,
            usual_ns=usual_ns,
            end_ns=usual_ns + lead_ns + lateness_ns,
        )
        return self._window

    def _learn_lead(self, early_ns: int) -> None:
        if early_ns <= 0:
            self._lead_ns = max(self._lead_ns - LESS_LEAD_NS, 0)
        elif early_ns <= MISSED_NS:
            self._lead_ns = min(self._lead_ns + MORE_LEAD_NS, LONGEST_LEAD_NS)


def _has_changed(gaps_ns: list[int]) -> bool:
    """Whether the last two are alike and the one before is not like either: another plan's."""
    if len(gaps_ns) <= 2:
        return False
    before, last_but_one, last = gaps_ns[-3:]
    return (
        _are_alike(last_but_one, last)
        and not _are_alike(before, last)
        and not _are_alike(before, last_but_one)
    )


def _are_alike(one_ns: int, other_ns: int) -> bool:
    return abs(one_ns - other_ns) <= MAX_SPREAD * min(one_ns, other_ns)
