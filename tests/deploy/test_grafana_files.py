"""deploy/grafana: well formed, never mixed, and what docker-compose.yml starts Grafana with."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from tests.deploy import grafana
from tests.deploy.compose import ROOT, read_compose
from tests.deploy.grafana import Target
from tests.deploy.prometheus import CONFIG, RULES, alerts, promtool
from tests.planner.patience import PATIENCE_S
from tests.planner.stores import TemporaryJobStore

from flyball_server.app import create_app
from flyball_server.settings import load_settings

TARGETS = tuple(grafana.targets())
PREDICTED = re.compile(r"flyball_(predicted_|plan_lower_bound)")
MEASURED = re.compile(r"flyball_(measured_|steps?_|clock_misses|power_capped|thermally_capped)")

# ------------------------------------------------------------------ well formed


def lost(written: Any, read: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Return the places of written fields that were not read."""
    if isinstance(written, dict) and isinstance(read, dict):
        for name, value in written.items():
            yield from lost(value, read.get(name), f"{path}.{name}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for number, (one, other) in enumerate(zip(written, read, strict=True)):
            yield from lost(one, other, f"{path}[{number}]")
    elif written != read:
        yield path


def test_grafanas_own_types_know_every_field_of_the_dashboard() -> None:
    register_default_plugins()
    written = grafana.read_dashboard()
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(written)))
    unknown = {path.rsplit(".", 1)[1] for path in lost(written, read, "")}
    # Grafana's Prometheus knows these; the types, which are of every data source, do not.
    assert unknown == {"titleFormat", "textFormat", "definition"}


# ------------------------------------------------------------------ queries

# What Grafana puts in; labels that Prometheus adds to each target.
CHOSEN = {"emulated": "true", "job": "job", "__rate_interval": "1m", "__interval": "15s"}
OWN_LABELS = {"job", "instance"}
ASKED = [*grafana.expressions(), *(alert["expr"] for alert in alerts())]


@pytest.mark.usefixtures("prometheus_tools")
def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    asked = (grafana.substituted(each, **CHOSEN) for each in grafana.expressions())
    rules = [{"record": f"query:number_{i}", "expr": query} for i, query in enumerate(asked)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    said = promtool("check", "rules", "--lint=none", str(file))
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"{len(rules)} rules found" in said.stdout


@pytest.mark.parametrize("expression", ASKED)
def test_every_metric_and_label_of_a_query_or_an_alert_is_exported(
    expression: str, exported: dict[str, set[str]]
) -> None:
    known = set(OWN_LABELS)
    named = grafana.metrics_of(expression)
    assert named
    for name, selector in named:
        assert name in exported
        known |= exported[name]
        assert grafana.labels_of(selector) <= exported[name] | OWN_LABELS, name
    assert grafana.grouped_labels(expression) <= known


def test_calls_that_wait_are_left_out_of_call_durations() -> None:
    described = create_app(load_settings(), TemporaryJobStore()).openapi()
    waiting = {
        path
        for path, methods in described["paths"].items()
        for call in methods.values()
        if any(each["name"] == "wait_s" for each in call.get("parameters", ()))
    }
    left_out = {
        frozenset(paths.split("|"))
        for target in TARGETS
        for paths in re.findall(r'route!~"([^"]*)"', target.expression)
    }
    assert left_out == {frozenset(waiting)}


# ------------------------------------------------------------------ never mixed


@pytest.mark.parametrize("expression", grafana.expressions())
def test_figures_of_emulated_gpus_are_never_added_to_those_of_real_ones(
    expression: str, exported: dict[str, set[str]]
) -> None:
    if expression.startswith("count by (emulated) "):
        return
    for name, _ in grafana.metrics_of(expression):
        of_jobs = "emulated" in exported[name]
        chosen = re.findall(rf"\b{name}{{[^}}]*emulated=\"\$emulated\"", expression)
        assert len(chosen) == (len(re.findall(rf"\b{name}\b", expression)) if of_jobs else 0), name


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.title}: {target.legend}")
def test_what_is_predicted_and_what_is_measured_are_told_apart(target: Target) -> None:
    kinds = {"predicted": PREDICTED, "measured": MEASURED}
    found = {kind for kind, names in kinds.items() if names.search(target.expression)}
    assert len(found) < 2
    for kind in found:
        # Where a panel or table has both, each series or column says which it is.
        others = set(kinds) - {kind}
        says = target.title if not any(other in target.title for other in others) else ""
        assert kind in says or kind in target.legend


# ------------------------------------------------------------------ in docker-compose.yml


def test_prometheus_and_grafana_find_what_compose_mounts() -> None:
    services = read_compose()["services"]
    mounts = {
        (ROOT / source).resolve(): Path(target)
        for name in ("prometheus", "grafana")
        for source, target, _ in (
            volume.split(":") for volume in services[name]["volumes"] if volume[0] == "."
        )
    }
    (beside,) = yaml.safe_load(CONFIG.read_text())["rule_files"]
    assert mounts[RULES] == mounts[CONFIG].with_name(beside)
    provisioning = Path("/etc/grafana/provisioning")
    assert mounts[grafana.DATASOURCES].parent == provisioning / "datasources"
    assert mounts[grafana.PROVIDERS].parent == provisioning / "dashboards"
    (provider,) = yaml.safe_load(grafana.PROVIDERS.read_text())["providers"]
    assert mounts[grafana.DASHBOARD].parent == Path(provider["options"]["path"])
    (source,) = yaml.safe_load(grafana.DATASOURCES.read_text())["datasources"]
    assert grafana.variable("datasource")["current"]["value"] == source["uid"]
    (port,) = services["prometheus"]["ports"]
    assert source["url"] == f"http://prometheus:{port.split(':')[-1]}"


@pytest.mark.parametrize(("password", "status"), [("secret", 0), ("", 2), (None, 2)])
def test_grafana_does_not_start_without_a_password(
    password: str | None, status: int, tmp_path: Path
) -> None:
    service = read_compose()["services"]["grafana"]
    file = service["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"]
    (secret,) = service["secrets"]
    assert file == f"/run/secrets/{secret}"
    here = tmp_path / "password"
    if password is not None:
        here.write_text(password)
    start = tmp_path / "run.sh"
    start.write_text("#!/bin/sh\necho started\n")
    start.chmod(0o755)
    (script,) = service["command"]
    script = script.replace(file, str(here)).replace("/run.sh", str(start))
    ended = subprocess.run(
        (*service["entrypoint"], script),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == status
    assert ended.stdout == ("started\n" if status == 0 else "")
    assert ("GRAFANA_PASSWORD is empty" in ended.stderr) == (status == 2)
