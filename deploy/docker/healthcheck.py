"""Health check for the container: exit status 0 where the planner answers a path with 200.

python healthcheck.py /readyz

It asks on loopback, at the port and with the scheme that the planner's own variables say.
"""

from __future__ import annotations

import os
import ssl
import sys
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

_TIMEOUT_S = 4.0


def is_answered(path: str) -> bool:
    """Return whether the planner answers with 200 in time; else print one line with the cause."""
    has_tls = bool(os.environ.get("FLYBALL_TLS_CERTIFICATE"))
    port = os.environ.get("FLYBALL_PORT") or "7787"
    url = f"{'https' if has_tls else 'http'}://127.0.0.1:{port}{path}"
    # The certificate names the planner's public name, and this call does not leave the machine.
    trusting_all = HTTPSHandler(context=ssl._create_unverified_context())  # noqa: S323 - see above
    try:
        with build_opener(ProxyHandler({}), trusting_all).open(url, timeout=_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except HTTPError as error:
        print(f"{path}: {error.code} {error.read(500).decode(errors='replace')}")
    except (OSError, ValueError) as error:
        print(f"{path}: {error}")
    return False


if __name__ == "__main__":
    sys.exit(not is_answered(sys.argv[1] if len(sys.argv) > 1 else "/healthz"))
