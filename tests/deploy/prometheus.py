"""deploy/prometheus.yml and the alerts beside it; promtool, which comes with Prometheus."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.debian_packages import find_or_install, skipped_where_missing
from tests.deploy.compose import ROOT
from tests.planner.patience import PATIENCE_S

CONFIG = ROOT / "deploy/prometheus.yml"
RULES = ROOT / "deploy/prometheus-rules.yml"


@pytest.fixture(scope="session")
def prometheus_tools() -> None:
    """Both are there; without them a failure where CI=true, else a skip."""
    with skipped_where_missing():
        prometheus_path()


def alerts() -> list[dict[str, Any]]:
    """Every alert of the file."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Return what promtool says.

    Raises:
        MissingProgramError: there is none, and none could be installed.
    """
    return subprocess.run(
        (str(prometheus_path().with_name("promtool")), *arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        cwd=ROOT,
    )


def prometheus_path() -> Path:
    """Return its path, with promtool beside it; on Debian both are installed where one is missing.

    Raises:
        MissingProgramError: there is none, and none could be installed.
    """
    return find_or_install(_find, "prometheus with promtool on PATH", "prometheus")


def _find() -> Path | None:
    path = shutil.which("prometheus")
    is_complete = path is not None and Path(path).with_name("promtool").is_file()
    return Path(path) if path is not None and is_complete else None
