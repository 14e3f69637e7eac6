"""Time to the first plan of a new installation, and its size.

Run `python benchmarks/startup.py [--json]`; README.md beside this file says how to read it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmark_report import Report, at_most, run_benchmark, show_progress, table
from measured_process import BenchmarkError

CHECKOUT = Path(__file__).resolve().parent.parent
NUM_RUNS = 5
INSTALL_GIVE_UP_S, RUN_GIVE_UP_S = 1200.0, 120.0
MAX_FIRST_PLAN_S, MAX_PLAN_S, MAX_HELP_S, MAX_INSTALLED_MB = 8.0, 1.5, 0.3, 300.0
# With the A100's times of clock changes, as is the default.
MAX_LATE_PLAN_S = 2.5
_EXAMPLE = "import flyball_profiles.examples as e; print(e.example_profile_path())"


def measure(arguments: argparse.Namespace) -> Report:
    """Install `.[server]` into an empty environment and run its first commands.

    Raises:
        BenchmarkError: an installation or a command failed.
    """
    del arguments
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        show_progress("installing .[server]")
        _run([sys.executable, "-m", "venv", str(environment)], INSTALL_GIVE_UP_S)
        packages = next((environment / "lib").glob("python*")) / "site-packages"
        empty_mb = _size_mb(packages)
        python, flyball = environment / "bin/python", environment / "bin/flyball"
        install = [str(python), "-m", "pip", "install", "--quiet", f"{CHECKOUT}[server]"]
        _run(install, INSTALL_GIVE_UP_S)
        installed_mb = _size_mb(packages) - empty_mb
        profile = subprocess.run(
            [str(python), "-c", _EXAMPLE], capture_output=True, text=True, check=True
        ).stdout.strip()
        plan = [str(flyball), "plan", profile, "--microbatches", "12", "--gpu", "a100"]
        show_progress("running the first commands")
        first_plan_s = _run(plan, RUN_GIVE_UP_S)
        late_plan_s = [_run(plan, RUN_GIVE_UP_S) for _ in range(NUM_RUNS)]
        at_once = [*plan, "--no-transitions"]
        plan_s = [_run(at_once, RUN_GIVE_UP_S) for _ in range(NUM_RUNS)]
        help_s = [_run([str(flyball), "--help"], RUN_GIVE_UP_S) for _ in range(NUM_RUNS)]
    later_s, median_help_s = statistics.median(plan_s), statistics.median(help_s)
    late_s = statistics.median(late_plan_s)
    figures = {
        "installed_mb": installed_mb,
        "first_plan_s": first_plan_s,
        "late_plan_s": late_plan_s,
        "plan_s": plan_s,
        "help_s": help_s,
    }
    rows = [
        ["installed, without pip, MB", f"{installed_mb:.0f}"],
        ["first flyball plan, whole process, s", f"{first_plan_s:.2f}"],
        ["later ones, median, s", f"{late_s:.2f}"],
        ["with --no-transitions, median, s", f"{later_s:.2f}"],
        ["flyball --help, median, s", f"{median_help_s:.2f}"],
    ]
    return Report(
        figures=figures,
        text=table(["`.[server]` in an empty environment", "figure"], rows),
        limits=(
            at_most("installed, MB", installed_mb, MAX_INSTALLED_MB),
            at_most("first plan, s", first_plan_s, MAX_FIRST_PLAN_S),
            at_most("later plan, median, s", late_s, MAX_LATE_PLAN_S),
            at_most("with --no-transitions, median, s", later_s, MAX_PLAN_S),
            at_most("--help, median, s", median_help_s, MAX_HELP_S),
        ),
    )


def _run(command: list[str], give_up_s: float) -> float:
    """Return how long the command took, s."""
    began_s = time.perf_counter()
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=give_up_s)
    except subprocess.CalledProcessError as error:
        raise BenchmarkError(f"{command[0]} failed: {error.stderr.decode()[-500:]}") from None
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{command[0]} took longer than {give_up_s:g} s") from None
    return time.perf_counter() - began_s


def _size_mb(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def main() -> int:
    """Print the figures; 0 where all are within their limits, else 1."""
    return run_benchmark(argparse.ArgumentParser(description=__doc__), measure)


if __name__ == "__main__":
    sys.exit(main())
