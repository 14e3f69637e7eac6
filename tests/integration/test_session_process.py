"""A session belongs to one process: not to its forks, nor to the program that it executes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.false_nvml.library import FalseNvml
from tests.governed_rank.processes import wait_until
from tests.planner.patience import PATIENCE_S

from flyball_client.governor import shared_state as word
from flyball_client.governor.lock_record import find_records

ROOT = Path(__file__).parents[2]
RANK = (sys.executable, str(ROOT / "tests/governed_rank/session_rank.py"))
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


def run_rank(
    nvml: FalseNvml, state_dir: Path, event: str, *, inside: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run session_rank.py through an event."""
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    environment = nvml.environment | {
        "FLYBALL_STATE_DIR": str(state_dir),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    environment.pop("TORCHELASTIC_RUN_ID", None)
    return subprocess.run(
        [*inside, *RANK, event],
        env=environment,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )


def test_a_forked_child_changes_nothing_of_its_parents_session(
    false_nvml: FalseNvml, state_dir: Path
) -> None:
    ran = run_rank(false_nvml, state_dir, "forks")
    assert ran.returncode == 0, ran.stderr
    states = json.loads(ran.stdout)
    assert states["after"] == dict.fromkeys(
        ("leaves the block", "ends", "closes"), states["before"]
    )
    assert states["before"][-1] == word.READY
    assert "were killed and are restarted" not in ran.stderr
    wait_until(lambda: false_nvml.locked_mhz() == 0, "given back at the parent's end")


def test_a_program_that_a_rank_executes_in_its_place_sets_clocks(
    false_nvml: FalseNvml, state_dir: Path
) -> None:
    ran = run_rank(false_nvml, state_dir, "executes")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"is_over": False}, ran.stderr
    assert "clocks are no longer set" not in ran.stderr
    assert [mhz for _, mhz in false_nvml.calls("nvmlDeviceSetGpuLockedClocks")] == [1410, 1200]
    assert false_nvml.locked_mhz() == 0


def test_a_second_session_of_a_process_replaces_the_first_on_its_gpu(
    false_nvml: FalseNvml, state_dir: Path
) -> None:
    ran = run_rank(false_nvml, state_dir, "begins again")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"are_over": [True, False], "in_force_mhz": 1200}, ran.stderr
    assert "closed, since job gpt rank 0 of this process is on the same GPU" in ran.stderr
    assert "already set" not in ran.stderr
    assert [mhz for _, mhz in false_nvml.calls("nvmlDeviceSetGpuLockedClocks")] == [1410, 1200]
    assert false_nvml.locked_mhz() == 0


@pytest.mark.parametrize("how", ["ends", "raises", "multiprocessing"])
def test_process_1_of_a_container_gives_its_clock_back_as_it_ends_normally(
    false_nvml: FalseNvml, state_dir: Path, how: str
) -> None:
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no PID namespace can be made here")
    if how == "multiprocessing":
        # A governor that learns of the end by itself comes too late then.
        false_nvml.set_latency_us(50_000)
    ran = run_rank(false_nvml, state_dir, how, inside=NAMESPACE)
    assert json.loads(ran.stdout) == {"in_force_mhz": 1410}, ran.stderr
    # The kernel has killed the governor with its standby: nobody else is left who could do it.
    assert false_nvml.range_mhz() == (0, 0), ran.stderr
    assert find_records(state_dir / str(os.geteuid())) == []
