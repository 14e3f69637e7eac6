"""Process that owns a GPU's clock for a rank, and its standby; started by `process_governor`.

Both run this program. The active one serves the rank's requests. The standby has the GPU open
and waits: when the active one ends for any reason, it restores the clock, becomes the active one
and starts a new standby. The clock is also restored when the rank or its launcher has ended, when
no hook is called for a lease, and on SIGTERM, SIGINT and SIGHUP, which end this process but not
the pair.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from flyball_client.governor import shared_state as word
from flyball_client.governor.clock_controller import ClockController, is_lasting
from flyball_client.governor.config import GovernorConfig, spawn_governor
from flyball_client.governor.lock_record import (
    ClockHeldError,
    ClockHolder,
    LockRecord,
    find_records,
    show_governor,
)
from flyball_client.governor.process_watch import ProcessIdentity, ProcessWatch, is_running
from flyball_client.governor.shared_state import SharedState
from flyball_client.gpu._base import (
    GpuDevice,
    GpuError,
)
from flyball_client.gpu.registry import open_gpu
from flyball_client.own_priority import set_own_niceness

# Time after which the standby restores a clock that the active one has not restored.
OVERDUE_S = 0.4
# Longest wait of the active one, which then checks the lease and reads the clock back.
TICK_S = 0.2
# Least time before a timed request in which the clock is read back.
READ_MARGIN_S = 0.003
# Longest wait of the standby, which then checks the active one.
STANDBY_TICK_S = 0.1
# Precedence over other work on the same core.
NICENESS = -10
_PR_SET_TIMERSLACK = 29
# Time without a served request after which the standby replaces the active one.
HUNG_S = 2.0
# Time after the rank's end in which its governors try to restore a clock; it is the guard's then,
# or the next rank's.
LEFT_TO_GUARD_S = 600.0
# Time in which a GPU may fail as a governor starts, and pause between attempts to open it.
OPEN_TIMEOUT_S = 20.0
OPEN_PAUSE_S = 0.25
# The standby of a previous rank may still be starting on a busy node.
TAKE_TIMEOUT_S = 5.0
# Time after which governors of a rank that has ended, as stopped ones, are killed.
LEFT_S = 1.0
FIRST_STANDBY_PAUSE_S = 0.1
# Those below are standard input, output and error of the standby.
_FIRST_FD = 3
LONGEST_STANDBY_PAUSE_S = 10.0


class GovernorProcess:
    """One process of the pair."""

    def __init__(
        self, config: GovernorConfig, gpu: GpuDevice, shared_state: SharedState, record: LockRecord
    ) -> None:
        self._config = config
        self._shared_state = shared_state
        self._words = shared_state.words
        self._record = record
        holder = ClockHolder(
            uuid=config.address.uuid,
            control=config.address.control,
            rank_name=config.rank_name,
            rank_byte=config.rank_byte,
        )
        self._controller = ClockController(gpu, shared_state, record, holder)
        self._rank = ProcessWatch(config.rank)
        self._launcher = ProcessWatch(config.launcher) if config.launcher else None
        # Readable once the rank or its launcher has ended.
        watches = [self._rank] if self._launcher is None else [self._rank, self._launcher]
        end_fds = [config.rank_fd, *(watch.fd for watch in watches)]
        self._end_fds = [fd for fd in end_fds if fd is not None]
        self._stop_fd = _stop_signals()
        self._is_stopped = False
        # Last observed state of the active one, and the time of its last change.
        self._progress = (False, 0)
        self._progress_s = time.monotonic()

    # ------------------------------------------------------------------ standby

    def stand_by(self, active: ProcessIdentity) -> bool:
        """Wait for the end of the active one and restore the clock; return whether to take over."""
        watch = ProcessWatch(active)
        fds = [fd for fd in (watch.fd, self._stop_fd) if fd is not None]
        while watch.is_alive() and not self._is_stopped:
            wait_exactly(fds, STANDBY_TICK_S)
            self._note_signals()
            self._kill_if_it_hangs(watch)
        if watch.is_alive():
            return False
        watch.close()
        words = self._words
        words[word.IN_FORCE_MHZ] = 0
        self._controller.try_now()
        is_final = words[word.STATE] in {word.ENDED, word.GIVEN_UP}
        if is_final and not words[word.MAY_BE_LOCKED]:
            return False
        words[word.NUM_TAKEOVERS] += 1
        try:
            self._controller.restore()
        except GpuError as error:
            self._finish(word.GIVEN_UP, f"{error}")
            return False
        state, text = self._why_over() or (None, "")
        if is_final:
            state, text = words[word.STATE], self._shared_state.text
        if state is not None:
            # A new standby would only hold the record longer.
            self._finish(state, text)
        return state is None and not self._is_stopped

    def _kill_if_it_hangs(self, watch: ProcessWatch) -> None:
        """Kill an active one that hangs with a locked clock or an unserved request."""
        words = self._words
        is_over = self._why_over() is not None
        timed = word.timed_request(words)
        is_late = word.is_newer(words[word.REQUEST], words[word.SERVED]) or (
            timed is not None and time.monotonic_ns() >= timed[1]
        )
        if is_over:
            is_late = bool(words[word.MAY_BE_LOCKED])
        progress = (is_over, words[word.SERVED])
        now_s = time.monotonic()
        # It does not hang while it waits for a GPU that fails.
        is_late = is_late and now_s * 1e9 >= words[word.NEXT_TRY_NS]
        if not is_late or progress != self._progress:
            self._progress, self._progress_s = progress, now_s
        elif now_s - self._progress_s > (OVERDUE_S if is_over else HUNG_S) and watch.is_alive():
            watch.kill()

    # ------------------------------------------------------------------ active

    def govern(self) -> None:
        """Serve the rank until it ends or needs no clocks any more."""
        words = self._words
        set_own_niceness(NICENESS)
        words[word.ACTIVE_PID] = os.getpid()
        try:
            standby = _Standby(self._config)
            words[word.STANDBY_PID] = standby.keep()
            words[word.STATE] = word.READY
            while self._serve_once():
                words[word.STANDBY_PID] = standby.keep()
        except Exception as error:  # unexpected ones included
            self._finish(word.GIVEN_UP, f"{error or type(error).__name__}")

    def _serve_once(self) -> bool:
        """Wait for a request, an end, a signal or a tick; return whether to go on."""
        wait_exactly([self._config.wake_fd, self._stop_fd, *self._end_fds], self._until_due_s())
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._config.wake_fd)
        self._note_signals()
        over = self._why_over()
        if over is None and not self._is_stopped:
            self._controller.serve()
            # Reading takes time of a timed request.
            if self._controller.until_timed_s() > READ_MARGIN_S:
                self._controller.read_back()
            return True
        state, text = over or (None, "")
        if state is not None:
            self._finish(state, text)
            return False
        self._controller.restore()
        # After a signal the standby goes on.
        return not self._is_stopped

    def _until_due_s(self) -> float:
        """Return the time in s until a reading, a timed request or a tick."""
        until_timed_s = self._controller.until_timed_s()
        if until_timed_s <= 0:
            # Due since it was served last; after a lease it waits for the next hook.
            return TICK_S if self._is_silent() else 0.0
        until_read_s = self._controller.until_read_s()
        return min(until_timed_s, TICK_S, until_read_s if until_read_s > 0 else TICK_S)

    def _why_over(self) -> tuple[int | None, str] | None:
        """Return why no clock may be locked: final state (None: it may be again) and text."""
        if not self._rank.is_alive() or self._is_rank_replaced():
            return word.ENDED, "the rank has ended"
        if self._launcher is not None and not self._launcher.is_alive():
            pid = self._launcher.identity.pid
            return word.GIVEN_UP, f"the launcher (process {pid}) has ended"
        if self._words[word.REQUEST] & word.MHZ_MASK == word.QUIT:
            return word.ENDED, "the session was closed"
        if self._is_silent():
            return None, "no hook was called for a lease"
        return None

    def _is_rank_replaced(self) -> bool:
        """Return whether the rank's process runs another program, of the same number and start."""
        rank_fd = self._config.rank_fd
        return rank_fd is not None and bool(wait_exactly([rank_fd], 0))

    def _is_silent(self) -> bool:
        words = self._words
        last_ns = max(words[word.HOOK_NS], words[word.REQUESTED_NS])
        return (time.monotonic_ns() - last_ns) / 1e9 > self._config.lease_s

    # ------------------------------------------------------------------ both

    def _finish(self, state: int, text: str) -> None:
        """Restore the clock, as often as it takes, and end in this state.

        A signal leaves the rest to the standby, and the end of the rank to the guard after a while.
        """
        words, began_s = self._words, time.monotonic()
        if state == word.GIVEN_UP:
            # The rank need not wait for the clock.
            self._shared_state.write_text(text)
            words[word.STATE] = state
        self._controller.try_now()
        try:
            while not self._controller.restore():
                if self._is_left_to_others(began_s):
                    return
                until_try_s = max(0.0, self._controller.until_try_s())
                wait_exactly([self._stop_fd], min(until_try_s, TICK_S))
                self._note_signals()
        except GpuError as error:
            text = f"its SM clock cannot be restored: {error}"
            self._shared_state.write_text(text)
        else:
            self._controller.try_now()
            self._shared_state.write_text(text)
        words[word.STATE] = state

    def _is_left_to_others(self, began_s: float) -> bool:
        has_waited = time.monotonic() - began_s > LEFT_TO_GUARD_S
        return self._is_stopped or (has_waited and not self._rank.is_alive())

    def _note_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._is_stopped = bool(os.read(self._stop_fd, 64)) or self._is_stopped


class _Standby:
    """Standby of the active one, restarted when it ends."""

    def __init__(self, config: GovernorConfig) -> None:
        self._config = replace(config, active=ProcessIdentity.own())
        self._process = spawn_governor(self._config)
        self._pause_s = FIRST_STANDBY_PAUSE_S
        self._next_start_s = time.monotonic() + self._pause_s

    def keep(self) -> int:
        """Restart the standby if it has ended; return its process number."""
        if self._process.poll() is not None and time.monotonic() > self._next_start_s:
            self._process = spawn_governor(self._config)
            # It may fail to start every time.
            self._pause_s = min(2 * self._pause_s, LONGEST_STANDBY_PAUSE_S)
            self._next_start_s = time.monotonic() + self._pause_s
        return self._process.pid


def wait_exactly(fds: Sequence[int], timeout_s: float) -> list[int]:
    """Wait until a descriptor is readable or the time is over; return the readable ones.

    Accurate to about 10 us after `sleep_exactly`: select counts in microseconds, poll and epoll in
    milliseconds. Descriptors must be below 1024.
    """
    return select.select(fds, (), (), timeout_s)[0]


def sleep_exactly() -> None:
    """Disable the kernel's timer slack of 50 us for this thread."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def _stop_signals() -> int:
    """Return a descriptor that becomes readable on SIGTERM, SIGINT or SIGHUP."""
    reading_fd, writing_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    ignore: Callable[..., None] = lambda *_: None  # noqa: E731 - the pipe is written
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ignore)
    signal.set_wakeup_fd(writing_fd)
    return reading_fd


def main() -> int:
    """Run one process of the pair, configured on standard input."""
    config: GovernorConfig = pickle.load(sys.stdin.buffer)  # noqa: S301 - its rank's
    sys.stdin.close()
    config = _with_low_descriptors(config)
    shared_state = SharedState(config.shared_state_fd)
    try:
        gpu, record = _opened(config, shared_state)
        show_governor(record.fd, config.rank_byte)
    except Exception as error:
        if isinstance(error, ClockHeldError) and is_running(shared_state.words[word.ACTIVE_PID]):
            # A standby that was starting has taken over.
            return 0
        if config.active is None:
            shared_state.write_text(f"{error or type(error).__name__}")
            shared_state.words[word.STATE] = word.GIVEN_UP
        return 1
    if config.active is None:
        # Left by a killed pair; the record has been handled.
        shared_state.words[word.IN_FORCE_MHZ] = shared_state.words[word.MAY_BE_LOCKED] = 0
    sleep_exactly()
    config = replace(config, record_fd=record.fd)
    process = GovernorProcess(config, gpu, shared_state, record)
    if config.active is None or process.stand_by(config.active):
        process.govern()
    return 0


def _with_low_descriptors(config: GovernorConfig) -> GovernorConfig:
    """Renumber inherited descriptors; a rank with many open files passes ones above 1023.

    Not the record's: closing a descriptor of it would release the locks of `show_governor`.
    """
    return replace(
        config,
        shared_state_fd=_lowered(config.shared_state_fd),
        wake_fd=_lowered(config.wake_fd),
        rank_fd=None if config.rank_fd is None else _lowered(config.rank_fd),
    )


def _lowered(fd: int) -> int:
    low_fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD)
    os.close(fd)
    return low_fd


def _opened(config: GovernorConfig, shared_state: SharedState) -> tuple[GpuDevice, LockRecord]:
    """Open the GPU and its record; a driver that fails for a moment is waited for."""
    give_up_s = time.monotonic() + OPEN_TIMEOUT_S
    while True:
        with contextlib.ExitStack() as opened:
            try:
                gpu = open_gpu(config.address)
                opened.callback(gpu.close)
                record = _take_record(config, shared_state)
                opened.callback(record.close)
                if config.record_fd is None and record.holder() is not None:
                    # Left locked by a governor that was killed together with its standby.
                    gpu.reset_sm_clock()
                    record.clear()
            except GpuError as error:
                if is_lasting(error, shared_state.words) or time.monotonic() > give_up_s:
                    raise
            else:
                opened.pop_all()
                return gpu, record
        time.sleep(OPEN_PAUSE_S)


def _take_record(config: GovernorConfig, shared_state: SharedState) -> LockRecord:
    if config.record_fd is not None:
        return LockRecord(config.record_fd, config.address.uuid)
    begin_s = time.monotonic()
    while True:
        try:
            return LockRecord.take(config.state_dir, config.address.uuid)
        except ClockHeldError:
            waited_s = time.monotonic() - begin_s
            if is_running(shared_state.words[word.ACTIVE_PID]) or waited_s > TAKE_TIMEOUT_S:
                raise
            left = _take_left_record(config) if waited_s > LEFT_S else None
            if left is not None:
                return left


def _take_left_record(config: GovernorConfig) -> LockRecord | None:
    """Take the record of a rank that has ended from its governors, which are stopped."""
    for found in find_records(config.state_dir):
        if found.uuid == config.address.uuid and found.is_left:
            with contextlib.suppress(ClockHeldError):
                return LockRecord.take_left(found)
    return None


if __name__ == "__main__":
    sys.exit(main())
