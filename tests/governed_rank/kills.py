"""The parts of a governed rank that can be killed, and what must hold after each."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.governed_rank.cgroup import kill_in_cgroup
from tests.governed_rank.governed_rank import (
    CONTAINER,
    GIVEN_BACK_WITHIN_S,
    LAUNCHER,
    GovernedRank,
)
from tests.governed_rank.processes import send, wait_until

SHORT_LEASE_S = 0.4


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part, and one way to end it.

    Attributes:
        name: for people.
        kill: ends it.
        check: waits for what must follow, until the clock was given back; how long that took, s.
        leaves_rank: whether the rank can be governed, and killed again, afterwards.
        launcher: what must have started the rank; none: nothing.
        lease_s: of the rank's governor, s.
        num_kills_each: of one rank at the most; who starts a part again waits longer each time.
        is_guarded: whether `flyball guard` runs.
    """

    name: str
    kill: Callable[[GovernedRank], None]
    check: Callable[[GovernedRank, int], float]
    leaves_rank: bool = False
    launcher: tuple[str, ...] = ()
    lease_s: float = 30.0
    num_kills_each: int = 1
    is_guarded: bool = False

    def strike(self, rank: GovernedRank, chooser: random.Random) -> float:
        """Kill this part and see to what follows; how long the clock took to be given back, s."""
        del chooser  # of the moment alone
        num_resets = rank.num_resets()
        self.kill(rank)
        return self.check(rank, num_resets)


# ------------------------------------------------------------------ what must follow


def check_rank_is_gone(rank: GovernedRank, num_resets: int) -> float:
    """The clock is given back, and nobody is left."""
    restored_s = _wait_until_given_back(rank, num_resets)
    rank.check_all_over()
    return restored_s


def check_governed_on(rank: GovernedRank, num_resets: int) -> float:
    """The clock is given back, and the rank, which noticed nothing, is governed again."""
    restored_s = _wait_until_given_back(rank, num_resets)
    rank.wait_until_governed()
    rank.check_goes_on()
    return restored_s


def check_never_left(rank: GovernedRank, num_resets: int) -> float:
    """The clock is set all the while, and there is a new standby."""
    rank.wait_until_governed()
    rank.wait_until_stood_by()
    rank.check_goes_on()
    assert rank.num_resets() == num_resets, "the clock was given back for no reason"
    return 0.0


def check_ungoverned_on(rank: GovernedRank, num_resets: int) -> float:
    """The clock is given back, the governors end, and the rank trains on without them."""
    restored_s = _wait_until_given_back(rank, num_resets)
    rank.wait_until_ungoverned()
    rank.check_goes_on(is_over=True)
    assert rank.is_restored()
    rank.end()
    return restored_s


def check_governed_once_it_hangs_no_more(rank: GovernedRank, num_resets: int) -> float:
    """The clock is given back, a lease after the last hook, and set again with the next one."""
    # What it asked for before it was stopped may be served until the lease is over.
    lease_over_s = time.monotonic() + SHORT_LEASE_S + 0.2
    restored_s = wait_until(
        lambda: (
            rank.num_resets() > num_resets
            or (time.monotonic() > lease_over_s and rank.is_restored())
        ),
        "the clock is given back",
    )
    time.sleep(0.05)
    assert rank.is_restored(), "locked while the rank hangs"
    send(rank.pid, signal.SIGCONT)
    rank.wait_until_governed()
    rank.check_goes_on()
    return restored_s - SHORT_LEASE_S


def check_next_start_gives_back(rank: GovernedRank, num_resets: int) -> float:
    """Nobody is left who could give the clock back; the GPU's next rank finds it so."""
    rank.wait_until_gone()
    was_given_back = rank.is_restored()
    assert was_given_back or not rank.has_clean_record(), "locked, and nobody knows"
    num_resets = rank.num_resets()
    with rank.successor() as successor:
        begin_s = time.monotonic()
        if not was_given_back:
            wait_until(lambda: successor.num_resets() > num_resets, f"given back\n{successor.log}")
        restored_s = time.monotonic() - begin_s
        successor.wait_until_governed()
        successor.end()
    return restored_s


def check_guarded(rank: GovernedRank, num_resets: int) -> float:
    """The guard gives the clock back; before that it has touched none, and nobody is left."""
    assert num_resets == 0, "the clock of a live rank was given back"
    restored_s = wait_until(
        lambda: rank.is_restored() and rank.has_clean_record(),
        f"the guard gives the clock back\n{rank.log}",
        patience_s=GIVEN_BACK_WITHIN_S,
    )
    rank.wait_until_gone()
    # A process whose last act was to set the clock may have died after the first look.
    wait_until(
        lambda: rank.is_restored() and rank.has_clean_record(),
        f"the guard gives a last clock back\n{rank.log}",
        patience_s=GIVEN_BACK_WITHIN_S,
    )
    return restored_s


def _wait_until_given_back(rank: GovernedRank, num_resets: int) -> float:
    # Where the rank lives, the next clock may be set before anybody looks at the GPU.
    return wait_until(
        lambda: rank.is_restored() or rank.num_resets() > num_resets,
        f"the clock is given back\n{rank.log}",
        patience_s=GIVEN_BACK_WITHIN_S,
    )


# ------------------------------------------------------------------ the kills


def _signal_rank(number: signal.Signals) -> Callable[[GovernedRank], None]:
    return lambda rank: send(rank.pid, number)


def _tell_rank(word: str) -> Callable[[GovernedRank], None]:
    return lambda rank: rank.tell(word)


def _signal_governor(number: signal.Signals) -> Callable[[GovernedRank], None]:
    def kill(rank: GovernedRank) -> None:
        send(_governor_of(rank), number)

    return kill


def _signal_stood_by_governor(number: signal.Signals) -> Callable[[GovernedRank], None]:
    def kill(rank: GovernedRank) -> None:
        rank.wait_until_stood_by()
        send(rank.pair[0], number)

    return kill


def _kill_standby(rank: GovernedRank) -> None:
    rank.wait_until_stood_by()
    send(rank.pair[1], signal.SIGKILL)


def _stop_governor_and_kill_rank(rank: GovernedRank) -> None:
    rank.wait_until_stood_by()
    send(_governor_of(rank), signal.SIGSTOP)
    send(rank.pid, signal.SIGKILL)


def _stop_pair_and_kill_rank(rank: GovernedRank) -> None:
    rank.wait_until_stood_by()
    for pid in rank.pair:
        send(pid, signal.SIGSTOP)
    send(rank.pid, signal.SIGKILL)


def _kill_one_by_one(rank: GovernedRank) -> None:
    for pid in rank.pids():
        send(pid, signal.SIGKILL)


def _kill_governors(rank: GovernedRank) -> None:
    # The standby first: woken by the governor's end, it would be quick to take over.
    for process in reversed(rank.governors()):
        send(process.pid, signal.SIGKILL)


def _kill_all(rank: GovernedRank) -> None:
    _kill_governors(rank)
    send(rank.pid, signal.SIGKILL)


def _governor_of(rank: GovernedRank) -> int:
    """The governor; the one that starts, where none is ready yet."""
    wait_until(rank.governors, f"a governor lives\n{rank.log}")
    living = [process.pid for process in rank.governors()]
    return rank.pair[0] if rank.pair[0] in living else living[0]


_RANK_KILLS = {
    "rank, SIGKILL": _signal_rank(signal.SIGKILL),
    "rank, SIGTERM": _signal_rank(signal.SIGTERM),
    "rank, SIGINT": _signal_rank(signal.SIGINT),
    "rank, exception": _tell_rank("raise"),
    "rank, os._exit": _tell_rank("exit"),
    "rank, normal end": _tell_rank("end"),
    "rank while its governor is stopped": _stop_governor_and_kill_rank,
}

QUICK_PARTS = (
    *(Part(name=name, kill=kill, check=check_rank_is_gone) for name, kill in _RANK_KILLS.items()),
    Part(
        name="rank hangs beyond its lease",
        kill=_signal_rank(signal.SIGSTOP),
        check=check_governed_once_it_hangs_no_more,
        leaves_rank=True,
        lease_s=SHORT_LEASE_S,
        num_kills_each=5,
    ),
    Part(
        name="launcher, SIGKILL",
        kill=lambda rank: rank.process.kill(),
        check=check_ungoverned_on,
        launcher=LAUNCHER,
    ),
    Part(
        name="governor, SIGKILL",
        kill=_signal_governor(signal.SIGKILL),
        check=check_governed_on,
        leaves_rank=True,
        num_kills_each=5,
    ),
    Part(
        name="governor, SIGTERM",
        kill=_signal_governor(signal.SIGTERM),
        check=check_governed_on,
        leaves_rank=True,
        num_kills_each=5,
    ),
    Part(
        name="standby, SIGKILL",
        kill=_kill_standby,
        check=check_never_left,
        leaves_rank=True,
        num_kills_each=4,
    ),
    Part(
        name="governor and standby, SIGKILL",
        kill=_kill_governors,
        check=check_governed_on,
        leaves_rank=True,
    ),
    Part(
        name="governor, standby and rank, SIGKILL",
        kill=_kill_all,
        check=check_next_start_gives_back,
    ),
)

# The standby gives it some seconds before it takes its place.
STOPPED_GOVERNOR = Part(
    name="governor, SIGSTOP",
    kill=_signal_stood_by_governor(signal.SIGSTOP),
    check=check_governed_on,
    leaves_rank=True,
)

CGROUP = Part(
    name="control group",
    kill=lambda rank: kill_in_cgroup(rank.pids),
    check=check_guarded,
    is_guarded=True,
)

GUARDED_PARTS = (
    Part(
        name="container, SIGKILL of process 1",
        kill=_signal_rank(signal.SIGKILL),
        check=check_guarded,
        launcher=CONTAINER,
        is_guarded=True,
    ),
    Part(
        name="container, os._exit of process 1",
        kill=_tell_rank("exit"),
        check=check_guarded,
        launcher=CONTAINER,
        is_guarded=True,
    ),
    CGROUP,
    Part(
        name="all processes, one by one",
        kill=_kill_one_by_one,
        check=check_guarded,
        is_guarded=True,
    ),
    Part(
        name="rank while governor and standby are stopped",
        kill=_stop_pair_and_kill_rank,
        check=check_guarded,
        is_guarded=True,
    ),
)

PARTS = (*QUICK_PARTS, STOPPED_GOVERNOR, *GUARDED_PARTS)
