"""Ranks of test_step_agreement.py: python -m tests.integration.step_agreement_ranks FOLDER.

Ranks are forks of one process that has imported torch; each ends as an interpreter does. Prints the
exit status of each rank of each scenario.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from unittest import mock

import torch
import torch.distributed
from tests.integration.trainings import logged_warnings
from tests.planner.ports import free_port
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from flyball_client.session.rank_session import RankSession
from flyball_client.steps.agreement import AgreementError, Pending
from flyball_integrations.data_parallel import attach, detach, steps, training_step
from flyball_integrations.shared.step_agreement import GlooAgreement, agree_on_steps

T = TypeVar("T")
_PATIENCE_S = 60.0
_NUM_ROUNDS = 5


class Rank:
    """A rank of a scenario.

    Args:
        folder: for what it finds.
        announces: whether it announces its steps.
    """

    def __init__(self, folder: Path, *, announces: bool) -> None:
        self._folder = folder
        self.number = torch.distributed.get_rank()
        self.announces = announces

    def agree(self, *, num_stages: int = 1) -> GlooAgreement:
        """Return its agreement, with the stages of a pipeline side by side."""
        dp_rank, stage = divmod(self.number, num_stages)
        agreement = agree_on_steps((dp_rank, stage, 0, 0))
        assert agreement is not None
        return agreement

    def session(self) -> RankSession:
        """Return its session, without GPU and planner."""
        session = RankSession(gpu=None, job_id="job", rank=self.number, stage=0, planner=None)
        if self.announces:
            session.plan_steps(self.agree(), coupling="step")
        session.start()
        return session

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


def _step(session: RankSession, *, inside: Callable[[], object] = lambda: None) -> None:
    """Run a step, during which the next one is announced."""
    session.on_step_begin()
    session.announce_step([[3, 4]])
    inside()
    session.on_step_end()


def _is_exchanging() -> bool:
    return any(thread.name == "flyball-exchange" for thread in threading.enumerate())


def exchanges(rank: Rank) -> None:
    """Messages of all sizes within pipelines of two stages, and the greatest over both."""
    agreement = rank.agree(num_stages=2)
    gather, greatest = agreement.gather, agreement.greatest
    assert gather is not None
    assert greatest is not None
    found: list[object] = []
    for number in range(_NUM_ROUNDS):
        message = bytes([rank.number]) * (number * (1 + rank.number))
        gathered = _result(gather(message))
        numbers = _result(greatest([rank.number, -rank.number, number / 3]))
        found.append([[each.hex() for each in gathered], numbers])
    pending = gather(b"")
    agreement.close()
    try:
        pending.result()
    except AgreementError as error:
        found.append(str(error))
    rank.find(found)
    torch.distributed.barrier()
    os._exit(0)  # an interpreter's end takes a third of a CPU second; the others show it


def a_rank_is_killed(rank: Rank) -> None:
    """Rank 1 dies in its second step; rank 0 trains on without step plans."""
    session = rank.session()
    _step(session)
    with logged_warnings() as lines:
        torch.distributed.barrier()
        if rank.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        rank.outlive(1)
        _step(session, inside=lambda: _wait_for(lambda: None if _is_exchanging() else True))
        _step(session)
    rank.find(lines)


def the_loader_raises(rank: Rank) -> None:
    """Rank 0 raises with an exchange in progress; rank 1 lives until it has ended."""
    session = rank.session()
    if rank.number == 0:
        session.on_step_begin()
        session.announce_step([[3]])
        time.sleep(0.1)  # until it is in progress
        torch.distributed.barrier()
        raise ArithmeticError("the loader is broken")
    torch.distributed.barrier()
    rank.outlive(0)


def groups_are_destroyed(rank: Rank) -> None:
    """Rank 0 closes with an exchange in progress, frees all groups and ends."""
    session = rank.session()
    torch.distributed.barrier()
    if rank.number == 1:
        rank.outlive(0)
        return
    session.on_step_begin()
    session.announce_step([[3]])
    time.sleep(0.1)  # until it is in progress
    session.close()
    rank.find(_is_exchanging())
    torch.distributed.destroy_process_group()


def steps_are_unequal(rank: Rank) -> None:
    """Rank 0 has more steps, and trains them while rank 1 joins it."""
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(4, 4))
    attach(model, job_id="job", announces_work=rank.announces)
    batches: Iterable[int] = range(1, 6 - 2 * rank.number)
    if rank.announces:
        batches = steps(batches, lengths=int)
    found: list[object] = []
    with (
        mock.patch.object(RankSession, "_post", lambda _, posted: found.append(posted.work)),
        Join([model]),
    ):
        for batch in batches:
            with training_step(model):
                model(torch.full((2, 4), float(batch))).sum().backward()
                time.sleep(0.1)  # for the next step's exchange
    rank.find(found)
    detach(model)
    torch.distributed.barrier()


_SCENARIOS: dict[Callable[[Rank], None], int] = {
    exchanges: 4,
    a_rank_is_killed: 2,
    the_loader_raises: 2,
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
    gc.freeze()  # each rank would look through torch at its end
    for scenario, num_ranks in _SCENARIOS.items():
        for announces in (True, False):
            if scenario is exchanges and not announces:
                continue
            name = f"{scenario.__name__} {announces}"
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
                    scenario(Rank(own, announces=announces))
                    return
                pids.append(pid)
            found[name] = _statuses(pids, own)
    with suppress(BrokenPipeError):
        print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
