"""The process that owns a GPU's clock for a rank, and its standby; run by `process_governor`.

Both run this program. The active one serves the rank's requests. The standby has the GPU open
and waits: when the active one dies, in whatever way, it restore the clock, becomes the active
one and starts a standby of its own. The clock is also given back when the rank or its launcher
is gone, when the rank shows no sign of life for a lease, and on SIGTERM, SIGINT and SIGHUP,
which end this process but not the pair.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence

from flyball_client.governor import shared_state as word
from flyball_client.governor.clock_controller import ClockController
from flyball_client.governor.config import GovernorConfig, spawn_governor
from flyball_client.governor.lock_record import ClockHeldError, ClockHolder, LockRecord
from flyball_client.governor.process_watch import ProcessIdentity, ProcessWatch, is_running
from flyball_client.governor.shared_state import SharedState
from flyball_client.gpu._base import GpuDevice, GpuError
from flyball_client.gpu.open_gpu import open_gpu

# After so long with a clock that should have been given back, the standby does it itself.
OVERDUE_S = 0.4
# Longest wait of the active one: it checks the lease then, and reads the clock back.
TICK_S = 0.2
# Longest wait of the standby: it checks then that the active one does its work.
STANDBY_TICK_S = 0.1
# The governor's few microseconds come before other work on a core that both need.
NICENESS = -10
_PR_SET_TIMERSLACK = 29
# After so long with a request that the active one did not serve, the standby takes its place.
HUNG_S = 2.0
RESTORE_ATTEMPTS = 3
RETRY_PAUSE_S = 0.05
# The last rank's standby may still be starting, on a node that is busy with eight ranks' start.
TAKE_TIMEOUT_S = 5.0
FIRST_STANDBY_PAUSE_S = 0.1
LONGEST_STANDBY_PAUSE_S = 10.0


class GovernorProcess:
    """One of the pair, for as long as it lives.

    Args:
        config: what the pair is responsible for.
        gpu: the charge's, open.
        record: of the GPU, held.
    """

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
            rank_pid=config.rank.pid,
            governor_pid=os.getpid(),
        )
        self._controller = ClockController(gpu, shared_state, record, holder)
        self._rank = ProcessWatch(config.rank)
        self._launcher = ProcessWatch(config.launcher) if config.launcher else None
        # Readable once the rank or its launcher has ended.
        watches = [self._rank] if self._launcher is None else [self._rank, self._launcher]
        self._end_fds = [watch.fd for watch in watches if watch.fd is not None]
        self._stop_fd = _stop_signals()
        self._is_stopped = False
        # The last that was seen of the active one's work, and since when it is so.
        self._progress = (False, 0)
        self._progress_s = time.monotonic()

    # ------------------------------------------------------------------ standby

    def stand_by(self, active: ProcessIdentity) -> bool:
        """Wait for the active one's end and give back what it left locked.

        Returns:
            Whether to take over.
        """
        watch = ProcessWatch(active)
        fds = [fd for fd in (watch.fd, self._stop_fd) if fd is not None]
        while watch.is_alive() and not self._is_stopped:
            wait_exactly(fds, STANDBY_TICK_S)
            self._note_signals()
            self._kill_if_it_hangs(watch)
        if watch.is_alive():
            return False
        watch.close()
        self._words[word.IN_FORCE_MHZ] = 0
        self._restore()
        if self._words[word.STATE] in {word.ENDED, word.GIVEN_UP}:
            return False
        self._words[word.NUM_TAKEOVERS] += 1
        state, text = self._why_over() or (None, "")
        if state is not None:
            # Nothing is left to govern, and another standby would hold the record for a while.
            self._end(state, text)
        return state is None and not self._is_stopped

    def _kill_if_it_hangs(self, watch: ProcessWatch) -> None:
        """End an active one that is stopped or hangs, a clock locked or a request unserved."""
        words = self._words
        is_over = self._why_over() is not None
        is_late = words[word.REQUEST] != words[word.SERVED]
        if is_over:
            is_late = bool(words[word.MAY_BE_LOCKED])
        progress = (is_over, words[word.SERVED])
        now_s = time.monotonic()
        if not is_late or progress != self._progress:
            self._progress, self._progress_s = progress, now_s
        elif now_s - self._progress_s > (OVERDUE_S if is_over else HUNG_S) and watch.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(watch.identity.pid, signal.SIGKILL)

    # ------------------------------------------------------------------ active

    def govern(self) -> None:
        """Serve the rank until it is gone or needs no clocks any more."""
        words = self._words
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
        words[word.ACTIVE_PID] = os.getpid()
        try:
            standby = _Standby(self._config)
            words[word.STANDBY_PID] = standby.keep()
            words[word.STATE] = word.READY
            while self._serve_once():
                words[word.STANDBY_PID] = standby.keep()
        except Exception as error:
            # Also what nobody thought of: no clock stays locked for it, and the rank learns of it.
            self._restore()
            self._end(word.GIVEN_UP, f"{error or type(error).__name__}")

    def _serve_once(self) -> bool:
        """Wait until a request, an end, a signal or a tick, and act on it; whether to go on."""
        until_read_s = self._controller.until_read_s()
        wait_exactly(
            [self._config.wake_fd, self._stop_fd, *self._end_fds],
            min(until_read_s, TICK_S) if until_read_s > 0 else TICK_S,
        )
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._config.wake_fd)
        self._note_signals()
        over = self._why_over()
        if over is None and not self._is_stopped:
            self._controller.serve()
            self._controller.read_back()
            return True
        self._restore()
        if over is None:  # a signal: the standby goes on
            return False
        state, text = over
        if state is not None:
            self._end(state, text)
            return False
        return True

    def _why_over(self) -> tuple[int | None, str] | None:
        """Why no clock may be locked now: the state that this ends in, if it does, and a text."""
        if not self._rank.is_alive():
            return word.ENDED, "the rank is gone"
        if self._launcher is not None and not self._launcher.is_alive():
            pid = self._launcher.identity.pid
            return word.GIVEN_UP, f"the launcher (process {pid}) is gone"
        if self._words[word.REQUEST] & word.MHZ_MASK == word.QUIT:
            return word.ENDED, "the session was closed"
        if self._is_silent():
            return None, "no hook was called for a lease"
        return None

    def _is_silent(self) -> bool:
        words = self._words
        last_ns = max(words[word.HOOK_NS], words[word.REQUESTED_NS])
        return (time.monotonic_ns() - last_ns) / 1e9 > self._config.lease_s

    # ------------------------------------------------------------------ both

    def _restore(self) -> None:
        """Give the clock back, trying a few times; the record stays where that fails."""
        for attempt in range(RESTORE_ATTEMPTS):
            try:
                self._controller.restore()
            except (GpuError, OSError) as error:
                self._shared_state.write_text(f"the SM clock could not be given back: {error}")
                time.sleep(RETRY_PAUSE_S * attempt)
            else:
                return

    def _end(self, state: int, text: str) -> None:
        if self._words[word.MAY_BE_LOCKED] == 0:
            self._shared_state.write_text(text)
        self._words[word.STATE] = state

    def _note_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._is_stopped = bool(os.read(self._stop_fd, 64)) or self._is_stopped


class _Standby:
    """The active one's standby, started again where it ended."""

    def __init__(self, config: GovernorConfig) -> None:
        self._config = config.for_standby(ProcessIdentity.own())
        self._process = spawn_governor(self._config)
        self._pause_s = FIRST_STANDBY_PAUSE_S
        self._next_start_s = time.monotonic() + self._pause_s

    def keep(self) -> int:
        """See that there is one; its process number."""
        if self._process.poll() is not None and time.monotonic() > self._next_start_s:
            self._process = spawn_governor(self._config)
            # One that cannot start must not be started without end.
            self._pause_s = min(2 * self._pause_s, LONGEST_STANDBY_PAUSE_S)
            self._next_start_s = time.monotonic() + self._pause_s
        return self._process.pid


def wait_exactly(fds: Sequence[int], timeout_s: float) -> list[int]:
    """Wait until a descriptor can be read or the time is over; the readable ones.

    Exact to some 10 us once `sleep_exactly` has been called: select counts in microseconds, where
    poll and epoll count in milliseconds. It takes descriptors below 1024 only, which those of a
    process that opens a handful are.
    """
    return select.select(fds, (), (), timeout_s)[0]


def sleep_exactly() -> None:
    """Ask the kernel not to lengthen this thread's waits by the usual 50 us."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def _stop_signals() -> int:
    """A descriptor that can be read once SIGTERM, SIGINT or SIGHUP has come."""
    reading_fd, writing_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    ignore: Callable[..., None] = lambda *_: None  # noqa: E731 - the pipe is what counts
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ignore)
    signal.set_wakeup_fd(writing_fd)
    return reading_fd


def main() -> int:
    """Do what the charge on standard input says."""
    config = GovernorConfig.from_json(sys.stdin.readline())
    sys.stdin.close()
    shared_state = SharedState(config.shared_state_fd)
    try:
        gpu = open_gpu(config.address)
        record = _take_record(config, gpu, shared_state)
    except Exception as error:
        if isinstance(error, ClockHeldError) and is_running(shared_state.words[word.ACTIVE_PID]):
            # The rank saw no governor, but a standby that was just starting has taken over.
            return 0
        if config.active is None:
            shared_state.write_text(f"{error or type(error).__name__}")
            shared_state.words[word.STATE] = word.GIVEN_UP
        return 1
    if config.active is None:
        # What a pair that was killed left here; the record was the truth about it.
        shared_state.words[word.IN_FORCE_MHZ] = shared_state.words[word.MAY_BE_LOCKED] = 0
    sleep_exactly()
    config = config.with_record(record.fd)
    process = GovernorProcess(config, gpu, shared_state, record)
    if config.active is None or process.stand_by(config.active):
        process.govern()
    return 0


def _take_record(config: GovernorConfig, gpu: GpuDevice, shared_state: SharedState) -> LockRecord:
    if config.record_fd is not None:
        return LockRecord(config.record_fd, config.address.uuid)
    give_up_s = time.monotonic() + TAKE_TIMEOUT_S
    while True:
        try:
            record = LockRecord.take(config.state_dir, config.address.uuid)
            break
        except ClockHeldError:
            if is_running(shared_state.words[word.ACTIVE_PID]) or time.monotonic() > give_up_s:
                raise
    if record.holder() is not None:
        # A governor and its standby were killed together, and left it locked.
        gpu.reset_sm_clock()
        record.clear()
    return record


if __name__ == "__main__":
    sys.exit(main())
