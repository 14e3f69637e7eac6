from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_client.governor.request_rhythm import (
    LEAD,
    LEAD_NS,
    LESS_LEAD_NS,
    LONGEST_LEAD_NS,
    MAX_LATENESS_NS,
    MAX_LEAD_NS,
    MAX_POSITIONS,
    MAX_SPREAD_NS,
    MAX_WINDOW_NS,
    MISSED_NS,
    MORE_LEAD_NS,
    NUM_REMEMBERED,
    OPENING_NS,
    RequestRhythm,
    RequestWindow,
)

MS = 1_000_000


class Rank:
    """Asks in steps of given gaps, and notes the window in which each request was expected."""

    def __init__(self) -> None:
        self.rhythm = RequestRhythm()
        self.now_ns = 7_000 * MS
        self.num_requests = 0
        self.expected: list[tuple[RequestWindow | None, int]] = []

    def run_step(self, gaps_ms: Sequence[float]) -> None:
        """Each request comes so long after the one before."""
        for position, gap_ms in enumerate(gaps_ms):
            self.now_ns += int(gap_ms * MS)
            self.expected.append((self.rhythm.next_window(), self.now_ns))
            self.num_requests += 1
            self.rhythm.note(self.num_requests, position, self.now_ns)

    def was_expected(self) -> list[bool]:
        """Of each request since the last call, whether it came within a window."""
        asked, self.expected = self.expected, []
        return [
            window is not None and window.begin_ns <= came_ns <= window.end_ns
            for window, came_ns in asked
        ]


def test_what_was_never_seen_is_not_expected() -> None:
    rank = Rank()
    assert rank.rhythm.next_window() is None
    rank.run_step([10, 20, 40])
    assert rank.was_expected() == [False, False, False]


def test_after_one_step_each_request_is_expected_at_its_own_time() -> None:
    rank = Rank()
    rank.run_step([10, 20, 40])
    rank.was_expected()
    rank.run_step([100, 20, 40])  # how long the pause between steps is was not known yet
    assert rank.was_expected() == [False, True, True]
    rank.run_step([100, 20, 40])
    assert rank.was_expected() == [True, True, True]


@given(
    # Farther apart than 100 ms, a hundredth is more than a window's greatest lead.
    gaps_ms=st.lists(st.floats(1.5, 80), min_size=1, max_size=6),
    num_steps=st.integers(2, 12),
    data=st.data(),
)
def test_a_request_within_a_hundredth_of_its_usual_time_is_always_expected(
    gaps_ms: list[float], num_steps: int, data: st.DataObject
) -> None:
    rank = Rank()
    jitters = st.lists(st.floats(0.995, 1.005), min_size=len(gaps_ms), max_size=len(gaps_ms))
    for step in range(num_steps):
        factors = data.draw(jitters)
        rank.run_step([gap * factor for gap, factor in zip(gaps_ms, factors, strict=True)])
        expected = rank.was_expected()
        # Of the second step's first request nothing is known before.
        assert all(expected[1:] if step == 1 else expected) or step == 0


def test_a_step_that_was_held_up_is_not_expected_again() -> None:
    rank = Rank()
    for gap_ms in (20, 20, 20, 90):
        rank.run_step([10, gap_ms])
    rank.was_expected()
    for _ in range(6):
        rank.run_step([10, 20])
        assert rank.was_expected() == [True, True]


@pytest.mark.parametrize("new_ms", [5, 15, 60])
def test_another_plans_rhythm_is_learned_in_two_steps(new_ms: int) -> None:
    rank = Rank()
    for _ in range(8):
        rank.run_step([10, 20])
    for _ in range(2):
        rank.run_step([10, new_ms])
    rank.was_expected()
    rank.run_step([10, new_ms])
    assert rank.was_expected() == [True, True]


def test_requests_without_a_rhythm_are_not_expected() -> None:
    rank = Rank()
    for gap_ms in (20, 70, 33, 110, 50):
        rank.run_step([10, gap_ms])
    rank.was_expected()
    rank.run_step([10, 20])
    assert rank.was_expected() == [True, False]


def test_requests_that_follow_at_once_are_not_expected() -> None:
    rank = Rank()
    for _ in range(5):
        rank.run_step([10, 0.5])
    assert not any(rank.was_expected()[1::2])


def test_a_request_that_was_missed_teaches_no_gap_and_nothing_is_expected_of_it() -> None:
    rhythm = RequestRhythm()
    rhythm.note(1, 0, 10 * MS)
    rhythm.note(3, 2, 50 * MS)
    rhythm.note(4, 0, 90 * MS)
    assert rhythm.next_window() is None
    rhythm.note(5, 2, 130 * MS)
    window = rhythm.next_window()
    assert window is not None
    assert window.begin_ns < 170 * MS < window.end_ns


@pytest.mark.parametrize("position", [-1, MAX_POSITIONS])
def test_positions_that_no_step_has_are_not_learned_from(position: int) -> None:
    rhythm = RequestRhythm()
    for number in range(1, 9):
        rhythm.note(number, position, number * 10 * MS)
        assert rhythm.next_window() is None


def test_a_window_opens_a_little_early_and_does_not_stay_open_for_long() -> None:
    rank = Rank()
    for _ in range(6):
        rank.run_step([200])
    window = rank.rhythm.next_window()
    assert window is not None
    assert window.usual_ns == rank.now_ns + 200 * MS
    lead_ns = window.usual_ns - window.begin_ns
    assert LEAD_NS < lead_ns < 200 * MS // 8
    assert window.end_ns - window.usual_ns == lead_ns + MAX_LATENESS_NS


def lead_ns(rank: Rank, gap_ms: float) -> int:
    """How much before its usual time the next request is expected, what every gap has aside, ns."""
    window = rank.rhythm.next_window()
    assert window is not None
    usual_ns = rank.now_ns + int(gap_ms * MS)
    return usual_ns - window.begin_ns - int(LEAD * gap_ms * MS / NUM_REMEMBERED)


def test_windows_of_regular_requests_open_later_and_later() -> None:
    rank = Rank()
    for _ in range(NUM_REMEMBERED + 1):
        rank.run_step([8])
    leads_ns = []
    for _ in range(2 * LEAD_NS // LESS_LEAD_NS):
        leads_ns.append(lead_ns(rank, 8))
        rank.run_step([8])
    assert leads_ns[0] - leads_ns[1] == LESS_LEAD_NS
    assert all(0 <= lead <= LEAD_NS for lead in leads_ns)
    assert lead_ns(rank, 8) == 0


def lead_after(early_ns: int, times: int = 1) -> int:
    """The lead after so many requests so much before their windows, each followed by usual ones."""
    rank = Rank()
    for _ in range(times):
        for _ in range(NUM_REMEMBERED + 1):
            rank.run_step([8])
        window = rank.rhythm.next_window()
        assert window is not None
        rank.run_step([(window.begin_ns - early_ns - rank.now_ns) / MS])
    for _ in range(NUM_REMEMBERED + 1):
        rank.run_step([8])
    return lead_ns(rank, 8)


def test_after_a_request_just_before_its_window_they_open_earlier_up_to_a_bound() -> None:
    unmissed_ns = lead_after(-OPENING_NS - 1)
    assert lead_after(0) > unmissed_ns + MORE_LEAD_NS // 2
    assert lead_after(0, times=2) > lead_after(0)
    assert lead_after(0, times=8) <= LONGEST_LEAD_NS


def test_a_request_long_before_its_window_is_no_reason_to_open_the_others_earlier() -> None:
    unmissed_ns = lead_after(-OPENING_NS - 1)
    assert lead_after(MISSED_NS + 1) < unmissed_ns + MORE_LEAD_NS // 2


@pytest.mark.parametrize("num_steps", [2, 3, 8])
def test_a_request_ten_seconds_away_is_waited_for_no_longer_than_others(num_steps: int) -> None:
    rank = Rank()
    for _ in range(num_steps):
        rank.run_step([10_000])
    window = rank.rhythm.next_window()
    assert window is not None
    due_ns = rank.now_ns + 10_000 * MS
    assert window.begin_ns == due_ns - MAX_LEAD_NS
    assert window.end_ns == due_ns + MAX_LEAD_NS + MAX_LATENESS_NS


@given(gaps_ms=st.lists(st.floats(0.5, 100_000), min_size=1, max_size=8))
def test_no_window_is_longer_than_the_longest_whatever_the_gaps(gaps_ms: list[float]) -> None:
    rank = Rank()
    for gap_ms in gaps_ms:
        rank.run_step([gap_ms])
        window = rank.rhythm.next_window()
        assert window is None or 0 < window.end_ns - window.begin_ns <= MAX_WINDOW_NS


@pytest.mark.parametrize(("more_ns", "is_expected"), [(0, True), (1, False)])
def test_requests_too_far_apart_for_their_rhythm_to_be_precise_are_not_expected(
    more_ns: int, is_expected: bool
) -> None:
    rhythm = RequestRhythm()
    now_ns = 0
    for number in range(1, 5):
        rhythm.note(number, 0, now_ns)
        # Three gaps, the last two longer than the first, and well within an eighth of it.
        now_ns += 1_000 * MS + (MAX_SPREAD_NS + more_ns if number > 1 else 0)
    assert (rhythm.next_window() is not None) == is_expected
