"""The least that waking another process takes here: a store and an eventfd write, and nothing else.

The floor under every hook that leaves its work to another process, for benchmarks/hooks.py; a
driver as `hooks_driver.py`.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hooks_gpus import CallRecord
from hooks_series import Series, planned_mhz, run_series

REQUEST, REQUESTED_NS, DELIVERED_NS, QUIT = range(4)


class BareRank:
    """A rank whose hook leaves a clock in shared memory, and a process that notes when it came."""

    wants_microbatch = True

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self._wake_fd = os.eventfd(0)
        self._last_taken_ns = 0
        self.controller_pid = os.fork()
        if self.controller_pid == 0:
            self._control()
        self._write = ctypes.PyDLL(None).eventfd_write
        self._write.argtypes = (ctypes.c_int, ctypes.c_uint64)
        self.begin_hook: Callable[..., None] = self._on_instruction_begin

    def _control(self) -> None:
        words, monotonic_ns = self._words, time.monotonic_ns
        while not words[QUIT]:
            os.eventfd_read(self._wake_fd)
            words[DELIVERED_NS] = monotonic_ns()
        os._exit(0)

    def _on_instruction_begin(self, kind: str, *, microbatch: int) -> None:
        del kind
        mhz = planned_mhz(microbatch)
        words = self._words
        if mhz != words[REQUEST]:
            words[REQUESTED_NS] = time.monotonic_ns()
            words[REQUEST] = mhz
            self._write(self._wake_fd, 1)

    def end_hook(self, kind: str) -> None:
        """Nothing."""

    def on_step_begin(self) -> None:
        """Nothing."""

    def on_step_end(self) -> None:
        """Nothing."""

    def take_delivery_ns(self) -> tuple[int, int] | None:
        """Of the newest request, once: when it was made and when it was seen, ns."""
        requested_ns, delivered_ns = self._words[REQUESTED_NS], self._words[DELIVERED_NS]
        if delivered_ns < requested_ns or requested_ns == self._last_taken_ns:
            return None
        self._last_taken_ns = requested_ns
        return requested_ns, delivered_ns

    def close(self) -> None:
        """End the process."""
        self._words[QUIT] = 1
        self._write(self._wake_fd, 1)
        os.waitpid(self.controller_pid, 0)


def main(series_file: Path, result_file: Path) -> None:
    """Run them all, one after the other."""
    wanted = [Series(**fields) for fields in json.loads(series_file.read_text(encoding="utf-8"))]
    record = CallRecord.of_environment()
    rank = BareRank()
    results = [run_series(series, rank, record) for series in wanted]
    rank.close()
    result_file.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
