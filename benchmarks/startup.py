"""Time to the first plan of a new installation, and its size."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmark_report import Report, at_most, run_benchmark, show_progress
from measured_process import run_process

CHECKOUT = Path(__file__).resolve().parent.parent
NUM_RUNS = 5
GIVE_UP_S = 1200.0
MAX_FIRST_PLAN_S, MAX_PLAN_S, MAX_HELP_S, MAX_INSTALLED_MB = 8.0, 1.5, 0.3, 300.0
# With the A100's times of clock changes, as is the default.
MAX_LATE_PLAN_S = 2.5
_EXAMPLE = "import flyball_profiles.examples as e; print(e.example_profile_path())"


def measure(_: argparse.Namespace) -> Report:
    """Install `.[server]` into an empty environment and run its first commands."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        show_progress("installing .[server]")
        _run(sys.executable, "-m", "venv", str(environment))
        packages = next((environment / "lib").glob("python*")) / "site-packages"
        empty_mb = _size_mb(packages)
        python, flyball = str(environment / "bin/python"), str(environment / "bin/flyball")
        _run(python, "-m", "pip", "install", "--quiet", f"{CHECKOUT}[server]")
        installed_mb = _size_mb(packages) - empty_mb
        profile = run_process([python, "-c", _EXAMPLE], give_up_s=GIVE_UP_S).stdout.strip()
        plan = [flyball, "plan", profile, "--microbatches", "12", "--gpu", "a100"]
        show_progress("running the first commands")
        first_plan_s = _run(*plan)
        late_plan_s, plan_s, help_s = (
            statistics.median(_run(*command) for _ in range(NUM_RUNS))
            for command in (plan, [*plan, "--no-transitions"], [flyball, "--help"])
        )
    limits = [
        at_most("installed, without pip, MB", installed_mb, MAX_INSTALLED_MB),
        at_most("first flyball plan, whole process, s", first_plan_s, MAX_FIRST_PLAN_S),
        at_most("later ones, median, s", late_plan_s, MAX_LATE_PLAN_S),
        at_most("with --no-transitions, median, s", plan_s, MAX_PLAN_S),
        at_most("flyball --help, median, s", help_s, MAX_HELP_S),
    ]
    return Report(figures={}, text="`.[server]` in an empty environment", limits=limits)


def _run(*command: str) -> float:
    """Return how long the command took, s."""
    return run_process(command, give_up_s=GIVE_UP_S).process_s


def _size_mb(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


if __name__ == "__main__":
    run_benchmark(argparse.ArgumentParser(description=__doc__), measure)
