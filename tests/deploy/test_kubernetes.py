"""deploy/kubernetes as kustomize renders it: valid, and true to the code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml
from tests.deploy.compose import ROOT
from tests.deploy.kubernetes import (
    FOLDER,
    RENDERED,
    container_of,
    environment_of,
    pod_of,
    resource,
    resources_of,
)
from tests.deploy.test_deploy_files import GUARD_UNIT, IMAGE, run, unit_lines, variables_of

from flyball_client.governor.state_folder import NODE_DIR
from flyball_wire import routes

# ------------------------------------------------------------------ rendered


def test_what_is_rendered_or_applied_by_itself_is_what_kubernetes_takes(tmp_path: Path) -> None:
    files = [FOLDER / "training-job.yaml", FOLDER / "ingress/ingress.yaml"]
    for folder in RENDERED:
        ours = [made for made in resources_of(folder) if made["kind"] != "ServiceMonitor"]
        assert ours
        files.append(tmp_path / f"{folder.replace('/', '-')}.yaml")
        files[-1].write_text(yaml.safe_dump_all(ours))
    said = run("kubernetes-validate", "--strict", *map(str, files))
    assert said.returncode == 0, said.stdout + said.stderr


def test_every_file_is_in_a_kustomization_or_applied_by_itself() -> None:
    named = {FOLDER / "training-job.yaml"}
    for file in FOLDER.rglob("kustomization.yaml"):
        made = yaml.safe_load(file.read_text())
        listed = (*made["resources"], *made.get("components", ()))
        named |= {file, *((file.parent / each).resolve() for each in listed)}
    assert set(FOLDER.rglob("*.yaml")) <= named


# ------------------------------------------------------------------ monitoring


def test_the_service_monitor_is_one_and_finds_the_planners() -> None:
    # Here and below: it takes seconds to import, in each process that collects tests.
    from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor  # noqa: PLC0415

    monitor = resource("ServiceMonitor", "flyball-planner")
    read = ServiceMonitor.model_validate(monitor)
    # A field that the operator does not know is in neither.
    assert read.model_dump(exclude_unset=True, by_alias=True) == monitor
    spec = monitor["spec"]
    service = resource("Service", "flyball-planner")
    assert spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (config,) = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    (endpoint,) = spec["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] == routes.METRICS
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["key"] in resource("Secret", credentials["name"])["stringData"]
    # The name that the dashboard and the alerts ask for.
    assert service["metadata"]["labels"][spec["jobLabel"]] == config["job_name"]


def test_the_alerts_become_a_prometheus_rule_as_the_page_shows_it() -> None:
    from cloudcoil.models.prometheus_operator.v1 import PrometheusRule  # noqa: PLC0415

    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    command = re.findall(r"^(\{ printf .*?; \}) \| kubectl apply", page, re.MULTILINE | re.DOTALL)
    made = subprocess.run(
        ("sh", "-c", *command), cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    rule = yaml.safe_load(made.stdout)
    read = PrometheusRule.model_validate(rule)
    assert read.model_dump(exclude_unset=True, by_alias=True) == rule
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy/prometheus-rules.yml").read_text())


def test_prometheus_and_ranks_reach_the_planner_and_nobody_reaches_the_nodes_pods() -> None:
    (port,) = IMAGE.ports
    planner = pod_of("Deployment", "flyball-planner")["metadata"]["labels"]
    admitted = []
    for name in ("flyball-planner", "flyball-planner-metrics"):
        policy = resource("NetworkPolicy", name)["spec"]
        assert policy["podSelector"]["matchLabels"] == planner
        (rule,) = policy["ingress"]
        assert [each["port"] for each in rule["ports"]] == [port]
        admitted += [each["podSelector"]["matchLabels"] for each in rule["from"]]
    rank = pod_of("Job", "llama")["metadata"]["labels"]
    assert admitted[0].items() <= rank.items()
    assert admitted[1] == {"app.kubernetes.io/name": "prometheus"}
    nodes = resource("NetworkPolicy", "no-network")["spec"]
    assert nodes == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


# ------------------------------------------------------------------ true to the code


def test_the_planners_pod_is_what_the_image_was_made_for_and_is_found() -> None:
    template = pod_of("Deployment", "flyball-planner")
    user = template["spec"]["securityContext"]
    assert f"{user['runAsUser']}:{user['runAsGroup']}" == IMAGE.user
    container = container_of("Deployment", "flyball-planner")
    assert "command" not in container
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["readinessProbe"]["httpGet"]["path"] == routes.READY
    for probe in ("livenessProbe", "startupProbe"):
        assert container[probe]["httpGet"]["path"] == routes.HEALTH
    (port,) = container["ports"]
    assert (port["containerPort"],) == IMAGE.ports
    service = resource("Service", "flyball-planner")["spec"]
    assert service["ports"][0]["targetPort"] == port["name"]
    labels = template["metadata"]["labels"]
    assert service["selector"] == labels
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert resource(kind, "flyball-planner")["spec"]["selector"]["matchLabels"] == labels
    ingress = yaml.safe_load((FOLDER / "ingress/ingress.yaml").read_text())
    (backend,) = ingress["spec"]["rules"][0]["http"]["paths"]
    assert backend["backend"]["service"]["name"] == "flyball-planner"
    (_, wait_s) = container["lifecycle"]["preStop"]["exec"]["command"]
    # Its calls have 10 s to end.
    assert template["spec"]["terminationGracePeriodSeconds"] > float(wait_s) + 10


def test_the_secrets_that_pods_read_are_in_the_example_and_have_no_value_there() -> None:
    for kind, name in (("Deployment", "flyball-planner"), ("Job", "llama")):
        for variable in container_of(kind, name)["env"]:
            source = variable.get("valueFrom", {}).get("secretKeyRef")
            if source is not None:
                assert resource("Secret", source["name"])["stringData"][source["key"]] == ""


def test_ranks_in_kubernetes_find_the_planner_and_zeusd() -> None:
    environment = environment_of("Job", "llama", {"token": "fb_0_0"})
    assert {name for name in environment if name.startswith("FLYBALL_")} <= variables_of("client")
    service = resource("Service", "flyball-planner")
    port = service["spec"]["ports"][0]["port"]
    planner = f"http://{service['metadata']['name']}:{port}"
    assert environment["FLYBALL_PLANNER_URL"] == planner
    zeusd, rank = pod_of("DaemonSet", "zeusd")["spec"], pod_of("Job", "llama")["spec"]
    assert _host_folder(zeusd, "socket") == _host_folder(rank, "zeusd") == "/run/zeusd"
    (group,) = rank["securityContext"]["supplementalGroups"]
    arguments = container_of("DaemonSet", "zeusd")["args"]
    assert f"--socket-gid={group}" in arguments
    # As docs/clocks.md gives the socket away: to a group, not to everybody.
    assert "--socket-permissions=660" in arguments
    guard = container_of("DaemonSet", "flyball-guard")
    assert guard["args"] == ["guard", f"--group={group}"]


def test_the_guard_sees_the_records_and_processes_of_all_ranks() -> None:
    guard, rank = pod_of("DaemonSet", "flyball-guard")["spec"], pod_of("Job", "llama")["spec"]
    assert guard["hostPID"] is True
    assert _host_folder(guard, "records") == _host_folder(rank, "records") == str(NODE_DIR)
    for kind, name in (("DaemonSet", "flyball-guard"), ("Job", "llama")):
        mounts = {m["name"]: m["mountPath"] for m in container_of(kind, name)["volumeMounts"]}
        assert mounts["records"] == str(NODE_DIR)
    container = container_of("DaemonSet", "flyball-guard")
    added = {f"CAP_{name}" for name in container["securityContext"]["capabilities"]["add"]}
    service = dict(unit_lines("Service", GUARD_UNIT))
    assert added == set(service["CapabilityBoundingSet"].split())
    assert service["ReadWritePaths"] == f"-{NODE_DIR}"


def _host_folder(pod: dict[str, Any], volume: str) -> str:
    (path,) = (v["hostPath"]["path"] for v in pod["volumes"] if v["name"] == volume)
    return str(path)
