"""Niceness of processes that have a session of their own, such as the helper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_CHILD = """
import os
from pathlib import Path
from flyball_client.governor.own_priority import set_own_niceness

set_own_niceness(os.getpriority(os.PRIO_PROCESS, 0) + 7, timeout_s=5.0)
print(os.getpriority(os.PRIO_PROCESS, 0), Path("/proc/self/autogroup").read_text())
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="the kernel has no autogroups"
)


def _child(*, leads_session: bool) -> tuple[int, int]:
    """Return the niceness of a child and of its session, which it has set."""
    run = subprocess.run(
        [sys.executable, "-c", _CHILD],
        start_new_session=leads_session,
        check=True,
        capture_output=True,
        text=True,
    )
    niceness, _, _, of_session = run.stdout.split()
    return int(niceness), int(of_session)


def test_a_process_with_a_session_of_its_own_gives_way_to_other_sessions() -> None:
    niceness, of_session = _child(leads_session=True)
    assert of_session == niceness


def test_a_session_that_belongs_to_others_keeps_its_niceness() -> None:
    _, own = Path("/proc/self/autogroup").read_text().rsplit(maxsplit=1)
    assert _child(leads_session=False)[1] == int(own)
