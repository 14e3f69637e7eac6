"""Time of `flyball plan`, whole process: envelope with balanced, 8 stages x 96 microbatches.

Run `python benchmarks/envelope_speed.py [--json]`; README.md beside this file says how to read it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

NUM_RUNS = 5
NUM_STAGES = 8
NUM_MICROBATCHES = 96
LIMIT_S = 2.0
# A run that hangs is a failure, not a slow figure.
GIVE_UP_S = 60
EXAMPLE_PROFILE = "gpt3-175b-a100-sxm-fitted.csv"


@dataclass(frozen=True, kw_only=True)
class SpeedFigure:
    """The benchmark's result.

    Attributes:
        process_s: of each run, from starting Python to its exit, s.
        median_s: their median, s.
        solve_s: the median of what the runs report for the planning alone, s.
        limit_s: what `median_s` must stay below, s.
    """

    num_stages: int
    num_microbatches: int
    process_s: tuple[float, ...]
    median_s: float
    solve_s: float
    limit_s: float

    @property
    def within_limit(self) -> bool:
        """Return whether the median is below the limit."""
        return self.median_s < self.limit_s


def measure() -> SpeedFigure:
    """Run the command `NUM_RUNS` times on the shipped example profile.

    Raises:
        subprocess.CalledProcessError: the command failed.
        subprocess.TimeoutExpired: a run took longer than `GIVE_UP_S`.
    """
    example = resources.files("flyball_profiles") / "stages" / EXAMPLE_PROFILE
    with resources.as_file(example) as profile, tempfile.TemporaryDirectory() as folder:
        runs = [_one_run(profile, Path(folder) / "plan.json") for _ in range(NUM_RUNS)]
    process_s = tuple(taken_s for taken_s, _ in runs)
    return SpeedFigure(
        num_stages=NUM_STAGES,
        num_microbatches=NUM_MICROBATCHES,
        process_s=process_s,
        median_s=statistics.median(process_s),
        solve_s=statistics.median(solve_s for _, solve_s in runs),
        limit_s=LIMIT_S,
    )


def _one_run(profile: Path, output: Path) -> tuple[float, float]:
    """Return how long the process took, and what it says the planning took, s."""
    command = [sys.executable, "-m", "flyball_client", "plan", str(profile)]
    pipeline = ["--microbatches", str(NUM_MICROBATCHES), "--schedule", "1f1b"]
    options = [*pipeline, "--gpu", "a100", "--no-transitions"]
    policy = ["--policy", "envelope", "--reconfigure", "balanced", "-o", str(output)]
    began_s = time.perf_counter()
    subprocess.run(
        [*command, *options, *policy], check=True, stdout=subprocess.DEVNULL, timeout=GIVE_UP_S
    )
    taken_s = time.perf_counter() - began_s
    plan = json.loads(output.read_text(encoding="utf-8"))
    if (plan["num_stages"], plan["num_microbatches"]) != (NUM_STAGES, NUM_MICROBATCHES):
        raise SystemExit(f"{profile}: not a profile of {NUM_STAGES} stages")
    return taken_s, plan["solve_s"]


def main() -> int:
    """Print the figure; 0 where it is within the limit, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figure as JSON, alone")
    arguments = parser.parse_args()
    figure = measure()
    if arguments.json:
        print(json.dumps({**asdict(figure), "within_limit": figure.within_limit}))
    else:
        print(
            f"flyball plan, envelope with balanced, {NUM_STAGES} stages x {NUM_MICROBATCHES}"
            f" microbatches: {figure.median_s:.3f} s the whole process (median of {NUM_RUNS}),"
            f" {figure.solve_s:.3f} s of it planning; limit {LIMIT_S:g} s:"
            f" {'kept' if figure.within_limit else 'MISSED'}"
        )
    return 0 if figure.within_limit else 1


if __name__ == "__main__":
    sys.exit(main())
