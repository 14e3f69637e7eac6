"""How many cores were idle of late, by what the kernel counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flyball_client.governor.idle_cores import PERIOD_NS, IdleCores, read_uptime


class Uptime:
    """A machine's, of which a test says how many cores idle."""

    def __init__(self) -> None:
        self.uptime_s, self.idle_s = 1000.0, 7000.0
        self.num_reads = 0

    def go_on(self, seconds: float, idle_cores: float) -> None:
        """So much later."""
        self.uptime_s += seconds
        self.idle_s += seconds * idle_cores

    def read(self) -> tuple[float, float]:
        self.num_reads += 1
        return self.uptime_s, self.idle_s


def test_it_is_the_mean_since_the_last_look_that_counts() -> None:
    uptime = Uptime()
    idle = IdleCores(least=0.75, read=uptime.read)
    now_ns = 0
    assert idle.are_enough(now_ns)  # of what came before nothing is known
    for seconds, idle_cores, are_enough in [
        (1, 0.75, True),
        (1, 0.74, False),
        (1, 0, False),
        (3600, 64, True),
        (2, 0.5, False),
    ]:
        uptime.go_on(seconds, idle_cores)
        now_ns += seconds * PERIOD_NS
        assert idle.are_enough(now_ns) is are_enough


def test_it_is_looked_at_once_a_second() -> None:
    uptime = Uptime()
    idle = IdleCores(least=0.75, read=uptime.read)
    for now_ns in range(0, 2 * PERIOD_NS, PERIOD_NS // 100):
        uptime.go_on(0.01, 0)
        assert idle.are_enough(now_ns) is (now_ns < PERIOD_NS)
    assert uptime.num_reads == 2


@pytest.mark.parametrize("error", [OSError("hidden"), ValueError("nonsense")])
def test_where_the_kernel_does_not_tell_there_are_enough(error: Exception) -> None:
    def unread() -> tuple[float, float]:
        raise error

    idle = IdleCores(least=1000.0, read=unread)
    assert all(idle.are_enough(number * PERIOD_NS) for number in range(3))


def test_a_clock_that_stands_still_tells_nothing() -> None:
    uptime = Uptime()
    idle = IdleCores(least=0.75, read=uptime.read)
    assert all(idle.are_enough(number * PERIOD_NS) for number in range(3))


def test_the_kernels_own_count_is_that_of_its_cores() -> None:
    def idle_of_cores_s() -> float:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        cores = [line.split() for line in lines if line.startswith("cpu") and line[3] != " "]
        return sum(int(core[4]) for core in cores) / os.sysconf("SC_CLK_TCK")

    before_s = idle_of_cores_s()
    _, idle_s = read_uptime()
    after_s = idle_of_cores_s()
    # Each core's is cut off to hundredths of a second.
    slack_s = 0.1 * (os.cpu_count() or 1)
    assert before_s - slack_s <= idle_s <= after_s + slack_s


def test_the_uptime_of_something_else_than_the_kernel_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((0, 0, -1, *[0] * 7)))
    with pytest.raises(OSError, match="not the kernel's own"):
        read_uptime()


def test_a_kernel_that_tells_no_idle_time_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "read", lambda *_: b"4213.07 0.00\n")
    with pytest.raises(ValueError, match="no idle time"):
        read_uptime()
