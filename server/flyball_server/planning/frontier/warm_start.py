"""Where an interior point iteration may begin when deadlines on both sides have been solved.

A convex mix of two iterates is inside all bounds, and meets every linear equation at the deadline
between as nearly as they do at theirs. Only its products of sizes and multipliers grow, by what
the optimum bends between the two. So iterates are kept from when those products are still about
that large: near an optimum, where they have vanished, a mix would be stuck in a corner.
"""

from __future__ import annotations

import bisect

from flyball_server.planning.frontier.interior_parts import Iterate

MAX_KEPT = 24  # an iterate of 64 stages x 256 microbatches is about 11 MB


class KeptIterates:
    """Iterates by deadline, spread over all that were solved."""

    def __init__(self) -> None:
        self._deadlines_s: list[float] = []
        self._iterates: list[Iterate] = []

    def add(self, deadline_s: float, iterate: Iterate) -> None:
        """Keep it; where there are too many, the one that its neighbours best make up for goes."""
        place = bisect.bisect_left(self._deadlines_s, deadline_s)
        self._deadlines_s.insert(place, deadline_s)
        self._iterates.insert(place, iterate)
        if len(self._deadlines_s) > MAX_KEPT:
            times_s = self._deadlines_s
            spare = min(
                range(1, len(times_s) - 1),
                key=lambda index: times_s[index + 1] - times_s[index - 1],
            )
            del self._deadlines_s[spare], self._iterates[spare]

    def mixed(self, deadline_s: float) -> Iterate | None:
        """A mix of the two nearest on both sides; None where there is none on one."""
        place = bisect.bisect_left(self._deadlines_s, deadline_s)
        if not 0 < place < len(self._deadlines_s):
            return None
        before_s, after_s = self._deadlines_s[place - 1 : place + 1]
        share = (deadline_s - before_s) / (after_s - before_s)
        before, after = self._iterates[place - 1 : place + 1]
        return Iterate(
            *((1 - share) * left + share * right for left, right in zip(before, after, strict=True))
        )
