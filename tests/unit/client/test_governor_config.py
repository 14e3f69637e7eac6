from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.false_nvml.library import FalseNvml
from tests.governed_rank.processes import wait_until

from flyball_client.governor import shared_state as word
from flyball_client.governor.config import GovernorConfig, spawn_governor
from flyball_client.governor.process_watch import ProcessIdentity
from flyball_client.governor.shared_state import SharedState
from flyball_client.gpu._base import GpuAddress, SmClockRange

PATIENCE_S = 20


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


@pytest.fixture
def served_nvml(false_nvml: FalseNvml, monkeypatch: pytest.MonkeyPatch) -> FalseNvml:
    """False GPUs for the processes that are started from here."""
    for name, value in false_nvml.variables.items():
        monkeypatch.setenv(name, value)
    return false_nvml


def end(
    process: subprocess.Popen[bytes], config: GovernorConfig, shared_state: SharedState
) -> None:
    """Have a governor end as a closed session does."""
    shared_state.words[word.REQUEST] = 1 << 32 | word.QUIT
    os.eventfd_write(config.wake_fd, 1)
    assert process.wait(PATIENCE_S) == 0
    assert shared_state.words[word.STATE] == word.ENDED


TOKEN = "header.claims.signature"  # noqa: S105 - nobody's
ADDRESSES = [
    GpuAddress(control="nvml", uuid="GPU-1"),
    GpuAddress(
        control="nvml",
        uuid="GPU-1",
        return_range=SmClockRange(lowest_mhz=210, highest_mhz=1410),
    ),
    GpuAddress(control="zeusd", uuid="GPU-1", endpoint="/run/zeusd/zeusd.sock", token=TOKEN),
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_what_is_written_is_read_again(address: GpuAddress, new_config: NewConfig) -> None:
    plain = new_config(address)
    own = ProcessIdentity.own()
    for config in (
        plain,
        replace(plain, launcher=None),
        replace(plain, record_fd=9, active=own),
    ):
        text = config.to_json()
        assert "\n" not in text
        assert GovernorConfig.from_json(text + "\n") == config


def test_a_token_is_shown_neither_in_a_text_nor_in_the_process_list(new_config: NewConfig) -> None:
    config = new_config(ADDRESSES[2])
    assert TOKEN not in repr(config)
    assert TOKEN in config.to_json()
    process = spawn_governor(config)
    assert TOKEN not in Path(f"/proc/{process.pid}/cmdline").read_text()
    process.kill()
    process.wait(PATIENCE_S)


def test_a_governor_has_its_own_session_and_only_what_it_needs(
    new_config: NewConfig, shared_state: SharedState, tmp_path: Path, served_nvml: FalseNvml
) -> None:
    secret = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(secret, True)
    config = new_config(GpuAddress(control="nvml", uuid=served_nvml.uuid(0)))
    process = spawn_governor(config)
    wait_until(lambda: shared_state.words[word.STATE] == word.READY, "it is ready")
    assert os.getsid(process.pid) == process.pid
    assert shared_state.words[word.ACTIVE_PID] == process.pid
    files = {str(link.readlink()) for link in Path(f"/proc/{process.pid}/fd").iterdir()}
    assert str(tmp_path / "secret") not in files
    assert any("flyball-clock-state" in file for file in files)
    end(process, config, shared_state)
    os.close(secret)


def test_a_governor_imports_this_package_whatever_lies_in_the_working_folder(
    new_config: NewConfig,
    shared_state: SharedState,
    tmp_path: Path,
    served_nvml: FalseNvml,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in (tmp_path / "json.py", tmp_path / "select.py", elsewhere / "flyball_client.py"):
        file.write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    config = new_config(GpuAddress(control="nvml", uuid=served_nvml.uuid(0)))
    process = spawn_governor(config)
    wait_until(lambda: shared_state.words[word.STATE] == word.READY, "it is ready")
    end(process, config, shared_state)


def test_what_cannot_be_started_leaves_no_descriptor_open(
    new_config: NewConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = new_config(ADDRESSES[0])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError, match="no-python"):
        spawn_governor(config)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
