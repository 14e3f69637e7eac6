"""Calls millions of hooks and says what memory and descriptors that left behind.

`python hooks_leak.py PROBLEM.json RESULT.json`: a driver as hooks_driver.py is. The problem:
`num_hooks` and `num_warm_up_hooks`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from hooks_driver import planned_session, run_step

NUM_MICROBATCHES = 5_000
# Every so many instructions another clock: a request, a wake-up and a call of NVML.
RUN_LENGTH = 10
HOOKS_PER_STEP = 4 * NUM_MICROBATCHES
# Shorter than the warm-up, so that what a session keeps on purpose is full by then.
HISTORY_LENGTH = 4
CLOCKS_MHZ = (1410, 1200, 1005)

INSTRUCTIONS = tuple(
    (kind, microbatch, CLOCKS_MHZ[microbatch // RUN_LENGTH % len(CLOCKS_MHZ)])
    for microbatch in range(NUM_MICROBATCHES)
    for kind in ("forward", "backward")
)


def main(problem_file: Path, result_file: Path) -> None:
    """Warm up, look, call the hooks, look again."""
    problem: dict[str, int] = json.loads(problem_file.read_text(encoding="utf-8"))
    with planned_session(INSTRUCTIONS, history_length=HISTORY_LENGTH) as (
        session,
        governor,
        planner,
    ):

        def run(num_hooks: int) -> int:
            num_steps = -(-num_hooks // HOOKS_PER_STEP)
            for _ in range(num_steps):
                run_step(session, INSTRUCTIONS)
                # The planner of this benchmark lives in the same process, and keeps them all.
                planner.measurements.clear()
            return num_steps * HOOKS_PER_STEP

        run(problem["num_warm_up_hooks"])
        pids = {"rank": os.getpid(), "governor": governor.pids[0], "standby": governor.pids[1]}
        before = {name: _held(pid) for name, pid in pids.items()}
        began_s = time.perf_counter()
        num_hooks = run(problem["num_hooks"])
        took_s = time.perf_counter() - began_s
        after = {name: _held(pid) for name, pid in pids.items()}
        result: dict[str, Any] = {
            "num_hooks": num_hooks,
            "took_s": took_s,
            "num_switches": session.clock_report.num_switches,
            "num_unplanned": session.history[-1].num_unplanned,
            "same_governor": pids["governor"] == governor.pids[0],
            "before": before,
            "after": after,
        }
    result_file.write_text(json.dumps(result), encoding="utf-8")


def _held(pid: int) -> dict[str, int]:
    """Memory that is the process's own, bytes, and its open descriptors."""
    gc.collect()
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    fields = {name: value for name, value, *_ in (line.split() for line in lines)}
    return {
        "private_bytes": 1024 * (int(fields["Private_Clean:"]) + int(fields["Private_Dirty:"])),
        "rss_bytes": 1024 * int(fields["Rss:"]),
        "num_descriptors": len(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208 - names are enough
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
