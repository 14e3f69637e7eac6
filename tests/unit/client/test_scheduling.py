"""What a governor asks of the scheduler, in a process of its own, as the kernel tells it after."""

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


ON_CORES = "import os; os.sched_setaffinity(0, {cores}); print(flush=True); "
ELSEWHERE = """
from flyball_client.governor.scheduling import OtherCores
chosen = OtherCores({rank_pid})
for core in (None, {first}, {first}, None, {last}, {nowhere}):
    chosen.leave_out(core)
    print(*sorted(os.sched_getaffinity(0)))
"""
NO_CORE = 1_000_000
ALL = os.sched_getaffinity(0)
several_cores = pytest.mark.skipif(len(ALL) < 2, reason="there is one core only")


def cores_told(rank_pid: int, begins_on: set[int]) -> list[set[int]]:
    """Where a governor runs each time that it leaves out a core of those that there are."""
    script = ON_CORES.format(cores=begins_on) + ELSEWHERE.format(
        rank_pid=rank_pid, first=min(ALL), last=max(ALL), nowhere=NO_CORE
    )
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return [{int(number) for number in line.split()} for line in told.stdout.splitlines()[1:]]


@several_cores
def test_a_core_is_left_out_until_none_or_another_is() -> None:
    first, last = {min(ALL)}, {max(ALL)}
    told = cores_told(os.getpid(), ALL)
    assert told == [ALL, ALL - first, ALL - first, ALL, ALL - last, ALL]


@several_cores
def test_what_the_governor_before_left_out_is_not_left_out_for_good() -> None:
    assert cores_told(os.getpid(), {max(ALL)})[0] == ALL


def rank_on(cores: set[int]) -> subprocess.Popen[bytes]:
    """A process that runs on these cores until it is sent a line."""
    rank = subprocess.Popen(
        [sys.executable, "-c", ON_CORES.format(cores=cores) + "input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert rank.stdout is not None
    rank.stdout.readline()
    return rank


def test_the_only_core_of_a_rank_and_its_governor_is_not_left_out() -> None:
    only = {min(ALL)}
    with rank_on(only) as rank:
        told = cores_told(rank.pid, only)
        rank.communicate(b"\n")
    assert told == [only] * 6


def test_where_the_rank_is_gone_there_are_the_cores_that_it_began_with() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as rank:
        rank.wait()
    only = {max(ALL)}
    assert cores_told(rank.pid, only) == [only] * 6


@several_cores
def test_a_rank_that_keeps_to_one_core_leaves_the_others_to_its_governor() -> None:
    only = {min(ALL)}
    with rank_on(only) as rank:
        told = cores_told(rank.pid, ALL)
        rank.communicate(b"\n")
    assert told[1] == ALL - only
