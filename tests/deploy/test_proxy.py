"""deploy/Caddyfile, run by the real Caddy before a real planner."""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme
import uvicorn
from tests.deploy.proxy import CADDYFILE, caddy, issue_certificate, needs_caddy
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.ports import free_port
from tests.planner.samples import profile_csv

from flyball_server.settings import Settings
from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER


@dataclass(frozen=True, kw_only=True)
class Proxied:
    """A planner, a client that reaches it through the proxy alone, and what the proxy logs."""

    planner: LivePlanner
    http: httpx.Client
    log: Path


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """Two planners as the proxy is told; at the first one's address nobody listens."""
    with live_planner() as planner:
        planners = f"127.0.0.1:{free_port()} 127.0.0.1:{planner.http.base_url.port}"
        folder = tmp_path_factory.mktemp("caddy")
        with caddy(planners, folder) as http:
            yield Proxied(planner=planner, http=http, log=folder / "log")


@needs_caddy
def test_a_planner_that_is_away_is_passed_over(proxied: Proxied) -> None:
    answers = [proxied.http.get(routes.JOBS).status_code for _ in range(10)]
    assert answers == [200] * 10


@needs_caddy
def test_what_a_rank_sends_arrives_and_a_long_poll_is_answered_through_the_proxy(
    proxied: Proxied,
) -> None:
    through = LivePlanner(app=proxied.planner.app, http=proxied.http)
    through.put_planned_job()
    path = routes.fill(routes.RANK_PLAN, job_id="job", rank=0)
    first = proxied.http.get(path)
    assert first.json()["version"] == 1
    answers: list[httpx.Response] = []

    def poll() -> None:
        query = {"after_version": "1", "wait_s": "60"}
        answers.append(proxied.http.get(path, params=query))

    waiting = threading.Thread(target=poll)
    waiting.start()
    through.put_profile(profile_csv(forward_energy_j=33)).raise_for_status()
    waiting.join(PATIENCE_S)
    assert answers[0].json()["version"] == 2
    over = proxied.http.get(path, params={"after_version": "2", "wait_s": "0.1"})
    assert over.status_code == 204


@needs_caddy
def test_the_log_of_the_proxy_has_calls_and_no_token(proxied: Proxied) -> None:
    headers = {TOKEN_HEADER: "first-secret", "Authorization": "Bearer second-secret"}
    proxied.http.get(routes.fill(routes.JOB, job_id="logged"), headers=headers)
    wait_until(lambda: "/jobs/logged" in proxied.log.read_text())
    assert "-secret" not in proxied.log.read_text()


@needs_caddy
def test_a_renewed_certificate_is_served_without_a_restart(proxied: Proxied) -> None:
    folder = proxied.log.parent
    authority = trustme.CA()  # of its own: what the first one issued is refused
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    address = proxied.http.base_url
    with httpx.Client(
        base_url=address, verify=trusting, timeout=PATIENCE_S, trust_env=False
    ) as http:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            http.get(routes.HEALTH)
        issue_certificate(authority, folder)
        assert http.get(routes.HEALTH).status_code == 200
    # An open connection goes on.
    assert proxied.http.get(routes.HEALTH).status_code == 200


def test_the_proxy_gives_the_key_to_itself_alone() -> None:
    text = CADDYFILE.read_text()
    _, _, site = text.rpartition("\nhttp://127.0.0.1:")
    assert "bind 127.0.0.1\n" in site
    assert text.count("{$TLS_KEY}") == site.count("{$TLS_KEY}") == 1


def test_the_proxy_waits_longer_and_takes_more_than_a_planner_does() -> None:
    text = re.sub(r"#.*", "", CADDYFILE.read_text())
    size = re.search(r"max_size (\d+)MB", text)
    assert size is not None
    assert int(size[1]) * 10**6 > Settings(database="sqlite:///unused.sqlite").max_body_bytes
    assert "write" not in text  # which would end long polls
    keepalive = re.search(r"keepalive (\d+)s", text)
    assert keepalive is not None
    assert int(keepalive[1]) < uvicorn.Config(lambda: None, log_config=None).timeout_keep_alive
