"""The parts of docs/metrics.md that come from the planner's metrics and from its alerts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import yaml
from docs.scripts.tables import code, table
from prometheus_client import Metric

from flyball_server.jobs.store.contract import JobStore
from flyball_server.prometheus.host_metrics import HostMetrics
from flyball_server.prometheus.job_families import JobsCollector
from flyball_server.prometheus.process_metrics import ProcessMetrics
from flyball_server.views.job_figures import SharedReading

_RULES = Path(__file__).resolve().parents[2] / "deploy/prometheus-rules.yml"
_JOB = re.compile(r"^\{\{ \$labels\.training_job \}\}: ")
_INSTANCE = re.compile(r"planner \{\{ \$labels\.instance \}\}", re.IGNORECASE)
_EMULATED = re.compile(r" \(emulated: \{\{[^}]*\}\}\)")
_VALUE = re.compile(r"\{\{ \$value \}\}")


def metrics_part(what: str) -> str:
    """Return the table of the metrics about `jobs`, of the `process`, or of the `alerts`."""
    if what == "alerts":
        return table(("alert", "meaning", "after"), _alerts())
    rows = _of_jobs() if what == "jobs" else _of_the_process()
    return table(("metric", "type", "labels", "meaning"), rows)


def _of_jobs() -> Iterator[tuple[str, str, str, str]]:
    # Describing reads nothing.
    collector = JobsCollector(cast("SharedReading", None))
    for family in collector.describe():
        yield _row(family, cast("Any", family)._labelnames)


def _of_the_process() -> Iterator[tuple[str, str, str, str]]:
    registry = ProcessMetrics().registry
    labels = {
        collector._name: collector._labelnames
        for collector in cast("Any", registry)._collector_to_names
        if hasattr(collector, "_labelnames")
    }
    for family in (*registry.collect(), *HostMetrics(cast("JobStore", None), None).describe()):
        yield _row(family, labels.get(family.name, ()))


def _row(family: Metric, labels: tuple[str, ...]) -> tuple[str, str, str, str]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    told = ", ".join(map(code, labels)) or "none"
    return code(name), family.type, told, family.documentation.rstrip(".")


def _alerts() -> Iterator[tuple[str, str, str]]:
    groups = yaml.safe_load(_RULES.read_text(encoding="utf-8"))["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        text = _JOB.sub("", rule["annotations"]["summary"])
        text = _VALUE.sub("some", _EMULATED.sub("", _INSTANCE.sub("a planner", text))).strip()
        critical = "; critical" if rule["labels"]["severity"] == "critical" else ""
        minutes = f"{rule['for'].removesuffix('m')} min"
        yield code(rule["alert"]), f"{text[:1].upper()}{text[1:]}{critical}", minutes
