"""A rank's training loop without the training: asks its governor for random clocks.

Run as a script of its own by `governed_rank.py`, which talks to it on standard input, a word a
line: `report` (answered by one line of JSON), `end`, `raise`, `exit`. It ends, too, when nobody
holds the other end any more.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import select
from collections.abc import Callable
from pathlib import Path

from flyball_client.governor._base import ClockGovernor
from flyball_client.governor.process_governor import ProcessGovernor
from flyball_client.gpu._base import SmClockRange
from flyball_client.gpu.nvml.device import NvmlGpu
from flyball_client.gpu.registry import find_gpu

NUM_INSTRUCTIONS = 6
INSTRUCTION_S = 0.003
EXIT_STATUS = 3


class TrainingFailedError(Exception):
    """Error of a broken training step."""


class TrainingEndedError(Exception):
    """The last step is done."""


def train(governor: ClockGovernor, choose_mhz: Callable[[], int]) -> None:
    """Step after step, until standard input says otherwise."""
    num_rounds = 0
    while True:
        governor.on_step_begin()
        for _ in range(NUM_INSTRUCTIONS):
            governor.set_mhz(choose_mhz())
            if compute_and_listen() == "report":
                report = {"num_rounds": num_rounds, "is_over": governor.is_over}
                print(json.dumps(report), flush=True)
        num_rounds += 1


def compute_and_listen() -> str:
    """Return what an instruction takes; the word that came meanwhile, if it is not the last one."""
    if not select.select([0], [], [], INSTRUCTION_S)[0]:
        return ""
    # Not by sys.stdin: what it has read ahead, select does not see.
    word = os.read(0, 64).decode().strip()
    if word in {"", "end"}:
        raise TrainingEndedError
    if word == "raise":
        raise TrainingFailedError("the step failed")
    if word == "exit":
        os._exit(EXIT_STATUS)
    return word


def main() -> None:
    """Train on the first GPU."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--lease-s", type=float, required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--return-mhz", type=int, nargs=2)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    chooser = random.Random(options.seed)
    return_range = None
    if options.return_mhz is not None:
        lowest_mhz, highest_mhz = options.return_mhz
        return_range = SmClockRange(lowest_mhz=lowest_mhz, highest_mhz=highest_mhz)
    gpu = NvmlGpu.open(uuid=find_gpu("0", os.environ)[2], return_range=return_range)
    clocks_mhz = gpu.supported_sm_clocks_mhz()
    governor = ProcessGovernor(
        gpu.address, "rank 0", lease_s=options.lease_s, state_dir=options.state_dir
    )
    print(os.getpid(), flush=True)
    governor.start()
    try:
        train(governor, lambda: chooser.choice(clocks_mhz))
    except TrainingEndedError:
        pass
    finally:
        governor.close()


if __name__ == "__main__":
    main()
