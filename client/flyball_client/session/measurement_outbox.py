"""Bounded queue of measured steps, and the thread that posts them to the planner."""

from __future__ import annotations

import logging
import random
import threading
from collections import deque

from flyball_client.api.errors import PlannerRefusedError
from flyball_client.session.planner_calls import (
    Backoff,
    PlannerReachability,
    PlannerThread,
    RankCalls,
)
from flyball_client.session.step_recorder import num_details
from flyball_wire.codec import encode
from flyball_wire.errors import CodecError, FlyballError
from flyball_wire.messages import StepMeasurement

_logger = logging.getLogger(__name__)

_Batch = tuple[StepMeasurement, ...]

# Statuses that a retry of the same batch would get again; 409: a new run of the job has begun.
_OTHER_RUN_STATUS = 409
_HOPELESS_STATUSES = frozenset({400, _OTHER_RUN_STATUS, 413, 422})
# Until the planner's first answer names the period.
_FIRST_PERIOD_S = 1.0
# Bounds of what an answer names.
_SHORTEST_PERIOD_S = 0.1
_LONGEST_PERIOD_S = 300.0
# Spreads the posts of ranks that started together.
_JITTER = 0.1
_MAX_STEPS_PER_POST = 256
# Entries of steps' details. Encoding 1024 of them holds Python's lock for about 3 ms, which may
# delay a hook; 65,536 of them take about 15 MB.
_MAX_DETAILS_PER_POST = 1024
_MAX_DETAILS = 65_536


class MeasurementOutbox(PlannerThread):
    """Queue of measurements that a thread posts; a full queue drops its oldest.

    Posting a step again replaces it, so a batch whose answer was lost is posted again.

    Args:
        calls: Calls of the rank; nothing is posted before it is registered.
        reachability: Reachability of the planner, updated with each post.
        backoff: Pauses after failures.
        capacity: Number of steps that are kept while the planner cannot be reached, at least 1.
        max_details: Number of entries of their details; the newest step is always kept.
        max_details_per_post: Number of entries of one post; a step is never divided.
        period_s: Time between two posts in s; None: the planner's choice.
    """

    def __init__(
        self,
        calls: RankCalls,
        *,
        reachability: PlannerReachability,
        backoff: Backoff,
        capacity: int = 4096,
        max_details: int = _MAX_DETAILS,
        max_details_per_post: int = _MAX_DETAILS_PER_POST,
        period_s: float | None = None,
    ) -> None:
        super().__init__(
            f"flyball-measurements-{calls.rank}", f"{calls.name}: measurements are no longer posted"
        )
        self._calls = calls
        self._reachability = reachability
        self._backoff = backoff
        self._capacity = capacity
        self._max_details = max_details
        self._max_details_per_post = max_details_per_post
        self._period_s = period_s
        self._queue: deque[StepMeasurement] = deque()
        self._num_details = 0
        self._num_dropped = 0
        self._asked_period_s = _FIRST_PERIOD_S
        self._is_of_other_run = False
        self._is_over = False
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
            self._drop_surplus()

    def stop(self, timeout_s: float) -> None:
        """Post what is left and report the rank's end, within `timeout_s`; then discard."""
        super().stop(timeout_s)
        with self._lock:
            self._is_over = True
            num_left = len(self._queue)
            self._queue.clear()
            self._num_details = 0
            self._num_dropped += num_left
        if num_left:
            # A lost planner has been logged.
            self._log_dropped(
                num_left, "the planner did not accept them in time", self._reachability.is_lost
            )

    def _run(self) -> None:
        is_registered = self._calls.is_registered
        while not self._stopping.wait(self._pause_s()):
            if is_registered.is_set() and not self._post_all():
                self._stopping.wait(self._backoff.next_pause_s())
        if is_registered.is_set():
            self._post_all()
            if not self._reachability.is_lost:
                self._calls.leave()

    def _pause_s(self) -> float:
        if self._period_s is not None:
            return self._period_s
        return self._asked_period_s * random.uniform(1 - _JITTER, 1 + _JITTER)

    def _post_all(self) -> bool:
        """Return whether the queue has been emptied."""
        while batch := self._take_batch():
            try:
                answer = self._calls.post(batch)
            except CodecError as error:
                self._put_back_encodable(batch, error)
                continue
            except FlyballError as error:
                self._on_failure(error, batch)
                return False
            except Exception:
                self._put_back(batch)
                raise
            self._asked_period_s = bounded_period_s(answer.next_post_s)
            self._reachability.back("measurements")
            self._backoff.reset()
        return True

    def _on_failure(self, error: FlyballError, batch: _Batch) -> None:
        if not (isinstance(error, PlannerRefusedError) and error.status in _HOPELESS_STATUSES):
            self._put_back(batch)
            self._reachability.lost("measurements", error)
            return
        with self._lock:
            self._num_dropped += len(batch)
        is_other_run = error.status == _OTHER_RUN_STATUS
        # A process of an earlier run logs the refusal once.
        self._log_dropped(len(batch), error, is_other_run and self._is_of_other_run)
        self._is_of_other_run = is_other_run

    def _put_back_encodable(self, batch: _Batch, error: CodecError) -> None:
        encodable = tuple(step for step in batch if _is_encodable(step))
        if len(encodable) == len(batch):
            # The cause is unknown, and a retry would fail the same way.
            encodable = ()
        num_lost = len(batch) - len(encodable)
        with self._lock:
            self._num_dropped += num_lost
        self._log_dropped(num_lost, error)
        self._put_back(encodable)

    def _log_dropped(self, number: int, why: object, is_known: bool = False) -> None:
        level = logging.DEBUG if is_known else logging.WARNING
        _logger.log(level, "%s: %d measurements dropped: %s", self._calls.name, number, why)

    def _take_batch(self) -> _Batch:
        batch: list[StepMeasurement] = []
        num_in_batch = 0
        with self._lock:
            while self._queue and len(batch) < _MAX_STEPS_PER_POST:
                num_in_batch += num_details(self._queue[0])
                if batch and num_in_batch > self._max_details_per_post:
                    break
                batch.append(self._pop_oldest())
        return tuple(batch)

    def _put_back(self, batch: _Batch) -> None:
        with self._lock:
            if self._is_over:
                self._num_dropped += len(batch)
                return
            self._queue.extendleft(reversed(batch))
            self._num_details += sum(map(num_details, batch))
            self._drop_surplus()

    def _drop_surplus(self) -> None:
        while len(self._queue) > self._capacity or (
            self._num_details > self._max_details and len(self._queue) > 1
        ):
            self._pop_oldest()
            self._num_dropped += 1

    def _pop_oldest(self) -> StepMeasurement:
        oldest = self._queue.popleft()
        self._num_details -= num_details(oldest)
        return oldest


def bounded_period_s(asked_s: float) -> float:
    """Return the time between two posts in s, limited from the planner's `next_post_s`."""
    return min(max(asked_s, _SHORTEST_PERIOD_S), _LONGEST_PERIOD_S)


def _is_encodable(step: StepMeasurement) -> bool:
    try:
        encode(step)
    except CodecError:
        return False
    return True
