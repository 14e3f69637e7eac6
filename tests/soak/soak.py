"""A thousand kills and faults at random moments: is a clock left locked, a measurement lost?

Parts of governed ranks are killed (`governed_rank/kills.py`), the driver fails and hangs
(`governed_rank/driver_faults.py`), and runs with a planner meet faults of the energy counter and of
the planner (`measured_runs.py`).

Run `make soak`, or `python -m tests.soak.soak [--events N] [--seed S] [--minutes M]` from the
root. It ends with a table of the events; status 1: a clock was locked 3 s after the end of a fault,
a rank whose training should have gone on did not, an acknowledged measurement was lost, or a saving
was claimed from energy that was not measured.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.false_nvml.library import build_library
from tests.governed_rank.cgroup import cgroup_fault
from tests.governed_rank.driver_faults import FAULTS, DriverFault
from tests.governed_rank.kills import CGROUP, GUARDED_PARTS, PARTS, Part
from tests.governed_rank.random_kills import Strike, strike_at_random
from tests.soak.measured_runs import RUN_FAULTS, strike_runs

NUM_EVENTS = 1000
# Longest time that a guard may take; on a machine that is not busy it takes two seconds at most.
GUARDED_WITHIN_S = 3.0
# Of one event before another has its turn; a measured run takes some seconds.
BATCH, BATCH_OF_RUNS = 12, 6
# A part to kill, a fault of the driver, or the name of a fault that a measured run meets.
Event = Part | DriverFault | str


def strike_all(num_events: int, seed: int, folder: Path) -> Iterator[list[Strike]]:
    """Batch by batch, all events in turn, in an order of chance.

    Args:
        num_events: in all.
        seed: of the order and of each moment.
        folder: for what the ranks leave; of a batch that went well, nothing stays.
    """
    library_folder = folder / "library"
    library_folder.mkdir()
    library = build_library(library_folder)
    num_left = num_events
    for number, event in enumerate(_in_turn(random.Random(seed))):
        if num_left <= 0:
            return
        batch_folder, own_seed = folder / str(number), seed * 10_000 + number
        if isinstance(event, str):
            size = min(BATCH_OF_RUNS, num_left)
            strikes = strike_runs(event, size, library=library, folder=batch_folder, seed=own_seed)
        else:
            size = min(BATCH, num_left)
            strikes = strike_at_random(
                event, size, library=library, folder=batch_folder, seed=own_seed
            )
        num_left -= size
        if not any(strike.failure for strike in strikes):
            shutil.rmtree(batch_folder)
        yield strikes


def _in_turn(chooser: random.Random) -> Iterator[Event]:
    parts = [part for part in PARTS if part is not CGROUP or not cgroup_fault()]
    events: list[Event] = [*parts, *FAULTS, *RUN_FAULTS]
    while True:
        yield from chooser.sample(events, len(events))


def _in_time(strike: Strike) -> Strike:
    """Return the kill, as failed where a guard took too long."""
    is_guarded = strike.part in {part.name for part in GUARDED_PARTS}
    if strike.failure or not is_guarded or strike.restored_s <= GUARDED_WITHIN_S:
        return strike
    return replace(strike, failure=f"locked for {strike.restored_s:.1f} s")


def table(strikes: Sequence[Strike]) -> str:
    """Event, how often, how often all held, the slowest until the clock was given back, s."""
    names = [*(part.name for part in PARTS), *(fault.name for fault in FAULTS), *RUN_FAULTS]
    width = max(map(len, names))
    lines = [f"{'event':{width}}  times  held  slowest s"]
    for name in names:
        of_event = [strike for strike in strikes if strike.part == name]
        good = [strike for strike in of_event if not strike.failure]
        slowest_s = max((strike.restored_s for strike in good), default=0.0)
        slowest = "" if name in RUN_FAULTS else f"{slowest_s:9.3f}"
        lines.append(f"{name:{width}}  {len(of_event):5d}  {len(good):4d}  {slowest}".rstrip())
    return "\n".join(lines)


def show_progress(strikes: Sequence[Strike], num_events: int, begin_s: float) -> None:
    """One line on standard error, written over where it is a terminal."""
    num_failed = sum(bool(strike.failure) for strike in strikes)
    line = f"{len(strikes)} of {num_events} events, {num_failed} failed,"
    line += f" {time.monotonic() - begin_s:.0f} s"
    print(line, end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


def main() -> int:
    """Kill, fail, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--events", type=int, default=NUM_EVENTS, help="default: %(default)s")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no batch later than this"
    )
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    options = parser.parse_args()
    if options.events < 1 or options.seed < 0:
        parser.error("--events must be at least 1 and --seed at least 0")
    # A shell that runs this in the background has it ignored, and so would the ranks.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="flyball-soak-"))
    strikes: list[Strike] = []
    begin_s = time.monotonic()
    try:
        for some in strike_all(options.events, options.seed, folder):
            strikes += some
            show_progress(strikes, options.events, begin_s)
            if time.monotonic() - begin_s > 60 * options.minutes:
                break
    except pytest.skip.Exception as missing:
        parser.error(str(missing))
    if fault := cgroup_fault():
        print(f"not killed: {CGROUP.name}: {fault}")
    failures = [strike for strike in map(_in_time, strikes) if strike.failure]
    print(f"\n{table(strikes)}\n")
    for strike in failures:
        print(f"FAILED {strike.part}: {strike.failure}")
    outcome = "no clock stayed locked, no measurement was lost, no false saving was claimed"
    if failures:
        outcome = f"{len(failures)} FAILED, files in {folder}"
    print(f"{len(strikes)} events, seed {options.seed}: {outcome}")
    if not failures:
        shutil.rmtree(folder)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
