"""Slots of the plannings that the reconcile loop waits for."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

# Number of jobs that the reconcile loop plans concurrently; each solve occupies a thread.
NUM_SLOTS = 16
# Delay in s before a job that found no free slot is tried again.
SLOT_RETRY_S = 1.0


class PlanningSlots:
    """Limit of the plannings that reconcilers wait for; taking a slot does not block.

    Args:
        num_slots: number of concurrent plannings.
    """

    def __init__(self, num_slots: int = NUM_SLOTS) -> None:
        self._free = threading.Semaphore(num_slots)

    @contextmanager
    def taken(self) -> Generator[bool]:
        """Try to take a slot for the block; yield true if one was free."""
        is_free = self._free.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if is_free:
                self._free.release()


# For callers that plan one job at a time.
PLENTY = PlanningSlots(1_000_000)
