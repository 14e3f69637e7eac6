"""How often a standby wakes: seldom while nothing happens, and never without end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.governed_rank.processes import wait_until
from tests.unit.client.recording_gpu import RESET, RecordingGpu

from flyball_client.governor import governor_process
from flyball_client.governor import shared_state as words_of
from flyball_client.governor.config import Charge
from flyball_client.governor.governor_process import (
    CALM_TICK_S,
    STANDBY_TICK_S,
    GovernorProcess,
)
from flyball_client.governor.lock_record import LockRecord
from flyball_client.governor.process_watch import ProcessIdentity
from flyball_client.governor.shared_state import ClockBoard
from flyball_client.gpu._base import GpuAddress

REQUEST = 1 << 32 | 900
# That may begin while a process ends and a busy test looks; one that does not wait has thousands.
NUM_WAITS_BEFORE = 20


class Pair:
    """A standby on a thread of this process; its rank and the active one are idle processes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.board = ClockBoard.create()
        self.board.words[words_of.HOOK_NS] = time.monotonic_ns()
        self.gpu = RecordingGpu()
        self.rank, self.active = _idle_process(), _idle_process()
        self.record = LockRecord.take(folder, self.gpu.uuid)
        self._stop_read_fd, self._stop_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # How long each wait would be, s.
        self.waits_s: list[float] = []
        monkeypatch.setattr(governor_process, "select", SimpleNamespace(select=self._select))
        monkeypatch.setattr(governor_process, "_stop_signals", lambda: self._stop_read_fd)
        charge = Charge(
            address=GpuAddress(control="nvml", uuid=self.gpu.uuid),
            rank_name="rank 0",
            rank=_identity(self.rank),
            launcher=None,
            lease_s=30.0,
            state_dir=folder,
            board_fd=self.board.fd,
            wake_fd=-1,
        )
        self._process = GovernorProcess(charge, self.gpu, self.board, self.record)
        self.takes_over: bool | None = None
        self._thread = threading.Thread(target=self._stand_by, daemon=True)

    def start(self) -> None:
        """The standby begins to wait."""
        self._thread.start()

    def wait_for(self, num_waits: int) -> list[float]:
        """So many waits from now on, s; none is counted that had begun before."""
        begin = len(self.waits_s) + 1
        wait_until(lambda: len(self.waits_s) >= begin + num_waits, f"{num_waits} waits")
        return self.waits_s[begin : begin + num_waits]

    def wait_until_over(self) -> None:
        """The standby waits no longer."""
        self._thread.join(30)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        """As a signal does."""
        if self._thread.is_alive():
            os.write(self._stop_fd, b"\x0f")
            self.wait_until_over()
        for process in (self.rank, self.active):
            process.kill()
            process.wait()
        self.record.close()
        self.board.close()
        os.close(self._stop_read_fd)
        os.close(self._stop_fd)

    def _stand_by(self) -> None:
        self.takes_over = self._process.stand_by(_identity(self.active))

    def _select(
        self, reading: Sequence[int], writing: Sequence[int], failing: Sequence[int], wait_s: float
    ) -> tuple[list[int], list[int], list[int]]:
        if wait_s > 0:
            self.waits_s.append(wait_s)
        return select.select(reading, writing, failing, wait_s)


def _idle_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def _identity(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    return identity


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    pair = Pair(tmp_path, monkeypatch)
    yield pair
    pair.stop()


def test_it_wakes_half_as_often_while_there_is_nothing_that_the_active_one_has_yet_to_do(
    pair: Pair,
) -> None:
    pair.start()
    assert pair.wait_for(3) == [2 * STANDBY_TICK_S] * 3


def test_a_request_that_is_not_served_yet_makes_it_look_more_often(pair: Pair) -> None:
    pair.start()
    pair.wait_for(1)
    pair.board.words[words_of.REQUEST] = REQUEST
    wait_until(lambda: pair.waits_s[-1:] == [STANDBY_TICK_S], "it looks more often")
    pair.board.words[words_of.SERVED] = REQUEST
    wait_until(lambda: pair.waits_s[-1:] == [CALM_TICK_S], "it is calm again")


def test_the_ranks_end_wakes_it_once_while_the_active_one_has_yet_to_end(pair: Pair) -> None:
    pair.start()
    pair.wait_for(1)
    num_waits = len(pair.waits_s)
    pair.rank.kill()
    wait_until(lambda: pair.waits_s[-1] == STANDBY_TICK_S, "it has seen the end")
    # That can be read for as long as anybody looks: who waited for it would not wait.
    assert pair.wait_for(3) == [STANDBY_TICK_S] * 3
    assert len(pair.waits_s) - num_waits <= NUM_WAITS_BEFORE


def test_a_clock_that_the_active_one_does_not_give_back_it_gives_back_itself(pair: Pair) -> None:
    pair.board.words[words_of.MAY_BE_LOCKED] = 1
    pair.start()
    pair.rank.kill()
    pair.wait_until_over()

    assert pair.takes_over is False
    assert pair.gpu.told == [RESET]
    assert pair.active.wait(30) == -signal.SIGKILL
