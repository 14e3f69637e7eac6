"""Every query of Grafana's dashboard, run on a real Prometheus that scrapes a live planner."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.deploy import grafana
from tests.deploy.grafana import Target
from tests.deploy.prometheus import (
    SCRAPE_INTERVAL_S,
    RunningPrometheus,
    adapted_config,
    private_prometheus,
)
from tests.deploy.trained_job import NUM_VERSIONS, put_jobs, told_labels, train
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import wait_until

from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER

TOKEN = "an-operators-token-of-32-or-more"  # noqa: S105 - a test's
TARGETS = tuple(grafana.targets())
# What Grafana would put in; a rate over a minute, since here the jobs train for seconds.
CHOSEN = {
    "emulated": "true",
    "job": "job",
    "__rate_interval": "1m",
    "__interval": f"{SCRAPE_INTERVAL_S}s",
}
# Of Prometheus itself, with each target.
OWN_LABELS = {"job", "instance"}
# Nothing is told of what did not happen.
MAY_BE_EMPTY = {"Store errors a minute by kind"}


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A planner that Prometheus scraped while jobs trained, as two, of one database.

    Attributes:
        began_s: Unix time before the first scrape, s.
    """

    planner: LivePlanner
    prometheus: RunningPrometheus
    began_s: float

    def ask_once(self, expression: str, **changes: str) -> list[dict[str, Any]]:
        """Return what a panel would show now."""
        chosen = grafana.substituted(expression, **CHOSEN | changes)
        return self.prometheus.query(chosen)

    def ask(self, expression: str, **changes: str) -> list[dict[str, Any]]:
        """What a panel shows once it has a value: while a planner's answer is late it has none."""
        found: list[dict[str, Any]] = []

        def has_value() -> bool:
            found[:] = self.ask_once(expression, **changes)
            return any(not math.isnan(float(series["value"][1])) for series in found)

        wait_until(has_value)
        return found

    def value(self, title: str, legend: str, **changes: str) -> float:
        """The one value that a panel shows under a name."""
        (target,) = (each for each in TARGETS if (each.title, each.legend) == (title, legend))
        (series,) = self.ask(target.expression, **changes)
        return float(series["value"][1])


@pytest.fixture(scope="module")
def watched(prometheus_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """With deploy/prometheus.yml."""
    del prometheus_tools
    # No rank falls silent, however long the tests take.
    with live_planner(
        token=TOKEN, rank_silence_s=3600.0, job_expiry_s=0.0, job_retention_s=0.0
    ) as planner:
        planner.http.headers[TOKEN_HEADER] = TOKEN
        ranks = put_jobs(planner)
        port = planner.http.base_url.port
        # Two names of one planner: to Prometheus, two planners that tell the same of jobs.
        addresses = (f"127.0.0.1:{port}", f"localhost:{port}")
        folder = tmp_path_factory.mktemp("prometheus")
        began_s = time.time()
        with private_prometheus(adapted_config(addresses, TOKEN, folder)) as prometheus:

            def both_told(expression: str, value: float) -> bool:
                found = prometheus.query(expression)
                return [float(each["value"][1]) for each in found] == [value, value]

            def saw_version(version: int) -> None:
                name = 'flyball_plan_active_version{job="job"}'
                wait_until(lambda: both_told(name, version))

            wait_until(
                lambda: len(prometheus.query("count_over_time(up[10m]) > 1")) == len(addresses)
            )
            train(planner, ranks, saw_version)
            steps = 'sum by (instance) (flyball_steps_total{job="job"})'
            wait_until(lambda: both_told(steps, ranks.next_step))
            saw_version(NUM_VERSIONS)
            yield Watched(planner=planner, prometheus=prometheus, began_s=began_s)


@pytest.mark.parametrize("expression", grafana.expressions())
def test_every_metric_and_label_that_is_asked_for_is_told(
    expression: str, watched: Watched
) -> None:
    told = told_labels(watched.planner) | {"up": set()}
    known = set(OWN_LABELS)
    named = grafana.metrics_of(expression)
    assert named
    for name, selector in named:
        assert name in told
        known |= told[name]
        assert grafana.labels_of(selector) <= told[name] | OWN_LABELS, name
    assert grafana.grouped_labels(expression) <= known


def test_calls_that_wait_are_left_out_of_how_long_calls_take(watched: Watched) -> None:
    waiting = {
        path
        for path, methods in watched.planner.app.openapi()["paths"].items()
        for call in methods.values()
        if any(each["name"] == "wait_s" for each in call.get("parameters", ()))
    }
    assert routes.RANK_PLAN in waiting
    left_out = {
        frozenset(routes.split("|"))
        for target in TARGETS
        for routes in re.findall(r'route!~"([^"]*)"', target.expression)
    }
    assert left_out == {frozenset(waiting)}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.title}: {target.legend}")
def test_every_query_has_an_answer_with_a_value(target: Target, watched: Watched) -> None:
    if target.title in MAY_BE_EMPTY:
        watched.ask_once(target.expression)
    else:
        assert watched.ask(target.expression)


def test_what_two_planners_tell_alike_counts_once(watched: Watched) -> None:
    for emulated in ("true", "false"):
        for legend in ("present", "expected"):
            assert watched.value("Ranks of jobs that run", legend, emulated=emulated) == 2
    (saved,) = watched.ask('flyball_measured_saved_energy_joules{instance=~"127.0.0.1:.*"}')
    assert saved["metric"]["job"] == "job"
    shown = watched.value("Saved so far, measured", "measured")
    assert shown == pytest.approx(float(saved["value"][1]))
    assert shown > 0


def test_measured_power_is_energy_over_time(watched: Watched) -> None:
    # On the plan two ranks take 225 J each in 0.9 s.
    assert watched.value("Power on plans, measured", "measured") == pytest.approx(500, rel=0.02)
    by_clocks = next(each for each in TARGETS if each.title == "Power by clocks, measured")
    shown = {
        series["metric"]["clocks"]: float(series["value"][1])
        for series in watched.ask(by_clocks.expression)
    }
    assert shown["highest"] == pytest.approx(2 * 250 / 0.9, rel=0.02)


def test_each_plan_version_is_marked_where_it_began(watched: Watched) -> None:
    expression = grafana.substituted(grafana.annotation()["expr"], **CHOSEN)
    marks = watched.prometheus.query_range(
        expression, start_s=math.floor(watched.began_s), end_s=time.time()
    )
    moments = {int(mark["metric"]["version"]): mark["values"] for mark in marks}
    assert sorted(moments) == [*range(1, NUM_VERSIONS + 1)]
    assert all(len(each) == 1 for each in moments.values())
    began_s = [moments[version][0][0] for version in sorted(moments)]
    assert began_s == sorted(began_s)


def test_the_variables_offer_what_there_is(watched: Watched) -> None:
    offered = watched.prometheus.label_values
    assert offered("emulated", "flyball_ranks_expected") == ["false", "true"]
    query = grafana.substituted(grafana.variable("job")["query"]["query"], **CHOSEN)
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
    assert found
    assert offered(found[2], found[1]) == ["job"]


def test_prometheus_runs_the_rules_of_the_file_without_an_error(watched: Watched) -> None:
    def groups() -> list[dict[str, Any]]:
        answer = watched.prometheus.http.get("/api/v1/rules").raise_for_status().json()
        found: list[dict[str, Any]] = answer["data"]["groups"]
        return found

    rules = [rule for group in groups() for rule in group["rules"]]
    assert len(rules) > 5
    wait_until(lambda: all(r["health"] != "unknown" for g in groups() for r in g["rules"]))
    troubles = {r["name"]: r.get("lastError") for g in groups() for r in g["rules"]}
    assert set(troubles.values()) == {None}, troubles


@pytest.mark.parametrize("expression", grafana.expressions())
def test_figures_of_emulated_gpus_are_never_added_to_those_of_real_ones(
    expression: str, watched: Watched
) -> None:
    told = told_labels(watched.planner)
    asks_which_there_are = "count by (emulated) "
    if expression.startswith(asks_which_there_are):
        return
    for name, _ in grafana.metrics_of(expression):
        of_jobs = "emulated" in told.get(name, ())
        chosen = re.findall(rf"\b{name}{{[^}}]*emulated=\"\$emulated\"", expression)
        assert len(chosen) == (len(re.findall(rf"\b{name}\b", expression)) if of_jobs else 0), name
