from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.false_nvml.library import FalseNvml
from tests.false_zeusd.server import FalseZeusd
from tests.governed_rank.pretended_rank import leave_record, pretended_rank

from flyball_client.__main__ import main
from flyball_client.governor.lock_record import find_records

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
KEY = "hush-hush"
NO_PERMISSION = 4
RESET = "nvmlDeviceResetGpuLockedClocks"
SET = "nvmlDeviceSetGpuLockedClocks"

Unlock = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture(autouse=True)
def control(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYBALL_CLOCK_CONTROL", "nvml")
    monkeypatch.setattr("flyball_client.governor.lock_record._TAKE_TIMEOUT_S", 0.05)


@pytest.fixture
def unlock(capsys: pytest.CaptureFixture[str]) -> Unlock:
    """Runs `flyball unlock ... --json`: its status and what became of each GPU."""

    def run(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        status = main(["unlock", *arguments, "--json"])
        return status, json.loads(capsys.readouterr().out)["gpus"]

    return run


def test_a_clock_that_killed_governors_left_locked_is_restored(
    loaded_nvml: FalseNvml, state_dir: Path, unlock: Unlock
) -> None:
    for index in (0, 1):
        loaded_nvml.set_range_mhz(1200, 1200, index)
    leave_record(state_dir, loaded_nvml.uuid(0))
    status, (gpu,) = unlock()
    assert status == 0
    assert (gpu["gpu"], gpu["outcome"]) == (loaded_nvml.uuid(0), "restored")
    assert gpu["rank_name"] == "job 'llm' rank 0"
    assert loaded_nvml.range_mhz(0) == (0, 0)
    assert find_records(state_dir) == []
    assert unlock() == (0, [])
    assert loaded_nvml.locked_mhz(1) == 1200
    assert len(loaded_nvml.calls(RESET)) == 1


def test_without_nvml_nothing_left_locked_is_no_failure(false_nvml: FalseNvml) -> None:
    environment = false_nvml.environment
    del environment["FALSE_NVML_STATE"]
    for arguments, status, text in (
        ([], 0, "no record says that a clock was left locked; a GPU's lock cannot be read: "),
        (["--all"], 2, "flyball unlock: starting NVML: Driver Not Loaded; "),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "flyball_client", "unlock", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == status
        assert (done.stdout or done.stderr).startswith(text)
        assert (done.stdout + done.stderr).count("\n") == 1


def test_a_clock_whose_governor_lives_is_taken_only_by_force(
    loaded_nvml: FalseNvml, state_dir: Path, unlock: Unlock
) -> None:
    for index in (0, 1):
        loaded_nvml.set_range_mhz(1200, 1200, index)
    with pretended_rank(state_dir, loaded_nvml.uuid(0)) as rank:
        status, (left,) = unlock()
        assert (status, left["outcome"]) == (0, "in use")
        assert f"job 'llm' rank 0; the rank (process {rank.pid}) of user" in left["text"]
        assert loaded_nvml.locked_mhz() == 1200
        status, (refused, restored) = unlock("--all")
        assert (status, refused["outcome"], restored["outcome"]) == (1, "refused", "restored")
        assert "end that rank, or add --force" in refused["text"]
        assert (loaded_nvml.locked_mhz(0), loaded_nvml.locked_mhz(1)) == (1200, 0)
        status, (forced,) = unlock("--gpu", "0", "--force")
        assert (status, forced["outcome"]) == (0, "restored")
        assert f"(process {rank.pid}) is running and may set it again" in forced["text"]
        assert loaded_nvml.range_mhz(0) == (0, 0)
        # The governor still says what it holds.
        assert len(find_records(state_dir)) == 1


@pytest.mark.parametrize("named", ["1", "GPU-1-of-the-false-nvml"])
def test_a_gpu_can_be_named_by_index_or_uuid_and_needs_no_record(
    loaded_nvml: FalseNvml, unlock: Unlock, named: str
) -> None:
    for index in (0, 1):
        loaded_nvml.set_range_mhz(1200, 1200, index)
    status, (gpu,) = unlock("--gpu", named)
    assert (status, gpu["gpu"]) == (0, loaded_nvml.uuid(1))
    assert gpu["rank_name"] is None
    assert (loaded_nvml.locked_mhz(0), loaded_nvml.locked_mhz(1)) == (1200, 0)


def test_a_gpu_that_refuses_does_not_keep_the_others(
    loaded_nvml: FalseNvml, unlock: Unlock
) -> None:
    loaded_nvml.set_range_mhz(1200, 1200, 1)
    loaded_nvml.set_mig(1, 0)
    status, (refusing, other) = unlock("--all")
    assert (status, refusing["outcome"], other["outcome"]) == (1, "failed", "restored")
    assert "MIG" in refusing["text"]
    assert loaded_nvml.range_mhz(1) == (0, 0)


def test_without_the_right_the_record_stays(
    loaded_nvml: FalseNvml, state_dir: Path, unlock: Unlock
) -> None:
    leave_record(state_dir, loaded_nvml.uuid(0))
    loaded_nvml.fail(RESET, NO_PERMISSION)
    status, (gpu,) = unlock()
    assert (status, gpu["outcome"]) == (1, "failed")
    assert "may still be locked" in gpu["text"]
    assert "CAP_SYS_ADMIN" in gpu["text"]
    (record,) = find_records(state_dir)
    assert record.is_left


def test_a_record_of_a_gpu_that_is_gone_is_told_and_stays(
    loaded_nvml: FalseNvml, state_dir: Path, unlock: Unlock
) -> None:
    for uuid in ("GPU-9-was-taken-out", "0"):  # the second is no UUID, and not GPU 0
        leave_record(state_dir, uuid)
    status, gpus = unlock()
    assert (status, [gpu["outcome"] for gpu in gpus]) == (1, ["failed", "failed"])
    assert loaded_nvml.calls(RESET) == []
    assert len(find_records(state_dir)) == 2


def test_clocks_go_back_to_the_configured_range_and_an_option_wins(
    loaded_nvml: FalseNvml, monkeypatch: pytest.MonkeyPatch, unlock: Unlock
) -> None:
    monkeypatch.setenv("FLYBALL_RETURN_CLOCKS_MHZ", "300:1800")
    _, (gpu,) = unlock("--gpu", "0")
    assert loaded_nvml.range_mhz(0) == (300, 1800)
    assert "restored to 300:1800 MHz" in gpu["text"]
    unlock("--gpu", "0", "--to", "210:1410")
    assert loaded_nvml.range_mhz(0) == (210, 1410)
    status, (gpu,) = unlock("--gpu", "0", "--to", "100:1410")
    assert (status, gpu["outcome"]) == (1, "failed")
    assert "--to must lie within 210:1980" in gpu["text"]
    assert len(loaded_nvml.calls(SET)) == 2


@pytest.mark.usefixtures("loaded_nvml")
def test_zeusd_gives_clocks_back_where_it_sets_them(
    loaded_nvml: FalseNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unlock: Unlock
) -> None:
    loaded_nvml.set_range_mhz(1200, 1200, 1)
    loaded_nvml.fail(RESET, NO_PERMISSION)
    with FalseZeusd(loaded_nvml, tmp_path / "zeusd.sock", token=KEY) as zeusd:
        monkeypatch.setenv("FLYBALL_CLOCK_CONTROL", "zeusd")
        monkeypatch.setenv("ZEUSD_SOCK_PATH", zeusd.endpoint)
        monkeypatch.setenv("ZEUSD_TOKEN", KEY)
        status, (gpu,) = unlock("--gpu", "1")
    assert status == 0
    assert loaded_nvml.range_mhz(1) == (0, 0)
    assert len(zeusd.orders) == 1
    assert KEY not in json.dumps(gpu)


@pytest.mark.usefixtures("loaded_nvml")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--gpu", "2"], "there is no GPU 2; NVML counts 2, from 0"),
        (["--gpu", "GPU-9"], "nvidia-smi -L lists"),
        (["--gpu", "first"], "'first' is neither a GPU's index nor its UUID"),
        (["--gpu", "0", "--all"], "not allowed with argument"),
        (["--force"], "--force needs --gpu INDEX|UUID or --all"),
        (["--to", "1410"], "must be LOWEST:HIGHEST in MHz"),
        (["--to", "1410:210"], "must be LOWEST:HIGHEST in MHz"),
    ],
)
def test_wrong_arguments_get_one_line_and_touch_nothing(
    loaded_nvml: FalseNvml, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert main(["unlock", *arguments]) == 2
    printed = capsys.readouterr()
    assert text in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert loaded_nvml.calls(RESET) == loaded_nvml.calls(SET) == []


@pytest.mark.parametrize("holds", ["flock", "nothing"])
def test_no_record_keeps_a_clock_locked_and_none_is_said_to_be_unlocked(
    loaded_nvml: FalseNvml, state_dir: Path, capsys: pytest.CaptureFixture[str], holds: str
) -> None:
    loaded_nvml.set_range_mhz(510, 510)
    leave_record(state_dir, loaded_nvml.uuid(0))
    # As a local user could where records were readable.
    with (state_dir / f"{loaded_nvml.uuid(0)}.clock").open() as file:
        if holds == "flock":
            fcntl.flock(file, fcntl.LOCK_SH)
        assert main(["unlock"]) == 0
    assert "its SM clock was restored to the driver's default" in capsys.readouterr().out
    assert loaded_nvml.range_mhz() == (0, 0)
    loaded_nvml.set_range_mhz(510, 510)
    (state_dir / f"{loaded_nvml.uuid(0)}.clock").write_text("")
    assert main(["unlock"]) == 0
    printed = capsys.readouterr().out
    assert "a GPU's lock cannot be read: flyball unlock --all resets every GPU" in printed
    assert "no clock was left locked" not in printed


def _as_fifo(state_dir: Path, uuid: str) -> None:
    state_dir.mkdir(parents=True, mode=0o700)
    os.mkfifo(state_dir / f"{uuid}.clock")


def _as_file(state_dir: Path, _: str) -> None:
    state_dir.parent.mkdir()
    state_dir.write_text("a file in its place")


@pytest.mark.parametrize("make", [_as_fifo, _as_file])
def test_what_is_no_record_is_told_and_keeps_no_gpu_locked(
    loaded_nvml: FalseNvml,
    state_dir: Path,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path, str], None],
) -> None:
    loaded_nvml.set_range_mhz(510, 510)
    make(state_dir, loaded_nvml.uuid(0))
    assert main(["unlock"]) == 1
    refusal, note = capsys.readouterr().out.splitlines()
    assert str(state_dir) in refusal
    assert "is refused: it is " in refusal
    assert "cannot be read" in note
    assert main(["unlock", "--all"]) == 0
    assert loaded_nvml.range_mhz() == (0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to read other users' records")
def test_root_restores_clocks_of_all_users_and_a_user_cannot_claim_roots(
    loaded_nvml: FalseNvml, state_dir: Path, unlock: Unlock
) -> None:
    for index in (0, 1):
        loaded_nvml.set_range_mhz(510, 510, index)
    leave_record(state_dir, loaded_nvml.uuid(0))
    others_dir = state_dir.parent / "1000"
    leave_record(others_dir, loaded_nvml.uuid(1))
    with pretended_rank(others_dir, loaded_nvml.uuid(0)):
        for path in (others_dir, *others_dir.iterdir()):
            os.chown(path, 1000, 1000)
        status, gpus = unlock()
    assert status == 0
    assert [gpu["outcome"] for gpu in gpus] == ["restored", "in use", "restored"]
    assert "of user 1000 is running" in gpus[1]["text"]
    assert (loaded_nvml.range_mhz(0), loaded_nvml.range_mhz(1)) == ((0, 0), (0, 0))
