"""Work of the rank's process between hooks while they are measured, the same for every peer.

Needs the standard library alone, and torch for its loads. `python hooks_load.py`, with the
environment of `FalseGpus.variables`, tells by its exit status whether torch sees a real GPU.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hooks_gpus import OWN_DEVICES_VARIABLE

# Longer than Python lets a thread run on when another one waits (5 ms): such a call ignores it.
KEPT_S = 0.008

Pause = Callable[[float], None]
"""Spends at least so long, s, in the thread that calls the hooks."""

SLEEPING = "the rank sleeps"
EAGER_TORCH = "eager torch operations"
GPU_KERNELS = "torch's kernels on a GPU"
PYTHON_THREAD = "another thread in a Python loop"
C_THREAD = "another thread in C, keeping the GIL"
C_CALLER = "the rank itself in C, keeping the GIL"
LOADS = (SLEEPING, EAGER_TORCH, PYTHON_THREAD, C_THREAD, C_CALLER)
"""Those that any machine can run; `GPU_KERNELS` beside them wants a GPU."""


@contextmanager
def loaded(load: str) -> Iterator[Pause]:
    """While entered, the load is on; what is given spends the time between two hooks."""
    if load == SLEEPING:
        yield time.sleep
    elif load == EAGER_TORCH:
        yield _eager_torch("cpu")
    elif load == GPU_KERNELS:
        _see_own_devices()
        yield _eager_torch("cuda")
    elif load == PYTHON_THREAD:
        with _thread(_loop_in_python):
            yield time.sleep
    elif load == C_THREAD:
        numbers = _numbers_that_take(KEPT_S)
        with _thread(lambda: sum(numbers)):
            yield time.sleep
    elif load == C_CALLER:
        yield _sum_for()
    else:
        raise ValueError(f"load must be one of {(*LOADS, GPU_KERNELS)}, not {load!r}")


def _see_own_devices() -> None:
    """Have CUDA, which has not begun yet, see what it would without the false GPUs."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if OWN_DEVICES_VARIABLE in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ[OWN_DEVICES_VARIABLE]


def _eager_torch(device: str) -> Pause:
    """A small layer forward, over and over: launches of some microseconds each.

    On a GPU nobody waits for them: the driver does where too many are on their way.
    """
    import torch  # noqa: PLC0415 - takes seconds, and the other loads do without

    library: Any = torch
    library.set_num_threads(1)
    weights = library.randn(96, 96, device=device)
    hidden = library.randn(48, 96, device=device)

    def pause(pause_s: float) -> None:
        until_s = time.perf_counter() + pause_s
        with library.no_grad():
            while time.perf_counter() < until_s:
                library.relu(hidden @ weights).mean()

    return pause


def _loop_in_python() -> None:
    for _ in range(10_000):
        pass


def _numbers_that_take(wanted_s: float) -> range:
    """Numbers whose `sum` takes about so long; it is one call that keeps the GIL to its end."""
    num_tried = 1_000_000
    began_s = time.perf_counter()
    sum(range(num_tried))
    return range(int(num_tried * wanted_s / (time.perf_counter() - began_s)))


def _sum_for() -> Pause:
    numbers: dict[float, range] = {}

    def pause(pause_s: float) -> None:
        if pause_s not in numbers:
            numbers[pause_s] = _numbers_that_take(pause_s)
        sum(numbers[pause_s])

    return pause


@contextmanager
def _thread(work: Callable[[], object]) -> Iterator[None]:
    """Another thread that does this again and again."""
    stopping = threading.Event()

    def run() -> None:
        while not stopping.is_set():
            work()

    thread = threading.Thread(target=run, name="load")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def main() -> int:
    """0: torch sees a GPU; 1: it sees none."""
    import torch  # noqa: PLC0415 - likewise

    library: Any = torch
    _see_own_devices()
    return 0 if library.cuda.is_available() else 1


if __name__ == "__main__":
    sys.exit(main())
