"""The benchmark of many ranks runs, small, and nothing is lost in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_load_benchmark_reaches_every_rank_and_loses_nothing() -> None:
    run = subprocess.run(
        [sys.executable, "benchmarks/load.py", "--quick", "--no-zeus", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.stdout, run.stderr
    figures = json.loads(run.stdout)
    reach = figures["reach"]
    assert (reach["num_ranks"], reach["num_ranks_without"], reach["num_lost"]) == (32, 0, 0)
    phases = {phase["name"]: phase for phase in figures["phases"]}
    assert phases["post a step"]["num_requests"] == 32
    assert phases["post at the planner's period"]["num_requests"] >= 2 * 32
    assert reach["period_s"] == 1.0
    assert all(phase["num_failed"] == 0 for phase in phases.values())
