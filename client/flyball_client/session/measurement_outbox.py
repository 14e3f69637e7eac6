"""Measured steps of a rank that are not posted yet."""

from __future__ import annotations

import threading
from collections import deque

from flyball_client.session.step_recorder import num_details
from flyball_wire.measurements import StepMeasurement

_MAX_STEPS_PER_POST = 256
# Entries of steps' details. Pickling 1024 of them holds Python's lock for less than a millisecond;
# 65,536 of them take about 15 MB.
_MAX_DETAILS_PER_POST = 1024
_MAX_DETAILS = 65_536


class MeasurementOutbox:
    """Queue of measured steps; a full one drops its oldest.

    Steps that were taken stay its own until they are reported as posted.

    Args:
        capacity: Number of steps that are kept while the planner cannot be reached, at least 1.
        max_details: Number of entries of their details; the newest step is always kept.
        max_details_per_post: Number of entries of one post; a step is never divided.
    """

    def __init__(
        self,
        *,
        capacity: int = 4096,
        max_details: int = _MAX_DETAILS,
        max_details_per_post: int = _MAX_DETAILS_PER_POST,
    ) -> None:
        self._capacity = capacity
        self._max_details = max_details
        self._max_details_per_post = max_details_per_post
        self._queue: deque[StepMeasurement] = deque()
        self._num_details = 0
        # Number of the oldest steps that were taken last.
        self._num_taken = 0
        self._num_dropped = 0
        self._lock = threading.Lock()

    @property
    def num_dropped(self) -> int:
        """Number of measurements that will not reach the planner."""
        return self._num_dropped

    def put(self, measurement: StepMeasurement) -> None:
        """Enqueue a measurement; never waits for the planner."""
        with self._lock:
            self._queue.append(measurement)
            self._num_details += num_details(measurement)
            while len(self._queue) > self._capacity or (
                self._num_details > self._max_details and len(self._queue) > 1
            ):
                self._drop_oldest()

    def take(self) -> tuple[StepMeasurement, ...]:
        """Return the oldest steps, for one post; the same again unless they were posted."""
        batch: list[StepMeasurement] = []
        num_in_batch = 0
        with self._lock:
            for step in self._queue:
                num_in_batch += num_details(step)
                is_full = num_in_batch > self._max_details_per_post
                if len(batch) == _MAX_STEPS_PER_POST or (batch and is_full):
                    break
                batch.append(step)
            self._num_taken = len(batch)
        return tuple(batch)

    def posted(self, num_dropped: int) -> None:
        """Remove the steps that were taken last, of which so many will never be posted."""
        with self._lock:
            self._num_dropped += min(num_dropped, self._num_taken)
            for _ in range(self._num_taken):
                self._pop_oldest()
            self._num_taken = 0

    def clear(self) -> int:
        """Drop what was not posted, and return the number of steps."""
        with self._lock:
            num_left = len(self._queue)
            self._queue.clear()
            self._num_details = self._num_taken = 0
            self._num_dropped += num_left
        return num_left

    def _drop_oldest(self) -> None:
        # It may be among those that were taken, and reach the planner after all.
        self._pop_oldest()
        if self._num_taken:
            self._num_taken -= 1
        self._num_dropped += 1

    def _pop_oldest(self) -> None:
        self._num_details -= num_details(self._queue.popleft())
