"""What both ranks of test_examples.py run under torchrun: every example, plain and with Flyball.

Starting a rank takes seconds, so all scripts run in one process, each as `python SCRIPT` would
run it, but for the process group, which lasts until the last: that one has a planner.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import deepspeed
import torch
import torch.distributed

from flyball_lab.demo.training_loop import leave_out_deepspeed_helper

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "llama": ("train_llama", ()),
    "gpt2": ("train_gpt2", ()),
    "bert": ("train_bert", ()),
    "resnet": ("train_resnet", ()),
    "alexnet": ("train_alexnet", ()),
    "vgg19": ("train_alexnet", ("--net", "vgg19")),
}
NUM_STEPS = 2
WITH_PLANNER = "train_llama_flyball"
# As many steps as give the ranks time to register, which happens beside the training.
_STEPS_WITH_PLANNER = ("--steps", "40", "--microbatches", "3")
_SIZES = ("--tiny", "--steps", str(NUM_STEPS), "--microbatches", "2")


class _Warnings(logging.Handler):
    """Keeps what Flyball logs from a warning on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def trained(script: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    """Return what the script prints of its training, and what Flyball warns of."""
    warnings = _Warnings()
    loggers = [logging.getLogger(name) for name in ("flyball_client", "flyball_integrations")]
    for logger in loggers:
        logger.addHandler(warnings)
    printed = StringIO()
    path = str(EXAMPLES / f"{script}.py")
    try:
        with mock.patch.object(sys, "argv", [path, *_SIZES, *arguments]), redirect_stdout(printed):
            runpy.run_path(path, run_name="__main__")
    finally:
        for logger in loggers:
            logger.removeHandler(warnings)
    steps = [line for line in printed.getvalue().splitlines() if line.startswith("step ")]
    return {"steps": steps, "warnings": warnings.lines}


def main(folder: Path, planner_url: str) -> None:
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLES))
    leave_out_deepspeed_helper()
    deepspeed.init_distributed("gloo")
    rank = torch.distributed.get_rank()
    found: dict[str, Any] = {}
    with mock.patch.object(torch.distributed, "destroy_process_group"):
        for name, (script, arguments) in RUNS.items():
            found[name] = {
                "plain": trained(script, arguments),
                "flyball": trained(f"{script}_flyball", arguments),
            }
    with mock.patch.dict(os.environ, FLYBALL_PLANNER_URL=planner_url):
        found["with a planner"] = trained(WITH_PLANNER, _STEPS_WITH_PLANNER)
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    assert os.environ["FLYBALL_PLANNER_URL"], "an address where nobody listens"
    main(Path(sys.argv[1]), sys.argv[2])
