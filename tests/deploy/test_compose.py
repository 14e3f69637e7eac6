"""The services of docker-compose.yml without an engine: what each runs, with what it is told."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest
from sqlalchemy.engine import make_url
from tests.deploy.compose import SECRETS, read_compose
from tests.deploy.container import ROOT
from tests.deploy.dockerfile import read_dockerfile
from tests.deploy.proxy import caddy, needs_caddy
from tests.planner.live import serve_environment
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.ports import free_port
from tests.planner.samples import registration
from tests.postgres.server import PostgresServer, compose_version

from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER

IMAGE = read_dockerfile(ROOT / "Dockerfile")
PATHS = {"flyball": str(Path(sys.executable).parent / "flyball"), "python": sys.executable}
PATHS["/opt/flyball/healthcheck.py"] = str(ROOT / "deploy/docker/healthcheck.py")


@dataclass(frozen=True, kw_only=True)
class Service:
    """A planner of the file that runs on this machine.

    Attributes:
        address: `HOST:PORT`.
        process: it.
        environment: its variables.
        health_command: the file's, for this machine.
    """

    address: str
    process: subprocess.Popen[str]
    environment: dict[str, str]
    health_command: tuple[str, ...]

    def is_ready(self) -> bool:
        """Return whether its health check says so.

        Raises:
            AssertionError: it has ended.
        """
        assert self.process.poll() is None, self.process.communicate()
        check = subprocess.run(
            self.health_command,
            env=self.environment,
            timeout=PATIENCE_S,
            capture_output=True,
            check=False,
        )
        return check.returncode == 0


@contextmanager
def planner_of_compose(name: str, database: str) -> Iterator[Service]:
    """A planner as its service says, but on loopback and on this database."""
    service = read_compose()["services"][name]
    here = make_url(database)
    environment = {**service["environment"]}
    told = make_url(environment["FLYBALL_DATABASE"])
    assert (told.username, told.password) == (here.username, None)
    moved = told.set(host=here.host, port=here.port, database=here.database)
    port = free_port()
    environment["FLYBALL_DATABASE"] = moved.render_as_string(hide_password=False)
    environment["PGPASSWORD"] = str(here.password)
    environment |= {"FLYBALL_HOST": "127.0.0.1", "FLYBALL_PORT": str(port)}
    environment = serve_environment(**environment)
    command = tuple(PATHS.get(word, word) for word in IMAGE.process)
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield Service(
            address=f"127.0.0.1:{port}",
            process=process,
            environment=environment,
            health_command=tuple(
                PATHS.get(word, word) for word in service["healthcheck"]["test"][1:]
            ),
        )
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def planners(postgres_server: PostgresServer) -> Iterator[tuple[Service, Service]]:
    """Both of the file, ready, on one PostgreSQL."""
    with (
        postgres_server.database() as database,
        planner_of_compose("planner-1", database) as first,
        planner_of_compose("planner-2", database) as second,
    ):
        for planner in (first, second):
            wait_until(planner.is_ready)
        yield first, second


def test_its_postgresql_is_the_one_that_the_tests_ran(postgres_server: PostgresServer) -> None:
    with closing(psycopg.connect(postgres_server.address())) as connection:
        version = connection.info.server_version // 10000
    if str(version) != compose_version():
        pytest.skip(f"this machine has PostgreSQL {version}")
    operations = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    assert f"tested with PostgreSQL {version} " in operations.replace("|", " ")


def test_prometheus_gets_metrics_by_its_token_and_nobody_without(
    planners: tuple[Service, Service],
) -> None:
    url = f"http://{planners[0].address}{routes.METRICS}"
    assert httpx.get(url, timeout=PATIENCE_S).status_code == 401
    bearer = {"Authorization": f"Bearer {SECRETS['FLYBALL_TOKEN']}"}
    assert httpx.get(url, headers=bearer, timeout=PATIENCE_S).status_code == 200


@needs_caddy
def test_two_planners_on_one_postgresql_behind_the_proxy_outlive_one_of_them(
    planners: tuple[Service, Service], tmp_path: Path
) -> None:
    job = routes.fill(routes.JOB, job_id="job")
    headers = {TOKEN_HEADER: SECRETS["FLYBALL_TOKEN"]}
    with caddy(" ".join(planner.address for planner in planners), tmp_path) as http:
        http.headers.update(headers)
        http.put(job, json=registration()).raise_for_status()
        for planner in planners:
            found = httpx.get(f"http://{planner.address}{job}", headers=headers, timeout=PATIENCE_S)
            assert found.json()["job_id"] == "job"
        planners[0].process.kill()
        planners[0].process.wait(PATIENCE_S)
        # On a busy machine the proxy's last health check of the other planner may have timed out.
        wait_until(lambda: http.get(job).status_code == 200)
        assert [http.get(job).status_code for _ in range(5)] == [200] * 5
