"""Thread that posts a rank's measured steps."""

from __future__ import annotations

import logging
import random

from flyball_client.api.errors import PlannerRefusedError
from flyball_client.helper.planner_calls import (
    Backoff,
    PlannerReachability,
    PlannerThread,
    Rank,
    RankClient,
)
from flyball_wire.codec import encode
from flyball_wire.errors import CodecError, FlyballError
from flyball_wire.measurements import StepMeasurement

_logger = logging.getLogger(__name__)

_Batch = tuple[StepMeasurement, ...]

# Another start of the job has begun.
_OTHER_START_STATUS = 409
# Statuses that a retry of the same batch would get again, and perhaps a part of it would not.
_BAD_CONTENT_STATUSES = frozenset({400, 413, 422})
# Calls for the parts of one refused batch: enough for a few bad steps among 256.
_MAX_CALLS_FOR_PARTS = 64
# Until the planner's first answer names the period.
_FIRST_PERIOD_S = 1.0
# Bounds of what an answer names.
_SHORTEST_PERIOD_S = 0.1
_LONGEST_PERIOD_S = 300.0
# Spreads the posts of ranks that started together.
_JITTER = 0.1


class MeasurementPoster(PlannerThread):
    """Thread that posts a rank's measured steps; a batch that fails is taken and posted again.

    Posting a step again replaces it.
    """

    def __init__(
        self,
        calls: RankClient,
        rank: Rank,
        *,
        reachability: PlannerReachability,
        backoff: Backoff,
        period_s: float | None = None,
    ) -> None:
        super().__init__(
            f"flyball-measurements-{calls.rank}",
            f"{calls.name}: measurements are no longer posted",
            at_end=rank.left,
        )
        self._calls = calls
        self._rank = rank
        self._reachability = reachability
        self._backoff = backoff
        self._period_s = period_s
        self._asked_period_s = _FIRST_PERIOD_S
        self._is_of_other_start = False

    def _run(self) -> None:
        is_registered = self._calls.is_registered
        while not self._stopping.wait(self._pause_s()):
            if is_registered.is_set() and not self._post_all():
                self._stopping.wait(self._backoff.next_pause_s())
        # A rank that leaves early is not to stay behind as present.
        if self._calls.is_registered_at_last():
            self._post_all()
            if not self._reachability.is_lost:
                self._calls.leave()

    def _pause_s(self) -> float:
        if self._period_s is not None:
            return self._period_s
        return self._asked_period_s * random.uniform(1 - _JITTER, 1 + _JITTER)

    def _post_all(self) -> bool:
        """Return whether no step is left."""
        while batch := self._rank.take_steps():
            try:
                num_dropped = self._post(batch)
            except FlyballError as error:
                self._reachability.lost("measurements", error)
                return False
            self._rank.posted(num_dropped)
        return True

    def _post(self, batch: _Batch) -> int:
        """Return the number of steps that will never be posted; raise if a retry may succeed."""
        try:
            self._post_accepted(batch)
        except CodecError as error:
            return self._post_encodable(batch, error)
        except PlannerRefusedError as error:
            if error.status in _BAD_CONTENT_STATUSES:
                return self._post_parts(batch, error)
            if error.status != _OTHER_START_STATUS:
                raise
            # A process of an earlier start logs the refusal once.
            self._log_dropped(len(batch), error, self._is_of_other_start)
            self._is_of_other_start = True
            return len(batch)
        return 0

    def _post_accepted(self, batch: _Batch) -> None:
        answer = self._calls.post(batch)
        self._is_of_other_start = False
        self._asked_period_s = bounded_period_s(answer.next_post_s)
        self._reachability.back("measurements")
        self._backoff.reset()

    def _post_parts(self, batch: _Batch, refusal: PlannerRefusedError) -> int:
        """Post a refused batch in ever smaller parts; return the number of steps that are lost."""
        num_lost, num_calls, parts = int(len(batch) == 1), 0, _halves(batch)
        while parts:
            part = parts.pop()
            if not part or num_calls == _MAX_CALLS_FOR_PARTS:
                num_lost += len(part)
                continue
            num_calls += 1
            try:
                self._post_accepted(part)
            except PlannerRefusedError as error:
                if error.status not in _BAD_CONTENT_STATUSES:
                    raise
                refusal = error
                parts += _halves(part)
                num_lost += len(part) == 1
        self._log_dropped(num_lost, refusal)
        return num_lost

    def _post_encodable(self, batch: _Batch, error: CodecError) -> int:
        encodable = tuple(step for step in batch if _is_encodable(step))
        if len(encodable) == len(batch):
            # The cause is unknown, and a retry would fail the same way.
            encodable = ()
        num_lost = len(batch) - len(encodable)
        self._log_dropped(num_lost, error)
        return num_lost + (self._post(encodable) if encodable else 0)

    def _log_dropped(self, number: int, why: object, is_known: bool = False) -> None:
        level = logging.DEBUG if is_known else logging.WARNING
        _logger.log(level, "%s: %d measurements dropped: %s", self._calls.name, number, why)


def bounded_period_s(asked_s: float) -> float:
    """Return the time between two posts in s, limited from the planner's `next_post_s`."""
    return min(max(asked_s, _SHORTEST_PERIOD_S), _LONGEST_PERIOD_S)


def _halves(batch: _Batch) -> list[_Batch]:
    """Return both halves of a batch, the earlier last; a single step has none."""
    half = len(batch) // 2
    return [batch[half:], batch[:half]] if half else []


def _is_encodable(step: StepMeasurement) -> bool:
    try:
        encode(step)
    except CodecError:
        return False
    return True
