"""What a rank says of looking out for its requests is what its governor does."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.recording_gpu import RecordingGpu

from flyball_client.governor import governor_process, process_governor
from flyball_client.governor.config import Charge
from flyball_client.governor.governor_process import GovernorProcess
from flyball_client.governor.idle_cores import IdleCores
from flyball_client.governor.lock_record import LockRecord
from flyball_client.governor.polling_rest import PollingRest
from flyball_client.governor.process_governor import ProcessGovernor
from flyball_client.governor.process_watch import ProcessIdentity
from flyball_client.governor.shared_state import ClockBoard
from flyball_client.gpu._base import GpuAddress

SHARE, IDLE_CORES = 0.01, 2.5


def test_the_rank_puts_it_into_the_charge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    charges: list[Charge] = []

    def spawn(charge: Charge) -> subprocess.Popen[bytes]:
        charges.append(charge)
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(process_governor, "spawn_governor", spawn)
    governor = ProcessGovernor(
        GpuAddress(control="nvml", uuid="GPU-1"),
        "rank 0",
        state_dir=tmp_path,
        polling_share=SHARE,
        least_idle_cores=IDLE_CORES,
    )
    governor.start()
    governor.close()
    (charge,) = charges
    assert (charge.polling_share, charge.least_idle_cores) == (SHARE, IDLE_CORES)


def test_the_governor_waits_as_its_charge_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu, board = RecordingGpu(), ClockBoard.create()
    charge = Charge(
        address=GpuAddress(control="nvml", uuid=gpu.uuid),
        rank_name="rank 0",
        rank=ProcessIdentity.own(),
        launcher=None,
        lease_s=30.0,
        state_dir=tmp_path,
        board_fd=board.fd,
        wake_fd=-1,
        polling_share=SHARE,
        least_idle_cores=IDLE_CORES,
    )
    told: dict[str, Any] = {}
    stop_read_fd, stop_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    monkeypatch.setattr(governor_process, "_stop_signals", lambda: stop_read_fd)
    monkeypatch.setattr(governor_process, "RequestWait", lambda *_, **named: told.update(named))
    # In the second between the first two looks too few were idle.
    looks = iter([(0.0, 1.0), (1.0, 1.0 + IDLE_CORES - 0.01), (2.0, 1.0 + 2 * IDLE_CORES)])
    cores_of_a_test = partial(IdleCores, read=lambda: next(looks))
    monkeypatch.setattr(governor_process, "IdleCores", cores_of_a_test)
    record = LockRecord.take(tmp_path, gpu.uuid)
    try:
        GovernorProcess(charge, gpu, board, record)._new_wait()
    finally:
        record.close()
        board.close()
        os.close(stop_read_fd)
        os.close(stop_fd)
    assert told["polling_share"] == SHARE
    rest: PollingRest = told["rest"]
    assert [rest.lasts(second * 10**9) for second in range(3)] == [False, True, False]
