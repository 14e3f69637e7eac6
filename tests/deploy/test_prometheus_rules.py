"""deploy/prometheus.yml and the alerts beside it, by promtool; each alert rings when it must."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from tests.deploy.compose import ROOT
from tests.deploy.prometheus import CONFIG, RULES, alerts, promtool

from flyball_wire import routes

UNIT_TESTS = Path(__file__).with_name("prometheus_rules_test.yml")


@pytest.mark.usefixtures("prometheus_tools")
def test_promtool_takes_the_configuration_and_its_rules(tmp_path: Path) -> None:
    config, token = tmp_path / CONFIG.name, tmp_path / "token"
    token.write_text("token")
    shutil.copy(RULES, tmp_path)
    config.write_text(CONFIG.read_text().replace("/run/secrets/prometheus_token", str(token)))
    said = promtool("check", "config", str(config))
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"{len(alerts())} rules found" in said.stdout


@pytest.mark.usefixtures("prometheus_tools")
def test_every_alert_rings_when_it_must_and_only_then() -> None:
    said = promtool("test", "rules", str(UNIT_TESTS))
    assert said.returncode == 0, said.stdout + said.stderr
    rung = {
        case["alertname"]
        for test in yaml.safe_load(UNIT_TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert rung == {alert["alert"] for alert in alerts()}


def test_the_docs_table_has_every_alert_after_its_time() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|(.*)\| (\d+) min \|$", page, flags=re.MULTILINE)
    shown = [(name, f"{minutes}m", "critical" in told) for name, told, minutes in rows]
    assert shown == [
        (alert["alert"], alert["for"], alert["labels"]["severity"] == "critical")
        for alert in alerts()
    ]


def test_every_alert_has_its_section_of_the_runbook() -> None:
    page = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
    names = [alert["alert"] for alert in alerts()]
    assert sorted(re.findall(r"^### (Flyball\w+)$", page, flags=re.MULTILINE)) == sorted(names)
    for alert in alerts():
        assert alert["annotations"]["runbook_url"] == f"docs/runbook.md#{alert['alert'].lower()}"


def test_an_alert_of_a_job_says_which_and_whether_its_gpus_are_emulated() -> None:
    for alert in alerts():
        text = " ".join(alert["annotations"].values())
        is_of_a_job = "by (training_job, emulated)" in alert["expr"]
        named = ("{{ $labels.training_job }}", "{{ $labels.emulated }}")
        assert all(label in text for label in named) or not is_of_a_job
        assert alert["labels"]["severity"] in {"warning", "critical"}
        assert alert["for"]


def test_alerts_name_calls_that_the_planner_has() -> None:
    known = {value for name, value in vars(routes).items() if name.isupper()}
    named = {
        re.sub(r"\{\{ \$labels\.training_job \}\}", "{job_id}", path).rstrip(".;")
        for alert in alerts()
        for path in re.findall(r"GET (/(?:\{\{ .*? \}\}|\S)*)", alert["annotations"]["description"])
    }
    assert named
    assert named <= known
