"""Kills of one part, or faults of the driver, at random moments, a few ranks at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.false_nvml.library import FalseNvml
from tests.governed_rank.driver_faults import DriverFault
from tests.governed_rank.governed_rank import GovernedRank, node_dir_in
from tests.governed_rank.kills import Part
from tests.governed_rank.running_guard import RunningGuard

NUM_RANKS_AT_ONCE = 3
# Governor and standby are up after about 0.3 s; every second rank is hit before, from the first on.
START_S = 0.35
# Some steps, each with several changes of the clock.
RUNNING_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Strike:
    """One kill or fault and what came of it.

    Attributes:
        part: the name of what was killed, or of the fault.
        restored_s: how long the clock took to be given back, or all to be well again, s.
        failure: what did not hold; empty: all did.
    """

    part: str
    restored_s: float = 0.0
    failure: str = ""


def strike_at_random(
    part: Part | DriverFault, num_kills: int, *, library: Path, folder: Path, seed: int
) -> list[Strike]:
    """Kill one part, or let the driver fail, so often, each time at a random moment.

    Args:
        part: what to kill, or how the driver fails.
        num_kills: how often.
        library: the false NVML, built.
        folder: for each rank's GPU and log; must not exist yet.
        seed: of the moments and of the clocks that the ranks ask for.
    """
    counts: list[int] = []
    while sum(counts) < num_kills:
        counts.append(min(part.num_kills_each, num_kills - sum(counts)))
    folder.mkdir(parents=True)

    def strike_one(number: int) -> list[Strike]:
        own_folder = folder / str(number)
        own_folder.mkdir()
        own_seed = 1000 * seed + number
        return list(
            _strike_rank(
                part, counts[number], library, own_folder, own_seed, starts=number % 2 == 0
            )
        )

    with ThreadPoolExecutor(NUM_RANKS_AT_ONCE) as pool:
        return [strike for some in pool.map(strike_one, range(len(counts))) for strike in some]


def _strike_rank(
    part: Part | DriverFault,
    num_kills: int,
    library: Path,
    folder: Path,
    seed: int,
    *,
    starts: bool,
) -> Iterator[Strike]:
    """Kill the part of one rank, several times where the rank outlives it.

    The first time comes while the rank starts, or once it is governed.
    """
    chooser = random.Random(seed)
    nvml = FalseNvml(library, folder, num_gpus=1)
    try:
        with ExitStack() as running:
            if part.is_guarded:
                running.enter_context(RunningGuard(nvml, node_dir_in(folder)))
            rank = running.enter_context(
                GovernedRank(nvml, folder, seed=seed, lease_s=part.lease_s, launcher=part.launcher)
            )
            if starts:
                assert rank.pid
                time.sleep(chooser.uniform(0, START_S))
            else:
                rank.wait_until_governed()
                time.sleep(chooser.uniform(0, RUNNING_S))
            for number in range(num_kills):
                if number:
                    time.sleep(chooser.uniform(0, RUNNING_S))
                yield Strike(part=part.name, restored_s=part.strike(rank, chooser))
            if part.leaves_rank:
                rank.end()
    except AssertionError as error:
        yield Strike(part=part.name, failure=f"seed {seed}, files in {folder}: {error}")
    finally:
        nvml.close()
