"""The real Caddy with deploy/Caddyfile, for tests."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import trustme
from tests.deploy.compose import ROOT
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.ports import free_port

from flyball_wire import routes

CADDYFILE = ROOT / "deploy/Caddyfile"
CADDY = shutil.which("caddy")

needs_caddy = pytest.mark.skipif(
    CADDY is None and not os.environ.get("CI"), reason="no caddy on PATH; the extra dev has it"
)


def issue_certificate(authority: trustme.CA, folder: Path) -> None:
    """Put a new certificate and its key into the folder, each in place of an older one."""
    issued = authority.issue_cert("localhost")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    for name, pem in (("certificate.pem", chain), ("key.pem", issued.private_key_pem.bytes())):
        new = folder / f"new-{name}"
        new.write_bytes(pem)
        new.replace(folder / name)


@contextmanager
def caddy(planners: str, folder: Path) -> Iterator[httpx.Client]:
    """The proxy in front of these `HOST:PORT`s, and a client of it that trusts its certificate.

    The certificate's CA is in the folder's `ca.pem`.
    """
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issue_certificate(authority, folder)
    address = f"https://localhost:{free_port()}"
    environment = {
        "SITE_ADDRESS": address,
        "PLANNERS": planners,
        "TLS_CERTIFICATE": str(folder / "certificate.pem"),
        "TLS_KEY": str(folder / "key.pem"),
        "CERTIFICATE_PORT": str(free_port()),
        "HOME": str(folder),
    }
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    assert CADDY is not None
    with (folder / "log").open("w") as log, ExitStack() as ending:
        run = (CADDY, "run", "--adapter", "caddyfile", "--config", str(CADDYFILE))
        process = subprocess.Popen(run, env=environment, stderr=log)
        ending.callback(process.wait, PATIENCE_S)
        ending.callback(process.terminate)
        http = ending.enter_context(
            httpx.Client(base_url=address, timeout=PATIENCE_S, verify=trusting, trust_env=False)
        )

        def is_answered() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                return http.get(routes.HEALTH).status_code == 200
            except httpx.TransportError:
                return False

        wait_until(is_answered)
        yield http
