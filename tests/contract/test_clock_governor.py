"""The contract of ClockGovernor, over every implementation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.false_nvml.library import HIGHEST_MHZ, FalseNvml
from tests.governed_rank.processes import wait_until

from flyball_client.governor._base import ClockGovernor, ClockReport
from flyball_client.governor.in_process import InProcessGovernor
from flyball_client.governor.process_governor import ProcessGovernor, reap_left_behind
from flyball_client.gpu.nvml.device import NvmlGpu

SET, RESET = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"
READ = "nvmlDeviceGetClockInfo"
IDLE = 1  # nvmlClocksEventReasonGpuIdle
NO_PERMISSION, NOT_SUPPORTED, UNKNOWN = 4, 3, 999
# In an order in which each still finds something to do.
CALLS: dict[str, Callable[[ClockGovernor], object]] = {
    "last_call": lambda governor: governor.last_call(),
    "is_over": lambda governor: governor.is_over,
    "report": lambda governor: governor.report(),
    "on_step_begin": lambda governor: governor.on_step_begin(),
    "set_mhz": lambda governor: governor.set_mhz(1410),
    "set_mhz_later": lambda governor: governor.set_mhz_later(1410, 0.001),
    "on_instruction_end": lambda governor: governor.on_instruction_end(),
    "pause": lambda governor: governor.pause(),
    "start": lambda governor: governor.start(),
    "give_up": lambda governor: governor.give_up(RuntimeError("a reason")),
    "close": lambda governor: governor.close(),
}


@dataclass(frozen=True, kw_only=True)
class Governed:
    """A governor and the GPU whose clock it sets, seen from outside."""

    governor: ClockGovernor
    nvml: FalseNvml

    def set_and_wait(self, sm_clock_mhz: int) -> None:
        """Set a clock, and wait until it is in force."""
        self.governor.set_mhz(sm_clock_mhz)
        self.wait_for(sm_clock_mhz)

    def wait_for(self, sm_clock_mhz: int) -> None:
        """Wait until this clock is locked; 0: none."""
        wait_until(lambda: self.nvml.locked_mhz() == sm_clock_mhz, f"{sm_clock_mhz} MHz")

    def run_until(self, condition: Callable[[], object], what: str) -> None:
        """Train, asking for one clock and another, until the condition holds."""

        def holds_after_a_step() -> bool:
            self.governor.on_step_begin()
            self.governor.set_mhz(1410)
            self.governor.set_mhz(1200)
            return bool(condition())

        wait_until(holds_after_a_step, what)

    def compute_until(self, condition: Callable[[], object], what: str) -> None:
        """Run instructions at the clock in force, until the condition holds."""

        def holds_after_an_instruction() -> bool:
            self.governor.on_instruction_end()
            return bool(condition())

        wait_until(holds_after_an_instruction, what)

    def compute_until_locked(self, sm_clock_mhz: int) -> None:
        """Run instructions until this clock is locked."""
        self.compute_until(lambda: self.nvml.locked_mhz() == sm_clock_mhz, f"{sm_clock_mhz} MHz")

    def compute_until_read(self, sm_clock_mhz: int) -> None:
        """Run instructions until this clock has been read back."""
        self.compute_until(
            lambda: self.governor.report().sm_clock_mhz == sm_clock_mhz, "it is read back"
        )

    def mean_of_new_samples(self) -> float | None:
        """The mean of the clocks that are read back from now on, MHz, of two at least."""
        since = self.governor.report()

        def are_two() -> bool:
            return self.governor.report().num_samples >= since.num_samples + 2

        self.compute_until(are_two, "two samples")
        return self.governor.report().mean_sm_clock_mhz(since)

    def num_calls(self, function: str) -> int:
        """Return how often NVML was asked for this."""
        return len(self.nvml.calls(function))


@pytest.fixture(params=["in this process", "in a process of its own"])
def governed(
    request: pytest.FixtureRequest, loaded_nvml: FalseNvml, tmp_path: Path
) -> Iterator[Governed]:
    """Each implementation, not yet started."""
    gpu = NvmlGpu.open(uuid=loaded_nvml.uuid(0))
    governor: ClockGovernor
    if request.param == "in this process":
        governor = InProcessGovernor(gpu, "rank 3")
    else:
        governor = ProcessGovernor(gpu.address, "rank 3", state_dir=tmp_path / "state")
    yield Governed(governor=governor, nvml=loaded_nvml)
    loaded_nvml.work_again()
    governor.close()
    gpu.close()
    wait_until(reap_left_behind, "its governor has ended")


@pytest.fixture
def started(governed: Governed) -> Governed:
    """Each implementation, started."""
    governed.governor.start()
    governed.governor.on_step_begin()
    return governed


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what people are told."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


class TestClockGovernor:
    # -------------------------------------------------------------- setting

    def test_the_clock_that_is_asked_for_comes_into_force(self, governed: Governed) -> None:
        governed.governor.start()
        governed.set_and_wait(1410)  # before the first step
        governed.governor.on_step_begin()
        governed.governor.start()  # again: nothing
        for sm_clock_mhz in (210, 1980, 1200):
            governed.set_and_wait(sm_clock_mhz)
        assert governed.num_calls(SET) == 4
        assert not governed.governor.is_over

    def test_a_call_is_timed(self, started: Governed) -> None:
        assert started.governor.last_call() is None
        started.nvml.set_latency_us(20_000)
        began_s = time.monotonic()
        started.governor.set_mhz(1410)
        wait_until(lambda: started.governor.last_call() is not None, "the call has returned")
        call = started.governor.last_call()
        assert call is not None
        assert call.sm_clock_mhz == 1410
        assert began_s <= call.requested_s <= call.began_s
        assert 0.02 <= call.returned_s - call.began_s <= time.monotonic() - began_s
        started.governor.pause()
        assert started.governor.last_call() is None

    @pytest.mark.parametrize("is_timed", [False, True])
    def test_a_call_that_fails_is_not_timed(self, started: Governed, *, is_timed: bool) -> None:
        started.set_and_wait(1410)
        started.nvml.fail(SET, UNKNOWN)
        if is_timed:
            started.governor.set_mhz_later(1200, 0.01)
        else:
            started.governor.set_mhz(1200)
        started.compute_until(lambda: started.governor.report().num_failures, "it has failed")
        assert started.governor.last_call() is None
        started.wait_for(0)

    def test_the_latest_request_wins(self, started: Governed) -> None:
        for sm_clock_mhz in range(210, 1200, 15):
            started.governor.set_mhz(sm_clock_mhz)
        started.set_and_wait(1200)
        # What was overwritten in time may be left out; nothing comes twice or out of turn.
        asked = [mhz for _, mhz in started.nvml.calls(SET)]
        assert asked == sorted(set(asked))
        assert asked[-1] == 1200

    # -------------------------------------------------------------- timed requests

    def test_a_timed_request_is_made_at_its_time_and_not_before(self, started: Governed) -> None:
        started.set_and_wait(1410)
        due_s = time.monotonic() + 0.15
        started.governor.set_mhz_later(1200, 0.15)
        assert started.governor.last_call() is None
        started.compute_until(lambda: started.nvml.locked_mhz() != 1410, "a clock has come")
        assert time.monotonic() >= due_s
        assert started.nvml.locked_mhz() == 1200
        wait_until(lambda: started.governor.last_call() is not None, "the call has returned")
        call = started.governor.last_call()
        assert call is not None
        assert call.sm_clock_mhz == 1200
        assert due_s <= call.requested_s <= call.began_s <= call.returned_s
        assert started.governor.report().num_switches == 2
        # It is the one in force.
        for _ in range(3):
            started.governor.set_mhz(1200)
            started.governor.set_mhz_later(1200, 0.0)
            started.governor.on_instruction_end()
        started.set_and_wait(1410)
        assert [mhz for _, mhz in started.nvml.calls(SET)] == [1410, 1200, 1410]

    def test_an_earlier_request_that_waits_is_served_before_a_timed_one(
        self, started: Governed
    ) -> None:
        started.nvml.set_latency_us(20_000)
        started.governor.set_mhz(1980)
        started.governor.set_mhz(1410)
        started.governor.set_mhz_later(1200, 0.005)
        started.compute_until_locked(1200)
        assert [mhz for _, mhz in started.nvml.calls(SET)][-2:] == [1410, 1200]

    @pytest.mark.parametrize("later_mhz", [1410, 900])
    @pytest.mark.parametrize("is_timed", [False, True])
    def test_a_request_replaces_a_timed_one_before_its_time(
        self, started: Governed, later_mhz: int, *, is_timed: bool
    ) -> None:
        started.set_and_wait(1410)
        started.governor.set_mhz_later(1200, 0.1)
        if is_timed:
            started.governor.set_mhz_later(later_mhz, 0.11)
        else:
            started.set_and_wait(later_mhz)
        give_up_s = time.monotonic() + 0.15
        started.compute_until(lambda: time.monotonic() > give_up_s, "both times are past")
        started.wait_for(later_mhz)
        expected_mhz = [1410] if later_mhz == 1410 else [1410, later_mhz]
        assert [mhz for _, mhz in started.nvml.calls(SET)] == expected_mhz

    def test_one_timed_request_follows_another(self, started: Governed) -> None:
        for sm_clock_mhz in (1410, 1200, 900, 1410):
            started.governor.set_mhz_later(sm_clock_mhz, 0.0)
            started.compute_until_locked(sm_clock_mhz)
        assert [mhz for _, mhz in started.nvml.calls(SET)] == [1410, 1200, 900, 1410]

    @pytest.mark.parametrize("ending", ["pause", "give_up", "close"])
    def test_no_timed_request_is_made_once_clocks_are_given_back(
        self, started: Governed, ending: str
    ) -> None:
        started.set_and_wait(1410)
        started.governor.set_mhz_later(1200, 0.05)
        CALLS[ending](started.governor)
        started.wait_for(0)
        give_up_s = time.monotonic() + 0.15
        started.compute_until(lambda: time.monotonic() > give_up_s, "its time is past")
        assert started.nvml.locked_mhz() == 0
        assert started.nvml.calls(SET) == [(0, 1410)]

    # -------------------------------------------------------------- giving back

    def test_closing_gives_the_clock_back_before_it_returns_and_then_none_is_set(
        self, started: Governed
    ) -> None:
        started.set_and_wait(1410)
        started.governor.close()
        assert started.nvml.locked_mhz() == 0
        for call in CALLS.values():
            call(started.governor)
        assert started.governor.is_over
        assert started.num_calls(SET) == 1
        assert started.nvml.locked_mhz() == 0

    @pytest.mark.parametrize("ending", ["pause", "give_up"])
    def test_a_clock_that_was_never_set_is_not_given_back(
        self, started: Governed, ending: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        started.nvml.set_range_mhz(1200, 1200)  # somebody else's
        started.governor.on_step_begin()
        CALLS[ending](started.governor)
        started.governor.close()
        assert started.nvml.locked_mhz() == 1200
        assert started.num_calls(RESET) == 0
        assert len(warnings_in(caplog)) == (ending == "give_up")

    def test_giving_up_gives_the_clock_back_for_good_and_is_told_once(
        self, started: Governed, caplog: pytest.LogCaptureFixture
    ) -> None:
        started.set_and_wait(1410)
        assert started.governor.no_clocks is None
        started.governor.give_up(RuntimeError("a\nreason"))
        started.governor.give_up(RuntimeError("another"))
        assert started.governor.is_over
        assert started.governor.no_clocks == "a reason"
        started.wait_for(0)
        started.governor.set_mhz(1200)
        started.governor.close()
        assert started.nvml.calls(SET) == [(0, 1410)]
        (line,) = warnings_in(caplog)
        assert line.startswith("rank 3: clocks are no longer set, training continues")

    # -------------------------------------------------------------- failures

    @pytest.mark.parametrize(
        ("code", "advice"),
        [
            (NO_PERMISSION, "run as root or give the process CAP_SYS_ADMIN"),
            (NOT_SUPPORTED, "locked clocks need Volta or later"),
        ],
    )
    def test_where_clocks_cannot_be_set_at_all_it_gives_up_and_touches_nothing(
        self, started: Governed, code: int, advice: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        started.nvml.set_range_mhz(900, 900)  # somebody else's
        started.nvml.fail(SET, code)
        started.run_until(lambda: started.governor.is_over, "it gives up")
        started.governor.close()
        assert started.nvml.locked_mhz() == 900
        assert started.governor.report().num_failures == 1
        (line,) = warnings_in(caplog)
        assert advice in line
        assert advice in (started.governor.no_clocks or "")

    def test_a_failure_that_stays_ends_it_and_what_was_locked_is_given_back(
        self, started: Governed, caplog: pytest.LogCaptureFixture
    ) -> None:
        started.set_and_wait(1980)
        started.nvml.fail(SET, NOT_SUPPORTED)
        started.run_until(lambda: started.governor.is_over, "it gives up")
        started.wait_for(0)
        started.nvml.work_again()
        num_calls = started.num_calls(SET)
        started.governor.on_step_begin()
        started.governor.set_mhz(1410)
        started.governor.close()
        assert started.num_calls(SET) == num_calls
        assert len(warnings_in(caplog)) == 1

    def test_a_clock_that_cannot_be_given_back_is_told_as_an_error(
        self, started: Governed, caplog: pytest.LogCaptureFixture
    ) -> None:
        started.set_and_wait(1410)
        started.nvml.fail(RESET, UNKNOWN)
        started.governor.close()
        assert started.governor.is_over
        (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert error.getMessage().startswith("rank 3: the SM clock ")

    @pytest.mark.parametrize("function", [SET, RESET])
    def test_no_method_raises_on_a_broken_gpu(self, started: Governed, function: str) -> None:
        started.set_and_wait(1410)
        started.nvml.fail(function, UNKNOWN)
        for call in CALLS.values():
            started.governor.set_mhz(1200)
            call(started.governor)
            started.governor.on_step_begin()

    def test_before_the_start_nothing_is_reported_and_no_method_raises(
        self, governed: Governed
    ) -> None:
        assert governed.governor.report() == ClockReport()
        for name, call in CALLS.items():
            if name != "start":
                call(governed.governor)

    # -------------------------------------------------------------- the report

    def test_switches_are_counted_and_stay_known_after_closing(self, started: Governed) -> None:
        for sm_clock_mhz in (1410, 1200, 1200, 1410):
            started.set_and_wait(sm_clock_mhz)
        started.governor.pause()
        started.wait_for(0)
        started.set_and_wait(1410)
        wait_until(lambda: started.governor.report().num_switches == 4, "all are counted")
        started.governor.close()
        assert started.governor.report().num_switches == 4
        assert started.governor.report().num_failures == 0

    # -------------------------------------------------------------- reading back

    def test_the_drivers_own_clock_is_read_back_before_and_after_one_was_set(
        self, started: Governed
    ) -> None:
        assert started.mean_of_new_samples() == HIGHEST_MHZ
        started.set_and_wait(1410)
        started.governor.pause()
        started.wait_for(0)
        assert started.mean_of_new_samples() == HIGHEST_MHZ
        assert started.governor.report().num_misses == 0

    def test_an_idle_gpus_clock_is_no_sample(self, started: Governed) -> None:
        started.set_and_wait(1410)
        started.nvml.set_event_reasons(IDLE)
        samples: list[int] = []
        for sm_clock_mhz in (900, 1005):
            started.nvml.hold_below_mhz(sm_clock_mhz)
            started.compute_until_read(sm_clock_mhz)
            samples.append(started.governor.report().num_samples)
        assert samples[0] == samples[1]

    def test_a_clock_that_cannot_be_read_can_still_be_set(
        self, started: Governed, caplog: pytest.LogCaptureFixture
    ) -> None:
        started.set_and_wait(1410)
        started.nvml.fail(READ, UNKNOWN)
        num_calls = started.num_calls(READ)
        started.compute_until(lambda: started.num_calls(READ) > num_calls + 1, "it was tried")
        num_samples = started.governor.report().num_samples
        started.set_and_wait(1200)
        assert started.governor.report().num_samples == num_samples
        started.nvml.work_again()
        assert started.mean_of_new_samples() == 1200
        assert not started.governor.is_over
        assert warnings_in(caplog) == []

    @pytest.mark.parametrize("ending", ["close", "give_up"])
    def test_after_its_end_nothing_is_read_and_what_was_stays_known(
        self, started: Governed, ending: str
    ) -> None:
        started.set_and_wait(1410)
        assert started.mean_of_new_samples() == 1410
        CALLS[ending](started.governor)
        started.wait_for(0)
        started.governor.close()
        ended, num_calls = started.governor.report(), started.num_calls(READ)
        started.governor.on_instruction_end()
        assert started.governor.report() == ended
        assert ended.num_samples >= 2
        assert started.num_calls(READ) == num_calls
