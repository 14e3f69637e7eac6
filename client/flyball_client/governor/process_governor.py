"""The rank's side of the governor process: writes requests to shared memory and wakes it."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from flyball_client.governor import shared_state as word
from flyball_client.governor._base import CLOSED, ClockReport, log_given_up, shown
from flyball_client.governor.config import GovernorConfig, spawn_governor
from flyball_client.governor.lock_record import RankLock
from flyball_client.governor.own_process import OwnProcess
from flyball_client.governor.process_watch import ProcessIdentity, is_running
from flyball_client.governor.shared_state import SharedState
from flyball_client.governor.state_folder import StateRefusedError, default_state_dir
from flyball_client.gpu._base import ClockCall, GpuAddress, GpuError
from flyball_client.gpu.registry import check_rights

_logger = logging.getLogger(__name__)

DEFAULT_LEASE_S = 30.0
# Least time between two checks of the pair, which read /proc in 10 to 60 us.
CHECK_PERIOD_S = 0.5
# Longest delay of a timed request.
LONGEST_DELAY_S = 86_400.0
_READY_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 1.0
_REAP_TIMEOUT_S = 1.0
_FIRST_RESTART_PAUSE_S = 1.0
_LONGEST_RESTART_PAUSE_S = 60.0


class ProcessGovernor:
    """ClockGovernor with a process of its own.

    After a crash of this process the clock is restored within a second; see `governor_process`, and
    `guard` for crashes that end the governors too.
    In a forked child nothing is requested, whatever is called.
    A request takes a few stores in shared memory and one write to an eventfd.

    Args:
        address: Address of the GPU.
        rank_name: Job and rank, for the log and the lock record.
        lease_s: Time in s without a hook after which the clock is restored until the next hook.
        state_dir: Folder of the lock record; None: `default_state_dir`.

    Raises:
        ValueError: The lease is not positive.
        OSError: Shared memory or its eventfd cannot be created.
    """

    def __init__(
        self,
        address: GpuAddress,
        rank_name: str,
        *,
        lease_s: float = DEFAULT_LEASE_S,
        state_dir: Path | None = None,
    ) -> None:
        if not lease_s > 0:
            raise ValueError(f"lease_s must be positive, not {lease_s}")
        self._address = address
        self._rank_name = rank_name
        self._lease_s = lease_s
        self._launcher_pid = launcher_of(os.environ)
        self._state_dir = default_state_dir() if state_dir is None else state_dir
        with contextlib.ExitStack() as opened:
            self._shared_state = SharedState.create()
            opened.callback(self._shared_state.close)
            self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            opened.callback(os.close, self._wake_fd)
            # The second end is open in this process alone: in no child, and in no other program
            # that this process executes.
            self._rank_fd, end_fd = os.pipe2(os.O_CLOEXEC)
            opened.callback(os.close, self._rank_fd)
            opened.callback(os.close, end_fd)
            self._opened = opened.pop_all()
        self._words = self._shared_state.words
        # os.eventfd_write releases Python's lock, and another thread that takes it would delay the
        # hook by milliseconds.
        self._write_eventfd = ctypes.PyDLL(None).eventfd_write
        self._write_eventfd.argtypes = (ctypes.c_int, ctypes.c_uint64)
        self._requested_mhz = 0
        self._num_requests = 0
        self._last_request = 0
        self._last_requested_ns = 0
        # Timed request that may be still to come, and its moment; 0: none.
        self._timed_request = 0
        self._timed_ns = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._rank_lock: RankLock | None = None
        self._is_over = False
        self._given_up: str | None = None
        self._is_closed = False
        self._restart_pause_s = _FIRST_RESTART_PAUSE_S
        self._next_restart_s = 0.0
        self._next_check_s = 0.0
        self._last_report: ClockReport | None = None
        self._gpu_fails = self._yielded = False
        self._num_asserted = 0
        self._own_process = OwnProcess(self._forget)

    @property
    def is_over(self) -> bool:
        """Return whether clocks are no longer set."""
        return self._is_over

    @property
    def no_clocks(self) -> str | None:
        """Return why clocks are not set; None: they are."""
        if self._is_over:
            return self._given_up or CLOSED
        if self._yields():
            return self._others_clock()
        if self._words[word.NEXT_TRY_NS]:
            return shown(f"its GPU fails for now, and is tried again: {self._shared_state.text}")
        return None

    def begin_plan(self) -> None:
        """Begin another plan, whose clocks are set although the last one's were yielded."""
        if not self._is_over:
            self._words[word.PLAN_NUMBER] += 1

    @property
    def pids(self) -> tuple[int, int]:
        """Process numbers of the governor and its standby; 0: not started."""
        words = self._words
        return words[word.ACTIVE_PID], words[word.STANDBY_PID]

    def start(self, *, strict: bool = False) -> None:
        """Start the process; requests wait in shared memory until it is ready."""
        reap_left_behind()
        if self._process is not None or self._is_over:
            return
        self._words[word.HOOK_NS] = time.monotonic_ns()
        try:
            self._process = self._spawn()
            if strict:
                self._wait_until_ready(self._process)
        except Exception as error:
            if strict:
                self._is_over = True
                self._request(word.QUIT)
                raise
            self.give_up(error)

    def on_step_begin(self) -> None:
        """Check the governor; start another where the pair was killed."""
        if self._is_closed or self._process is None:
            return
        words = self._words
        if bool(words[word.NEXT_TRY_NS]) is not self._gpu_fails:
            self._log_failing(is_failing=not self._gpu_fails)
        if self._is_over:
            return
        self._log_others()
        self._renew()
        if words[word.STATE] == word.GIVEN_UP:
            self.give_up(RuntimeError(self._shared_state.text))
            return
        now_s = time.monotonic()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + CHECK_PERIOD_S
            if not any(is_running(pid) for pid in (*self.pids, self._process.pid)):
                self._restart()

    def set_mhz(self, sm_clock_mhz: int) -> None:
        """Request a clock; for the requested one, renew the lease.

        Part of the hot path, see `RankSession.on_instruction_begin`.
        """
        if self._is_over:
            return
        words = self._words
        if self._timed_request and self._is_timed_pending():
            self._request(sm_clock_mhz)
            return
        if sm_clock_mhz == self._requested_mhz:
            words[word.HOOK_NS] = time.monotonic_ns()
            if words[word.IN_FORCE_MHZ] == sm_clock_mhz or words[word.SERVED] != self._last_request:
                return
            # Served and not in force: it failed, or the lease had expired.
        self._request(sm_clock_mhz)

    def set_mhz_later(self, sm_clock_mhz: int, delay_s: float) -> None:
        """Request a clock after a delay; part of the hot path."""
        if self._is_over:
            return
        now_ns = time.monotonic_ns()
        if self._is_timed_pending():
            if now_ns >= self._timed_ns:
                # It only waits to be served.
                self._request(self._timed_request & word.MHZ_MASK)
        elif sm_clock_mhz == self._requested_mhz:
            self.set_mhz(sm_clock_mhz)
            return
        self._words[word.HOOK_NS] = now_ns
        delay_ns = round(min(max(0.0, delay_s), LONGEST_DELAY_S) * 1e9)
        self._request_at(sm_clock_mhz, now_ns + delay_ns)

    def on_instruction_end(self, upcoming_mhz: int | None = None) -> None:
        """Renew the lease, and request the next clock; part of the hot path."""
        if upcoming_mhz is not None:
            self.set_mhz(upcoming_mhz)
        elif not self._is_over:
            self._renew()

    def pause(self) -> None:
        """Have the clock restored until the next one is set."""
        if not self._is_over:
            self._request(word.RESTORE)

    def give_up(self, error: Exception) -> None:
        """Have the clock restored permanently, and log the error."""
        if not self._is_over:
            self._given_up = log_given_up(_logger, self._rank_name, error)
            self._is_over = True
            self._request(word.QUIT)

    def report(self) -> ClockReport:
        """Return the counts so far."""
        if self._last_report is not None:
            return self._last_report
        words = self._words
        num_samples, samples_mhz = word.samples_of(words[word.SAMPLES])
        return ClockReport(
            num_switches=words[word.NUM_SWITCHES],
            num_failures=words[word.NUM_FAILURES],
            num_reads=words[word.NUM_READS],
            num_misses=words[word.NUM_MISSES],
            num_power_capped=words[word.NUM_POWER_CAPPED],
            num_thermally_capped=words[word.NUM_THERMALLY_CAPPED],
            num_asserted=words[word.NUM_ASSERTED],
            sm_clock_mhz=words[word.SM_CLOCK_MHZ] or None,
            num_samples=num_samples,
            samples_mhz=samples_mhz,
        )

    def last_call(self) -> ClockCall | None:
        """Return the call of the last request for a clock; None: it has not returned, or failed."""
        if self._last_report is not None or self._is_timed_pending() or not self._requested_mhz:
            return None
        words, request, requested_ns = self._words, self._last_request, self._last_requested_ns
        began_ns, returned_ns = words[word.DELIVERED_NS], words[word.RETURNED_NS]
        if words[word.SERVED] != request or not requested_ns <= began_ns <= returned_ns:
            return None
        return ClockCall(
            sm_clock_mhz=request & word.MHZ_MASK,
            requested_s=requested_ns / 1e9,
            began_s=began_ns / 1e9,
            returned_s=returned_ns / 1e9,
        )

    def close(self) -> None:
        """Have the clock restored permanently; wait for it up to a second."""
        if self._is_closed or not self._own_process.is_current():
            return
        self._is_closed = True
        self._is_over = True
        self._request(word.QUIT)
        self._wait_for_end()
        if self._rank_lock is not None:
            # A clock that its governor could not restore is left to the guard from now on.
            with contextlib.suppress(OSError):
                self._rank_lock.release()
        self._let_go()

    # ------------------------------------------------------------------ inside

    def _forget(self) -> None:
        """Do and hold nothing from now on: this is a forked child, and the parent's governor."""
        self._is_over = True
        if not self._is_closed:
            self._is_closed = True
            self._let_go()

    def _let_go(self) -> None:
        """Close the descriptors and memory shared with the governor."""
        self._last_report = self.report()
        self._opened.close()

    def _renew(self) -> None:
        if self._timed_request and self._is_timed_pending():
            self._renew_with_timed()
        elif self._requested_mhz:
            self.set_mhz(self._requested_mhz)
        else:
            self._words[word.HOOK_NS] = time.monotonic_ns()

    def _log_failing(self, *, is_failing: bool) -> None:
        """Log that the GPU fails for now, and when it no longer does."""
        self._gpu_fails = is_failing
        if is_failing:
            text = "%s: the SM clock cannot be changed for now, and is tried again: %s"
            _logger.warning(text, self._rank_name, self._shared_state.text)
        else:
            text = "was restored" if self._is_over else "can be changed again"
            _logger.warning("%s: the SM clock %s", self._rank_name, text)

    def _log_others(self) -> None:
        """Log that the clock is not what was set."""
        num_asserted, yields = self._words[word.NUM_ASSERTED], self._yields()
        if num_asserted > self._num_asserted:
            _logger.warning(
                "%s: the SM clock was not the one that was set; another program may have changed"
                " it; it is set again (%d times so far)",
                self._rank_name,
                num_asserted,
            )
        if yields and not self._yielded:
            _logger.warning("%s: %s", self._rank_name, self._others_clock())
        self._num_asserted, self._yielded = num_asserted, yields

    def _yields(self) -> bool:
        """Return whether no clock is set until the next plan, since none came to be in force."""
        return word.yields(self._words)

    def _others_clock(self) -> str:
        """Return why no clock is set until the next plan."""
        held_mhz = self._words[word.HELD_MHZ]
        why = {
            word.OTHERS: f"another program holds the SM clock at {held_mhz} MHz; it stays",
            word.NO_EFFECT: (
                f"the driver accepts SM clocks, but the GPU runs at {held_mhz} MHz whatever is set,"
                " which neither power nor heat explains; none is set"
            ),
            word.APPLICATION: (
                f"the GPU runs at its application clock of {held_mhz} MHz whatever is set"
                " (nvidia-smi -rac resets it); none is set"
            ),
        }[self._words[word.YIELD_REASON]]
        return f"{why} until the next plan"

    def _renew_with_timed(self) -> None:
        """Renew the lease; request a clock that was restored again, ahead of the timed request."""
        words, now_ns = self._words, time.monotonic_ns()
        words[word.HOOK_NS] = now_ns
        if words[word.IN_FORCE_MHZ] or words[word.SERVED] != self._last_request:
            return
        timed_mhz, timed_ns = self._timed_request & word.MHZ_MASK, self._timed_ns
        if now_ns >= timed_ns:
            # After a lease the governor has waited for this hook.
            self._request(timed_mhz)
        elif self._requested_mhz:
            self._request(self._requested_mhz)
            self._request_at(timed_mhz, timed_ns)

    def _is_timed_pending(self) -> bool:
        """Return whether a timed request is unserved; a served one becomes the last request."""
        request = self._timed_request
        if not request or self._words[word.SERVED] != request:
            return bool(request)
        self._requested_mhz, self._last_request = request & word.MHZ_MASK, request
        self._last_requested_ns = self._timed_ns
        self._timed_request = self._words[word.TIMED_REQUEST] = 0
        return False

    def _request(self, code: int) -> None:
        """Request a clock in MHz, RESTORE or QUIT; a timed request is dropped."""
        words = self._words
        if self._timed_request:
            self._timed_request = words[word.TIMED_REQUEST] = 0
        self._requested_mhz = code if code != word.QUIT else 0
        self._last_request = request = self._numbered(code)
        self._last_requested_ns = words[word.REQUESTED_NS] = time.monotonic_ns()
        words[word.REQUEST] = request
        self._write_eventfd(self._wake_fd, 1)

    def _request_at(self, sm_clock_mhz: int, moment_ns: int) -> None:
        self._timed_request = request = self._numbered(sm_clock_mhz)
        words = self._words
        self._timed_ns = words[word.NOT_BEFORE_NS] = word.tagged_ns(moment_ns, request)
        words[word.TIMED_REQUEST] = request
        self._write_eventfd(self._wake_fd, 1)

    def _numbered(self, code: int) -> int:
        self._num_requests = number = self._num_requests + 1
        return (number & word.MHZ_MASK) << 32 | code

    def _spawn(self) -> subprocess.Popen[bytes]:
        if self._rank_lock is None:
            # Before the first clock is set: a record without it is of a rank that has ended.
            try:
                self._rank_lock = RankLock(self._state_dir, self._address.uuid)
            except (StateRefusedError, OSError) as error:
                raise GpuError(f"no lock record can be kept: {error}") from None
        launcher = None if self._launcher_pid is None else ProcessIdentity.of(self._launcher_pid)
        return spawn_governor(
            GovernorConfig(
                address=self._address,
                rank_name=self._rank_name,
                rank=ProcessIdentity.own(),
                launcher=launcher,
                lease_s=self._lease_s,
                state_dir=self._state_dir,
                rank_byte=self._rank_lock.byte,
                shared_state_fd=self._shared_state.fd,
                wake_fd=self._wake_fd,
                rank_fd=self._rank_fd,
            )
        )

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        check_rights(self._address)
        words = self._words
        give_up_s = time.monotonic() + _READY_TIMEOUT_S
        while words[word.STATE] != word.READY:
            status = process.poll()
            if words[word.STATE] == word.GIVEN_UP or status is not None:
                raise GpuError(self._shared_state.text or _cannot_start(status))
            if time.monotonic() > give_up_s:
                raise GpuError(f"the clock governor was not ready within {_READY_TIMEOUT_S:g} s")
            time.sleep(0.002)

    def _restart(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_restart_s:
            return
        status = None if self._process is None else self._process.poll()
        if status is not None and status > 0:
            # It ended by itself, and would again.
            self.give_up(RuntimeError(self._shared_state.text or _cannot_start(status)))
            return
        self._next_restart_s = now_s + self._restart_pause_s
        self._restart_pause_s = min(2 * self._restart_pause_s, _LONGEST_RESTART_PAUSE_S)
        _logger.warning(
            "%s: the clock governor and its standby were killed and are restarted",
            self._rank_name,
        )
        # The new governor restores a clock that they left locked, according to the lock record.
        try:
            self._process = self._spawn()
        except Exception as error:
            self.give_up(error)

    def _wait_for_end(self) -> None:
        if self._process is None:
            return
        words = self._words
        give_up_s = time.monotonic() + _CLOSE_TIMEOUT_S
        ended = {word.ENDED, word.GIVEN_UP}
        while words[word.STATE] not in ended and time.monotonic() < give_up_s:
            if not any(is_running(pid) for pid in (*self.pids, self._process.pid)):
                break
            time.sleep(0.002)
        if words[word.MAY_BE_LOCKED]:
            _logger.error(
                "%s: the SM clock of %s may still be locked (%s); its governor goes on trying, and"
                " `flyball unlock` restores it",
                self._rank_name,
                self._address.uuid,
                self._shared_state.text or "its governor does not respond",
            )
        try:
            self._process.wait(_REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _left_behind.append(self._process)


# Governors of closed sessions that go on trying to restore their clock.
_left_behind: list[subprocess.Popen[bytes]] = []


def reap_left_behind() -> bool:
    """Reap governors of closed sessions that have ended; return whether all have."""
    _left_behind[:] = [process for process in _left_behind if process.poll() is None]
    return not _left_behind


def _cannot_start(status: int | None) -> str:
    return f"the clock governor cannot start (exit status {status})"


def launcher_of(environ: Mapping[str, str]) -> int | None:
    """Return the process number of torchrun's agent, if it started this process."""
    return os.getppid() if "TORCHELASTIC_RUN_ID" in environ else None
