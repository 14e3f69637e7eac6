"""Program of each rank of the demo, started by torchrun: it guards the process, then trains.

A rank is in a session of its own, so it must end by itself when torchrun is killed.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from importlib import import_module
from pathlib import Path

from flyball_lab.demo.options import DemoOptions
from flyball_lab.demo.run_folder import RunFolder

_ORPHAN_CHECK_S = 0.5


def main() -> None:
    """Train until the plan has run for the wanted steps."""
    _end_with_parent(os.getppid())
    arguments = _parse_arguments()
    folder = RunFolder(arguments.folder)
    _print_into(folder.rank_log(int(os.environ["RANK"])))
    options = DemoOptions(
        num_steps=arguments.steps,
        num_microbatches=arguments.microbatches,
        time_scale=arguments.time_scale,
    )
    # Importing torch takes seconds, so it comes after the guards.
    training = import_module("flyball_lab.demo.training_loop")
    training.train(folder, options, planner_url=arguments.planner_url)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One rank of `flyball demo`.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--planner-url", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--time-scale", type=float, required=True)
    return parser.parse_args()


def _end_with_parent(parent_pid: int) -> None:
    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(_ORPHAN_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, name="orphan-watch", daemon=True).start()


def _print_into(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    main()
