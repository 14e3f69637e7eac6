"""A real Prometheus with deploy/prometheus.yml and its rules, for tests; and promtool."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from tests.debian_packages import find_or_install, skipped_where_missing
from tests.deploy.container import ROOT
from tests.planner.patience import PATIENCE_S

CONFIG = ROOT / "deploy/prometheus.yml"
RULES = ROOT / "deploy/prometheus-rules.yml"
# Of the tests' Prometheus, s; that of the file would have them wait for minutes. It waits so long
# for an answer too, which may not be longer.
SCRAPE_INTERVAL_S = 2


@pytest.fixture(scope="session")
def prometheus_tools() -> None:
    """Both are there; without them a failure where CI=true, else a skip."""
    with skipped_where_missing():
        prometheus_path()


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
    """Where it is, with promtool beside it; on Debian both are installed where one is missing.

    Raises:
        MissingProgramError: there is none, and none could be installed.
    """
    return find_or_install(_find, "prometheus with promtool on PATH", "prometheus")


def _find() -> Path | None:
    path = shutil.which("prometheus")
    is_complete = path is not None and Path(path).with_name("promtool").is_file()
    return Path(path) if path is not None and is_complete else None


def adapted_config(targets: Sequence[str], token: str, folder: Path) -> Path:
    """deploy/prometheus.yml for other planners, scraped more often, in a folder with its rules."""
    token_file = folder / "token"
    token_file.write_text(token)
    shutil.copy(RULES, folder)
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] |= dict.fromkeys(
        ("scrape_interval", "scrape_timeout", "evaluation_interval"), f"{SCRAPE_INTERVAL_S}s"
    )
    (scrape,) = config["scrape_configs"]
    scrape["authorization"]["credentials_file"] = str(token_file)
    (static,) = scrape["static_configs"]
    static["targets"] = list(targets)
    adapted = folder / CONFIG.name
    adapted.write_text(yaml.safe_dump(config))
    return adapted
