"""What a governor asks of the scheduler, as the kernel tells it afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flyball_client.governor.scheduling import SLICE_NS

RESET_ON_FORK = 1
NR_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
TOLD = """
import ctypes, os, struct
from flyball_client.governor.scheduling import NICENESS, run_soon, sleep_exactly
try:
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS + 1)
    wanted = NICENESS
except PermissionError:
    wanted = os.getpriority(os.PRIO_PROCESS, 0)
run_soon()
sleep_exactly()
libc, told = ctypes.CDLL(None), ctypes.create_string_buffer(48)
assert libc.syscall({number}, 0, told, 48, 0) == 0
_, policy, flags, niceness, _, runtime_ns, _, _ = struct.unpack("=IIQiIQQQ", told.raw)
print(policy, flags, niceness == wanted, runtime_ns, libc.prctl(30, 0, 0, 0, 0))
"""


def slices_are_heeded() -> bool:
    """Whether this kernel lets an ordinary process choose its slice (Linux 6.12)."""
    release = os.uname().release.split(".")
    return (int(release[0]), int(release[1])) >= (6, 12)


@pytest.mark.skipif(
    os.uname().machine not in NR_SCHED_GETATTR, reason="the system call's number is not known here"
)
def test_a_governor_runs_before_others_in_short_slices_and_sleeps_exactly() -> None:
    told = subprocess.run(
        [sys.executable, "-c", TOLD.format(number=NR_SCHED_GETATTR[os.uname().machine])],
        capture_output=True,
        text=True,
        check=True,
    )
    policy, flags, is_as_nice_as_it_may, slice_ns, timer_slack_ns = told.stdout.split()
    assert int(policy) == os.SCHED_OTHER
    assert int(flags) == RESET_ON_FORK  # a standby's start runs before nobody
    assert is_as_nice_as_it_may == "True"
    assert int(timer_slack_ns) == 1
    if slices_are_heeded():
        assert int(slice_ns) == SLICE_NS
