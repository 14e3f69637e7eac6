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
from tests.fuzz.raw_call import send
from tests.integration.command_in_process import flyball, refusal
from tests.planner.live import serve_environment, serve_process
from tests.planner.patience import PATIENCE_S, wait_until

from flyball_client.api.errors import PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient
from flyball_server.jobs.auth.access import create_token
from flyball_server.jobs.store.databases import make_job_store
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


def stored_token(file: Path, *, job_id: str | None = None, is_read_only: bool = False) -> str:
    """A token in this database; an operator's, if it is of no job and not read-only."""
    with closing(make_job_store(f"sqlite:///{file}")) as store:
        store.open()
        has_operator = job_id is not None or is_read_only
        return create_token(
            store, job_id=job_id, is_read_only=is_read_only, has_operator=has_operator
        )[1]


# ------------------------------------------------------------------ beyond loopback


def test_beyond_loopback_it_does_not_listen_without_an_operators_token(
    refused: Refused, file: Path
) -> None:
    line = refused(*BEYOND)
    assert "anyone who reaches http://0.0.0.0:" in line
    assert "flyball token create --operator" in line
    assert "FLYBALL_TOKEN" in line
    assert "--allow-open or FLYBALL_ALLOW_OPEN=1" in line
    stored_token(file, job_id="job")
    line = refused(*BEYOND)
    assert "no token is an operator's" in line
    assert "flyball token create --operator" in line


def test_beyond_loopback_a_token_of_the_database_is_enough(file: Path) -> None:
    token = stored_token(file)
    with serve_process(file, *BEYOND) as served:
        url = f"http://127.0.0.1:{served.http.base_url.port}{routes.JOBS}"
        assert served.http.get(url).status_code == 401
        assert served.http.get(url, headers={TOKEN_HEADER: token}).status_code == 200
        assert served.end(signal.SIGINT) == (0, "")


def test_a_clients_token_in_the_environment_makes_no_operator(
    refused: Refused, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators, jobs = stored_token(file), stored_token(file, job_id="job")
    monkeypatch.setenv("FLYBALL_TOKEN", jobs)
    assert "would be an operator's token, and it is for job job only; unset it" in refused()
    monkeypatch.setenv("FLYBALL_TOKEN", stored_token(file, is_read_only=True))
    assert "would be an operator's token, and it is read-only; unset it" in refused()
    monkeypatch.setenv("FLYBALL_TOKEN", operators)
    with serve_process(file, environment=serve_environment(FLYBALL_TOKEN=operators)) as served:
        assert served.http.get(routes.JOBS, headers={TOKEN_HEADER: operators}).status_code == 200
        token_id = operators.split("_")[1]
        revoked = flyball("token", "revoke", token_id, "--database", f"sqlite:///{file}")
        assert revoked.returncode == 0

        def is_refused() -> bool:
            answer = served.http.get(routes.JOBS, headers={TOKEN_HEADER: operators})
            return answer.status_code == 401

        wait_until(is_refused)
    assert "it was revoked, or is another planner's" in refused()
    file.unlink()
    assert "this database does not have it" in refused()
    assert not file.exists()


def test_to_be_open_to_all_has_to_be_said_and_is_warned_of(file: Path) -> None:
    with serve_process(file, *BEYOND, "--allow-open") as served:
        _, errors = served.end(signal.SIGINT)
    (line,) = errors.splitlines()
    assert "warning: anyone who reaches http://0.0.0.0:" in line
    assert "FLYBALL_ALLOW_OPEN" in line


# ------------------------------------------------------------------ TLS


@dataclass(frozen=True)
class Certificates:
    """A CA of our own, and a certificate of it for this machine, as PEM files of a folder."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def chain(self) -> Path:
        return self.folder / "planner.pem"

    @property
    def key(self) -> Path:
        return self.folder / "planner.key"

    @property
    def flags(self) -> tuple[str, ...]:
        """Return what `flyball serve` is told."""
        return "--tls-certificate", str(self.chain), "--tls-key", str(self.key)

    def issue(self, ca: trustme.CA, kind: trustme.KeyType = trustme.KeyType.ECDSA) -> None:
        """Write another certificate and its key, one after the other."""
        issued = ca.issue_cert("127.0.0.1", "localhost", key_type=kind)
        self.chain.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(self.key))

    def on_disk(self) -> bytes:
        """The planner's own certificate in its file."""
        first, end, _ = self.chain.read_text().partition(ssl.PEM_FOOTER)
        return ssl.PEM_cert_to_DER_cert(first + end)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made, ca = Certificates(tmp_path_factory.mktemp("tls")), trustme.CA()
    ca.cert_pem.write_to_path(str(made.ca))
    made.issue(ca)
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
    for certificate, of_key, said in (
        (chain, missing, f"--tls-key: {missing}: cannot be read"),
        (key, chain, "not a PEM certificate and its unencrypted key"),
        (ca, key, "not a PEM certificate and its unencrypted key"),
    ):
        assert said in refused("--tls-certificate", certificate, "--tls-key", of_key)
    one = refused("--tls-certificate", chain)
    assert "FLYBALL_TLS_KEY must be given with FLYBALL_TLS_CERTIFICATE" in one
    monkeypatch.setenv("FLYBALL_TLS_KEY", missing)
    assert f"FLYBALL_TLS_KEY: {missing}: cannot be read" in refused("--tls-certificate", chain)
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


def test_a_renewed_certificate_is_served_without_a_restart_and_a_broken_one_is_not(
    file: Path, tmp_path: Path
) -> None:
    # As Kubernetes mounts them: through a link to a folder, which it replaces.
    (tmp_path / "first").mkdir()
    (tmp_path / "data").symlink_to("first")
    ca, here = trustme.CA(), Certificates(tmp_path / "data")
    ca.cert_pem.write_to_path(str(here.ca))
    here.issue(ca)
    context = ssl.create_default_context(cafile=str(here.ca))
    unnamed = ssl.create_default_context(cafile=str(here.ca))
    unnamed.check_hostname = False
    with serve_process(file, *here.flags, verify=context) as served:
        address = served.http.base_url
        first = here.on_disk()
        assert certificate_for(context, address, "localhost") == first
        served.http.get(routes.HEALTH).raise_for_status()
        for kind in (trustme.KeyType.RSA, trustme.KeyType.ECDSA):
            here.issue(ca, kind)
            renewed = here.on_disk()
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
        Certificates(tmp_path / "second").issue(ca, trustme.KeyType.RSA)
        (tmp_path / "next").symlink_to("second")
        (tmp_path / "next").rename(tmp_path / "data")
        wait_until(lambda: certificate_for(context, address, "localhost") == here.on_disk())
        # A file that could not be read gets the rights for it, and neither content nor time.
        loaded = f"new connections use the TLS certificate in {here.chain}"
        assert any(loaded in line for line in log)
        here.chain.chmod(0o400)
        assert any(loaded in line for line in log)
        _, errors = served.end(signal.SIGINT)
    assert "previous TLS certificate stays in use" not in errors
    assert "Traceback" not in errors


# ------------------------------------------------------------------ limits of connections


def test_long_headers_and_many_connections_are_refused_and_the_planner_goes_on(file: Path) -> None:
    environment = serve_environment(FLYBALL_MAX_HEADER_BYTES="2048", FLYBALL_MAX_CONNECTIONS="3")
    with serve_process(file, environment=environment) as served:
        served.http.close()
        url = served.http.base_url
        address = (url.host, url.port or 0)
        begun = b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
        long = begun + b"X: " + b"x" * 4096 + b"\r\n\r\n"
        assert send(address, long).startswith(b"HTTP/1.1 431 ")
        # Their end is not waited for.
        longer = b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 2304
        assert send(address, longer).startswith(b"HTTP/1.1 400 ")
        request = begun + b"\r\n"
        with (
            closing(socket.create_connection(address, PATIENCE_S)),
            closing(socket.create_connection(address, PATIENCE_S)),
        ):
            assert send(address, request).startswith(b"HTTP/1.1 503 ")
        answer = send(address, request)
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
