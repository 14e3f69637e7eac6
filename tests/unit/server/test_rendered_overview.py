"""The overview as its callers see it: joined once for operators, a job's own for its token."""

from __future__ import annotations

import json

import pytest

from flyball_server.jobs.access import OPERATOR, Access
from flyball_server.rest.overviews import RenderedOverview

JOBS = tuple((name, json.dumps({"job_id": name}).encode()) for name in ("b", "a@1", "a", "ab"))


@pytest.mark.parametrize(
    ("access", "seen"),
    [
        (OPERATOR, ["b", "a@1", "a", "ab"]),
        (Access(job_id="a"), ["a@1", "a"]),
        (Access(job_id="c"), []),
    ],
)
def test_a_caller_sees_what_is_open_to_it_in_the_same_order(
    access: Access, seen: list[str]
) -> None:
    overview = json.loads(RenderedOverview.of(JOBS).seen_by(access))
    assert [job["job_id"] for job in overview["jobs"]] == seen


def test_operators_are_given_the_same_bytes() -> None:
    rendered = RenderedOverview.of(iter(JOBS))
    assert rendered.seen_by(OPERATOR) is rendered.seen_by(OPERATOR)
    assert rendered.jobs == JOBS
