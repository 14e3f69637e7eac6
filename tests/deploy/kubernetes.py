"""Manifests that kustomize renders from deploy/kubernetes, and the example training job."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tests.deploy.compose import ROOT
from tests.planner.patience import PATIENCE_S

FOLDER = ROOT / "deploy/kubernetes"
RENDERED = ("planner", "nodes", "example/planner", "example/nodes")
# The extra dev has it; an older one on PATH may know no components.
_KUBECTL = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or "kubectl"


@cache
def resources_of(folder: str) -> tuple[dict[str, Any], ...]:
    """Return the manifests that kustomize renders of a folder below FOLDER.

    Raises:
        AssertionError: kustomize refuses it.
    """
    made = subprocess.run(
        (_KUBECTL, "kustomize", str(FOLDER / folder)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (made.returncode, made.stderr) == (0, ""), made.stderr
    return tuple(yaml.safe_load_all(made.stdout))


@cache
def resources() -> tuple[dict[str, Any], ...]:
    """Return all resources of the two example folders and of the example training job."""
    ranks = yaml.safe_load_all((FOLDER / "training-job.yaml").read_text())
    return (*resources_of("example/planner"), *resources_of("example/nodes"), *ranks)


def resource(kind: str, name: str) -> dict[str, Any]:
    """Return the one resource of this kind and name."""
    found = [r for r in resources() if (r["kind"], r["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, (kind, name)
    return found[0]


def pod_of(kind: str, name: str) -> dict[str, Any]:
    """Return the pod template of a Deployment, DaemonSet or Job: labels and spec."""
    template: dict[str, Any] = resource(kind, name)["spec"]["template"]
    return template


def container_of(kind: str, name: str) -> dict[str, Any]:
    """Return the only container of the pod template."""
    (only,) = pod_of(kind, name)["spec"]["containers"]
    read: dict[str, Any] = only
    return read


def environment_of(kind: str, name: str, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the only container, with secrets filled in by their keys."""
    found = {}
    for variable in container_of(kind, name)["env"]:
        source = variable.get("valueFrom", {}).get("secretKeyRef")
        found[variable["name"]] = secrets[source["key"]] if source else variable["value"]
    return found
