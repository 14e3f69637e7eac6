"""Time of `flyball plan`, whole process: envelope with balanced, 8 stages x 96 microbatches."""

from __future__ import annotations

import argparse
import statistics

from benchmark_report import Report, at_most, run_benchmark
from flyball_profiles.examples import example_profile_path
from measured_process import run_flyball

NUM_RUNS, NUM_MICROBATCHES, LIMIT_S = 5, 96, 2.0
# A run that hangs is a failure, not a slow figure.
GIVE_UP_S = 60.0


def measure(_: argparse.Namespace) -> Report:
    """Run the command `NUM_RUNS` times on the shipped example profile."""
    command = [
        *("plan", str(example_profile_path()), "--microbatches", str(NUM_MICROBATCHES)),
        *("--schedule", "1f1b", "--gpu", "a100", "--no-transitions"),
        *("--policy", "envelope", "--reconfigure", "balanced"),
    ]
    runs = [run_flyball(command, give_up_s=GIVE_UP_S) for _ in range(NUM_RUNS)]
    process_s = [run.process.process_s for run in runs]
    solve_s = statistics.median(run.solve_s for run in runs)
    size = f"{runs[0].document['num_stages']} stages x {NUM_MICROBATCHES} microbatches"
    return Report(
        figures={"process_s": process_s, "solve_s": solve_s},
        text=f"flyball plan, envelope with balanced, {size}: {solve_s:.3f} s of it planning",
        limits=[at_most(f"median of {NUM_RUNS}, s", statistics.median(process_s), LIMIT_S)],
    )


if __name__ == "__main__":
    run_benchmark(argparse.ArgumentParser(description=__doc__), measure)
