from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest
from tests.planner.patience import wait_until

from flyball_client.api.connection import strict_json
from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.session.measurement_outbox import MeasurementOutbox
from flyball_client.session.planner_reachability import Backoff, PlannerReachability
from flyball_wire.codec import decode
from flyball_wire.messages import MeasurementBatch, StepMeasurement


class Inbox:
    """Takes batches, after failing as often as the test wants."""

    def __init__(self, *statuses: int, next_post_s: float = 1.0) -> None:
        self._statuses = list(statuses)
        self.next_post_s = next_post_s
        self.batches: list[list[int]] = []
        self.run_ids: list[str | None] = []
        self.steps: list[StepMeasurement] = []
        self.posted = threading.Condition()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        batch = decode(MeasurementBatch, strict_json(request.read()))
        with self.posted:
            self.run_ids.append(batch.run_id)
            self.batches.append([step.step for step in batch.steps])
            self.steps += batch.steps
            self.posted.notify_all()
        status = self._statuses.pop(0) if self._statuses else 200
        return httpx.Response(
            status, json={"stored": len(batch.steps), "next_post_s": self.next_post_s}
        )


def make_outbox(
    inbox: Callable[[httpx.Request], httpx.Response],
    *,
    capacity: int = 100,
    max_details: int = 100,
    max_details_per_post: int = 100,
    is_registered: bool = True,
    run_id: str | None = None,
    period_s: float | None = 0.001,
) -> MeasurementOutbox:
    may_post = threading.Event()
    if is_registered:
        may_post.set()
    return MeasurementOutbox(
        planner=PlannerClient(
            "http://planner.test",
            transport=httpx.MockTransport(inbox),
            retries=Retries(num_attempts=1),
        ),
        job_id="gpt",
        rank=0,
        may_post=may_post,
        run_id=lambda: run_id,
        reachability=PlannerReachability("rank 0"),
        backoff=Backoff(first_s=0.001, longest_s=0.002),
        capacity=capacity,
        max_details=max_details,
        max_details_per_post=max_details_per_post,
        period_s=period_s,
    )


def put(outbox: MeasurementOutbox, steps: range, *, num_instructions: int = 0) -> None:
    """Steps that tell of so many instructions each, and of one clock."""
    for step in steps:
        measurement = StepMeasurement(step=step, plan_version=None, time_s=1.0, energy_j=None)
        if num_instructions:
            measurement = replace(
                measurement,
                by_clock=(("forward", 0, 1200, num_instructions, 0.5, 0.0),),
                instructions=num_instructions * (("forward", None, 0, 0.0, 0.5, 0.0, 0.0),),
            )
        outbox.put(measurement)


def test_what_was_put_in_is_posted_in_order_and_in_batches() -> None:
    inbox = Inbox()
    outbox = make_outbox(inbox, capacity=1000)
    put(outbox, range(600))
    outbox.start()
    outbox.stop(10.0)
    assert [len(batch) for batch in inbox.batches] == [256, 256, 88]
    assert [step for batch in inbox.batches for step in batch] == list(range(600))


class Turns:
    """An event that an outbox waits for: one entry a turn is done, then it is the end."""

    def __init__(self, *turns: Callable[[], None]) -> None:
        self._turns = list(turns)

    def wait(self, timeout_s: float) -> bool:
        del timeout_s
        if not self._turns:
            return True
        self._turns.pop(0)()
        return False


def nothing() -> None:
    """A turn in which no step ends."""


def test_what_could_not_be_posted_does_not_wait_for_another_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inbox = Inbox(503)
    outbox = make_outbox(inbox)

    def step() -> None:
        put(outbox, range(1))

    num_posted: list[int] = []

    def look() -> None:
        num_posted.append(len(inbox.batches))

    # A turn, the pause after its failure, a turn, and the look in the beginning of the next.
    monkeypatch.setattr(outbox, "_stopping", Turns(step, nothing, nothing, look))
    outbox._run()
    assert num_posted == [2]


def test_the_next_post_comes_when_the_planner_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox(next_post_s=15.0)
    outbox = make_outbox(inbox, period_s=None)
    waits_s: list[float] = []

    class Waits:
        def wait(self, timeout_s: float) -> bool:
            waits_s.append(timeout_s)
            put(outbox, range(1))
            return len(waits_s) == 4

    monkeypatch.setattr(outbox, "_stopping", Waits())
    outbox._run()
    assert waits_s[0] == pytest.approx(1.0, rel=0.1)
    assert waits_s[1:] == [pytest.approx(15.0, rel=0.1)] * 3
    assert len(set(waits_s[1:])) == 3  # ranks that started together drift apart


def test_a_full_queue_drops_its_oldest_and_counts_them() -> None:
    inbox = Inbox()
    outbox = make_outbox(inbox, capacity=3)
    put(outbox, range(10))
    assert outbox.num_dropped == 7
    outbox.start()
    outbox.stop(10.0)
    assert inbox.batches == [[7, 8, 9]]


def test_steps_that_tell_much_are_posted_in_smaller_batches_and_none_is_divided() -> None:
    inbox = Inbox()
    outbox = make_outbox(inbox, max_details=100, max_details_per_post=10)
    put(outbox, range(2), num_instructions=3)
    put(outbox, range(2, 8))  # tell nothing
    put(outbox, range(8, 10), num_instructions=3)
    put(outbox, range(10, 12), num_instructions=20)
    outbox.start()
    outbox.stop(10.0)
    assert inbox.batches == [[*range(8)], [8, 9], [10], [11]]
    assert [len(step.instructions or ()) for step in inbox.steps] == [3, 3, *6 * [0], 3, 3, 20, 20]
    assert outbox.num_dropped == 0


def test_steps_that_tell_much_drop_their_oldest_sooner_and_the_newest_is_always_kept() -> None:
    inbox = Inbox()
    outbox = make_outbox(inbox, max_details=12)
    put(outbox, range(5))
    put(outbox, range(5, 10), num_instructions=3)
    assert outbox.num_dropped == 7  # 0 to 6: three times four entries are left
    put(outbox, range(10, 12), num_instructions=99)
    assert outbox.num_dropped == 11
    outbox.start()
    outbox.stop(10.0)
    assert inbox.batches == [[11]]


def test_a_batch_that_is_put_back_counts_as_much_as_before() -> None:
    inbox = Inbox(500)
    outbox = make_outbox(inbox, max_details=12)
    put(outbox, range(3), num_instructions=3)
    outbox.start()
    with inbox.posted:
        assert inbox.posted.wait_for(lambda: len(inbox.batches) == 2, 30.0)
    outbox.stop(10.0)
    assert inbox.batches == [[0, 1, 2]] * 2
    put(outbox, range(3, 7), num_instructions=3)
    assert outbox.num_dropped == 1


def test_a_batch_that_failed_is_posted_again() -> None:
    inbox = Inbox(500, 404)
    outbox = make_outbox(inbox)
    put(outbox, range(2))
    outbox.start()
    with inbox.posted:
        assert inbox.posted.wait_for(lambda: len(inbox.batches) == 3, 30.0)
    outbox.stop(10.0)
    assert inbox.batches == [[0, 1]] * 3
    assert outbox.num_dropped == 0


def test_a_batch_that_the_planner_finds_wrong_is_dropped_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox = Inbox(422)
    outbox = make_outbox(inbox)
    put(outbox, range(2))
    outbox.start()
    with inbox.posted:
        assert inbox.posted.wait_for(lambda: len(inbox.batches) == 1, 30.0)
    outbox.stop(10.0)
    assert inbox.batches == [[0, 1]]
    assert outbox.num_dropped == 2
    assert sum("2 measurements dropped" in m for m in caplog.messages) == 1


def test_a_step_that_cannot_be_encoded_is_dropped_alone(caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()
    outbox = make_outbox(inbox)
    put(outbox, range(2))
    outbox.put(StepMeasurement(step=2, plan_version=None, time_s=float("nan"), energy_j=None))
    put(outbox, range(3, 5))
    outbox.start()
    outbox.stop(10.0)
    assert inbox.batches == [[0, 1, 3, 4]]
    assert outbox.num_dropped == 1
    assert sum("1 measurements dropped" in message for message in caplog.messages) == 1
    assert not any("planner" in message for message in caplog.messages)


def test_nothing_is_posted_for_a_rank_that_the_planner_does_not_know() -> None:
    inbox = Inbox()
    outbox = make_outbox(inbox, is_registered=False)
    put(outbox, range(2))
    outbox.start()
    outbox.stop(10.0)
    assert inbox.batches == []


def test_what_the_planner_has_not_taken_before_the_end_is_counted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox = make_outbox(Inbox(), is_registered=False)
    put(outbox, range(7))
    outbox.start()
    outbox.stop(10.0)

    assert outbox.num_dropped == 7
    assert [line.getMessage() for line in caplog.records] == [
        "rank 0: 7 measurements dropped: the planner has not taken them before the end"
    ]


def test_of_a_planner_that_is_lost_nothing_more_is_told_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox = make_outbox(Inbox(*[503] * 10_000))
    put(outbox, range(7))
    outbox.start()
    outbox.stop(10.0)

    assert outbox.num_dropped == 7
    (line,) = caplog.records
    assert "planner lost" in line.getMessage()


def test_a_batch_that_fails_after_the_end_is_counted_too() -> None:
    begun, going_on = threading.Event(), threading.Event()

    def hold(request: httpx.Request) -> httpx.Response:
        del request
        begun.set()
        going_on.wait(60.0)
        return httpx.Response(503)

    outbox = make_outbox(hold)
    put(outbox, range(3))
    outbox.start()
    assert begun.wait(60.0)
    put(outbox, range(3, 5))
    outbox.stop(0.01)
    assert outbox.num_dropped == 2

    going_on.set()
    wait_until(lambda: outbox.num_dropped == 5)


def test_pauses_double_up_to_the_longest_and_begin_again() -> None:
    backoff = Backoff(first_s=1.0, longest_s=3.0)
    for longest_s in (1.0, 2.0, 3.0, 3.0):
        assert longest_s / 2 <= backoff.next_pause_s() <= longest_s
    backoff.reset()
    assert backoff.next_pause_s() <= 1.0
    with pytest.raises(ValueError, match="backoff must be 0 < first_s <= longest_s"):
        Backoff(first_s=2.0, longest_s=1.0)
