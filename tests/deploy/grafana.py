"""deploy/grafana as Grafana reads it: the dashboard, its panels and what they ask Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.deploy.compose import ROOT

FOLDER = ROOT / "deploy/grafana"
DASHBOARD = FOLDER / "dashboards/flyball.json"
DATASOURCES = FOLDER / "provisioning/datasources/prometheus.yml"
PROVIDERS = FOLDER / "provisioning/dashboards/flyball.yml"
# A metric in PromQL, and its selector where it has one; strings have no braces by then.
_SELECTED = re.compile(r"\b(flyball_\w+|process_\w+|up)\b(?:\{([^}]*)\})?")
_STRING = re.compile(r'"[^"]*"')
_LABEL = re.compile(r"(\w+) ?(?:=~|!~|!=|=)")
_GROUPED = re.compile(r"\b(?:by|without) \(([^)]*)\)")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A query of a panel.

    Attributes:
        title: of the panel.
        legend: how its series are called; of a table the column.
    """

    title: str
    legend: str
    expression: str


def read_dashboard() -> dict[str, Any]:
    """The file."""
    read: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return read


def panels() -> list[dict[str, Any]]:
    """All that show something."""
    return [panel for panel in read_dashboard()["panels"] if panel["type"] != "row"]


def targets() -> Iterator[Target]:
    """Every query of every panel."""
    for panel in panels():
        columns = _columns(panel)
        for target in panel["targets"]:
            legend = columns.get(f"Value #{target['refId']}", target["legendFormat"])
            yield Target(title=panel["title"], legend=legend, expression=target["expr"])


def annotation() -> dict[str, Any]:
    """Return what marks plan versions."""
    (found,) = (
        each for each in read_dashboard()["annotations"]["list"] if each["name"] == "Plan versions"
    )
    read: dict[str, Any] = found
    return read


def variable(name: str) -> dict[str, Any]:
    """Return what is chosen at the top."""
    (found,) = (each for each in read_dashboard()["templating"]["list"] if each["name"] == name)
    read: dict[str, Any] = found
    return read


def expressions() -> list[str]:
    """Everything in the dashboard that asks Prometheus, variables too."""
    asked = [target.expression for target in targets()] + [annotation()["expr"]]
    for name in ("emulated", "job"):
        query = variable(name)["query"]["query"]
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert found, query
        asked.append(f"count by ({found[2]}) ({found[1]})")
    return asked


def substituted(expression: str, **values: str) -> str:
    """An expression with variables put in, as Grafana does."""
    for name, value in values.items():
        expression = re.sub(rf"\${name}\b", value, expression)
    assert "$" not in expression, expression
    return expression


def metrics_of(expression: str) -> list[tuple[str, str]]:
    """The metrics that an expression names, each with its selector; of strings only the quotes."""
    return _SELECTED.findall(_STRING.sub('""', expression))


def labels_of(selector: str) -> set[str]:
    """The labels that a selector names."""
    return set(_LABEL.findall(selector))


def grouped_labels(expression: str) -> set[str]:
    """The labels that it groups by."""
    return {
        label.strip()
        for labels in _GROUPED.findall(_STRING.sub('""', expression))
        for label in labels.split(",")
    }


def _columns(panel: dict[str, Any]) -> dict[str, str]:
    for step in panel.get("transformations", ()):
        if step["id"] == "organize":
            names: dict[str, str] = step["options"]["renameByName"]
            return names
    return {}
