"""Every example, plain and with Flyball, run by both ranks of test_examples.py.

Each script runs as `python SCRIPT` would run it, but for the process group, which lasts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import deepspeed
import transformers  # noqa: F401 - by the process that ranks are forked from
from tests.integration.rank_server import Findings
from tests.integration.trainings import logged_warnings, printed_by

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


def trained(script: str, *arguments: str) -> Findings:
    """Return what the script prints of its training, and what Flyball warns of."""
    with logged_warnings() as warnings:
        printed = printed_by(EXAMPLES / f"{script}.py", *_SIZES, *arguments)
    steps = [line for line in printed.splitlines() if line.startswith("step ")]
    return {"steps": steps, "warnings": warnings}


def scenarios() -> Iterator[tuple[str, Findings]]:
    """Every example; the planner's address is where nobody listens, for all but one."""
    leave_out_deepspeed_helper()
    deepspeed.init_distributed("gloo")
    for name, (script, options) in RUNS.items():
        has_planner = name == WITH_PLANNER
        num_steps = _NUM_STEPS_WITH_PLANNER if has_planner else _NUM_STEPS
        given = (*options, "--steps", str(num_steps))
        url = os.environ["PLANNER_URL" if has_planner else "NOBODY_THERE"]
        with mock.patch.dict(os.environ, FLYBALL_PLANNER_URL=url):
            plain = trained(script, *given)
            with_flyball = trained(f"{script}_flyball", *given)
        yield name, {"plain": plain, "flyball": with_flyball}
