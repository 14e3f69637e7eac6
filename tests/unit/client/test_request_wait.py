from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from flyball_client.governor import request_wait
from flyball_client.governor.idle_cores import IdleCores
from flyball_client.governor.polling_rest import NUM_HELD_UP, PollingRest
from flyball_client.governor.request_rhythm import MAX_WINDOW_NS, RequestWindow
from flyball_client.governor.request_wait import (
    FAR_PAUSE_S,
    NEAR_NS,
    NEAR_PAUSE_S,
    TICK_S,
    RequestWait,
)
from flyball_client.governor.shared_state import (
    IS_POLLING,
    NUM_UNWOKEN,
    POLLING_NS,
    REQUEST,
    REQUESTED_NS,
    SERVED,
    STEP_REQUEST,
    ClockBoard,
)

PATIENCE_NS = 20_000_000_000
MHZ = 1410
# A share of a core that is not used up while a test has patience.
PLENTY = 1000.0


class Desk:
    """A board between a rank and a governor that waits, both played by the test."""

    def __init__(self) -> None:
        self.board = ClockBoard.create()
        self.words = self.board.words
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.other_fd, self.other_end = os.pipe()
        self.looked_out: list[bool] = []

    def new_wait(
        self, polling_share: float = PLENTY, *more_fds: int, rest: PollingRest | None = None
    ) -> RequestWait:
        """A governor's, just started; other processes on the machine do not make it rest."""
        other_fds = [self.other_fd, *more_fds]
        return RequestWait(
            self.board,
            self.wake_fd,
            other_fds,
            polling_share=polling_share,
            look_out=self.looked_out.append,
            rest=rest or PollingRest(IdleCores(least=0), held_up_ns=10**18),
        )

    def wait_until_polled(self) -> None:
        """Until the governor looks at the board by itself."""
        give_up_ns = time.monotonic_ns() + PATIENCE_NS
        while not self.words[IS_POLLING] and time.monotonic_ns() < give_up_ns:
            time.sleep(0)

    def store_request(self) -> None:
        """What the rank's hook does first."""
        self.words[REQUESTED_NS] = time.monotonic_ns()
        self.words[REQUEST] = ((self.words[REQUEST] >> 32) + 1) << 32 | MHZ

    def ask(self) -> None:
        """All that the rank's hook does."""
        self.store_request()
        if not self.words[IS_POLLING]:
            os.eventfd_write(self.wake_fd, 1)

    def serve(self, wait: RequestWait) -> None:
        """What the governor does."""
        self.words[SERVED] = self.words[REQUEST]
        wait.on_served()

    def close(self) -> None:
        """Close it all."""
        for fd in (self.wake_fd, self.other_fd, self.other_end):
            os.close(fd)
        self.board.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def open_window(wait: RequestWait, lasting_ns: int) -> None:
    """From now on a request is expected for so long."""
    now_ns = time.monotonic_ns()
    wait._looks_again_ns = None
    wait._window = RequestWindow(
        begin_ns=now_ns, usual_ns=now_ns + lasting_ns, end_ns=now_ns + lasting_ns
    )


def in_another_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_request_that_wakes_is_all_that_came(desk: Desk) -> None:
    wait = desk.new_wait()
    assert not wait.wait()  # nothing yet: a tick
    desk.ask()
    assert wait.wait()
    desk.serve(wait)
    assert not wait.wait()


def test_a_wait_ends_when_the_governor_has_something_else_to_do(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = desk.new_wait()
    wait._looks_again_ns = None
    waited_s: list[float] = []

    def quiet(timeout_s: float) -> list[int]:
        waited_s.append(timeout_s)
        return []

    monkeypatch.setattr(wait, "_ready_within", quiet)
    for due_s in (0.01, 5.0, 0.0, -3.0):
        assert not wait.wait(due_s)
    # What was due already, and could not be done, does not keep it awake.
    assert waited_s == [0.01, TICK_S, TICK_S, TICK_S]


def test_a_window_that_opens_first_comes_first(desk: Desk) -> None:
    wait = desk.new_wait()
    open_window(wait, PATIENCE_NS)

    def ask_when_polled() -> None:
        desk.wait_until_polled()
        desk.ask()

    rank = in_another_thread(ask_when_polled)
    assert wait.wait(TICK_S / 2)
    rank.join()
    desk.serve(wait)
    assert desk.words[NUM_UNWOKEN] == 1


def test_it_looks_more_often_about_the_usual_moment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual_ns, pauses = 10_000_000, list[tuple[int, float]]()

    class Clock:
        now_ns = 9_000_000

        def monotonic_ns(self) -> int:
            return self.now_ns

        def sleep(self, pause_s: float) -> None:
            pauses.append((abs(self.now_ns - usual_ns), pause_s))
            self.now_ns += round(pause_s * 1e9)

    wait = desk.new_wait()
    monkeypatch.setattr(request_wait, "time", clock := Clock())
    window = RequestWindow(begin_ns=clock.now_ns, usual_ns=usual_ns, end_ns=11_000_000)
    assert not wait._poll(window)
    assert {pause_s for away_ns, pause_s in pauses if away_ns < NEAR_NS} == {NEAR_PAUSE_S}
    assert {pause_s for away_ns, pause_s in pauses if away_ns >= NEAR_NS} == {FAR_PAUSE_S}


def test_a_request_beside_something_else_is_not_all(desk: Desk) -> None:
    wait = desk.new_wait()
    os.write(desk.other_end, b"x")
    assert not wait.wait()
    desk.ask()
    assert not wait.wait()


def test_within_a_window_a_request_is_found_and_nobody_is_woken(desk: Desk) -> None:
    wait = desk.new_wait()
    open_window(wait, PATIENCE_NS)

    def ask_when_polled() -> None:
        desk.wait_until_polled()
        desk.ask()

    rank = in_another_thread(ask_when_polled)
    assert wait.wait()
    rank.join()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(desk.wake_fd)
    assert desk.words[IS_POLLING] == 0
    assert desk.words[POLLING_NS] == 0  # it is served before all else
    desk.serve(wait)
    assert desk.words[NUM_UNWOKEN] == 1
    assert desk.words[POLLING_NS] > 0


def test_what_a_window_cost_is_told_once_also_where_its_request_is_not_served(desk: Desk) -> None:
    wait = desk.new_wait()
    open_window(wait, PATIENCE_NS)
    desk.store_request()  # seen at the first look
    assert wait.wait()
    assert wait.wait()  # still there
    assert not wait.wait()  # told of often enough: a tick
    polling_ns = desk.words[POLLING_NS]
    assert polling_ns > 0
    desk.serve(wait)
    assert desk.words[NUM_UNWOKEN] == 1
    assert desk.words[POLLING_NS] == polling_ns


def test_a_signal_within_a_window_ends_it(desk: Desk) -> None:
    wait = desk.new_wait()
    open_window(wait, PATIENCE_NS)
    end_ns = time.monotonic_ns() + PATIENCE_NS

    def tell_when_polled() -> None:
        desk.wait_until_polled()
        os.write(desk.other_end, b"x")

    signals = in_another_thread(tell_when_polled)
    assert not wait.wait()
    signals.join()
    assert time.monotonic_ns() < end_ns
    assert desk.words[IS_POLLING] == 0
    assert not wait.wait()  # still there, for whoever reads it


def test_the_ranks_death_within_a_window_ends_it(desk: Desk) -> None:
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    rank_fd = os.pidfd_open(rank.pid)
    try:
        wait = desk.new_wait(PLENTY, rank_fd)
        open_window(wait, PATIENCE_NS)
        end_ns = time.monotonic_ns() + PATIENCE_NS

        def kill_when_polled() -> None:
            desk.wait_until_polled()
            rank.send_signal(signal.SIGKILL)

        killer = in_another_thread(kill_when_polled)
        assert not wait.wait()
        killer.join()
        assert time.monotonic_ns() < end_ns
        assert desk.words[IS_POLLING] == 0
    finally:
        rank.kill()
        rank.wait()
        os.close(rank_fd)


def test_a_window_ends_where_the_time_that_polling_may_take_is_used_up(desk: Desk) -> None:
    wait = desk.new_wait(1e-6)
    open_window(wait, PATIENCE_NS)
    end_ns = time.monotonic_ns() + PATIENCE_NS
    assert not wait.wait()
    assert time.monotonic_ns() < end_ns
    assert wait._credit.left_ns < 0
    assert desk.words[POLLING_NS] > 0
    # A request that comes now wakes.
    desk.ask()
    assert wait.wait()


def test_no_window_is_as_long_as_a_tick() -> None:
    assert MAX_WINDOW_NS == 5_000_000
    assert MAX_WINDOW_NS / 1e9 < TICK_S


def test_ticks_on_the_way_to_a_window_far_off_are_not_polling(desk: Desk) -> None:
    wait = desk.new_wait()
    now_ns = time.monotonic_ns()
    wait._looks_again_ns = None
    wait._window = RequestWindow(
        begin_ns=now_ns + PATIENCE_NS, usual_ns=now_ns + PATIENCE_NS, end_ns=now_ns + PATIENCE_NS
    )
    wait._credit._begun_ns = 0  # as if all this process did had come since the last request
    assert not wait.wait()
    used_ns = wait._credit._begun_ns
    assert used_ns > 0
    open_window(wait, 0)
    assert not wait.wait()
    assert desk.words[POLLING_NS] <= time.process_time_ns() - used_ns


def test_a_request_that_crosses_the_end_of_a_window_is_found(desk: Desk) -> None:
    wait = desk.new_wait()
    open_window(wait, 0)
    assert not wait.wait()
    assert desk.words[IS_POLLING] == 0
    # The rank has seen that it was polled and so does not wake; its store comes late.
    desk.store_request()
    assert wait.wait()


def test_a_signal_that_comes_as_the_governor_stops_polling_leaves_the_last_look_to_come(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_wait, "PARKING_NS", PATIENCE_NS)
    wait = desk.new_wait()
    open_window(wait, 0)
    assert not wait.wait()
    os.write(desk.other_end, b"x")
    assert not wait.wait()
    os.read(desk.other_fd, 1)
    desk.store_request()
    assert wait._looks_again_ns is not None
    wait._looks_again_ns = time.monotonic_ns()  # the time has passed
    assert wait.wait()


def test_a_governor_that_takes_over_finds_what_came_while_the_last_one_polled(desk: Desk) -> None:
    desk.words[IS_POLLING] = 1
    desk.ask()
    wait = desk.new_wait()
    assert desk.words[IS_POLLING] == 0
    assert wait.wait()


def test_requests_in_rhythm_open_windows_and_without_a_share_none(desk: Desk) -> None:
    for share, is_expected in ((0.5, True), (0.0, False)):
        wait = desk.new_wait(share)
        for _ in range(6):
            desk.words[STEP_REQUEST] = desk.words[REQUEST] >> 32
            desk.store_request()
            desk.words[REQUESTED_NS] = 1_000_000_000 + 10_000_000 * (desk.words[REQUEST] >> 32)
            desk.serve(wait)
        assert (wait._window is not None) == is_expected


def test_it_is_told_whether_a_request_is_looked_out_for(desk: Desk) -> None:
    wait = desk.new_wait()
    for number in range(1, 5):
        desk.words[STEP_REQUEST] = desk.words[REQUEST] >> 32
        desk.store_request()
        desk.words[REQUESTED_NS] = 10_000_000 * number
        desk.serve(wait)
        assert desk.looked_out[-1] == (wait._window is not None)
    assert desk.looked_out[-1]


def test_where_the_rank_is_is_known_only_after_it_has_woken_the_governor(desk: Desk) -> None:
    wait = desk.new_wait()
    open_window(wait, PATIENCE_NS)
    desk.store_request()  # found without a wake-up, and the first one: none is expected
    assert wait.wait()
    desk.serve(wait)
    assert desk.looked_out == []
    desk.store_request()
    os.eventfd_write(desk.wake_fd, 1)
    assert wait.wait()
    desk.serve(wait)
    assert desk.looked_out == [False]


def test_what_polling_costs_is_paid_for_before_it_goes_on(desk: Desk) -> None:
    wait = desk.new_wait(1e-6)
    gap_ns = 10_000_000

    def ask_and_serve() -> None:
        desk.words[STEP_REQUEST] = desk.words[REQUEST] >> 32
        desk.store_request()
        desk.words[REQUESTED_NS] = gap_ns * (desk.words[REQUEST] >> 32)
        desk.serve(wait)

    for _ in range(3):
        ask_and_serve()
    assert wait._window is not None
    open_window(wait, 5_000_000)
    wait.wait()
    taken_ns = desk.words[POLLING_NS]
    assert taken_ns > 0
    for _ in range(3):
        ask_and_serve()
        # A millionth of the time since then is less than that.
        assert wait._window is None
        wait.wait()
    assert desk.words[POLLING_NS] == taken_ns


def test_polling_that_is_held_up_in_window_after_window_ends_for_a_while(desk: Desk) -> None:
    # Every pause is too late.
    wait = desk.new_wait(PLENTY, rest=PollingRest(IdleCores(least=0), held_up_ns=-(10**18)))
    for _ in range(NUM_HELD_UP):
        open_window(wait, 1_000_000)
        assert not wait.wait()
        assert desk.words[IS_POLLING] == 0
    for _ in range(4):
        desk.words[STEP_REQUEST] = desk.words[REQUEST] >> 32
        desk.store_request()
        desk.words[REQUESTED_NS] = 10_000_000 * (desk.words[REQUEST] >> 32)
        desk.serve(wait)
        assert wait._window is None
        assert not desk.looked_out[-1]


def test_requests_that_are_served_again_are_noted_once(desk: Desk) -> None:
    wait = desk.new_wait()
    for _ in range(4):
        desk.words[STEP_REQUEST] = desk.words[REQUEST] >> 32
        desk.store_request()
        desk.words[REQUESTED_NS] = 10_000_000 * (desk.words[REQUEST] >> 32)
        desk.serve(wait)
    assert wait._window is not None
    wait._window = None
    wait.on_served()
    assert wait._window is None
