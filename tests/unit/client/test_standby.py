"""Wakes of a standby: seldom while nothing happens, and never without end."""

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
from flyball_client.governor import shared_state as word
from flyball_client.governor.config import GovernorConfig
from flyball_client.governor.governor_process import HUNG_S, OVERDUE_S, GovernorProcess
from flyball_client.governor.lock_record import LockRecord
from flyball_client.governor.process_watch import ProcessIdentity
from flyball_client.governor.shared_state import SharedState
from flyball_client.gpu._base import GpuAddress

pytestmark = pytest.mark.slow

REQUEST = 1 << 32 | 900
MARGIN_S = 0.1


class Pair:
    """A standby on a thread of this process; its rank and the active one are idle processes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared_state = SharedState.create()
        self.shared_state.words[word.HOOK_NS] = time.monotonic_ns()
        self.gpu = RecordingGpu()
        self.rank, self.active = _idle_process(), _idle_process()
        self.record = LockRecord.take(folder, self.gpu.uuid)
        self._stop_read_fd, self._stop_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # The time that the standby reads, s: a test's own, from which it reckons what is late.
        self.now_s = time.monotonic()
        self.num_ticks = 0
        clock = SimpleNamespace(
            monotonic=lambda: self.now_s, monotonic_ns=time.monotonic_ns, sleep=time.sleep
        )
        monkeypatch.setattr(governor_process, "time", clock)
        monkeypatch.setattr(governor_process, "wait_exactly", self._wait)
        monkeypatch.setattr(governor_process, "_stop_signals", lambda: self._stop_read_fd)
        config = GovernorConfig(
            address=GpuAddress(control="nvml", uuid=self.gpu.uuid),
            rank_name="rank 0",
            rank=_identity(self.rank),
            launcher=None,
            lease_s=30.0,
            state_dir=folder,
            rank_byte=1 << 42,
            shared_state_fd=self.shared_state.fd,
            wake_fd=-1,
        )
        self._process = GovernorProcess(config, self.gpu, self.shared_state, self.record)
        self.takes_over: bool | None = None
        self._thread = threading.Thread(target=self._stand_by, daemon=True)

    def start(self) -> None:
        """The standby begins to wait."""
        self._thread.start()

    def tick(self) -> None:
        """Wait until the standby has checked the active one at the test's time."""
        num_ticks = self.num_ticks + 2
        wait_until(lambda: self.num_ticks >= num_ticks, "two ticks")

    def is_active_alive(self) -> bool:
        """The active one has not been ended."""
        return self.active.poll() is None

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
        self.shared_state.close()
        os.close(self._stop_read_fd)
        os.close(self._stop_fd)

    def _stand_by(self) -> None:
        self.takes_over = self._process.stand_by(_identity(self.active))

    def _wait(self, fds: Sequence[int], timeout_s: float) -> None:
        self.num_ticks += 1
        select.select(fds, (), (), timeout_s / 10)


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


def test_an_active_one_that_does_not_serve_a_request_is_ended_once_it_counts_as_hung(
    pair: Pair,
) -> None:
    pair.shared_state.words[word.REQUEST] = REQUEST
    pair.start()
    pair.tick()
    pair.now_s += OVERDUE_S + MARGIN_S
    pair.tick()
    assert pair.is_active_alive()
    pair.now_s += HUNG_S - OVERDUE_S
    pair.wait_until_over()
    assert pair.active.wait(30) == -signal.SIGKILL
    assert pair.takes_over is True


def test_an_active_one_that_makes_progress_is_left_alone(pair: Pair) -> None:
    pair.start()
    for number in range(1, 4):
        pair.shared_state.words[word.REQUEST] = number << 32 | 900
        pair.now_s += HUNG_S - MARGIN_S
        pair.tick()
        pair.shared_state.words[word.SERVED] = number << 32 | 900
        pair.tick()
    assert pair.is_active_alive()


def test_a_clock_that_is_locked_after_the_ranks_end_is_overdue_sooner(pair: Pair) -> None:
    pair.shared_state.words[word.MAY_BE_LOCKED] = 1
    pair.start()
    pair.tick()
    pair.rank.kill()
    pair.rank.wait()
    pair.tick()
    assert pair.is_active_alive()
    pair.now_s += OVERDUE_S + MARGIN_S
    pair.wait_until_over()
    assert pair.gpu.told == [RESET]
    assert pair.active.wait(30) == -signal.SIGKILL
    assert pair.takes_over is False
