"""The relay's process: `python -m flyball_client.relay`, its charge as JSON on stdin.

It leaves its parent at once, as any rank of the node may have started it and may end before the
others. There is at most one at a meeting place.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

# A relay that ends has still the lock for a moment.
_LOCK_PATIENCE_S = 2.0


def main() -> int:
    """Become a process of its own, and relay until the ranks are gone."""
    charge = json.loads(sys.stdin.read())
    if os.fork():
        return 0
    os.setsid()
    os.chdir("/")
    return _relay(charge)


def _relay(charge: dict[str, str | float | None]) -> int:
    from flyball_client.relay.meeting_place import take_lock  # noqa: PLC0415 - the parent waits

    lock = Path(str(charge["lock"]))
    give_up_s = time.monotonic() + _LOCK_PATIENCE_S
    while take_lock(lock) is None:
        if time.monotonic() > give_up_s:
            return 0  # there is one
        time.sleep(0.05)
    ca_file = charge["ca_file"]
    _run(
        str(charge["planner"]),
        Path(str(charge["socket"])),
        ca_file=None if ca_file is None else str(ca_file),
        idle_s=float(charge["idle_s"] or 0.0),
    )
    return 0


def _run(planner_url: str, path: Path, *, ca_file: str | None, idle_s: float) -> None:
    import asyncio  # noqa: PLC0415 - as above, with all that follows

    import httpx  # noqa: PLC0415

    from flyball_client.api.trust import trusted_context  # noqa: PLC0415
    from flyball_client.relay.relay_server import Relay, RelayServer  # noqa: PLC0415
    from flyball_client.relay.upstream import Upstream  # noqa: PLC0415

    async def run() -> None:
        url = httpx.URL(planner_url)
        async with httpx.AsyncClient(
            base_url=url.copy_with(path="/"),
            follow_redirects=False,
            trust_env=False,
            verify=trusted_context(planner_url, ca_file),
            limits=httpx.Limits(keepalive_expiry=60.0),
        ) as http:
            relay = Relay(Upstream(http, url.path.rstrip("/")))
            await RelayServer(relay, path, idle_s=idle_s).run()

    asyncio.run(run())


if __name__ == "__main__":
    raise SystemExit(main())
