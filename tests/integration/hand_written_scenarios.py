"""The example with and without a profile, run by the ranks of test_hand_written_loop.py."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import torch.distributed
from tests.integration.rank_server import Findings
from tests.integration.trainings import printed_by, takes_profile

from flyball_client.api.planner_client import PlannerClient
from flyball_profiles.examples import load_example_profile

EXAMPLE = Path(__file__).parents[2] / "examples" / "hand_written_loop.py"
# The plan comes early among these, of 0.1 s each, on a busy machine too.
NUM_STEPS = 60
_SIZES = ("--tiny", "--microbatches", "2", "--steps", str(NUM_STEPS))


def scenarios() -> Iterator[tuple[str, Findings]]:
    """A job that is given its profile, and one that is profiled online."""
    os.environ["FLYBALL_PLANNER_URL"] = os.environ["PLANNER_URL"]
    if torch.distributed.get_rank() == 0:
        Thread(target=_put_profile, daemon=True).start()
    online = ("--profiling", "online", "--job", "another")
    yield "given", {"printed": printed_by(EXAMPLE, *_SIZES, "--time-scale", "0.25")}
    yield "online", {"printed": printed_by(EXAMPLE, *_SIZES, "--time-scale", "0.2", *online)}


def _put_profile() -> None:
    """As soon as the job is known."""
    profile = load_example_profile().select_stages((0, 1))
    with PlannerClient(os.environ["PLANNER_URL"]) as planner:
        while not takes_profile(planner, "hand-written", profile):
            time.sleep(0.05)
