from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest
from tests.planner.patience import wait_until

from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.api.planner_errors import strict_json
from flyball_client.session.measurement_outbox import MeasurementOutbox
from flyball_client.session.planner_reachability import Backoff, PlannerPresence
from flyball_wire.codec import decode
from flyball_wire.messages import MeasurementBatch, StepMeasurement


class Inbox:
    """Takes batches, after failing as often as the test wants."""

    def __init__(self, *statuses: int, unknown: tuple[str, ...] = ()) -> None:
        self._statuses = list(statuses)
        # Fields that its Flyball does not know, which it says as a served planner does.
        self.unknown = unknown
        self.batches: list[list[int]] = []
        self.run_ids: list[str | None] = []
        self.steps: list[StepMeasurement] = []
        self.num_refused = 0
        self.posted = threading.Condition()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = request.read()
        batch = decode(MeasurementBatch, strict_json(body))
        if (problem := self._problem(batch, body)) is not None:
            self.num_refused += 1
            return httpx.Response(422, json={"detail": problem})
        with self.posted:
            self.run_ids.append(batch.run_id)
            self.batches.append([step.step for step in batch.steps])
            self.steps += batch.steps
            self.posted.notify_all()
        status = self._statuses.pop(0) if self._statuses else 200
        return httpx.Response(status, json={"stored": len(batch.steps)})

    def _problem(self, batch: MeasurementBatch, body: bytes) -> str | None:
        unknown = next((name for name in self.unknown if name.encode() in body), None)
        if unknown is not None:
            place = unknown if unknown == "run_id" else f"steps.0.{unknown}"
            return f"{place}: Unexpected keyword argument"
        if any((step.sm_clock_mhz or 0) > 10_000 for step in batch.steps):
            return "sm_clock_mhz must be at most 10000"
        return None


def make_outbox(
    inbox: Callable[[httpx.Request], httpx.Response],
    *,
    capacity: int = 100,
    max_details: int = 100,
    max_details_per_post: int = 100,
    is_registered: bool = True,
    run_id: str | None = None,
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
        presence=PlannerPresence("rank 0"),
        backoff=Backoff(first_s=0.001, longest_s=0.002),
        capacity=capacity,
        max_details=max_details,
        max_details_per_post=max_details_per_post,
        period_s=0.001,
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


def with_clock(step: int) -> StepMeasurement:
    """A step whose clock was read back."""
    return StepMeasurement(
        step=step, plan_version=None, time_s=1.5, energy_j=None, sm_clock_mhz=1305.0
    )


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


def test_totals_of_short_steps_are_posted_every_other_turn_and_details_every_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inbox = Inbox()
    outbox = make_outbox(inbox)

    def turn(step: int, num_instructions: int) -> Callable[[], None]:
        return lambda: put(outbox, range(step, step + 1), num_instructions=num_instructions)

    details = (0, 0, 0, 0, 1, 1, 0, 0, 0)
    turns = Turns(*(turn(step, number) for step, number in enumerate(details)))
    monkeypatch.setattr(outbox, "_stopping", turns)
    outbox._run()
    assert inbox.batches == [[0], [1, 2], [3, 4], [5], [6, 7], [8]]


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


def test_totals_of_long_steps_wait_for_no_second_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox()
    outbox = make_outbox(inbox)
    num_posted: list[int] = []

    def step() -> None:
        num_posted.append(len(inbox.batches))
        put(outbox, range(len(num_posted) - 1, len(num_posted)))

    monkeypatch.setattr(outbox, "_stopping", Turns(step, nothing, step, nothing, step, nothing))
    outbox._run()
    assert inbox.batches == [[0], [1], [2]]
    assert num_posted == [0, 1, 2]


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


def test_an_older_planner_gets_all_but_the_clocks_and_is_asked_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox = Inbox(unknown=("sm_clock_mhz",))
    outbox = make_outbox(inbox, capacity=1000, run_id="7")
    for step in range(300):
        outbox.put(with_clock(step))
    outbox.start()
    outbox.stop(10.0)
    assert inbox.run_ids == ["7", "7"]
    assert [step.step for step in inbox.steps] == list(range(300))
    assert {(step.sm_clock_mhz, step.time_s) for step in inbox.steps} == {(None, 1.5)}
    assert (inbox.num_refused, outbox.num_dropped) == (1, 0)
    assert caplog.messages == []


def test_a_planner_that_comes_back_newer_gets_the_clocks() -> None:
    inbox = Inbox(200, 503, unknown=("sm_clock_mhz",))
    outbox = make_outbox(inbox)
    outbox.put(with_clock(0))
    outbox.start()
    with inbox.posted:
        assert inbox.posted.wait_for(lambda: len(inbox.batches) == 1, 30.0)
        inbox.unknown = ()
    outbox.put(with_clock(1))
    with inbox.posted:
        assert inbox.posted.wait_for(lambda: len(inbox.batches) == 3, 30.0)
    outbox.stop(10.0)
    # The planner was away when step 1 came first, still without its clock.
    assert inbox.batches == [[0], [1], [1]]
    assert [step.sm_clock_mhz for step in inbox.steps] == [None, None, 1305.0]
    assert outbox.num_dropped == 0


@pytest.mark.parametrize(
    ("unknown", "num_refused", "run_id", "clock_mhz"),
    [
        (("run_id",), 1, None, 1305.0),
        (("run_id", "sm_clock_mhz"), 2, None, None),
        (("sm_clock_mhz", "run_id"), 2, None, None),
    ],
)
def test_a_planner_that_does_not_know_the_run_gets_all_that_it_does_know(
    unknown: tuple[str, ...], num_refused: int, run_id: str | None, clock_mhz: float | None
) -> None:
    inbox = Inbox(unknown=unknown)
    outbox = make_outbox(inbox, run_id="7")
    outbox.put(with_clock(0))
    outbox.start()
    outbox.stop(10.0)
    assert (inbox.batches, inbox.run_ids) == ([[0]], [run_id])
    assert inbox.steps[0].sm_clock_mhz == clock_mhz
    assert (inbox.num_refused, outbox.num_dropped) == (num_refused, 0)


def test_a_batch_with_a_field_that_was_always_there_is_dropped_where_it_is_not_known() -> None:
    inbox = Inbox(unknown=("time_s",))
    outbox = make_outbox(inbox)
    put(outbox, range(1))
    outbox.start()
    outbox.stop(10.0)
    assert (inbox.batches, inbox.num_refused, outbox.num_dropped) == ([], 1, 1)


def test_a_clock_that_the_planner_finds_wrong_costs_no_measurement_and_no_later_clock() -> None:
    inbox = Inbox()
    outbox = make_outbox(inbox, run_id="7")
    outbox.put(replace(with_clock(0), sm_clock_mhz=1e9))
    outbox.start()
    with inbox.posted:
        assert inbox.posted.wait_for(lambda: len(inbox.batches) == 1, 30.0)
    outbox.put(with_clock(1))
    outbox.stop(10.0)
    assert (inbox.batches, inbox.run_ids) == ([[0], [1]], ["7", "7"])
    assert [step.sm_clock_mhz for step in inbox.steps] == [None, 1305.0]
    assert (inbox.num_refused, outbox.num_dropped) == (1, 0)


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
