from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import httpx
import pytest
from tests.planner.patience import wait_until

from flyball_client.api.connection import strict_json
from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.helper import measurement_poster
from flyball_client.helper.measurement_poster import MeasurementPoster, bounded_period_s
from flyball_client.helper.planner_calls import Backoff, PlannerReachability, Rank, RankClient
from flyball_client.session.measurement_outbox import MeasurementOutbox
from flyball_wire.codec import decode
from flyball_wire.measurements import MeasurementBatch, StepMeasurement
from flyball_wire.messages import RankRegistration


class Inbox:
    """Takes batches, after failing as often as the test wants."""

    def __init__(self, *statuses: int, next_post_s: float = 1.0) -> None:
        self._statuses = list(statuses)
        self.next_post_s = next_post_s
        self.batches: list[list[int]] = []
        self.steps: list[StepMeasurement] = []
        self.posted = threading.Condition()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/departure"):
            return httpx.Response(204)
        batch = decode(MeasurementBatch, strict_json(request.read()))
        with self.posted:
            self.batches.append([step.step for step in batch.steps])
            self.steps += batch.steps
            self.posted.notify_all()
        status = self._statuses.pop(0) if self._statuses else 200
        return httpx.Response(
            status, json={"stored": len(batch.steps), "next_post_s": self.next_post_s}
        )


class Outbox(MeasurementOutbox):
    """A queue of steps with the thread that posts them."""

    def __init__(
        self,
        inbox: Callable[[httpx.Request], httpx.Response],
        *,
        is_registered: bool = True,
        period_s: float | None = 0.001,
        **limits: int,
    ) -> None:
        super().__init__(
            **{"capacity": 100, "max_details": 100, "max_details_per_post": 100} | limits
        )
        planner = PlannerClient(
            "http://planner.test",
            transport=httpx.MockTransport(inbox),
            retries=Retries(num_attempts=1),
        )
        registration = RankRegistration(
            stage=0, host="", gpu_name="", gpu_uuid="", emulated=True, client_version=""
        )
        start_id = "run" if is_registered else None
        self.has_left = threading.Event()
        self.poster = MeasurementPoster(
            RankClient(planner, "gpt", 0, registration, start_id=start_id),
            cast("Rank", self),
            reachability=PlannerReachability("rank 0"),
            backoff=Backoff(first_s=0.001, longest_s=0.002),
            period_s=period_s,
        )

    def take_steps(self) -> tuple[StepMeasurement, ...]:
        return self.take()

    def left(self) -> None:
        self.has_left.set()

    def post_all(self) -> None:
        self.poster.start()
        self.stop()

    def stop(self) -> None:
        self.poster.stop()
        assert self.has_left.wait(10.0)


def put(outbox: MeasurementOutbox, steps: range, *, num_instructions: int = 0) -> None:
    """Steps that tell of so many instructions each, and of one clock."""
    for step in steps:
        measurement = StepMeasurement(step=step, plan_version=None, time_s=1.0, energy_j=None)
        if num_instructions:
            measurement = replace(
                measurement,
                by_clock=(("forward", 0, 1200, num_instructions, 0.5, 0.0),),
                instructions=num_instructions * (("forward", None, 0, 0.0, 0.5, 0.0, 0.0, 1200),),
            )
        outbox.put(measurement)


def test_what_was_put_in_is_posted_in_order_and_in_batches() -> None:
    inbox = Inbox()
    outbox = Outbox(inbox, capacity=1000)
    put(outbox, range(600))
    outbox.post_all()
    assert [len(batch) for batch in inbox.batches] == [256, 256, 88]
    assert [step for batch in inbox.batches for step in batch] == list(range(600))


@pytest.mark.parametrize(
    ("next_post_s", "period_s"),
    [(-1e300, 0.1), (0.0, 0.1), (0.2, 0.2), (1e300, 300.0)],
)
def test_the_next_post_comes_when_the_planner_asks_for_it_within_bounds(
    next_post_s: float, period_s: float
) -> None:
    assert bounded_period_s(next_post_s) == period_s


@pytest.mark.parametrize("next_post_s", [0.2, 1e300])
def test_a_planners_period_is_waited_for_unless_the_session_ends(
    next_post_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement_poster, "_FIRST_PERIOD_S", 0.001)
    inbox = Inbox(next_post_s=next_post_s)
    outbox = Outbox(inbox, period_s=None)
    put(outbox, range(1))
    outbox.poster.start()
    wait_until(lambda: len(inbox.batches) == 1)
    first_s = time.monotonic()
    put(outbox, range(1, 2))
    if next_post_s < 1:
        wait_until(lambda: len(inbox.batches) == 2)
        assert time.monotonic() - first_s > 0.1
    assert not outbox.has_left.is_set()
    outbox.stop()
    assert inbox.batches == [[0], [1]]


@pytest.mark.parametrize(
    ("status", "levels"),
    [
        (422, [logging.WARNING] * 3),
        # A process of an earlier run of the job.
        (409, [logging.WARNING, logging.DEBUG, logging.DEBUG]),
    ],
)
def test_a_batch_that_the_planner_refuses_is_dropped_and_logged(
    caplog: pytest.LogCaptureFixture, status: int, levels: list[int]
) -> None:
    caplog.set_level(logging.DEBUG, logger="flyball_client")
    inbox = Inbox(status, status, status)
    outbox = Outbox(inbox)
    outbox.poster.start()
    for step in range(3):
        put(outbox, range(step, step + 1))
        wait_until(lambda num=step + 1: outbox.num_dropped == num)  # type: ignore[misc] # bound now
    outbox.stop()
    assert inbox.batches == [[0], [1], [2]]
    dropped = [line.levelno for line in caplog.records if "dropped" in line.getMessage()]
    assert dropped == levels


class Choosy(Inbox):
    """Refuses every batch with one of some steps, and stores none of it."""

    def __init__(self, refused: set[int], status: int) -> None:
        super().__init__()
        self._refused, self._status = refused, status
        self.stored: set[int] = set()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        answer = super().__call__(request)
        steps = {*self.batches[-1]} if not request.url.path.endswith("/departure") else set()
        if steps & self._refused:
            return httpx.Response(self._status)
        self.stored |= steps
        return answer


@pytest.mark.parametrize("status", [413, 422])
@pytest.mark.parametrize("refused", [{0}, {100}, {255}, {17, 18, 200}])
def test_of_a_refused_batch_only_what_is_bad_is_lost(refused: set[int], status: int) -> None:
    inbox = Choosy(refused, status)
    outbox = Outbox(inbox, capacity=1000)
    put(outbox, range(300))
    outbox.post_all()
    assert inbox.stored == {*range(300)} - refused
    assert outbox.num_dropped == len(refused)


def test_a_planner_that_refuses_everything_is_not_called_for_every_step() -> None:
    inbox = Choosy({*range(300)}, 422)
    outbox = Outbox(inbox, capacity=1000)
    put(outbox, range(256))
    outbox.post_all()
    assert len(inbox.batches) <= 65
    assert outbox.num_dropped == 256


def test_steps_that_tell_much_are_posted_in_smaller_batches_and_none_is_divided() -> None:
    inbox = Inbox()
    outbox = Outbox(inbox, max_details=100, max_details_per_post=10)
    put(outbox, range(2), num_instructions=3)
    put(outbox, range(2, 8))  # tell nothing
    put(outbox, range(8, 10), num_instructions=3)
    put(outbox, range(10, 12), num_instructions=20)
    outbox.post_all()
    assert inbox.batches == [[*range(8)], [8, 9], [10], [11]]
    assert [len(step.instructions or ()) for step in inbox.steps] == [3, 3, *6 * [0], 3, 3, 20, 20]
    assert outbox.num_dropped == 0


def test_steps_that_tell_much_drop_their_oldest_sooner_and_the_newest_is_always_kept() -> None:
    inbox = Inbox()
    outbox = Outbox(inbox, max_details=12)
    put(outbox, range(5))
    put(outbox, range(5, 10), num_instructions=3)
    assert outbox.num_dropped == 7  # 0 to 6: three times four entries are left
    put(outbox, range(10, 12), num_instructions=99)
    assert outbox.num_dropped == 11
    outbox.post_all()
    assert inbox.batches == [[11]]


def test_a_batch_that_failed_is_posted_again_and_counts_as_much_as_before() -> None:
    inbox = Inbox(500, 404)
    outbox = Outbox(inbox, max_details=12)
    put(outbox, range(3), num_instructions=3)
    outbox.poster.start()
    with inbox.posted:
        assert inbox.posted.wait_for(lambda: len(inbox.batches) == 3, 30.0)
    outbox.stop()
    assert inbox.batches == [[0, 1, 2]] * 3
    assert outbox.num_dropped == 0
    put(outbox, range(3, 7), num_instructions=3)
    assert outbox.num_dropped == 1


def test_a_step_that_cannot_be_encoded_is_dropped_alone(caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()
    outbox = Outbox(inbox)
    put(outbox, range(2))
    outbox.put(StepMeasurement(step=2, plan_version=None, time_s=float("nan"), energy_j=None))
    put(outbox, range(3, 5))
    outbox.post_all()
    assert inbox.batches == [[0, 1, 3, 4]]
    assert outbox.num_dropped == 1
    assert sum("1 measurements dropped" in message for message in caplog.messages) == 1
    assert not any("planner" in message for message in caplog.messages)


def test_measurements_not_accepted_before_the_end_are_counted() -> None:
    for is_registered in (False, True):
        outbox = Outbox(Inbox(*[503] * 10_000), is_registered=is_registered)
        put(outbox, range(7))
        outbox.post_all()
        assert outbox.clear() == outbox.num_dropped == 7


def test_steps_that_are_dropped_while_they_are_posted_are_not_removed_twice() -> None:
    outbox = MeasurementOutbox(capacity=4)
    put(outbox, range(4))
    assert [step.step for step in outbox.take()] == [0, 1, 2, 3]
    put(outbox, range(4, 6))
    outbox.posted(0)
    assert [step.step for step in outbox.take()] == [4, 5]
    put(outbox, range(6, 12))
    outbox.posted(2)
    assert [step.step for step in outbox.take()] == [8, 9, 10, 11]
    assert outbox.num_dropped == 2 + 4
