"""Refusing a setting or creating a token does not load a planner first, which takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

HEAVY = {"numpy", "scipy", "fastapi", "uvicorn"}
SOLVERS = {"scipy"}
COMMANDS = ("flyball_server.cli.serve", "flyball_server.cli.token")
# After each module, what is loaded by then.
IMPORT = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    print(json.dumps(sorted(sys.modules)))
"""


def test_a_command_that_may_only_refuse_loads_no_planner_and_the_planner_no_solver() -> None:
    """Only planning processes need these."""
    command = [sys.executable, "-c", IMPORT, *COMMANDS, "flyball_server.serving.planner_server"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    _, by_commands, by_planner = (set(json.loads(line)) for line in done.stdout.splitlines())
    assert by_commands >= set(COMMANDS)
    assert by_commands & HEAVY == set()
    assert by_planner & HEAVY == HEAVY - SOLVERS
