from __future__ import annotations

import logging

import pytest

from flyball_client.api.errors import PlannerRefusedError, PlannerUnavailableError
from flyball_client.session.planner_calls import Backoff, PlannerReachability

AWAY = PlannerUnavailableError("nobody there")


def test_pauses_double_up_to_the_longest_and_start_again() -> None:
    backoff = Backoff(first_s=1.0, longest_s=3.0)
    for longest_s in (1.0, 2.0, 3.0, 3.0):
        assert longest_s / 2 <= backoff.next_pause_s() <= longest_s
    backoff.reset()
    assert backoff.next_pause_s() <= 1.0
    with pytest.raises(ValueError, match="backoff must be 0 < first_s <= longest_s"):
        Backoff(first_s=2.0, longest_s=1.0)


def refused(status: int) -> PlannerRefusedError:
    return PlannerRefusedError(f"refused ({status})", status=status)


@pytest.fixture
def reachability(caplog: pytest.LogCaptureFixture) -> PlannerReachability:
    caplog.set_level(logging.INFO, logger="flyball_client")
    return PlannerReachability("rank 3")


@pytest.mark.parametrize(("status", "level"), [(404, logging.INFO), (422, logging.WARNING)])
def test_a_planner_that_returns_and_refuses_is_said_once(
    reachability: PlannerReachability, caplog: pytest.LogCaptureFixture, status: int, level: int
) -> None:
    for error in (AWAY, AWAY, refused(status), refused(status), AWAY, refused(status)):
        reachability.lost("plans", error)
    said = [(record.levelno, record.message.rpartition(": ")[2]) for record in caplog.records]
    away, no = (logging.WARNING, "nobody there"), (level, f"refused ({status})")
    assert said == [away, no, away, no]


def test_a_refusal_for_another_reason_is_said_too(
    reachability: PlannerReachability, caplog: pytest.LogCaptureFixture
) -> None:
    for status in (404, 404, 401, 401):
        reachability.lost("plans", refused(status))
    assert len(caplog.records) == 2


def test_to_be_forgotten_is_a_warning(
    reachability: PlannerReachability, caplog: pytest.LogCaptureFixture
) -> None:
    reachability.back("plans")
    reachability.lost("plans", refused(404))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "refused (404)" in record.message


def test_one_thread_that_is_refused_and_one_that_is_not_do_not_fill_the_log(
    reachability: PlannerReachability, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        reachability.lost("plans", refused(422))
        reachability.back("measurements")
    assert len(caplog.records) == 1
    reachability.back("plans")
    assert caplog.messages[1:] == ["rank 3: planner back"]


def test_lost_and_back_are_one_line_each_for_all_threads(
    reachability: PlannerReachability, caplog: pytest.LogCaptureFixture
) -> None:
    reachability.lost("plans", AWAY)
    reachability.lost("measurements", AWAY)
    reachability.back("measurements")
    reachability.back("plans")
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]
