from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.false_nvml.library import FalseNvml
from tests.governed_rank.governed_rank import board_of
from tests.governed_rank.processes import wait_until
from tests.planner.patience import PATIENCE_S
from tests.unit.client.tiny_profile import HandClock

from flyball_client.governor import process_governor
from flyball_client.governor import shared_state as word
from flyball_client.governor.config import GovernorConfig, spawn_governor
from flyball_client.governor.process_governor import ProcessGovernor
from flyball_client.governor.process_watch import ProcessIdentity
from flyball_client.governor.shared_state import SharedState
from flyball_client.gpu._base import GpuAddress


@pytest.fixture
def shared_state() -> Iterator[SharedState]:
    shared_state = SharedState.create()
    yield shared_state
    shared_state.close()


NewConfig = Callable[[GpuAddress], GovernorConfig]


@pytest.fixture
def new_config(shared_state: SharedState, tmp_path: Path) -> Iterator[NewConfig]:
    """Makes charges of one rank, which is this process."""
    wake_fd = os.eventfd(0)
    yield lambda address: GovernorConfig(
        address=address,
        rank_name="job gpt rank 3",
        rank=ProcessIdentity.own(),
        launcher=ProcessIdentity.of(os.getppid()),
        lease_s=30.0,
        state_dir=tmp_path / "state",
        rank_byte=1 << 42,
        shared_state_fd=shared_state.fd,
        wake_fd=wake_fd,
    )
    os.close(wake_fd)


TOKEN = "header.claims.signature"  # noqa: S105 - nobody's
ADDRESS = GpuAddress(control="zeusd", uuid="GPU-1", endpoint="/run/zeusd/zeusd.sock", token=TOKEN)


def test_a_text_of_it_shows_no_token(new_config: NewConfig) -> None:
    assert TOKEN not in repr(new_config(ADDRESS))


def test_a_governor_has_its_own_session_and_only_what_it_needs(
    new_config: NewConfig,
    shared_state: SharedState,
    tmp_path: Path,
    loaded_nvml: FalseNvml,
) -> None:
    secret = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(secret, True)
    # Larger than the buffer of a pipe, which a writer would wait for.
    address = GpuAddress(control="nvml", uuid=loaded_nvml.uuid(0), token=5000 * TOKEN)
    config = new_config(address)
    process = spawn_governor(config)
    wait_until(lambda: shared_state.words[word.STATE] == word.READY, "it is ready")
    assert os.getsid(process.pid) == process.pid
    assert shared_state.words[word.ACTIVE_PID] == process.pid
    assert TOKEN not in Path(f"/proc/{process.pid}/cmdline").read_text()
    files = {str(link.readlink()) for link in Path(f"/proc/{process.pid}/fd").iterdir()}
    assert str(tmp_path / "secret") not in files
    assert any("flyball-clock-state" in file for file in files)
    # It ends as that of a closed session does.
    shared_state.words[word.REQUEST] = 1 << 32 | word.QUIT
    os.eventfd_write(config.wake_fd, 1)
    assert process.wait(PATIENCE_S) == 0
    assert shared_state.words[word.STATE] == word.ENDED
    os.close(secret)


def test_what_cannot_be_started_leaves_no_descriptor_open(
    new_config: NewConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = new_config(ADDRESS)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError, match="no-python"):
        spawn_governor(config)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# ------------------------------------------------------------------ played by the test


def test_hooks_renew_the_lease_and_request_a_restored_clock_once_more(tmp_path: Path) -> None:
    address = GpuAddress(control="nvml", uuid="GPU-0")
    governor = ProcessGovernor(address, "rank 0", state_dir=tmp_path)
    with closing(governor), closing(board_of(os.getpid())) as shared_state:
        words = shared_state.words
        governor.set_mhz(900)
        request = words[word.REQUEST]
        words[word.SERVED], words[word.IN_FORCE_MHZ] = request, 900
        for upcoming_mhz in (None, 900):
            words[word.HOOK_NS] = 1
            governor.on_instruction_end(upcoming_mhz)
            assert words[word.HOOK_NS] > words[word.REQUESTED_NS]
            assert words[word.REQUEST] == request
        for hook in (governor.on_instruction_end, partial(governor.set_mhz, 900)):
            words[word.IN_FORCE_MHZ] = 0  # restored after the lease
            request += 1 << 32
            for _ in range(2):  # the second one finds the request unserved
                hook()
                assert words[word.REQUEST] == request
            words[word.SERVED] = request


def test_a_restored_clock_is_requested_again_ahead_of_the_timed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock()
    now = SimpleNamespace(monotonic=clock.now_s, monotonic_ns=lambda: int(clock.now_s() * 1e9))
    monkeypatch.setattr(process_governor, "time", now)
    address = GpuAddress(control="nvml", uuid="GPU-0")
    governor = ProcessGovernor(address, "rank 0", state_dir=tmp_path)
    with closing(governor), closing(board_of(os.getpid())) as shared_state:
        words = shared_state.words
        governor.set_mhz(900)
        words[word.SERVED], words[word.IN_FORCE_MHZ] = words[word.REQUEST], 900
        governor.set_mhz_later(1200, 0.2)
        timed, due_ns = words[word.TIMED_REQUEST], words[word.NOT_BEFORE_NS]
        clock.move(0.1)
        governor.on_instruction_end()
        assert words[word.HOOK_NS] == int(clock.now_s() * 1e9)
        assert (words[word.TIMED_REQUEST], words[word.NOT_BEFORE_NS]) == (timed, due_ns)
        words[word.IN_FORCE_MHZ] = 0  # restored after the lease
        for _ in range(2):
            governor.on_instruction_end()
            request, timed = words[word.REQUEST], words[word.TIMED_REQUEST]
            assert (request, timed) == (3 << 32 | 900, 4 << 32 | 1200)
            assert due_ns <= words[word.NOT_BEFORE_NS] < due_ns + 256
        # Its time has come while no hook was called, and the governor has not made it.
        words[word.SERVED] = request
        clock.move(0.2)
        governor.on_instruction_end()
        assert words[word.REQUEST] == 5 << 32 | 1200
        assert words[word.TIMED_REQUEST] == 0
