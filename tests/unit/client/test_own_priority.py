"""Niceness of processes that have a session of their own, such as the helper."""

from __future__ import annotations

import subprocess
import sys

import pytest

_CHILD = """
import os
from pathlib import Path
from flyball_client.own_priority import set_own_niceness

set_own_niceness(os.getpriority(os.PRIO_PROCESS, 0) + 7, timeout_s=5.0)
print(os.getpriority(os.PRIO_PROCESS, 0), Path("/proc/self/autogroup").read_text())
"""
_CHILD_OF_A_SESSION = f"""
import subprocess, sys

subprocess.run([sys.executable, "-c", {_CHILD!r}], check=True)
"""
_AUTOGROUP_OF_A_SESSION = """
from pathlib import Path

autogroup = Path("/proc/self/autogroup")
print(autogroup.read_text() if autogroup.exists() else "")
"""


def _output_in_a_new_session(script: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", script],
        start_new_session=True,
        check=True,
        capture_output=True,
        text=True,
    )
    return run.stdout.split()


@pytest.fixture(autouse=True, scope="module")
def niceness_of_a_new_session() -> int:
    """Return the niceness with which a session starts.

    The process that runs the tests may be outside of all autogroups, so its own says nothing.
    """
    autogroup = _output_in_a_new_session(_AUTOGROUP_OF_A_SESSION)
    if not autogroup:
        pytest.skip("the kernel puts sessions into no autogroups")
    return int(autogroup[-1])


def test_a_process_with_a_session_of_its_own_gives_way_to_other_sessions() -> None:
    niceness, _, _, of_session = _output_in_a_new_session(_CHILD)
    assert of_session == niceness


def test_a_session_that_belongs_to_others_keeps_its_niceness(
    niceness_of_a_new_session: int,
) -> None:
    niceness, _, _, of_session = _output_in_a_new_session(_CHILD_OF_A_SESSION)
    assert int(niceness) != niceness_of_a_new_session
    assert int(of_session) == niceness_of_a_new_session
