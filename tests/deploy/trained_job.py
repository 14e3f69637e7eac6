"""A live planner with jobs that trained, and what its /metrics tells by then."""

from __future__ import annotations

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.planner.live import LivePlanner
from tests.planner.measuring import MeasuringRanks
from tests.planner.samples import rank_registration

from flyball_wire import routes


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


def told_labels(planner: LivePlanner) -> dict[str, set[str]]:
    """The labels of every series on /metrics, by the name that a query uses."""
    text = planner.http.get(routes.METRICS).raise_for_status().text
    found: dict[str, set[str]] = defaultdict(set)
    for family in parse_text(text):
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return dict(found)
