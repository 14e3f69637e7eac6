"""A rank with a session and a planner, which trains steps of 40 ms until it is told to end.

Run as a script: `measuring_rank.py URL JOB`. It ends with its standard input, and prints one line
of JSON: how many steps it has run, and how many of them will not reach the planner.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import time

from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.registry import open_local_gpu
from flyball_client.helper.rank_agent import LinkTimes
from flyball_client.session.rank_session import RankSession

KINDS = ("forward", "backward")
INSTRUCTION_S = 0.02
_TIMES = LinkTimes(gather_s=0.2, first_retry_s=0.1, longest_retry_s=0.5, flush_timeout_s=20.0)


def main(url: str, job_id: str) -> None:
    """Train on the first GPU."""
    logging.basicConfig(level=logging.INFO)
    gpu = open_local_gpu(0, os.environ)
    num_steps = 0
    with PlannerClient(url) as planner:
        session = RankSession(
            gpu=gpu, job_id=job_id, rank=0, stage=0, planner=planner, times=_TIMES
        )
        with session:
            while not select.select([0], [], [], 0)[0]:
                session.on_step_begin()
                for kind in KINDS:
                    session.on_instruction_begin(kind)
                    time.sleep(INSTRUCTION_S)
                    session.on_instruction_end(kind)
                session.on_step_end()
                num_steps += 1
        num_dropped = session.num_dropped_measurements
    gpu.close()
    print(json.dumps({"num_steps": num_steps, "num_dropped": num_dropped}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
