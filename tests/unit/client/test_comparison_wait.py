"""Waiting for a comparison: as long as it runs, and no longer than the timeout."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx

from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.cli.report import wait_for_comparison
from flyball_wire.closed_loop import ComparisonState, ComparisonStatus
from flyball_wire.codec import encode


def view(state: ComparisonState, num_measured: int, version: int | None = 2) -> ComparisonStatus:
    return ComparisonStatus(
        state=state, version=version, num_pairs=60, num_measured_pairs=num_measured
    )


class Waiting:
    """A planner that gives these answers in turn, the last one for ever, and a clock.

    An answer that is a number is an HTTP status.
    """

    def __init__(self, *answers: ComparisonStatus | int) -> None:
        self.answers: Iterator[ComparisonStatus | int] = iter(answers)
        self.last: ComparisonStatus | int = answers[-1]
        self.bodies: list[object] = []
        self.now_s = 100.0

    def handle(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/api/v1/jobs/walk/comparison"
        self.bodies.append(json.loads(request.content or b"null"))
        answer = next(self.answers, self.last)
        if isinstance(answer, int):
            return httpx.Response(answer, json={"detail": "no", "errors": []})
        return httpx.Response(200, json=encode(answer))

    def sleep(self, pause_s: float) -> None:
        assert 0 < pause_s <= 1
        self.now_s += pause_s

    def wait(self, timeout_s: float = 1000.0) -> str | None:
        with PlannerClient(
            "http://planner.test",
            transport=httpx.MockTransport(self.handle),
            retries=Retries(num_attempts=1),
        ) as planner:
            return wait_for_comparison(
                planner,
                "walk",
                60,
                timeout_s=timeout_s,
                now_s=lambda: self.now_s,
                sleep=self.sleep,
            )


def test_it_waits_until_the_comparison_is_over_also_without_the_planner() -> None:
    waiting = Waiting(
        view(ComparisonState.RUNNING, 0, None),
        503,
        503,
        view(ComparisonState.RUNNING, 30),
        view(ComparisonState.DONE, 61),
    )
    assert waiting.wait() is None
    assert waiting.bodies == [{"num_pairs": 60}, *4 * [None]]


def test_it_waits_no_longer_than_asked() -> None:
    waiting = Waiting(view(ComparisonState.RUNNING, 7))
    assert waiting.wait(timeout_s=2.5) == (
        "not over after 2.5 s, 7 of 60 pairs were measured; the comparison continues;"
        " `flyball report walk` shows its measurements"
    )
    assert waiting.now_s == 102.5


def test_one_that_another_plan_has_ended_is_told() -> None:
    problem = Waiting(view(ComparisonState.RUNNING, 7), view(ComparisonState.ENDED, 12)).wait()
    assert problem is not None
    assert problem.startswith("the comparison ended early, 12 of 60 pairs")
