"""A vendor of GPUs is one entry: commands, governor and guard work with one that a test adds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.governed_rank.pretended_rank import leave_record
from tests.governed_rank.processes import wait_until
from tests.integration.command_in_process import document_of, flyball, refusal
from tests.made_up_gpus.vendor import UUIDS, MadeUpGpu, clock_file, locked_mhz

from flyball_client.cli.doctor.command import probe_gpus
from flyball_client.governor.guard import Guard
from flyball_client.governor.process_governor import ProcessGovernor, reap_left_behind
from flyball_client.gpu._base import GpuAddress
from flyball_client.session.rank_settings import RankSettings

pytestmark = pytest.mark.usefixtures("made_up_gpus", "state_dir")


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of records, within a node's."""
    monkeypatch.setenv("FLYBALL_STATE_DIR", str(tmp_path / "node"))
    return tmp_path / "node" / str(os.geteuid())


def test_clocks_lists_its_gpus() -> None:
    assert flyball("clocks", "--gpu", "1").stdout.splitlines() == [
        "GPU 1  Made-up GPU 1  MADE-UP-1",
        "  SM clocks, MHz: 900, 1200, 1410 (3 clocks)",
    ]
    assert [gpu["uuid"] for gpu in document_of("clocks")["gpus"]] == list(UUIDS)
    assert (
        "itself through MUL (driver 7.7"
        in flyball("clocks", "--gpu", "0", "--toml", "made-up").stdout
    )
    assert "nvidia-smi -L or mu-list lists both" in refusal(flyball("clocks", "--gpu", "first"))
    assert "MUL counts 2, from 0" in refusal(flyball("clocks", "--gpu", "7"))


def test_doctor_makes_its_checks_and_the_common_ones() -> None:
    checks = {check.name: check for check in probe_gpus([])}
    parts = ("paint", "control", "energy", "conditions", "clock")
    per_gpu = [f"GPU {index} {part}" for index in (0, 1) for part in parts]
    assert list(checks) == ["settings", "MUL", "GPUs", *per_gpu]
    assert {check.state for check in checks.values()} == {"ok"}
    assert checks["settings"].found.startswith("clock control is mul;")
    assert checks["GPUs"].found == "2 GPUs; MUL_VISIBLE is 0,1"
    clock_file(UUIDS[0]).write_text("900 900")
    locked = {check.name: check for check in probe_gpus([UUIDS[0]])}["GPU 0 clock"]
    assert locked.found.startswith("900 MHz of 1410, probably locked")
    assert locked.advice.endswith("mu-list shows clocks")


def test_unlock_restores_its_clocks() -> None:
    for uuid in UUIDS:
        clock_file(uuid).write_text("900 900")
    done = flyball("unlock", "--gpu", "MADE-UP-1")
    assert done.stdout.startswith("MADE-UP-1: its SM clock was restored to the driver's default")
    assert (locked_mhz(UUIDS[0]), locked_mhz(UUIDS[1])) == (900, 0)
    assert flyball("unlock", "--all").returncode == 0
    assert locked_mhz(UUIDS[0]) == 0


def test_a_rank_gets_its_gpu_and_a_governor_process_that_sets_its_clock() -> None:
    gpu = RankSettings.read(os.environ).open_gpu({**os.environ, "MUL_VISIBLE": "1"}, local_rank=0)
    assert isinstance(gpu, MadeUpGpu)
    assert gpu.uuid == UUIDS[1]
    governor = ProcessGovernor(gpu.address, "job rank 0")
    governor.start(strict=True)
    governor.on_step_begin()
    governor.set_mhz(1200)
    wait_until(lambda: locked_mhz(UUIDS[1]) == 1200, "1200 MHz")
    governor.close()
    wait_until(lambda: locked_mhz(UUIDS[1]) == 0, "the clock is restored")
    wait_until(reap_left_behind, "the governor ends")
    gpu.close()


def test_a_guard_restores_what_a_rank_left(state_dir: Path) -> None:
    leave_record(state_dir, UUIDS[0])
    clock_file(UUIDS[0]).write_text("900 900")
    said: list[str] = []
    guard = Guard(state_dir.parent, os.environ, said.append)

    def is_restored() -> bool:
        guard.check()
        return locked_mhz() == 0 and bool(said)

    wait_until(is_restored, "the guard restores the clock")
    guard.close()
    assert said[0].startswith("MADE-UP-0: its SM clock was restored")


def test_an_address_passes_through_the_governors_pipe() -> None:
    address = GpuAddress(control="mul", uuid=UUIDS[0])
    assert MadeUpGpu(address).address == address
