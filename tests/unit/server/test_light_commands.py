"""Refusing a setting or creating a token does not load a planner first, which takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

HEAVY = {"numpy", "scipy", "fastapi", "uvicorn"}
SOLVERS = {"scipy"}
IMPORT = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(sys.modules)))
"""


def _loaded_by(*modules: str) -> set[str]:
    command = [sys.executable, "-c", IMPORT, *modules]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return set(json.loads(done.stdout))


def test_a_command_that_may_only_refuse_loads_no_planner() -> None:
    commands = {"flyball_server.cli.serve", "flyball_server.cli.token"}
    loaded = _loaded_by(*sorted(commands))
    assert loaded >= commands
    assert loaded & HEAVY == set()


def test_the_planner_itself_loads_all_but_what_only_planning_processes_need() -> None:
    loaded = _loaded_by("flyball_server.serving.planner_server")
    assert loaded >= HEAVY - SOLVERS
    assert loaded & SOLVERS == set()
