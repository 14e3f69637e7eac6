"""A real Prometheus with deploy/prometheus.yml and its rules, for tests; and promtool."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.debian_packages import find_or_install, skipped_where_missing
from tests.deploy.container import ROOT
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.ports import free_port

CONFIG = ROOT / "deploy/prometheus.yml"
RULES = ROOT / "deploy/prometheus-rules.yml"
# Of the tests' Prometheus, s; that of the file would have them wait for minutes. It waits so long
# for an answer too, which may not be longer.
SCRAPE_INTERVAL_S = 2


@dataclass(frozen=True, kw_only=True)
class RunningPrometheus:
    """A Prometheus on loopback.

    Attributes:
        http: a client of its API.
    """

    http: httpx.Client

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now, each with `metric` and `value`.

        Raises:
            AssertionError: Prometheus refused it, or warned.
        """
        return self._ask("/api/v1/query", query=expression)

    def query_range(self, expression: str, *, start_s: float, end_s: float) -> list[dict[str, Any]]:
        """The series that it had between two moments, each with `metric` and `values`.

        Raises:
            AssertionError: Prometheus refused it, or warned.
        """
        return self._ask(
            "/api/v1/query_range",
            query=expression,
            start=start_s,
            end=end_s,
            step=SCRAPE_INTERVAL_S,
        )

    def label_values(self, label: str, selector: str) -> list[str]:
        """The values that a label has in series like these."""
        answer = self.http.get(f"/api/v1/label/{label}/values", params={"match[]": selector})
        values: list[str] = answer.raise_for_status().json()["data"]
        return values

    def _ask(self, path: str, **fields: str | float) -> list[dict[str, Any]]:
        answer = self.http.post(path, data=fields).json()
        assert answer["status"] == "success", (fields["query"], answer)
        assert not answer.get("warnings"), (fields["query"], answer["warnings"])
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found


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


@contextmanager
def private_prometheus(config: Path) -> Iterator[RunningPrometheus]:
    """A Prometheus of one's own until the block ends; its files are beside its configuration.

    Raises:
        MissingProgramError: there is none, and none could be installed.
    """
    address = f"127.0.0.1:{free_port()}"
    command = (
        str(prometheus_path()),
        f"--config.file={config}",
        f"--storage.tsdb.path={config.parent / 'data'}",
        f"--web.listen-address={address}",
    )
    log_file = config.parent / "log"
    with log_file.open("w") as log, ExitStack() as ending:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        ending.callback(process.wait, PATIENCE_S)
        ending.callback(process.terminate)
        http = ending.enter_context(
            httpx.Client(base_url=f"http://{address}", timeout=PATIENCE_S, trust_env=False)
        )

        def is_ready() -> bool:
            assert process.poll() is None, log_file.read_text()
            try:
                return http.get("/-/ready").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(is_ready)
        yield RunningPrometheus(http=http)
