"""`torchrun` whose agent has imported torch once for its ranks: python -m THIS [its arguments].

The agent, its rendezvous, store and restarts are torch's own. But a rank is a fork of the agent's
process, where torchrun starts an interpreter that imports torch anew, for seconds of a processor.
IMPORTED_BEFORE in the environment names another module to import first.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from torch.distributed import run as torchrun
from torch.distributed.launcher.api import LaunchConfig


def _run(script: str, *arguments: str) -> None:
    """Run a training script to its end, as an interpreter of its own would."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
    atexit._run_exitfuncs()  # a fork runs none


def _forks(
    config_of: Callable[[argparse.Namespace], tuple[LaunchConfig, object, list[str]]],
    arguments: argparse.Namespace,
) -> tuple[LaunchConfig, object, list[str]]:
    config, _, _ = config_of(arguments)
    config.start_method = "fork"
    return config, _run, [arguments.training_script, *arguments.training_script_args]


def main() -> None:
    """Run the agent."""
    if module := os.environ.get("IMPORTED_BEFORE"):
        importlib.import_module(module)
    # The first optimizer imports more than the framework does.
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    config_of = torchrun.config_from_args
    with mock.patch.object(
        torchrun, "config_from_args", lambda arguments: _forks(config_of, arguments)
    ):
        torchrun.main()


if __name__ == "__main__":
    main()
