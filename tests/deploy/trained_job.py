"""A live planner with jobs that trained, and what its /metrics tells by then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.planner.live import LivePlanner
from tests.planner.measuring import COMPARISON, MeasuringRanks
from tests.planner.samples import rank_registration

from flyball_wire import routes

TARGET = routes.fill(routes.TARGET, job_id="job")
NUM_VERSIONS = 4


def put_jobs(planner: LivePlanner) -> MeasuringRanks:
    """`job`, planned, with two ranks that have trained a little; `real`, of no emulated GPU."""
    planner.put_planned_job()
    planner.put_job("real", emulated=False).raise_for_status()
    for rank in (0, 1):
        path = routes.fill(routes.RANK, job_id="real", rank=rank)
        body = rank_registration(rank, emulated=False)
        planner.http.put(path, json=body).raise_for_status()
    ranks = MeasuringRanks(planner)
    ranks.measure(10)
    ranks.take_newest_plan()
    return ranks


def train(planner: LivePlanner, ranks: MeasuringRanks, saw_version: Callable[[int], None]) -> None:
    """On the plan, on another, in a comparison and on the plan again; all steps are posted.

    Args:
        planner: has the job.
        ranks: of the job, on version 1.
        saw_version: called with each version before the next one is made.
    """
    saw_version(1)
    ranks.measure(10)
    planner.http.put(TARGET, json={"target": "slowdown:0.05"}).raise_for_status()
    ranks.wait_for_version(2)
    assert ranks.take_newest_plan() == 2
    ranks.measure(10)
    saw_version(2)
    planner.http.put(COMPARISON, json={"num_pairs": 24}).raise_for_status()
    ranks.wait_for_version(3)
    assert ranks.take_newest_plan() == 3
    ranks.measure(60)
    saw_version(3)
    ranks.wait_for_comparison("done")
    ranks.wait_for_version(NUM_VERSIONS)
    assert ranks.take_newest_plan() == NUM_VERSIONS
    ranks.measure(10)


def told_labels(planner: LivePlanner) -> dict[str, set[str]]:
    """The labels of every series on /metrics, by the name that a query uses."""
    text = planner.http.get(routes.METRICS).raise_for_status().text
    found: dict[str, set[str]] = defaultdict(set)
    for family in parse_text(text):
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return dict(found)
