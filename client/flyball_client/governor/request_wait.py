"""How a governor waits: in the kernel, and where a request is due, looking at the board itself.

Waking a sleeping process costs the one who wakes it, which is the rank in the middle of its
training. So shortly before a request is due the governor polls the board in short sleeps, until
the request is there or the window is over; meanwhile `IS_POLLING` tells the hook to leave it at
the request. Else the governor sleeps until the hook writes to its eventfd.

What it found is served before all else: what the window cost is reckoned up afterwards.

No request is overlooked. The rank stores its request and then reads `IS_POLLING`; the governor
clears `IS_POLLING` and then looks at the request once more. Were that look to come at once, a
processor (x86 too) could still hold the rank's store back behind its read, and both would miss
each other. So it comes `PARKING_NS` later, which the governor spends in serving what it found or
else asleep: on x86 and arm64 a store leaves its processor within about a microsecond, or at the
latest when its thread is interrupted. CPython keeps the order of the two accesses, each a
plain one of an aligned word. Behind that stands the governor's tick, which looks at the request
five times a second anyway.

Nothing else is kept waiting. No window is longer than `MAX_WINDOW_NS`, and within one the
governor looks every `LOOK_AROUND_NS` whether a signal has come, the rank or its launcher is
gone, or the CPU time that polling may take is used up; each of them ends the window. Where no
core is free it polls no longer (see `polling_rest`).
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence

from flyball_client.governor.polling_credit import PollingCredit
from flyball_client.governor.polling_rest import PollingRest
from flyball_client.governor.request_rhythm import RequestRhythm, RequestWindow
from flyball_client.governor.scheduling import sleep_exactly
from flyball_client.governor.shared_state import (
    IS_POLLING,
    NUM_UNWOKEN,
    POLLING_NS,
    REQUEST,
    REQUESTED_NS,
    SERVED,
    STEP_REQUEST,
    ClockBoard,
)

TICK_S = 0.2
# A pause costs some 20 us of a virtual core, however short. Most requests come so near to the usual
# moment that short ones are worth that; before and after, a little more lateness matters less.
NEAR_NS = 100_000
NEAR_PAUSE_S, FAR_PAUSE_S = 10e-6, 40e-6
PARKING_NS = 20_000
LOOK_AROUND_NS = 2_000_000
# Of one core, on average.
DEFAULT_POLLING_SHARE = 0.025


class RequestWait:
    """Waits for a rank's requests and whatever else concerns its governor.

    Args:
        board: shared with the rank.
        wake_fd: the eventfd that the rank writes.
        other_fds: what else to wait for.
        polling_share: CPU time that polling may take on average, of one core; 0: never poll.
        look_out: told that a request is looked out for; or that none is, after one that has woken
            this process, so that the board says on which core the rank is.
        rest: when not to poll.
    """

    def __init__(
        self,
        board: ClockBoard,
        wake_fd: int,
        other_fds: Sequence[int],
        *,
        polling_share: float,
        look_out: Callable[[bool], None],
        rest: PollingRest,
    ) -> None:
        self._words = board.words
        # select's times are finer than poll's; it takes small descriptors only, as a new one is.
        self._wake_fd = os.dup(wake_fd)
        self._fds = [self._wake_fd, *other_fds]
        self._other_fds = list(other_fds)
        self._look_out = look_out
        self._rhythm = RequestRhythm()
        self._window: RequestWindow | None = None
        self._rest = rest
        self._noted = 0
        self._may_poll = polling_share > 0
        self._credit = PollingCredit(polling_share)
        # Of a window that is over, whether a request was found; None: it is reckoned up.
        self._was_found: bool | None = None
        # By how much its last pause was too long, ns; None: it was left before its end.
        self._late_ns: int | None = None
        # A request may have come before this, and while somebody else polled: when the last look
        # is due that ends polling, CLOCK_MONOTONIC, ns; None: it is done.
        self._words[IS_POLLING] = 0
        self._looks_again_ns: int | None = time.monotonic_ns() + PARKING_NS
        if self._may_poll:
            sleep_exactly()

    def wait(self, due_s: float = TICK_S) -> bool:
        """Wait until something happens, a tick at the most.

        Args:
            due_s: when the caller has something else to do, s from now, which a request that is
                looked out for comes before; not above 0: it has not.

        Returns:
            Whether it is a request and nothing else: what else there is to wait for was quiet.
        """
        self._reckon_up()
        words = self._words
        if self._looks_again_ns is not None:
            parking_ns = self._looks_again_ns - time.monotonic_ns()
            if parking_ns > 0 and (ready := self._ready_within(parking_ns / 1e9)):
                return self._is_request(ready)
            self._looks_again_ns = None
            if words[REQUEST] != words[SERVED]:
                ready = self._ready_within(0)
                return not ready or self._is_request(ready)
        ready = self._ready_within(self._timeout_s(due_s))
        if ready:
            return self._is_request(ready)
        window = self._window
        if window is None:
            return False
        if time.monotonic_ns() < window.begin_ns:
            # What ticks cost on the way to a window that is far off is not polling's.
            self._credit.begin()
            return False
        self._window = None
        is_found = self._poll(window)
        if not is_found:
            self._reckon_up()
        return is_found

    def on_served(self) -> None:
        """What was asked is served: the next request is expected from now on."""
        was_woken = not self._was_found
        self._reckon_up()
        # What the caller had to do is not polling's.
        self._credit.begin()
        words = self._words
        request, requested_ns = words[SERVED], words[REQUESTED_NS]
        if request == self._noted or words[REQUEST] != request:
            return  # none came, or a newer one is there already, and the time may be its
        self._noted = request
        self._window = self._next_window(request, requested_ns)
        if self._window is not None or was_woken:
            self._look_out(self._window is not None)
        self._credit.begin()

    # ------------------------------------------------------------------ inside

    def _next_window(self, request: int, requested_ns: int) -> RequestWindow | None:
        """When to look out for the request after this one; None: it will wake this process."""
        if not self._may_poll:
            return None
        number = request >> 32
        self._rhythm.note(number, number - self._words[STEP_REQUEST] - 1, requested_ns)
        self._credit.earn()
        if self._credit.left_ns <= 0 or self._rest.lasts(time.monotonic_ns()):
            return None
        return self._rhythm.next_window()

    def _ready_within(self, timeout_s: float) -> list[int]:
        return select.select(self._fds, (), (), timeout_s)[0]

    def _timeout_s(self, due_s: float) -> float:
        longest_s = min(due_s, TICK_S) if due_s > 0 else TICK_S
        if self._window is None:
            return longest_s
        return min(max(self._window.begin_ns - time.monotonic_ns(), 0) / 1e9, longest_s)

    def _is_request(self, ready: list[int]) -> bool:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            return False
        return len(ready) == 1

    def _poll(self, window: RequestWindow) -> bool:
        """Look for a request until the window's end; whether there is one."""
        words, now_ns, sleep = self._words, time.monotonic_ns, time.sleep
        self._credit.earn()
        self._rest.begin_window()
        words[IS_POLLING] = 1
        served, usual_ns, end_ns = words[SERVED], window.usual_ns, window.end_ns
        wakes_ns = now_ns()
        look_around_ns = wakes_ns + LOOK_AROUND_NS
        self._late_ns = None
        while words[REQUEST] == served and (looked_ns := now_ns()) < end_ns:
            if self._rest.note(looked_ns, looked_ns - wakes_ns):
                break
            if looked_ns >= look_around_ns:
                if self._must_stop():
                    break
                look_around_ns = looked_ns + LOOK_AROUND_NS
            pause_s = NEAR_PAUSE_S if abs(looked_ns - usual_ns) < NEAR_NS else FAR_PAUSE_S
            wakes_ns = looked_ns + int(pause_s * 1e9)
            sleep(pause_s)
        else:
            # It may have come while this was held up.
            self._late_ns = now_ns() - wakes_ns
        self._was_found = words[REQUEST] != served
        words[IS_POLLING] = 0
        self._looks_again_ns = now_ns() + PARKING_NS
        self._credit.end()
        return words[REQUEST] != served

    def _reckon_up(self) -> None:
        """Note what the last window cost, and how it went."""
        if self._was_found is None:
            return
        if self._late_ns is not None:
            self._rest.note(time.monotonic_ns(), self._late_ns)
        self._words[POLLING_NS] += self._credit.pay()
        self._words[NUM_UNWOKEN] += self._was_found
        self._was_found = None

    def _must_stop(self) -> bool:
        """Whether polling's time is used up, or something other than a request has come."""
        return self._credit.is_used_up() or bool(select.select(self._other_fds, (), (), 0)[0])
