"""Bound on the reconcile loop's threads that wait for planning; the others go on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

# Jobs that the reconcile loop has planned at once; a thread each, which waits for its solve.
NUM_SLOTS = 6
# When to look again at a job that found no slot free, s.
LOOK_AGAIN_S = 1.0


class PlanningSlots:
    """A bound on the plannings that reconcilers wait for; nobody waits for a slot.

    Args:
        num_slots: plannings at once.
    """

    def __init__(self, num_slots: int = NUM_SLOTS) -> None:
        self._free = threading.Semaphore(num_slots)

    @contextmanager
    def taken(self) -> Generator[bool]:
        """Within the block: whether a slot was free, and is held."""
        is_free = self._free.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if is_free:
                self._free.release()


# For whoever looks at one job at a time.
PLENTY = PlanningSlots(1_000_000)
