"""Reachability of the planner, for the log: one line for each change, and none in between."""

from __future__ import annotations

import logging
import random
import threading

from flyball_client.api.errors import PlannerBusyError, PlannerRefusedError
from flyball_wire.errors import FlyballError

_logger = logging.getLogger(__name__)


class PlannerReachability:
    """Shared by the threads that talk to the planner; only changes are logged.

    A planner that is lost is lost to all of them. One that is there may still refuse what one
    asks and grant what another does, so refusals are kept by what was asked for.
    """

    def __init__(self, rank_name: str) -> None:
        self._rank_name = rank_name
        self._lock = threading.Lock()
        self._is_lost = False
        self._refusals: dict[str, int] = {}
        self._was_known = False

    @property
    def is_lost(self) -> bool:
        """Return whether the planner did not answer the last call."""
        return self._is_lost

    def lost(self, what: str, error: FlyballError) -> None:
        """A call for `what` (`plans`, `measurements`) failed."""
        with self._lock:
            if isinstance(error, PlannerBusyError):
                # It is there, and says itself when to come again.
                _logger.debug("%s: %s", self._rank_name, error)
            elif isinstance(error, PlannerRefusedError):
                self._refused(what, error)
            elif not self._is_lost:
                self._is_lost = True
                _logger.warning(
                    "%s: planner lost, training goes on and it is tried again: %s",
                    self._rank_name,
                    error,
                )

    def back(self, what: str) -> None:
        """A call for `what` succeeded."""
        with self._lock:
            is_news = self._is_lost or what in self._refusals
            self._is_lost = False
            self._refusals.pop(what, None)
            self._was_known = True
            if is_news:
                _logger.info("%s: planner back", self._rank_name)

    def _refused(self, what: str, error: PlannerRefusedError) -> None:
        is_news = self._is_lost or self._refusals.get(what) != error.status
        self._is_lost = False
        self._refusals[what] = error.status
        if not is_news:
            return
        if error.status in {404, 409} and not self._was_known:
            # Usual at the beginning: another rank is about to register the job, or this start
            # of it.
            _logger.info("%s: waiting to be known: %s", self._rank_name, error)
        else:
            _logger.warning(
                "%s: planner refuses, training goes on and it is tried again: %s",
                self._rank_name,
                error,
            )


class Backoff:
    """Pauses that double from the first to the longest, shortened at random.

    The randomness keeps a thousand ranks from coming back in the same moment.
    """

    def __init__(self, *, first_s: float, longest_s: float) -> None:
        if not 0 < first_s <= longest_s:
            raise ValueError(
                f"backoff must be 0 < first_s <= longest_s, not {first_s}, {longest_s}"
            )
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def next_pause_s(self) -> float:
        """Return how long to pause now, s: half to all of the doubled time."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._longest_s)
        return pause_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin with the first pause again."""
        self._next_s = self._first_s
