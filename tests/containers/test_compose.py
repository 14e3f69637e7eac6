"""docker-compose.yml's planners, database and proxy in containers, one of the planners killed."""

from __future__ import annotations

import ssl

import httpx
import pytest
import trustme
from tests.containers.composed import composed
from tests.containers.engine import Engine
from tests.deploy.compose import SECRETS
from tests.deploy.proxy import issue_certificate
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.ports import free_port
from tests.planner.samples import profile_csv, registration

from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER


def test_a_job_is_planned_through_the_proxy_also_after_a_planner_is_killed(
    engine: Engine, image: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    del image  # built
    folder = tmp_path_factory.mktemp("composed")
    authority = trustme.CA()
    issue_certificate(authority, folder)
    port = free_port()
    values = {
        "SITE_ADDRESS": "https://localhost",
        "TLS_FOLDER": str(folder),
        "TLS_CERTIFICATE": "certificate.pem",
        "TLS_KEY": "key.pem",
    }
    services = ("postgres", "planner-1", "planner-2", "proxy")
    with composed(engine, *services, folder=folder, ports={443: port}, **values) as running:
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        made = engine(
            "exec", running.name("planner-1"), "flyball", "token", "create", "--job", "llama"
        )
        with httpx.Client(
            base_url=f"https://localhost:{port}",
            verify=trusting,
            timeout=PATIENCE_S,
            trust_env=False,
            headers={TOKEN_HEADER: SECRETS["FLYBALL_TOKEN"]},
        ) as http:
            wait_until(lambda: is_ready(http))
            put_planned_job(http, "llama")
            engine("kill", running.name("planner-1"))
            wait_until(lambda: is_ready(http))
            assert http.get(routes.fill(routes.JOB, job_id="llama")).json()["newest_version"] == 1
            put_planned_job(http, "after")
            # A token that the killed planner made opens its own job at the other.
            of_job = {TOKEN_HEADER: made.splitlines()[0]}
            opened, closed = (
                http.get(routes.fill(routes.JOB, job_id=job), headers=of_job).status_code
                for job in ("llama", "after")
            )
            assert (opened, closed) == (200, 403)


def is_ready(http: httpx.Client) -> bool:
    """Return whether a planner behind the proxy can work."""
    try:
        return http.get(routes.READY).status_code == 200
    except httpx.TransportError:
        return False


def put_planned_job(http: httpx.Client, job_id: str) -> None:
    """Register a job with its profile; its plan is made with the call."""
    http.put(routes.fill(routes.JOB, job_id=job_id), json=registration()).raise_for_status()
    put = http.put(
        routes.fill(routes.PROFILE, job_id=job_id),
        content=profile_csv(),
        headers={"Content-Type": "text/csv"},
    )
    assert put.raise_for_status().json()["state"] == "planned"
