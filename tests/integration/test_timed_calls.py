"""Timed requests of a governor process on a false GPU: their moments, and kills before them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.false_nvml.library import FalseNvml
from tests.governed_rank.processes import send, wait_until
from tests.planner.patience import PATIENCE_S

from flyball_client.governor import shared_state as word
from flyball_client.governor.process_governor import ProcessGovernor
from flyball_client.gpu._base import ClockCall
from flyball_client.gpu.nvml.device import NvmlGpu

SET = "nvmlDeviceSetGpuLockedClocks"
NUM_CALLS = 8

NewGovernor = Callable[..., ProcessGovernor]


@pytest.fixture
def new_governor(loaded_nvml: FalseNvml, tmp_path: Path) -> Iterator[NewGovernor]:
    """Starts a governor whose clock is 1410 MHz, with its standby."""
    gpu = NvmlGpu.open(uuid=loaded_nvml.uuid(0))
    governors: list[ProcessGovernor] = []

    def new(*, lease_s: float = 30.0) -> ProcessGovernor:
        governor = ProcessGovernor(
            gpu.address, "rank 0", lease_s=lease_s, state_dir=tmp_path / "state"
        )
        governors.append(governor)
        governor.start(strict=True)
        governor.set_mhz(1410)
        wait_until(lambda: loaded_nvml.locked_mhz() == 1410, "the first clock")
        wait_until(lambda: all(governor.pids), "there is a standby")
        return governor

    yield new
    for governor in governors:
        process = governor._process
        governor.close()
        # On a busy machine it ends later than `close` waits.
        assert process is not None
        process.wait(PATIENCE_S)
    gpu.close()


def wait_for_call(governor: ProcessGovernor) -> ClockCall:
    """Wait for the last request's call."""
    wait_until(lambda: governor.last_call() is not None, "the call has returned")
    call = governor.last_call()
    assert call is not None
    return call


def test_a_timed_call_is_of_its_time_and_never_before(new_governor: NewGovernor) -> None:
    governor = new_governor()
    for number in range(NUM_CALLS):
        begin_s = time.monotonic()
        governor.set_mhz_later((1200, 1410)[number % 2], 0.02 + number / 997)
        end_s = time.monotonic()
        call = wait_for_call(governor)
        due_s = 0.02 + number / 997
        assert begin_s + due_s <= call.requested_s <= end_s + due_s + 1e-6
        assert call.began_s >= call.requested_s


def test_a_governor_that_is_killed_before_its_time_leaves_it_to_the_standby(
    new_governor: NewGovernor, loaded_nvml: FalseNvml
) -> None:
    governor = new_governor()
    due_s = time.monotonic() + 2.5
    governor.set_mhz_later(1200, 2.5)
    active_pid, standby_pid = governor.pids
    send(active_pid, signal.SIGKILL)
    wait_until(lambda: loaded_nvml.locked_mhz() == 0, "the clock is restored")
    wait_until(lambda: governor.pids[0] == standby_pid, "the standby takes over")

    def is_locked(sm_clock_mhz: int) -> bool:
        governor.on_step_begin()
        governor.on_instruction_end()
        return loaded_nvml.locked_mhz() == sm_clock_mhz

    wait_until(lambda: is_locked(1410), "the clock before is set again")
    assert time.monotonic() < due_s
    wait_until(lambda: is_locked(1200), "the timed one follows")
    call = wait_for_call(governor)
    assert due_s - 0.01 < call.requested_s <= call.began_s
    assert [mhz for _, mhz in loaded_nvml.calls(SET)] == [1410, 1410, 1200]
    governor.close()
    assert loaded_nvml.locked_mhz() == 0


def test_a_pair_that_is_killed_after_its_time_is_followed_by_one_that_makes_it(
    new_governor: NewGovernor, loaded_nvml: FalseNvml
) -> None:
    governor = new_governor()
    governor.set_mhz_later(1200, 0.2)
    for pid in governor.pids[::-1]:
        send(pid, signal.SIGKILL)

    def is_set() -> bool:
        governor.on_step_begin()
        governor.on_instruction_end()
        return loaded_nvml.locked_mhz() == 1200

    wait_until(is_set, "the next pair sets it", patience_s=60)
    assert not governor.is_over


def test_a_governor_that_hangs_at_its_time_is_replaced(
    new_governor: NewGovernor, loaded_nvml: FalseNvml
) -> None:
    governor = new_governor()
    active_pid, standby_pid = governor.pids
    send(active_pid, signal.SIGSTOP)
    governor.set_mhz_later(1200, 0.05)

    def is_set() -> bool:
        governor.on_instruction_end()
        return loaded_nvml.locked_mhz() == 1200

    wait_until(is_set, "the standby has killed it and sets the clock", patience_s=60)
    assert governor.pids[0] == standby_pid


def test_after_a_lease_a_timed_request_waits_for_a_hook(
    new_governor: NewGovernor, loaded_nvml: FalseNvml
) -> None:
    governor = new_governor(lease_s=0.3)
    governor.set_mhz_later(1200, 0.6)
    wait_until(lambda: loaded_nvml.locked_mhz() == 0, "the lease is over")
    words = governor._shared_state.words
    wait_until(lambda: time.monotonic_ns() > words[word.NOT_BEFORE_NS] + 300_000_000, "its time")
    assert loaded_nvml.locked_mhz() == 0
    governor.on_instruction_end()
    wait_until(lambda: loaded_nvml.locked_mhz() == 1200, "it is made")
    assert [mhz for _, mhz in loaded_nvml.calls(SET)] == [1410, 1200]
