"""Where the planner fails at one rank of a call, the answer says by which id its log tells."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.samples import rank_registration

from flyball_server.jobs.records import JobSpec, RankRecord
from flyball_server.jobs.registry import registration
from flyball_server.log_context import log_fields
from flyball_wire import routes

RANKS = routes.fill(routes.RANKS, job_id="job")
HEADERS = {"X-Request-Id": "call-17"}
TOLD = "The planner has failed at this for job job; its log says why, at request call-17"


@pytest.fixture
def planner() -> Iterator[LivePlanner]:
    with live_planner(reactions=()) as live:
        live.put_job(num_ranks=3).raise_for_status()
        yield live


@pytest.fixture
def fault_at_rank_2() -> Iterator[None]:
    def check(rank: RankRecord, spec: JobSpec) -> None:
        del spec
        if rank.rank == 2:
            raise ZeroDivisionError("by nothing")

    with patch.object(registration, "_check_place", check):
        yield


def put_together(planner: LivePlanner, ranks: range) -> tuple[list[int], list[tuple[int, str]]]:
    """The ranks that are known then, and the others with what they are told."""
    entries = [{"rank": rank, "registration": rank_registration(rank % 2)} for rank in ranks]
    answer = planner.http.put(RANKS, json={"ranks": entries}, headers=HEADERS).json()
    failures = [(each["rank"], each["detail"]) for each in answer["failures"]]
    assert {each["status"] for each in answer["failures"]} <= {500}
    return [each["rank"] for each in answer["ranks"]], failures


@pytest.mark.usefixtures("fault_at_rank_2")
def test_of_several_ranks_the_one_that_failed_is_told_the_id_of_the_call(
    planner: LivePlanner, caplog: pytest.LogCaptureFixture
) -> None:
    assert put_together(planner, range(3)) == ([0, 1], [(2, TOLD)])
    # Once with its traceback, by what has worked on it, and once with the id of the call.
    assert "in check" in caplog.text
    assert "log says why: ZeroDivisionError('by nothing')" in caplog.text


@pytest.mark.usefixtures("fault_at_rank_2")
def test_a_rank_that_calls_alone_is_told_it_too(planner: LivePlanner) -> None:
    path = routes.fill(routes.RANK, job_id="job", rank=2)
    answer = planner.http.put(path, json=rank_registration(0), headers=HEADERS)
    assert (answer.status_code, answer.json()["detail"]) == (500, TOLD)
    assert answer.headers["X-Request-Id"] == "call-17"


@pytest.mark.usefixtures("fault_at_rank_2")
def test_the_log_line_of_the_failure_has_the_id_of_the_call(
    planner: LivePlanner,
) -> None:
    seen: list[object] = []

    def note(message: str, *args: object) -> None:
        seen.append((message % args, log_fields().get("request_id")))

    with patch("flyball_server.http.problem_handlers._LOG.error", note):
        put_together(planner, range(3))
    fault = TOLD.partition(", at request")[0]
    assert seen == [(f"{fault}: ZeroDivisionError('by nothing')", "call-17")]


@pytest.mark.usefixtures("fault_at_rank_2")
def test_what_is_refused_is_told_as_ever(planner: LivePlanner) -> None:
    entries = [{"rank": 0, "registration": rank_registration(0)}]
    path = routes.fill(routes.RANKS, job_id="other")
    answer = planner.http.put(path, json={"ranks": entries}, headers=HEADERS).json()
    (failure,) = answer["failures"]
    assert failure["status"] == 404
    assert "call-17" not in failure["detail"]
