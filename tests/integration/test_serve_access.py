"""`flyball serve` and who may reach it: loopback or a token, TLS, limits, and no secrets told."""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme
from tests.integration.command_in_process import flyball, refusal
from tests.planner.live import ServeProcess, serve_environment, serve_process
from tests.planner.patience import PATIENCE_S, wait_until

from flyball_client.api.errors import PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient
from flyball_server.jobs.auth.access import create_token
from flyball_server.jobs.store.job_stores import make_job_store
from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER

BEYOND = ("--host", "0.0.0.0")  # noqa: S104 - what is refused
JOB = routes.fill(routes.JOB, job_id="job")
Refused = Callable[..., str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "planner.sqlite"


@pytest.fixture
def refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """The one line on stderr of a `flyball serve` that ends with status 2, before it serves."""
    monkeypatch.setattr("flyball_server.cli.serve.set_up_logging", lambda **_: None)
    command = ("serve", "--port", "0", "--database", f"sqlite:///{file}")
    return lambda *arguments: refusal(flyball(*command, *arguments))


def stored_token(file: Path) -> str:
    """An operator's token in this database."""
    store = make_job_store(f"sqlite:///{file}")
    store.open()
    try:
        return create_token(store, job_id=None)[1]
    finally:
        store.close()


# ------------------------------------------------------------------ beyond loopback


def test_beyond_loopback_it_does_not_listen_without_any_token(refused: Refused) -> None:
    line = refused(*BEYOND)
    assert "anyone who reaches http://0.0.0.0:" in line
    assert "flyball token create --operator" in line
    assert "FLYBALL_TOKEN" in line
    assert "--allow-open or FLYBALL_ALLOW_OPEN=1" in line


def test_beyond_loopback_jobs_tokens_alone_are_not_enough(refused: Refused, file: Path) -> None:
    store = make_job_store(f"sqlite:///{file}")
    store.open()
    create_token(store, job_id="job", has_operator=True)
    store.close()
    line = refused(*BEYOND)
    assert "all tokens are jobs' tokens" in line
    assert "flyball token create --operator" in line


def test_beyond_loopback_a_token_of_the_database_is_enough(file: Path) -> None:
    token = stored_token(file)
    with serve_process(file, *BEYOND) as served:
        url = f"http://127.0.0.1:{served.http.base_url.port}{routes.JOBS}"
        assert served.http.get(url).status_code == 401
        assert served.http.get(url, headers={TOKEN_HEADER: token}).status_code == 200
        assert served.end(signal.SIGINT) == (0, "")


def test_to_be_open_to_all_has_to_be_said_and_is_warned_of(file: Path) -> None:
    with serve_process(file, *BEYOND, "--allow-open") as served:
        _, errors = served.end(signal.SIGINT)
    (line,) = errors.splitlines()
    assert "warning: anyone who reaches http://0.0.0.0:" in line
    assert "FLYBALL_ALLOW_OPEN" in line


# ------------------------------------------------------------------ TLS


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """A CA of our own, and a certificate of it for this machine; paths of PEM files."""

    ca: Path
    chain: Path
    key: Path

    @property
    def flags(self) -> tuple[str, ...]:
        """Return what `flyball serve` is told."""
        return "--tls-certificate", str(self.chain), "--tls-key", str(self.key)


def certificates_in(folder: Path) -> Certificates:
    """Where they are in a folder."""
    return Certificates(
        ca=folder / "ca.pem", chain=folder / "planner.pem", key=folder / "planner.key"
    )


def issue(ca: trustme.CA, to: Certificates, kind: trustme.KeyType) -> None:
    """Write another certificate and its key, one after the other."""
    issued = ca.issue_cert("127.0.0.1", "localhost", key_type=kind)
    to.chain.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(to.key))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = certificates_in(tmp_path_factory.mktemp("tls"))
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(made.ca))
    issue(ca, made, trustme.KeyType.ECDSA)
    return made


def test_over_tls_a_client_that_knows_the_ca_talks_to_the_planner(
    file: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    with serve_process(file, *certificates.flags, verify=context) as served:
        address = str(served.http.base_url)
        assert address.startswith("https://127.0.0.1:")
        answer = served.http.get(routes.HEALTH)
        assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"
        with PlannerClient(address, ca_file=str(certificates.ca)) as client:
            assert client.health().status == "ok"
        monkeypatch.setenv("FLYBALL_CA_FILE", str(certificates.ca))
        with PlannerClient(address) as client:
            assert client.health().status == "ok"
        monkeypatch.delenv("FLYBALL_CA_FILE")
        with PlannerClient(address) as client:
            distrust = r"certificate that is not trusted \(.+\); set FLYBALL_CA_FILE"
            with pytest.raises(PlannerUnavailableError, match=distrust):
                client.health()
        _, errors = served.end(signal.SIGINT)
    assert "Traceback" not in errors


def test_a_certificate_that_cannot_be_used_is_one_line(
    refused: Refused,
    tmp_path: Path,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain, key, ca = map(str, (certificates.chain, certificates.key, certificates.ca))
    missing = str(tmp_path / "missing.pem")
    assert f"--tls-key: {missing}: cannot be read" in refused(
        "--tls-certificate", chain, "--tls-key", missing
    )
    assert "not a PEM certificate and its unencrypted key" in refused(
        "--tls-certificate", key, "--tls-key", chain
    )
    assert "not a PEM certificate and its unencrypted key" in refused(
        "--tls-certificate", ca, "--tls-key", key
    )
    assert "FLYBALL_TLS_KEY must be given with FLYBALL_TLS_CERTIFICATE" in refused(
        "--tls-certificate", chain
    )
    monkeypatch.setenv("FLYBALL_TLS_KEY", missing)
    line = refused("--tls-certificate", chain)
    assert f"FLYBALL_TLS_KEY: {missing}: cannot be read" in line
    monkeypatch.setenv("FLYBALL_TLS_KEY", key)
    assert "FLYBALL_TLS_KEY needs FLYBALL_TLS_CERTIFICATE too" in refused()


def certificate_for(context: ssl.SSLContext, address: httpx.URL, name: str | None) -> bytes:
    """The certificate that a new connection is shown; None: the client names no host."""
    with (
        closing(socket.create_connection((address.host, address.port or 0), PATIENCE_S)) as plain,
        context.wrap_socket(plain, server_hostname=name) as connection,
    ):
        shown = connection.getpeercert(binary_form=True)
        assert shown is not None
        return shown


def on_disk(certificates: Certificates) -> bytes:
    """The planner's own certificate in its file."""
    first, end, _ = certificates.chain.read_text().partition(ssl.PEM_FOOTER)
    return ssl.PEM_cert_to_DER_cert(first + end)


def test_a_renewed_certificate_is_served_without_a_restart_and_a_broken_one_is_not(
    file: Path, tmp_path: Path
) -> None:
    # As Kubernetes mounts them: through a link to a folder, which it replaces.
    (tmp_path / "first").mkdir()
    (tmp_path / "data").symlink_to("first")
    ca, here = trustme.CA(), certificates_in(tmp_path / "data")
    ca.cert_pem.write_to_path(str(here.ca))
    issue(ca, here, trustme.KeyType.ECDSA)
    context = ssl.create_default_context(cafile=str(here.ca))
    unnamed = ssl.create_default_context(cafile=str(here.ca))
    unnamed.check_hostname = False
    with serve_process(file, *here.flags, verify=context) as served:
        address = served.http.base_url
        first = on_disk(here)
        assert certificate_for(context, address, "localhost") == first
        served.http.get(routes.HEALTH).raise_for_status()
        for kind in (trustme.KeyType.RSA, trustme.KeyType.ECDSA):
            issue(ca, here, kind)
            renewed = on_disk(here)
            wait_until(lambda: certificate_for(context, address, "localhost") == renewed)  # noqa: B023
            assert certificate_for(unnamed, address, None) == renewed
        served.http.get(routes.HEALTH).raise_for_status()  # the connection of before
        whole = here.key.read_bytes()
        here.key.write_bytes(whole[: len(whole) // 2])
        log: list[str] = []

        def is_warned() -> bool:
            assert served.process.stderr is not None
            log.append(served.process.stderr.read())
            return "previous TLS certificate stays in use" in "".join(log)

        wait_until(is_warned)
        assert f"{here.chain} and {here.key} are not a PEM certificate" in "".join(log)
        assert certificate_for(context, address, "localhost") == renewed
        (tmp_path / "second").mkdir()
        issue(ca, certificates_in(tmp_path / "second"), trustme.KeyType.RSA)
        (tmp_path / "next").symlink_to("second")
        (tmp_path / "next").rename(tmp_path / "data")
        wait_until(lambda: certificate_for(context, address, "localhost") == on_disk(here))
        # A file that could not be read gets the rights for it, and neither content nor time.
        loaded = f"new connections use the TLS certificate in {here.chain}"
        assert any(loaded in line for line in log)
        here.chain.chmod(0o400)
        assert any(loaded in line for line in log)
        _, errors = served.end(signal.SIGINT)
    assert "previous TLS certificate stays in use" not in errors
    assert "Traceback" not in errors


# ------------------------------------------------------------------ limits of connections


def answer_to(served: ServeProcess, request: bytes) -> bytes:
    """Return what comes until the connection is closed."""
    url = served.http.base_url
    with closing(socket.create_connection((url.host, url.port or 0), PATIENCE_S)) as connection:
        connection.sendall(request)
        parts = []
        while part := connection.recv(2**16):
            parts.append(part)
    return b"".join(parts)


def test_long_headers_and_many_connections_are_refused_and_the_planner_goes_on(file: Path) -> None:
    environment = serve_environment(FLYBALL_MAX_HEADER_BYTES="2048", FLYBALL_MAX_CONNECTIONS="3")
    with serve_process(file, environment=environment) as served:
        served.http.close()
        long = b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX: "
        long += b"x" * 4096 + b"\r\n\r\n"
        assert answer_to(served, long).startswith(b"HTTP/1.1 431 ")
        # Their end is not waited for.
        longer = b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 2304
        assert answer_to(served, longer).startswith(b"HTTP/1.1 400 ")
        request = b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        url = served.http.base_url
        address = (url.host, url.port or 0)
        with (
            closing(socket.create_connection(address, PATIENCE_S)),
            closing(socket.create_connection(address, PATIENCE_S)),
        ):
            assert answer_to(served, request).startswith(b"HTTP/1.1 503 ")
        answer = answer_to(served, request)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nserver:" not in answer.lower()


# ------------------------------------------------------------------ no secrets told


def test_no_token_is_in_any_log_even_at_debug(file: Path) -> None:
    stored = stored_token(file)
    own = "operators-own-secret"
    wrong = "fb_0123456789abcdef_" + "wrong" * 9
    environment = serve_environment(FLYBALL_TOKEN=own)
    with serve_process(file, "--log-level", "debug", environment=environment) as served:
        for token in (stored, own, wrong):
            for headers in ({TOKEN_HEADER: token}, {"Authorization": f"Bearer {token}"}):
                for path in (JOB, routes.JOBS, routes.TOKENS, "/nothing?limit=0"):
                    assert token not in served.http.get(path, headers=headers).text
                    served.http.put(path, headers=headers, content=b"{").read()
        headers = {TOKEN_HEADER: own}
        made = served.http.post(routes.TOKENS, json={"job_id": "j"}, headers=headers).json()
        one = routes.fill(routes.TOKEN, token_id=made["token_id"])
        served.http.delete(one, headers=headers).raise_for_status()
        _, errors = served.end(signal.SIGINT)
    assert f"GET {JOB}" in errors
    for token in (stored, own, wrong, made["token"]):
        assert token.removeprefix("fb_").split("_", 1)[-1] not in errors
