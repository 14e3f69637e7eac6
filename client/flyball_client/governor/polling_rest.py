"""When not to poll: while every core is busy.

What polling takes others lack then, and that is more than a wake-up takes of the rank. So there is
none while no core of the machine was idle when it was last looked at.

Besides, a scheduler lets a process that has slept for long run soon when it is woken, and one that
has just run queue up behind the others. So where every core is busy that the rank may use, polling
delays what it is meant to hasten; a governor that was held up in many of its windows goes back to
being woken, for a while. In a few is chance: a kernel, or a hypervisor that lends the core, has
pauses of its own.
"""

from __future__ import annotations

from collections import deque

from flyball_client.governor.idle_cores import IdleCores

# A pause that lasts so much longer than asked for: somebody else had the core.
HELD_UP_NS = 500_000
# In so many of the last windows.
NUM_HELD_UP, NUM_WINDOWS = 4, 16
FIRST_REST_NS, LONGEST_REST_NS = 5_000_000_000, 80_000_000_000


class PollingRest:
    """Counts in how many windows polling was held up; rests grow as long as each trial fails.

    Args:
        idle_cores: that there have to be.
        held_up_ns: a pause that is over so much too late counts.
    """

    def __init__(self, idle_cores: IdleCores, held_up_ns: int = HELD_UP_NS) -> None:
        self._idle_cores = idle_cores
        self._least_ns = held_up_ns
        self._was_held_up: deque[bool] = deque(maxlen=NUM_WINDOWS)
        # Since the last rest; before the first one there was none.
        self._num_windows = NUM_WINDOWS
        self._rest_ns = FIRST_REST_NS
        self._rests_until_ns = 0

    def begin_window(self) -> None:
        """Polling begins."""
        self._was_held_up.append(False)
        self._num_windows += 1

    def note(self, now_ns: int, late_ns: int) -> bool:
        """A pause of polling was over so much too late; whether a rest begins now."""
        if late_ns <= self._least_ns:
            return False
        self._was_held_up[-1] = True
        if sum(self._was_held_up) < NUM_HELD_UP:
            return False
        self._begin(now_ns)
        return True

    def lasts(self, now_ns: int) -> bool:
        """Whether nothing is to be polled now."""
        return now_ns < self._rests_until_ns or not self._idle_cores.are_enough(now_ns)

    def _begin(self, now_ns: int) -> None:
        # After a trial that went well for a while, start small again.
        is_again = self._num_windows <= NUM_WINDOWS
        self._num_windows = 0
        self._rest_ns = min(2 * self._rest_ns, LONGEST_REST_NS) if is_again else FIRST_REST_NS
        self._rests_until_ns = now_ns + self._rest_ns
        self._was_held_up.clear()
