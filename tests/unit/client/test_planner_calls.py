from __future__ import annotations

import logging

import pytest

from flyball_client.api.errors import PlannerRefusedError, PlannerUnavailableError
from flyball_client.helper.planner_calls import Backoff, PlannerReachability
from flyball_client.helper.rank_agent import LinkTimes

AWAY = PlannerUnavailableError("nobody there")


def test_pauses_double_up_to_the_longest_and_start_again() -> None:
    backoff = Backoff(first_s=1.0, longest_s=3.0)
    for longest_s in (1.0, 2.0, 3.0, 3.0):
        assert longest_s / 2 <= backoff.next_pause_s() <= longest_s
    backoff.reset()
    assert backoff.next_pause_s() <= 1.0
    with pytest.raises(ValueError, match="backoff must be 0 < first_s <= longest_s"):
        Backoff(first_s=2.0, longest_s=1.0)
    with pytest.raises(ValueError, match="backoff must be 0 < first_s <= longest_s"):
        LinkTimes(first_retry_s=0.0)


def refused(status: int) -> PlannerRefusedError:
    return PlannerRefusedError(f"refused ({status})", status=status)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        *(
            (
                [("lost", "plans", e) for e in (AWAY, AWAY, no, no, AWAY, no)],
                2 * [(logging.WARNING, "nobody there"), (level, str(no))],
            )
            for no, level in ((refused(404), logging.INFO), (refused(422), logging.WARNING))
        ),
        # A refusal for another reason is logged too.
        (
            [("lost", "plans", refused(status)) for status in (404, 404, 401, 401)],
            [(logging.INFO, "refused (404)"), (logging.WARNING, "refused (401)")],
        ),
        # A rank that the planner has forgotten.
        (
            [("back", "plans"), ("lost", "plans", refused(404))],
            [(logging.WARNING, "refused (404)")],
        ),
        # One thread is refused, and another one is not.
        (
            5 * [("lost", "plans", refused(422)), ("back", "measurements")] + [("back", "plans")],
            [(logging.WARNING, "refused (422)"), (logging.WARNING, "planner back")],
        ),
        (
            [
                *(("lost", "plans", AWAY), ("lost", "measurements", AWAY)),
                *(("back", "measurements"), ("back", "plans")),
            ],
            [(logging.WARNING, "nobody there"), (logging.WARNING, "planner back")],
        ),
    ],
)
def test_a_lost_planner_and_its_return_are_logged_once_for_all_threads(
    caplog: pytest.LogCaptureFixture,
    calls: list[tuple[str, ...]],
    said: list[tuple[int, str]],
) -> None:
    caplog.set_level(logging.INFO, logger="flyball_client")
    reachability = PlannerReachability("rank 3")
    for name, *arguments in calls:
        getattr(reachability, name)(*arguments)
    logged = [(record.levelno, record.message.rpartition(": ")[2]) for record in caplog.records]
    assert logged == said


def test_a_registration_that_stays_refused_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    reachability = PlannerReachability("job job rank 3")
    taken = PlannerRefusedError("Ranks 0 and 3 both claim stage 0", status=409)
    with caplog.at_level(logging.INFO):
        for _ in range(20):
            reachability.lost("registration", taken)
    assert [(record.levelname, "both claim" in record.message) for record in caplog.records] == [
        ("INFO", True),  # as long as another rank may still register the job
        ("WARNING", True),
    ]
