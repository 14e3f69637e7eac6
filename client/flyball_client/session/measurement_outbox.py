"""Measured steps on their way to the planner: a bounded queue and the thread that posts it."""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable

from flyball_client.api.errors import PlannerRefusedError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.session.planner_reachability import Backoff, PlannerReachability
from flyball_client.session.step_recorder import num_details
from flyball_wire.codec import encode
from flyball_wire.errors import CodecError, FlyballError
from flyball_wire.messages import MeasurementBatch, StepMeasurement

_logger = logging.getLogger(__name__)

_Batch = tuple[StepMeasurement, ...]

# Refusals of the content itself, or since a new run of the job has begun: the same batch would be
# refused for ever.
_OTHER_RUN_STATUS = 409
_HOPELESS_STATUSES = frozenset({400, _OTHER_RUN_STATUS, 413, 422})
# Until the planner has answered a first post.
_FIRST_PERIOD_S = 1.0
# Ranks that started together would post together for ever.
_JITTER = 0.1
_MAX_STEPS_PER_POST = 256
# Entries of steps' details. Of one post: Python's lock is held for the 3 ms or so in which so many
# become JSON, and a hook may have to wait. Of all: some 15 MB.
_MAX_DETAILS_PER_POST = 1024
_MAX_DETAILS = 65_536


class MeasurementOutbox:
    """Takes a step's measurement at once and posts it later; a full queue drops its oldest.

    Posting a step again replaces it, so a batch whose answer was lost is posted again.

    Args:
        planner: used from this thread; not closed here.
        job_id: the job.
        rank: within the job.
        may_post: set once the planner knows the rank.
        run_id: in which run of the job it does, None: it has not told.
        reachability: where changes of the planner's presence are told.
        backoff: pauses after failures.
        capacity: steps that are kept while the planner is away, at least 1.
        max_details: entries of their details, likewise; the newest step is kept whatever it has.
        max_details_per_post: likewise; a step is never divided.
        period_s: time between two posts in s; None: what the planner's last answer asked for.
        at_end: called on the posting thread once the last ones are posted, or given up.
    """

    def __init__(
        self,
        *,
        planner: PlannerClient,
        job_id: str,
        rank: int,
        may_post: threading.Event,
        run_id: Callable[[], str | None] = lambda: None,
        reachability: PlannerReachability,
        backoff: Backoff,
        capacity: int = 4096,
        max_details: int = _MAX_DETAILS,
        max_details_per_post: int = _MAX_DETAILS_PER_POST,
        period_s: float | None = None,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        self._planner = planner
        self._job_id = job_id
        self._rank = rank
        self._may_post = may_post
        self._run_id = run_id
        self._reachability = reachability
        self._backoff = backoff
        self._capacity = capacity
        self._max_details = max_details
        self._max_details_per_post = max_details_per_post
        self._period_s = period_s
        self._at_end = at_end
        self._queue: deque[StepMeasurement] = deque()
        # Of all steps in the queue.
        self._num_details = 0
        self._num_dropped = 0
        self._asked_period_s = _FIRST_PERIOD_S
        self._is_of_other_run = False
        # Nothing that is put back is posted any more.
        self._is_over = False
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"flyball-measurements-{rank}", daemon=True
        )

    @property
    def num_dropped(self) -> int:
        """Measurements that were lost: the queue was full, they were refused, no JSON, or left."""
        return self._num_dropped

    def put(self, measurement: StepMeasurement) -> None:
        """Keep a measurement for posting; never waits for the planner."""
        with self._lock:
            self._queue.append(measurement)
            self._num_details += num_details(measurement)
            self._drop_surplus()

    def start(self) -> None:
        """Begin to post; once."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Post what is left, for `timeout_s` at most; the rest is dropped, counted and told."""
        self._stopping.set()
        self._thread.join(timeout_s)
        with self._lock:
            self._is_over = True
            num_left = len(self._queue)
            self._queue.clear()
            self._num_details = 0
            self._num_dropped += num_left
        if num_left:
            # That a planner is lost was said.
            _logger.log(
                logging.DEBUG if self._reachability.is_lost else logging.WARNING,
                "rank %d: %d measurements dropped: the planner has not taken them before the end",
                self._rank,
                num_left,
            )

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s()):
            if self._may_post.is_set() and not self._post_all():
                self._stopping.wait(self._backoff.next_pause_s())
        if self._may_post.is_set():
            self._post_all()
            if self._at_end is not None:
                self._at_end()

    def _pause_s(self) -> float:
        if self._period_s is not None:
            return self._period_s
        return self._asked_period_s * random.uniform(1 - _JITTER, 1 + _JITTER)

    def _post_all(self) -> bool:
        """Return whether everything could be posted, or there was nothing."""
        while batch := self._take_batch():
            try:
                answer = self._planner.post_measurements(
                    self._job_id,
                    self._rank,
                    MeasurementBatch(steps=batch, run_id=self._run_id()),
                )
            except CodecError as error:
                # Nothing was sent.
                self._put_back_encodable(batch, error)
                continue
            except FlyballError as error:
                self._on_failure(error, batch)
                return False
            except Exception:
                # The planner's connections may be closed under us at the end.
                if not self._stopping.is_set():
                    _logger.exception("rank %d cannot post its measurements", self._rank)
                self._put_back(batch)
                return False
            self._asked_period_s = answer.next_post_s
            self._reachability.back("measurements")
            self._backoff.reset()
        return True

    def _on_failure(self, error: FlyballError, batch: _Batch) -> None:
        if isinstance(error, PlannerRefusedError) and error.status in _HOPELESS_STATUSES:
            with self._lock:
                self._num_dropped += len(batch)
            # A process that a new run has left behind would say so for as long as it lives.
            is_told = error.status == _OTHER_RUN_STATUS and self._is_of_other_run
            self._is_of_other_run = error.status == _OTHER_RUN_STATUS
            _logger.log(
                logging.DEBUG if is_told else logging.WARNING,
                "rank %d: %d measurements dropped: %s",
                self._rank,
                len(batch),
                error,
            )
            return
        self._put_back(batch)
        self._reachability.lost("measurements", error)

    def _put_back_encodable(self, batch: _Batch, error: CodecError) -> None:
        encodable = tuple(step for step in batch if _is_encodable(step))
        if len(encodable) == len(batch):
            # Whatever it is, it would be so again.
            encodable = ()
        num_lost = len(batch) - len(encodable)
        with self._lock:
            self._num_dropped += num_lost
        _logger.warning("rank %d: %d measurements dropped: %s", self._rank, num_lost, error)
        self._put_back(encodable)

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


def _is_encodable(step: StepMeasurement) -> bool:
    try:
        encode(step)
    except CodecError:
        return False
    return True
