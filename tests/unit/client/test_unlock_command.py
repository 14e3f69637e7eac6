from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.false_nvml.library import FalseNvml
from tests.false_zeusd.server import FalseZeusd
from tests.governed_rank.pretended_rank import leave_record, pretended_rank
from tests.integration.command_in_process import flyball, refusal

from flyball_client.governor.lock_record import find_records

pytestmark = pytest.mark.slow

KEY = "hush-hush"
NO_PERMISSION = 4
RESET = "nvmlDeviceResetGpuLockedClocks"
SET = "nvmlDeviceSetGpuLockedClocks"


@pytest.fixture(autouse=True)
def control(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYBALL_CLOCK_CONTROL", "nvml")
    monkeypatch.setattr("flyball_client.governor.lock_record._TAKE_TIMEOUT_S", 0.05)


def unlock(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the status of `flyball unlock ... --json`, and what became of each GPU."""
    done = flyball("unlock", *arguments, "--json")
    return done.returncode, json.loads(done.stdout)["gpus"]


def test_a_clock_that_killed_governors_left_locked_is_restored(
    loaded_nvml: FalseNvml, state_dir: Path
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


@pytest.mark.usefixtures("loaded_nvml")
def test_without_nvml_nothing_left_locked_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FALSE_NVML_STATE")
    done = flyball("unlock")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    text = "no record says that a clock was left locked; a GPU's lock cannot be read: "
    assert done.stdout.startswith(text)
    refused = refusal(flyball("unlock", "--all"))
    assert refused.startswith("flyball unlock: starting NVML: Driver Not Loaded; ")


def test_a_clock_whose_governor_lives_is_taken_only_by_force(
    loaded_nvml: FalseNvml, state_dir: Path
) -> None:
    for index in (0, 1):
        loaded_nvml.set_range_mhz(1200, 1200, index)
    with pretended_rank(state_dir, loaded_nvml.uuid(0)) as rank:
        status, (left,) = unlock()
        assert (status, left["outcome"]) == (0, "in use")
        assert f"job 'llm' rank 0; process {rank.pid} of user" in left["text"]
        assert loaded_nvml.locked_mhz() == 1200
        status, (refused, restored) = unlock("--all")
        assert (status, refused["outcome"], restored["outcome"]) == (1, "refused", "restored")
        assert "end that rank, or add --force" in refused["text"]
        assert (loaded_nvml.locked_mhz(0), loaded_nvml.locked_mhz(1)) == (1200, 0)
        status, (forced,) = unlock("--gpu", "0", "--force")
        assert (status, forced["outcome"]) == (0, "restored")
        assert f"process {rank.pid} is running and may set it again" in forced["text"]
        assert loaded_nvml.range_mhz(0) == (0, 0)
        # The governor still says what it holds.
        assert len(find_records(state_dir)) == 1


def test_a_gpu_that_refuses_does_not_keep_the_others(loaded_nvml: FalseNvml) -> None:
    loaded_nvml.set_range_mhz(1200, 1200, 1)
    loaded_nvml.set_mig(1, 0)
    status, (refusing, other) = unlock("--all")
    assert (status, refusing["outcome"], other["outcome"]) == (1, "failed", "restored")
    assert "MIG" in refusing["text"]
    assert loaded_nvml.range_mhz(1) == (0, 0)


def test_without_the_right_or_the_gpu_the_record_stays(
    loaded_nvml: FalseNvml, state_dir: Path
) -> None:
    for uuid in ("GPU-9-was-taken-out", "0"):  # the second is no UUID, and not GPU 0
        leave_record(state_dir, uuid)
    status, gpus = unlock()
    assert (status, [gpu["outcome"] for gpu in gpus]) == (1, ["failed", "failed"])
    assert loaded_nvml.calls(RESET) == []
    leave_record(state_dir, loaded_nvml.uuid(0))
    loaded_nvml.fail(RESET, NO_PERMISSION)
    status, gpus = unlock()
    assert (status, [gpu["outcome"] for gpu in gpus]) == (1, ["failed"] * 3)
    refused = next(gpu for gpu in gpus if gpu["gpu"] == loaded_nvml.uuid(0))
    assert "may still be locked" in refused["text"]
    assert "CAP_SYS_ADMIN" in refused["text"]
    assert [record.is_left for record in find_records(state_dir)] == [True] * 3


def test_clocks_go_back_to_the_configured_range_and_an_option_wins(
    loaded_nvml: FalseNvml, monkeypatch: pytest.MonkeyPatch
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


def test_zeusd_gives_clocks_back_where_it_sets_them(
    loaded_nvml: FalseNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in (0, 1):
        loaded_nvml.set_range_mhz(1200, 1200, index)
    loaded_nvml.fail(RESET, NO_PERMISSION)
    with FalseZeusd(loaded_nvml, tmp_path / "zeusd.sock", token=KEY) as zeusd:
        monkeypatch.setenv("FLYBALL_CLOCK_CONTROL", "zeusd")
        monkeypatch.setenv("ZEUSD_SOCK_PATH", zeusd.endpoint)
        monkeypatch.setenv("ZEUSD_TOKEN", KEY)
        status, (gpu,) = unlock("--gpu", loaded_nvml.uuid(1))
    assert (status, gpu["gpu"], gpu["rank_name"]) == (0, loaded_nvml.uuid(1), None)
    assert (loaded_nvml.locked_mhz(0), loaded_nvml.range_mhz(1)) == (1200, (0, 0))
    assert len(zeusd.orders) == 1
    assert KEY not in json.dumps(gpu)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--gpu", "2"], "there is no GPU 2; NVML counts 2, from 0"),
        (["--gpu", "GPU-9"], "nvidia-smi -L lists"),
        (["--gpu", "first"], "'first' is neither a GPU's index nor its UUID"),
        (["--gpu", "0", "--all"], "not allowed with argument"),
        (["--force"], "--force needs --gpu INDEX|UUID or --all"),
        (["--to", "1410"], "must be LOWEST:HIGHEST in MHz"),
    ],
)
def test_wrong_arguments_get_one_line_and_touch_nothing(
    loaded_nvml: FalseNvml, arguments: list[str], text: str
) -> None:
    assert text in refusal(flyball("unlock", *arguments))
    assert loaded_nvml.calls(RESET) == loaded_nvml.calls(SET) == []


def test_what_is_no_record_keeps_no_clock_locked_and_none_is_said_to_be_unlocked(
    loaded_nvml: FalseNvml, state_dir: Path
) -> None:
    loaded_nvml.set_range_mhz(510, 510)
    leave_record(state_dir, loaded_nvml.uuid(0))
    record = state_dir / f"{loaded_nvml.uuid(0)}.clock"
    record.write_text("")
    done = flyball("unlock")
    assert done.returncode == 0
    assert "a GPU's lock cannot be read: flyball unlock --all resets every GPU" in done.stdout
    assert "no clock was left locked" not in done.stdout
    record.unlink()
    os.mkfifo(record)
    for _ in range(2):
        loaded_nvml.set_range_mhz(510, 510)
        done = flyball("unlock")
        assert done.returncode == 1
        refused, note = done.stdout.splitlines()
        assert str(state_dir) in refused
        assert "is refused: it is " in refused
        assert "cannot be read" in note
        assert flyball("unlock", "--all").returncode == 0
        assert loaded_nvml.range_mhz() == (0, 0)
        # A file in the folder's place keeps no GPU locked either.
        shutil.rmtree(state_dir, ignore_errors=True)
        state_dir.write_text("a file in its place")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to read other users' records")
def test_root_restores_clocks_of_all_users_and_a_user_cannot_claim_roots(
    loaded_nvml: FalseNvml, state_dir: Path
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
