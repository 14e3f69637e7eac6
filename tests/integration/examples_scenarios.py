"""Every example, plain and with Flyball, run by both ranks of test_examples.py.

Each script runs as `python SCRIPT` would run it, but for the process group, which lasts.
"""

from __future__ import annotations

import logging
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from unittest import mock

import deepspeed
import torch.distributed
from tests.integration.rank_server import Findings

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
WITH_PLANNER = "gpt2"
_SIZES = ("--tiny", "--microbatches", "2")
_NUM_STEPS = 2
# So many that the ranks register meanwhile, which happens beside the training.
_NUM_STEPS_WITH_PLANNER = 8


class _Warnings(logging.Handler):
    """Keeps what Flyball logs from a warning on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def trained(script: str, *arguments: str) -> Findings:
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


def scenarios() -> Iterator[tuple[str, Findings]]:
    """Every example; the planner's address is where nobody listens, for all but one."""
    sys.path.insert(0, str(EXAMPLES))
    leave_out_deepspeed_helper()
    deepspeed.init_distributed("gloo")
    with mock.patch.object(torch.distributed, "destroy_process_group"):
        for name, (script, options) in RUNS.items():
            has_planner = name == WITH_PLANNER
            num_steps = _NUM_STEPS_WITH_PLANNER if has_planner else _NUM_STEPS
            given = (*options, "--steps", str(num_steps))
            url = os.environ["PLANNER_URL" if has_planner else "NOBODY_THERE"]
            with mock.patch.dict(os.environ, FLYBALL_PLANNER_URL=url):
                plain = trained(script, *given)
                with_flyball = trained(f"{script}_flyball", *given)
            yield name, {"plain": plain, "flyball": with_flyball}
