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
    assert (reach["num_ranks"], reach["num_nodes_without"], reach["num_lost"]) == (32, 0, 0)
    assert reach["all_named"]
    phases = {phase["name"]: phase for phase in figures["phases"]}
    assert phases["post steps, node by node"]["num_requests"] == 4 * 2
    assert phases["post steps, node by node"]["num_rank_calls"] == 32 * 2
    assert all(phase["num_failed"] == 0 for phase in phases.values())
