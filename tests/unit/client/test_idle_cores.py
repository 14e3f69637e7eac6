"""How many cores were idle of late, by what the kernel counts."""

from __future__ import annotations

import os
import time

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


def test_the_kernels_own_count_goes_on_and_is_not_above_all_cores() -> None:
    began = read_uptime()
    time.sleep(0.3)
    ended = read_uptime()
    lasted_s, idle_s = ended[0] - began[0], ended[1] - began[1]
    assert lasted_s >= 0.29
    # Idle time is counted core by core, one after the other.
    num_cores = os.cpu_count() or 1
    assert -0.1 * num_cores <= idle_s <= num_cores * (lasted_s + 0.1)
