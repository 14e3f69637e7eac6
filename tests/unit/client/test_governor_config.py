from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.false_nvml.library import FalseNvml
from tests.governed_rank.processes import wait_until
from tests.planner.patience import PATIENCE_S

from flyball_client.governor import shared_state as word
from flyball_client.governor.config import GovernorConfig, spawn_governor
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
    address = GpuAddress(control="nvml", uuid=loaded_nvml.uuid(0), token=TOKEN)
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
