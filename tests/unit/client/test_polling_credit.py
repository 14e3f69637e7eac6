"""Polling takes no more of a core than its share, on average."""

from __future__ import annotations

import pytest

from flyball_client.governor import polling_credit
from flyball_client.governor.polling_credit import SAVED_NS, PollingCredit

SHARE = 0.25
MS = 1_000_000


class Clocks:
    """The time of day and of this process, both set by the test."""

    def __init__(self) -> None:
        self.now_ns = self.process_ns = 0

    def monotonic_ns(self) -> int:
        """As time's."""
        return self.now_ns

    def process_time_ns(self) -> int:
        """As time's."""
        return self.process_ns


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(polling_credit, "time", clocks)
    return clocks


def test_a_share_of_the_time_is_earned_and_what_polling_took_is_paid(clocks: Clocks) -> None:
    credit = PollingCredit(SHARE)
    clocks.now_ns += 40 * MS
    credit.earn()
    assert credit.left_ns == 10 * MS
    clocks.process_ns += 5 * MS  # before it began
    credit.begin()
    clocks.process_ns += 3 * MS
    credit.end()
    clocks.process_ns += 7 * MS  # since: a call of NVML
    assert credit.pay() == 3 * MS
    assert credit.left_ns == 7 * MS
    assert credit.pay() == 0  # once


def test_no_more_than_a_little_is_saved_up(clocks: Clocks) -> None:
    credit = PollingCredit(SHARE)
    clocks.now_ns += 1000 * SAVED_NS
    credit.earn()
    assert credit.left_ns == SHARE * SAVED_NS


def test_what_is_left_may_be_used_up_and_debts_are_earned_first(clocks: Clocks) -> None:
    credit = PollingCredit(SHARE)
    clocks.now_ns += 40 * MS
    credit.earn()
    credit.begin()
    clocks.process_ns += 10 * MS - 1
    assert not credit.is_used_up()
    clocks.process_ns += 2 * MS + 1
    assert credit.is_used_up()
    credit.end()
    credit.pay()
    assert credit.left_ns == -2 * MS
    clocks.now_ns += 8 * MS
    credit.earn()
    assert credit.left_ns == 0


def test_without_a_share_nothing_is_earned(clocks: Clocks) -> None:
    credit = PollingCredit(0.0)
    clocks.now_ns += SAVED_NS
    credit.earn()
    credit.begin()
    assert credit.left_ns == 0
    assert credit.is_used_up()
