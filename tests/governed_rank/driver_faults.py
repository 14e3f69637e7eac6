"""Faults of the driver at random moments, alone or with a kill, and what must hold after each.

To add one: a line in `FAULTS`, which says what begins the fault, and what must follow.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.governed_rank.governed_rank import GovernedRank
from tests.governed_rank.processes import send, wait_until

from flyball_client.governor import shared_state as word

# From a fault's end on: all is as without it.
WITHIN_S = 3.0
SET, RESET, READ = (
    "nvmlDeviceSetGpuLockedClocks",
    "nvmlDeviceResetGpuLockedClocks",
    "nvmlDeviceGetClockInfo",
)
NO_PERMISSION, TIMEOUT, GPU_IS_LOST, NOT_READY, UNKNOWN = 4, 10, 15, 27, 999
CODES = (NO_PERMISSION, TIMEOUT, GPU_IS_LOST, NOT_READY, UNKNOWN)
OTHERS_MHZ = 600
# So often at most another program locks its clock.
_MOST_LOCKS = 20


@dataclass(frozen=True, kw_only=True)
class DriverFault:
    """One fault; the attributes that a `Part` has too are as there.

    Attributes:
        begin: begins the fault, and kills what it shall; how long the fault lasts, s.
        check: waits for what must follow; how long after the fault's end that was, s.
    """

    name: str
    begin: Callable[[GovernedRank, random.Random], float]
    check: Callable[[GovernedRank, float], float]
    leaves_rank: bool = False
    num_kills_each: int = 1
    is_guarded: bool = False
    launcher: tuple[str, ...] = ()
    lease_s: float = 30.0

    def strike(self, rank: GovernedRank, chooser: random.Random) -> float:
        """Begin the fault and see to what follows; how long after its end all was well, s."""
        rank.wait_until_governed()
        lasts_s = self.begin(rank, chooser)
        return self.check(rank, time.monotonic() + lasts_s)


# ------------------------------------------------------------------ the faults


def _fails(rank: GovernedRank, chooser: random.Random) -> float:
    lasts_s = chooser.uniform(0.03, 1.0)
    function = chooser.choice(("", SET, RESET, READ))
    rank.nvml.fail(function, chooser.choice(CODES), lasts_s=lasts_s)
    return lasts_s


def _hangs(rank: GovernedRank, chooser: random.Random) -> float:
    lasts_s = chooser.uniform(0.05, 1.0)
    rank.nvml.fail(chooser.choice((SET, RESET, READ)), 0, lasts_s=lasts_s, hangs_s=lasts_s)
    return lasts_s


def _then_kill(
    begin: Callable[[GovernedRank, random.Random], float],
    kill: Callable[[GovernedRank], None],
) -> Callable[[GovernedRank, random.Random], float]:
    def both(rank: GovernedRank, chooser: random.Random) -> float:
        lasts_s = begin(rank, chooser)
        passed_s = chooser.uniform(0, lasts_s)
        time.sleep(passed_s)
        kill(rank)
        return lasts_s - passed_s

    return both


def _is_locked_by_others(rank: GovernedRank, chooser: random.Random) -> float:
    for _ in range(chooser.randint(1, _MOST_LOCKS)):
        rank.nvml.set_range_mhz(*chooser.choice(((OTHERS_MHZ, OTHERS_MHZ), (0, 0))))
        time.sleep(chooser.uniform(0, 0.02))
    return 0.0


def _kill_rank(rank: GovernedRank) -> None:
    send(rank.pid, signal.SIGKILL)


def _kill_governor(rank: GovernedRank) -> None:
    for pid in rank.pair[:1]:
        send(pid, signal.SIGKILL)


def _kill_all(rank: GovernedRank) -> None:
    for pid in rank.pids():
        send(pid, signal.SIGKILL)


# ------------------------------------------------------------------ what must follow


def _governed_on(rank: GovernedRank, over_s: float) -> float:
    """Clocks are set again, and the rank, which noticed nothing, trains on."""
    time.sleep(max(0.0, over_s - time.monotonic()))
    num_switches = rank.words[word.NUM_SWITCHES]
    waited_s = wait_until(
        lambda: rank.words[word.NUM_SWITCHES] > num_switches + 1,
        f"clocks are set again\n{rank.log}",
        patience_s=WITHIN_S,
    )
    rank.wait_until_governed()
    rank.check_goes_on()
    return waited_s


def _restored(rank: GovernedRank, over_s: float) -> float:
    """The clock is restored and stays so; nobody is left, and no record says that it is locked."""
    time.sleep(max(0.0, over_s - time.monotonic()))
    waited_s = wait_until(
        lambda: rank.is_restored() and rank.has_clean_record(),
        f"the clock is restored\n{rank.log}",
        patience_s=WITHIN_S,
    )
    rank.check_all_over()
    return waited_s


FAULTS = (
    DriverFault(
        name="driver fails",
        begin=_fails,
        check=_governed_on,
        leaves_rank=True,
        num_kills_each=3,
    ),
    DriverFault(
        name="driver hangs",
        begin=_hangs,
        check=_governed_on,
        leaves_rank=True,
        num_kills_each=3,
    ),
    DriverFault(
        name="another program sets the clock",
        begin=_is_locked_by_others,
        check=_governed_on,
        leaves_rank=True,
        num_kills_each=3,
    ),
    DriverFault(
        name="rank, SIGKILL while the driver fails",
        begin=_then_kill(_fails, _kill_rank),
        check=_restored,
    ),
    DriverFault(
        name="rank, SIGKILL while the driver hangs",
        begin=_then_kill(_hangs, _kill_rank),
        check=_restored,
    ),
    DriverFault(
        name="governor, SIGKILL while the driver fails",
        begin=_then_kill(_fails, _kill_governor),
        check=_governed_on,
        leaves_rank=True,
    ),
    DriverFault(
        name="all processes while the driver fails",
        begin=_then_kill(_fails, _kill_all),
        check=_restored,
        is_guarded=True,
    ),
)
