"""No clock stays locked: real ranks, governors and standbys, killed at random moments."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.false_nvml.library import FalseNvml
from tests.governed_rank.cgroup import cgroup_fault
from tests.governed_rank.driver_faults import FAULTS, DriverFault
from tests.governed_rank.governed_rank import CONTAINER, GovernedRank, node_dir_in
from tests.governed_rank.kills import CGROUP, PARTS, STOPPED_GOVERNOR, Part
from tests.governed_rank.processes import send, wait_until
from tests.governed_rank.random_kills import strike_at_random
from tests.governed_rank.running_guard import RunningGuard

from flyball_client.governor.lock_record import find_records
from flyball_client.governor.process_governor import ProcessGovernor
from flyball_client.gpu._base import GpuAddress, GpuError
from flyball_client.gpu.nvml import vendor

# One while the rank starts, and one while it trains; of a rank that survives it, four in a row.
NUM_KILLS, NUM_KILLS_OF_SURVIVORS, NUM_SLOW_KILLS = 2, 4, 1
SEED = 7
NO_PERMISSION = 4
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--no-python")

NewRank = Callable[..., GovernedRank]


@pytest.fixture
def new_rank(false_nvml: FalseNvml, tmp_path: Path) -> Iterator[NewRank]:
    """Starts ranks on one GPU, which end with the test."""
    with ExitStack() as ranks:
        yield lambda **options: ranks.enter_context(GovernedRank(false_nvml, tmp_path, **options))


@pytest.mark.parametrize("part", PARTS, ids=[part.name for part in PARTS])
def test_no_clock_stays_locked_whatever_is_killed_and_whenever(
    part: Part, false_nvml_library: Path, tmp_path: Path
) -> None:
    if part is CGROUP and cgroup_fault():
        pytest.skip(f"{cgroup_fault()}; the processes are killed one by one instead")
    num_kills = NUM_KILLS_OF_SURVIVORS if part.num_kills_each > 1 else NUM_KILLS
    num_kills = NUM_SLOW_KILLS if part is STOPPED_GOVERNOR else num_kills
    strikes = strike_at_random(
        part, num_kills, library=false_nvml_library, folder=tmp_path / "kills", seed=SEED
    )
    slowest_s = max(strike.restored_s for strike in strikes)
    print(f"{part.name}: {len(strikes)} kills, given back within {slowest_s:.3f} s")
    assert [strike.failure for strike in strikes if strike.failure] == []
    assert len(strikes) == num_kills


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_no_clock_stays_locked_however_the_driver_fails_and_whenever(
    fault: DriverFault, false_nvml_library: Path, tmp_path: Path
) -> None:
    strikes = strike_at_random(
        fault, fault.num_kills_each, library=false_nvml_library, folder=tmp_path / "f", seed=SEED
    )
    assert [strike.failure for strike in strikes if strike.failure] == []
    assert len(strikes) == fault.num_kills_each


def test_a_pair_killed_with_its_rank_leaves_a_record_for_the_next_start(
    false_nvml: FalseNvml, new_rank: NewRank
) -> None:
    rank = new_rank()
    rank.wait_until_governed()
    rank.wait_until_stood_by()
    everybody = (rank.pid, *rank.pair)
    wait_until(lambda: _stop_while_locked(false_nvml, everybody), "the clock is locked")
    for pid in everybody:
        send(pid, signal.SIGKILL)
    rank.wait_until_gone()
    assert false_nvml.locked_mhz()
    # A process that is ending is not seen any more a moment before it lets go of its files.
    wait_until(lambda: find_records(rank.state_dir)[0].is_left, "nobody holds it")
    (found,) = find_records(rank.state_dir)
    assert found.uuid == false_nvml.uuid(0)
    assert found.holder is not None
    assert found.holder.rank_name == "rank 0"
    num_resets = rank.num_resets()
    successor = new_rank()
    successor.wait_until_governed()
    assert successor.num_resets() == num_resets + 1
    (found,) = find_records(rank.state_dir)
    assert found.rank_pid == successor.pid
    assert found.governor_pid in successor.pair
    successor.end()


def _stop_while_locked(false_nvml: FalseNvml, pids: tuple[int, ...]) -> bool:
    for pid in pids:
        send(pid, signal.SIGSTOP)
    if false_nvml.locked_mhz():
        return True
    for pid in pids:
        send(pid, signal.SIGCONT)
    return False


def test_a_clock_is_given_back_to_the_range_that_was_configured(
    false_nvml: FalseNvml, new_rank: NewRank
) -> None:
    def governed() -> GovernedRank:
        rank = new_rank(return_mhz=return_mhz)
        rank.wait_until_governed()
        rank.wait_until_stood_by()
        return rank

    return_mhz = (300, 900)
    rank = governed()
    for pid in (rank.pair[0], rank.pid):
        send(pid, signal.SIGKILL)
    rank.check_all_over()  # by the standby
    rank = governed()
    for pid in (*rank.pair, rank.pid):
        send(pid, signal.SIGKILL)
    rank.wait_until_gone()
    rank = governed()  # it finds the clock of the rank before
    rank.end()
    assert false_nvml.range_mhz() == return_mhz


def test_a_governor_killed_as_it_starts_its_standby_costs_no_clocks(new_rank: NewRank) -> None:
    for _ in range(2):
        rank = new_rank()
        wait_until(rank.governors, "a governor lives")
        pid = rank.governors()[0].pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        if not children.exists():
            pytest.skip("this kernel does not list a process's children")
        wait_until(children.read_text, "the standby is being started", pause_s=0)
        send(pid, signal.SIGKILL)
        rank.wait_until_governed()
        rank.wait_until_stood_by()
        # A third one, if the rank started it, has seen by now that it is not needed.
        rank.check_goes_on()
        rank.end()


def test_a_second_rank_on_the_same_gpu_trains_on_without_clocks(new_rank: NewRank) -> None:
    first = new_rank()
    first.wait_until_governed()
    second = new_rank(seed=1)
    second.check_goes_on(is_over=True)
    assert second.log.count("clocks are no longer set") == 1
    assert "is already set for rank 0; give each rank a GPU" in second.log
    second.tell("end")
    wait_until(lambda: not second.is_alive(), "the second rank ends")
    first.wait_until_governed()
    first.check_goes_on()
    first.end()


def test_without_the_right_to_set_clocks_training_goes_on_and_nothing_is_touched(
    false_nvml: FalseNvml, new_rank: NewRank
) -> None:
    false_nvml.set_range_mhz(1200, 1200)  # somebody else's
    false_nvml.fail("nvmlDeviceSetGpuLockedClocks", NO_PERMISSION)
    rank = new_rank()
    rank.check_goes_on(is_over=True)
    assert rank.log.count("clocks are no longer set") == 1
    assert "run as root or give the process CAP_SYS_ADMIN" in rank.log
    rank.wait_until_ungoverned()
    rank.tell("end")
    wait_until(lambda: not rank.is_alive(), "the rank ends")
    assert false_nvml.range_mhz() == (1200, 1200)
    assert rank.num_resets() == 0
    assert rank.has_clean_record()


def _stop_pair_and_kill_rank(rank: GovernedRank) -> tuple[int, int]:
    """Leave a locked clock, and governor and standby stopped; return their numbers."""
    rank.wait_until_governed()
    rank.wait_until_stood_by()
    pair = rank.pair
    wait_until(lambda: _stop_while_locked(rank.nvml, pair), "the clock is locked")
    send(rank.pid, signal.SIGKILL)
    wait_until(lambda: find_records(rank.state_dir)[0].rank_pid is None, "the rank ends")
    return pair


def test_unlock_ends_stopped_governors_of_a_rank_that_has_ended(
    false_nvml: FalseNvml, new_rank: NewRank, tmp_path: Path
) -> None:
    rank = new_rank()
    _stop_pair_and_kill_rank(rank)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "flyball_client", "unlock"],
        env=false_nvml.environment | {"FLYBALL_STATE_DIR": str(node_dir_in(tmp_path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{rank.nvml.uuid(0)}: its SM clock was restored to the driver's")
    rank.check_all_over()


def test_the_next_rank_is_not_kept_out_by_stopped_governors(new_rank: NewRank) -> None:
    _stop_pair_and_kill_rank(new_rank())
    successor = new_rank()
    successor.wait_until_governed()
    successor.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a PID namespace")
def test_a_guard_in_another_pid_namespace_restores_what_it_cannot_end(
    false_nvml: FalseNvml, new_rank: NewRank, tmp_path: Path
) -> None:
    rank = new_rank()
    pair = _stop_pair_and_kill_rank(rank)
    with RunningGuard(false_nvml, node_dir_in(tmp_path), launcher=CONTAINER) as guard:
        wait_until(rank.is_restored, "given back")
        guard.wait_until_said("in the host's PID namespace can end stopped governors")
        assert rank.num_resets() == 1
        # A governor that is continued gives the clock back, and ends.
        for pid in pair:
            send(pid, signal.SIGCONT)
        rank.check_all_over()


@pytest.fixture
def own_governor(loaded_nvml: FalseNvml, tmp_path: Path) -> Iterator[ProcessGovernor]:
    """A governor whose rank is this process."""
    address = GpuAddress(control="nvml", uuid=loaded_nvml.uuid(0))
    with closing(ProcessGovernor(address, "rank 0", state_dir=tmp_path / "state")) as governor:
        yield governor


def test_of_a_pair_that_was_killed_and_started_again_nothing_remains(
    false_nvml: FalseNvml, own_governor: ProcessGovernor, tmp_path: Path
) -> None:
    own_governor.start()
    own_governor.set_mhz(1410)
    wait_until(lambda: false_nvml.locked_mhz() and all(own_governor.pids), "governed")
    killed = own_governor.pids
    for pid in reversed(killed):
        send(pid, signal.SIGKILL)

    def is_governed_again() -> bool:
        own_governor.on_step_begin()
        own_governor.set_mhz(1200)
        return false_nvml.locked_mhz() == 1200 and not set(own_governor.pids) & {0, *killed}

    wait_until(is_governed_again, "governed again")
    # Nor as one that nobody has waited for.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in killed), "forgotten")
    own_governor.close()
    assert false_nvml.locked_mhz() == 0
    assert find_records(tmp_path / "state") == []


def test_a_governor_that_cannot_start_is_told_once_and_training_goes_on(
    own_governor: ProcessGovernor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    own_governor.start()

    def is_over_after_a_step() -> bool:
        own_governor.on_step_begin()
        own_governor.set_mhz(1410)
        return own_governor.is_over

    wait_until(is_over_after_a_step, "it gives up")
    (line,) = caplog.messages
    assert line.startswith("rank 0: clocks are no longer set, training continues")
    assert "exit status 1" in line


WITHOUT_PROC = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")


@pytest.mark.parametrize("lack", ["state folder", "/proc"])
def test_without_a_state_folder_or_proc_training_goes_on(
    new_rank: NewRank, tmp_path: Path, lack: str
) -> None:
    if lack == "state folder":
        (tmp_path / "state").write_text("a file in its place")
    elif subprocess.run([*WITHOUT_PROC, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespace can be made here")
    rank = new_rank(launcher=() if lack == "state folder" else WITHOUT_PROC)
    rank.check_goes_on(is_over=True)
    assert rank.log.count("clocks are no longer set") == 1
    assert ("File exists" if lack == "state folder" else "/proc") in rank.log
    rank.tell("end")
    wait_until(lambda: not rank.is_alive(), "the rank ends")


def test_a_rank_with_more_files_open_than_select_takes_is_governed(
    false_nvml: FalseNvml, own_governor: ProcessGovernor
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, limits[1]))
    files = [os.dup(0) for _ in range(1100)]
    try:
        own_governor.start(strict=True)
        own_governor.set_mhz(1410)
        wait_until(lambda: false_nvml.locked_mhz() == 1410, "locked")
        send(own_governor.pids[0], signal.SIGKILL)
        wait_until(lambda: false_nvml.locked_mhz() == 0, "given back by the standby")
        own_governor.close()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("lack", ["state folder", "rights", "governor"])
def test_a_strict_start_raises_what_keeps_clocks_from_being_set(
    own_governor: ProcessGovernor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    match lack:
        case "state folder":
            (tmp_path / "state").write_text("a file in its place")
        case "rights":
            monkeypatch.setattr(vendor, "may_set_clocks", lambda _: False)
        case _:
            monkeypatch.setattr(sys, "executable", shutil.which("false"))
    says = {
        "state folder": "a link or not a folder",
        "rights": "CAP_SYS_ADMIN",
        "governor": "exit status 1",
    }
    with pytest.raises(GpuError, match=says[lack]):
        own_governor.start(strict=True)
    assert own_governor.is_over


def test_the_end_of_torchrun_itself_gives_the_clock_back(new_rank: NewRank) -> None:
    rank = new_rank(launcher=TORCHRUN)
    rank.wait_until_governed()
    send(rank.process.pid, signal.SIGKILL)
    wait_until(rank.is_restored, f"given back\n{rank.log}")
    rank.wait_until_ungoverned()
    # torchrun leaves its ranks alone where it is killed.
    rank.check_goes_on(is_over=True)
    rank.end()
