"""Where the planner fails at one rank of a call, the answer says by which id its log tells."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.samples import rank_registration

from flyball_server.jobs.records import RankRecord
from flyball_server.jobs.registry import registration
from flyball_wire import routes
from flyball_wire.messages import JobSpec

HEADERS = {"X-Request-Id": "call-17"}
TOLD = "The planner failed to answer this call; see its log, at request call-17"


@pytest.fixture
def planner() -> Iterator[LivePlanner]:
    with live_planner(reconcilers=()) as live:
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


@pytest.mark.usefixtures("fault_at_rank_2")
def test_a_rank_that_the_planner_fails_at_gets_the_id_of_its_call(planner: LivePlanner) -> None:
    path = routes.fill(routes.RANK, job_id="job", rank=2)
    answer = planner.http.put(path, json=rank_registration(0), headers=HEADERS)
    assert (answer.status_code, answer.json()["detail"]) == (500, TOLD)
    assert answer.headers["X-Request-Id"] == "call-17"
