"""Program of each rank of the demo, started by torchrun: it guards the process, then trains.

A rank is in a session of its own, so it must end by itself when torchrun is killed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

from flyball_lab.demo.run_folder import RunFolder

_ORPHAN_CHECK_S = 0.5


def main() -> None:
    """Train in the folder and with the planner's URL that the arguments give."""
    parent_pid = os.getppid()
    threading.Thread(target=_end_with, args=(parent_pid,), daemon=True).start()
    folder, planner_url = RunFolder(Path(sys.argv[1])), sys.argv[2]
    log = folder.rank_log(int(os.environ["RANK"])).open("a")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    # Importing torch takes seconds, so it comes after the guards.
    training = import_module("flyball_lab.demo.training_loop")
    training.train(folder, folder.read_options(), planner_url=planner_url)


def _end_with(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_ORPHAN_CHECK_S)
    os._exit(1)


if __name__ == "__main__":
    main()
