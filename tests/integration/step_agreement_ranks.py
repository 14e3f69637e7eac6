"""Ranks of test_step_agreement.py: python -m tests.integration.step_agreement_ranks FOLDER.

Ranks are forks of one process that has imported torch; each ends as an interpreter does. Prints the
exit status of each rank of each scenario.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed
from tests.planner.ports import free_port
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from flyball_client.steps.agreement import AgreementError, Pending
from flyball_integrations.shared.step_agreement import GlooAgreement, agree_on_steps

T = TypeVar("T")
_PATIENCE_S = 60.0
_NUM_ROUNDS = 5


class Rank:
    """A rank of a scenario.

    Args:
        folder: for what it finds.
        has_agreement: whether it exchanges with the others.
    """

    def __init__(self, folder: Path, *, has_agreement: bool) -> None:
        self._folder = folder
        self.number = torch.distributed.get_rank()
        self.has_agreement = has_agreement

    def agree(self, *, num_stages: int = 1) -> GlooAgreement:
        """Return its agreement, with the stages of a pipeline side by side."""
        dp_rank, stage = divmod(self.number, num_stages)
        agreement = agree_on_steps((dp_rank, stage, 0, 0))
        assert agreement is not None
        return agreement

    def find(self, found: object) -> None:
        """Write what it has found."""
        (self._folder / f"{self.number}.json").write_text(json.dumps(found))

    def outlive(self, rank: int) -> None:
        """Wait until a rank has ended."""
        _wait_for(lambda: (self._folder / f"{rank} ended").exists() or None)


def _wait_for(look: Callable[[], T | None]) -> T:
    deadline_s = time.monotonic() + _PATIENCE_S
    while (found := look()) is None:
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(0.001)
    return found


def _result(pending: Pending[T]) -> T:
    return _wait_for(pending.result)


def _error_of(pending: Pending[object]) -> str:
    try:
        _result(pending)
    except AgreementError as error:
        return str(error)
    return ""


def exchanges(rank: Rank) -> None:
    """Messages of all sizes within pipelines of two stages, and the greatest over both."""
    agreement = rank.agree(num_stages=2)
    found = []
    for number in range(_NUM_ROUNDS):
        message = bytes([rank.number]) * (number * (1 + rank.number))
        gathered = _result(agreement.gather(message))
        greatest = _result(agreement.greatest([rank.number, -rank.number, number / 3]))
        found.append([[each.hex() for each in gathered], greatest])
    agreement.close()
    rank.find(found)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def a_rank_is_killed(rank: Rank) -> None:
    """Rank 1 dies; the exchange of rank 0 fails."""
    agreement = rank.agree() if rank.has_agreement else None
    torch.distributed.barrier()
    if rank.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if agreement is not None:
        rank.find(_error_of(agreement.greatest([1.0])))


def the_loader_raises(rank: Rank) -> None:
    """Rank 0 raises with an exchange in progress, and rank 1 lives until it has ended."""
    agreement = rank.agree() if rank.has_agreement else None
    torch.distributed.barrier()
    if rank.number == 0:
        if agreement is not None:
            assert agreement.greatest([1.0]).result() is None
            agreement.close()
        raise ArithmeticError("the loader is broken")
    rank.outlive(0)
    if agreement is not None:
        rank.find(_error_of(agreement.greatest([1.0])))


def nothing_is_closed(rank: Rank) -> None:
    """Rank 0 ends with an exchange in progress and closes nothing."""
    agreement = rank.agree() if rank.has_agreement else None
    if rank.number == 1:
        rank.outlive(0)
    elif agreement is not None:
        assert agreement.greatest([1.0]).result() is None


def groups_are_destroyed(rank: Rank) -> None:
    """Rank 0 closes with an exchange in progress, frees all groups and ends."""
    agreement = rank.agree() if rank.has_agreement else None
    if rank.number == 1:
        rank.outlive(0)
        return
    if agreement is not None:
        pending = agreement.greatest([1.0])
        assert pending.result() is None
        agreement.close()
        rank.find(_error_of(pending))
    torch.distributed.destroy_process_group()


def steps_are_unequal(rank: Rank) -> None:
    """Rank 0 has more steps; its exchange stays in progress while rank 1 joins its training."""
    agreement = rank.agree() if rank.has_agreement else None
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(4, 4))
    found = []
    with Join([model]):
        for number in range(5 - 2 * rank.number):
            if agreement is not None and number < 4:
                pending = agreement.greatest([float(rank.number)])
            model(torch.ones(2, 4)).sum().backward()
            if agreement is not None:
                found.append(_result(pending) if number < 3 else pending.result())
    if agreement is not None:
        agreement.close()
        rank.find(found)
    torch.distributed.destroy_process_group()


_SCENARIOS: dict[Callable[[Rank], None], int] = {
    exchanges: 4,
    a_rank_is_killed: 2,
    the_loader_raises: 2,
    nothing_is_closed: 2,
    groups_are_destroyed: 2,
    steps_are_unequal: 2,
}


def _statuses(ranks: Sequence[int], folder: Path) -> list[int]:
    """Return the exit status of each rank, below 0 its signal, in the order of the ranks."""
    left, statuses = dict.fromkeys(ranks), {}
    while left:
        pid, status = os.wait()
        del left[pid]
        statuses[pid] = os.waitstatus_to_exitcode(status)
        (folder / f"{ranks.index(pid)} ended").touch()
    return [statuses[pid] for pid in ranks]


def main(folder: Path) -> None:
    """Run all scenarios; in a rank, return after its own."""
    found: dict[str, list[int]] = {}
    for scenario, num_ranks in _SCENARIOS.items():
        for has_agreement in (True, False):
            if scenario is exchanges and not has_agreement:
                continue
            name = f"{scenario.__name__} {has_agreement}"
            (own := folder / name).mkdir()
            port, pids = free_port(), list[int]()
            for rank in range(num_ranks):
                if (pid := os.fork()) == 0:
                    signal.alarm(round(2 * _PATIENCE_S))
                    torch.set_num_threads(1)
                    torch.distributed.init_process_group(
                        "gloo",
                        init_method=f"tcp://127.0.0.1:{port}",
                        rank=rank,
                        world_size=num_ranks,
                    )
                    scenario(Rank(own, has_agreement=has_agreement))
                    return
                pids.append(pid)
            found[name] = _statuses(pids, own)
    with suppress(BrokenPipeError):
        print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
