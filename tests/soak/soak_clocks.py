"""Kills the parts of governed ranks at random moments, a thousand times: is a clock left locked?

Run `make soak`, or `python -m tests.soak.soak_clocks [--kills N] [--seed S]` from the root. It
ends with a table of the parts that were killed; status 1: not every clock was given back, or a
rank whose training should have gone on did not.
"""

from __future__ import annotations

import argparse
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
from tests.governed_rank.kills import CGROUP, GUARDED_PARTS, PARTS, Part
from tests.governed_rank.random_kills import Strike, strike_at_random

NUM_KILLS = 1000
# Longest time that a guard may take; on a machine that is not busy it takes two seconds at most.
GUARDED_WITHIN_S = 3.0
# Of one part before another has its turn.
BATCH = 12


def strike_all(num_kills: int, seed: int, folder: Path) -> Iterator[list[Strike]]:
    """Batch by batch, all parts in turn, in an order of chance.

    Args:
        num_kills: in all.
        seed: of the order and of each moment.
        folder: for what the ranks leave; of a batch that went well, nothing stays.
    """
    library_folder = folder / "library"
    library_folder.mkdir()
    library = build_library(library_folder)
    for number, part in enumerate(_parts_in_turn(random.Random(seed))):
        size = min(BATCH, num_kills - number * BATCH)
        if size <= 0:
            return
        batch_folder = folder / str(number)
        strikes = strike_at_random(
            part, size, library=library, folder=batch_folder, seed=seed * 10_000 + number
        )
        if not any(strike.failure for strike in strikes):
            shutil.rmtree(batch_folder)
        yield strikes


def _parts_in_turn(chooser: random.Random) -> Iterator[Part]:
    while True:
        parts = [part for part in PARTS if part is not CGROUP or not cgroup_fault()]
        yield from chooser.sample(parts, len(parts))


def _in_time(strike: Strike) -> Strike:
    """Return the kill, as failed where a guard took too long."""
    is_guarded = strike.part in {part.name for part in GUARDED_PARTS}
    if strike.failure or not is_guarded or strike.restored_s <= GUARDED_WITHIN_S:
        return strike
    return replace(strike, failure=f"locked for {strike.restored_s:.1f} s")


def table(strikes: Sequence[Strike]) -> str:
    """Part, kills, given back, the slowest in seconds."""
    width = max(len(part.name) for part in PARTS)
    lines = [f"{'part':{width}}  kills  given back  slowest s"]
    for part in PARTS:
        of_part = [strike for strike in strikes if strike.part == part.name]
        good = [strike for strike in of_part if not strike.failure]
        slowest_s = max((strike.restored_s for strike in good), default=0.0)
        lines.append(f"{part.name:{width}}  {len(of_part):5d}  {len(good):10d}  {slowest_s:9.3f}")
    return "\n".join(lines)


def show_progress(strikes: Sequence[Strike], num_kills: int, begin_s: float) -> None:
    """One line on standard error, written over where it is a terminal."""
    num_failed = sum(bool(strike.failure) for strike in strikes)
    line = f"{len(strikes)} of {num_kills} kills, {num_failed} failed,"
    line += f" {time.monotonic() - begin_s:.0f} s"
    print(line, end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


def main() -> int:
    """Kill, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--kills", type=int, default=NUM_KILLS, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    options = parser.parse_args()
    if options.kills < 1 or options.seed < 0:
        parser.error("--kills must be at least 1 and --seed at least 0")
    # A shell that runs this in the background has it ignored, and so would the ranks.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="flyball-soak-"))
    strikes: list[Strike] = []
    begin_s = time.monotonic()
    try:
        for some in strike_all(options.kills, options.seed, folder):
            strikes += some
            show_progress(strikes, options.kills, begin_s)
    except pytest.skip.Exception as missing:
        parser.error(str(missing))
    if fault := cgroup_fault():
        print(f"not killed: {CGROUP.name}: {fault}")
    failures = [strike for strike in map(_in_time, strikes) if strike.failure]
    print(f"\n{table(strikes)}\n")
    for strike in failures:
        print(f"FAILED {strike.part}: {strike.failure}")
    outcome = f"{len(failures)} FAILED, files in {folder}" if failures else "no clock stayed locked"
    print(f"{len(strikes)} kills, seed {options.seed}: {outcome}")
    if not failures:
        shutil.rmtree(folder)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
