"""Series of hooks through one client, paced and timed; a process of its own on false GPUs.

`python hooks_series.py flyball|bare SERIES.json RESULT.json`, with the environment of `FalseGpus`
and the repository's root in PYTHONPATH; `bare` is the least that waking another process takes.
zeus_driver.py runs the same through Zeus, so all but Flyball's client is standard library here.

Each step of a series goes through the same plan: forwards at a new clock each, every one followed
by a backward at the same clock. A sample is what a rank calls between two computations: the end
hook of the one, where Flyball requests the next clock, and the begin hook of the next, where Zeus
does.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from measured_process import BenchmarkError, cpu_time_ns

HIGHEST_MHZ, STEP_MHZ, NUM_MICROBATCHES, WARM_UP_STEPS = 1980, 15, 100, 5
SETTLED_S, SETTLE_GIVE_UP_S, START_GIVE_UP_S = 0.1, 20.0, 20.0
Instruction = tuple[str, int, int]
"""Kind, microbatch and clock in MHz."""


def planned_mhz(microbatch: int) -> int:
    """Return the clock of a microbatch's forward and backward; no two in a plan are the same."""
    # Neighbours lie far apart, as in a real plan.
    return HIGHEST_MHZ - STEP_MHZ * (1 + microbatch * 7 % NUM_MICROBATCHES)


INSTRUCTIONS: tuple[Instruction, ...] = tuple(
    (kind, microbatch, planned_mhz(microbatch))
    for microbatch in range(NUM_MICROBATCHES)
    for kind in ("forward", "backward")
)


@dataclass(frozen=True, kw_only=True)
class Series:
    """One series of hooks to measure.

    Attributes:
        load: one of LOADS.
        set_latency_us: how long NVML takes to set a clock, us.
        pause_s: between two hooks, s.
        num_steps: of `2 * NUM_MICROBATCHES` instructions each, after the warm-up.
    """

    load: str
    set_latency_us: int
    pause_s: float
    num_steps: int


# ---------------------------------------------------------------------- calls of NVML


class NvmlCall(NamedTuple):
    """A call that concerned clocks: CLOCK_MONOTONIC of both ends, and who called.

    `mhz` is the clock that was set; 0: given back; -1: something was read.
    """

    began_ns: int
    ended_ns: int
    mhz: int
    pid: int


class CallRecord:
    """The calls of all processes, as the false NVML writes them down (`struct calls` in C)."""

    VARIABLE = "FALSE_NVML_CALLS"
    _HEAD, _CALL, _MAX_CALLS = struct.Struct("=qq"), struct.Struct("=qqqq"), 1 << 16
    NUM_BYTES = _HEAD.size + _MAX_CALLS * _CALL.size

    def __init__(self, path: Path | None = None) -> None:
        with (path or Path(os.environ[self.VARIABLE])).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self.NUM_BYTES)

    def begin(self, *, set_latency_us: int) -> None:
        """Forget the calls so far; from now on setting a clock takes this long."""
        self._HEAD.pack_into(self._map, 0, 0, set_latency_us)

    def calls(self) -> list[NvmlCall]:
        """Return the calls since `begin`, in the order in which they came.

        Raises:
            BenchmarkError: there were more than are kept.
        """
        num_calls = int(self._HEAD.unpack_from(self._map, 0)[0])
        if num_calls > self._MAX_CALLS:
            raise BenchmarkError(f"{num_calls} NVML calls in a series, over {self._MAX_CALLS}")
        kept = self._map[self._HEAD.size : self._HEAD.size + num_calls * self._CALL.size]
        return sorted(NvmlCall(*fields) for fields in self._CALL.iter_unpack(kept))

    def settle(self) -> None:
        """Wait until no more clocks are set.

        Raises:
            BenchmarkError: that has not come to an end.
        """
        give_up_s = time.monotonic() + SETTLE_GIVE_UP_S
        while time.monotonic() < give_up_s:
            num_set = self._num_set()
            time.sleep(SETTLED_S)
            if self._num_set() == num_set:
                return
        raise BenchmarkError(f"clocks were being set {SETTLE_GIVE_UP_S:g} s after the last hook")

    def _num_set(self) -> int:
        return sum(call.mhz >= 0 for call in self.calls())


# ---------------------------------------------------------------------- loads

Pause = Callable[[float], object]
"""Spends at least so long, s, in the thread that calls the hooks."""

# Longer than Python lets a thread run on when another one waits (5 ms): such a call ignores it.
KEPT_S = 0.008


SLEEPING, EAGER_TORCH = "the rank sleeps", "eager torch operations"
PYTHON_THREAD = "another thread in a Python loop"
C_THREAD, C_CALLER = "another thread in C, keeping the GIL", "the rank itself in C, keeping the GIL"
LOADS = (SLEEPING, EAGER_TORCH, PYTHON_THREAD, C_THREAD, C_CALLER)


@contextmanager
def _loaded(load: str, pause_s: float) -> Iterator[Pause]:
    """While entered, the load is on; what is given spends the time between two hooks."""
    if load == EAGER_TORCH:
        yield _eager_torch()
    elif load == C_CALLER:
        numbers = _numbers_that_take(pause_s)
        yield lambda _: sum(numbers)
    elif load == SLEEPING:
        yield time.sleep
    else:
        numbers = _numbers_that_take(KEPT_S)
        with _thread(_loop_in_python if load == PYTHON_THREAD else lambda: sum(numbers)):
            yield time.sleep


def _loop_in_python() -> None:
    for _ in range(10_000):
        pass


def _eager_torch() -> Pause:
    """A small layer forward, over and over: operations of some microseconds each."""
    import torch  # noqa: PLC0415 - takes seconds, and the other loads do without

    library: Any = torch
    library.set_num_threads(1)
    weights, hidden = library.randn(96, 96), library.randn(48, 96)

    def pause(pause_s: float) -> None:
        until_s = time.perf_counter() + pause_s
        with library.no_grad():
            while time.perf_counter() < until_s:
                library.relu(hidden @ weights).mean()

    return pause


def _numbers_that_take(wanted_s: float) -> range:
    """Return numbers whose `sum` takes about so long; it is one call that keeps the GIL."""
    num_tried = 1_000_000
    began_s = time.perf_counter()
    sum(range(num_tried))
    return range(int(num_tried * wanted_s / (time.perf_counter() - began_s)))


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


# ---------------------------------------------------------------------- other processes

_IDLE, _IOWAIT, _NUM_COUNTED = 3, 4, 8  # of /proc/stat; the guests' time is in the user's too


class CpuUse:
    """Use of the CPUs from its making on, by other processes than `pids`."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._began = self._times()

    def others_share(self) -> float:
        """Return the share of all CPUs' time that others used, as coarse as the kernel's 10 ms."""
        total, busy, own = (
            now - then for now, then in zip(self._times(), self._began, strict=True)
        )
        return min(max((busy - own) / total, 0.0), 1.0) if total else 0.0

    def _times(self) -> tuple[float, float, float]:
        """Return all CPUs' time, what of it was not idle, and the processes' own, s."""
        line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
        ticks = [int(field) for field in line.split()[1 : 1 + _NUM_COUNTED]]
        busy = sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT]
        per_s = os.sysconf("SC_CLK_TCK")
        return sum(ticks) / per_s, busy / per_s, sum(map(cpu_time_ns, self._pids)) / 1e9


# ---------------------------------------------------------------------- a series


@dataclass(frozen=True, kw_only=True)
class HookedRank:
    """A rank with hooks, of whichever library.

    Attributes:
        begin, end: The hooks of an instruction, called with its kind; `begin` also with the
            microbatch where it `takes_microbatch`.
        controller_pid: The process that calls NVML.
        take_delivery_ns: Returns when the newest request was made and when the controller saw it,
            ns, once; None: not known.
    """

    begin_step: Callable[[], object]
    end_step: Callable[[], object]
    begin: Callable[..., object]
    end: Callable[[str], object]
    takes_microbatch: bool
    controller_pid: int
    take_delivery_ns: Callable[[], tuple[int, int] | None]


class TimedHook(NamedTuple):
    """The hooks before one computation: the end of the one before, and its own begin.

    `began_ns` is CLOCK_MONOTONIC before the first call, `time_ns` that of both calls, `mhz` the
    clock that the instruction wants, `is_change` where that is another one than before.
    """

    began_ns: int
    time_ns: int
    mhz: int
    is_change: bool
    delivery_ns: tuple[int, int] | None


def run_series(series: Series, rank: HookedRank, record: CallRecord) -> list[dict[str, Any]]:
    """Return for each step its samples, see `_samples`, and who used the CPUs.

    `others_share` is what others took of all CPUs' time, `controller_share` what the controller
    took of one CPU's.
    """
    own = (os.getpid(), rank.controller_pid)
    steps: list[tuple[dict[str, float], list[TimedHook]]] = []
    with _loaded(series.load, series.pause_s) as pause:
        record.begin(set_latency_us=0)
        for _ in range(WARM_UP_STEPS):
            _run_step(rank, pause, series.pause_s)
        record.settle()
        record.begin(set_latency_us=series.set_latency_us)
        for _ in range(series.num_steps):
            used = CpuUse(own)
            began_ns, began_cpu_ns = time.monotonic_ns(), cpu_time_ns(rank.controller_pid)
            hooks = _run_step(rank, pause, series.pause_s)
            taken_ns = cpu_time_ns(rank.controller_pid) - began_cpu_ns
            shares = {
                "others_share": used.others_share(),
                "controller_share": taken_ns / (time.monotonic_ns() - began_ns),
            }
            steps.append((shares, hooks))
        record.settle()
    calls = [call for call in record.calls() if call.pid == rank.controller_pid]
    ends_ns = [*(hooks[0].began_ns for _, hooks in steps[1:]), time.monotonic_ns()]
    return [
        {**shares, **_samples(hooks, calls, until_ns)}
        for (shares, hooks), until_ns in zip(steps, ends_ns, strict=True)
    ]


def _run_step(rank: HookedRank, pause: Pause, pause_s: float) -> list[TimedHook]:
    hooks: list[TimedHook] = []
    begin, now_ns = rank.begin, time.monotonic_ns
    before_mhz = 0
    rank.begin_step()
    # Of the end hook: a step's first instruction has none.
    end_began_ns, end_ns = now_ns(), 0
    for kind, microbatch, mhz in INSTRUCTIONS:
        keywords = {"microbatch": microbatch} if rank.takes_microbatch else {}
        began_ns = now_ns()
        begin(kind, **keywords)
        time_ns = now_ns() - began_ns + end_ns
        pause(pause_s)
        delivery_ns = rank.take_delivery_ns()
        hooks.append(TimedHook(end_began_ns, time_ns, mhz, mhz != before_mhz, delivery_ns))
        before_mhz = mhz
        end_began_ns = now_ns()
        rank.end(kind)
        end_ns = now_ns() - end_began_ns
    rank.end_step()
    return hooks


def _samples(hooks: list[TimedHook], calls: list[NvmlCall], until_ns: int) -> dict[str, Any]:
    """Return one step's times in us, each a list, without the step's first instruction.

    `change` and `same`: the hooks' calls, where the clock is another than before and where not.
    `arrival`: from the hooks' beginning to NVML being asked for the clock; `num_superseded` were
    never asked for. `delivery`: from the request to the controller seeing it, where it was in no
    NVML call meanwhile.

    Args:
        hooks: of the step.
        calls: all of the controller's.
        until_ns: when the next step began, or all was over, ns.
    """
    # The first has no end hook, and Flyball has requested its clock before.
    counted = hooks[1:]
    asked_ns: dict[int, list[int]] = {}
    for call in calls:
        asked_ns.setdefault(call.mhz, []).append(call.began_ns)
    changes = [hook for hook in counted if hook.is_change]
    # No clock comes twice in a step, so a call between the hook and the next step is this hook's.
    found_ns = [
        next((ns for ns in asked_ns.get(hook.mhz, ()) if hook.began_ns <= ns < until_ns), None)
        for hook in changes
    ]
    arrivals_us = [
        (ns - hook.began_ns) / 1e3
        for hook, ns in zip(changes, found_ns, strict=True)
        if ns is not None
    ]
    deliveries = [hook.delivery_ns for hook in counted if hook.delivery_ns is not None]
    return {
        "change_us": [hook.time_ns / 1e3 for hook in changes],
        "same_us": [hook.time_ns / 1e3 for hook in counted if not hook.is_change],
        "arrival_us": arrivals_us,
        "num_superseded": len(changes) - len(arrivals_us),
        "delivery_us": [
            (delivered_ns - requested_ns) / 1e3
            for requested_ns, delivered_ns in deliveries
            if not any(call[0] < delivered_ns and call[1] > requested_ns for call in calls)
        ],
    }


# ---------------------------------------------------------------------- Flyball


@contextmanager
def planned_session(
    instructions: tuple[Instruction, ...], *, history_length: int = 1024
) -> Iterator[tuple[Any, Any, Any]]:
    """A session that follows a plan of these instructions, its governor, and their planner."""
    # What Zeus's environment does not have.
    from tests.unit.client.memory_planner import JOB_ID, MemoryPlanner  # noqa: PLC0415

    from flyball_client.governor.process_governor import ProcessGovernor  # noqa: PLC0415
    from flyball_client.gpu.nvml.device import NvmlGpu  # noqa: PLC0415
    from flyball_client.gpu.registry import local_vendor  # noqa: PLC0415
    from flyball_client.session.rank_session import RankSession  # noqa: PLC0415

    planner = MemoryPlanner()
    planner.name_first_step(planner.publish(*instructions), 0)
    gpu = NvmlGpu.open(uuid=local_vendor(os.environ).visible(os.environ).select(0))
    governor = ProcessGovernor(gpu.address, "hooks")
    with planner.client() as client:
        session = RankSession(
            gpu=gpu,
            job_id=JOB_ID,
            rank=0,
            stage=0,
            planner=client,
            governor=governor,
            history_length=history_length,
        )
        with session:
            give_up_s = time.monotonic() + START_GIVE_UP_S
            while session.active_version is None or not all(governor.pids):
                if time.monotonic() > give_up_s or governor.is_over:
                    raise BenchmarkError(f"no plan is in force after {START_GIVE_UP_S:g} s")
                session.on_step_begin()
                session.on_step_end()
                time.sleep(0.01)
            yield session, governor, planner
    gpu.close()


@contextmanager
def _flyball() -> Iterator[HookedRank]:
    """A session with its governor, a plan in force."""
    from flyball_client.governor import shared_state as word  # noqa: PLC0415 - as above

    with planned_session(INSTRUCTIONS) as (session, governor, _):
        # What they share is nobody's business but theirs; here it is what is measured.
        words, last_request = governor._shared_state.words, 0

        def take_delivery_ns() -> tuple[int, int] | None:
            nonlocal last_request
            request = words[word.REQUEST]
            if request == last_request or words[word.SERVED] != request:
                return None
            last_request = request
            return words[word.REQUESTED_NS], words[word.DELIVERED_NS]

        yield HookedRank(
            begin_step=session.on_step_begin,
            end_step=session.on_step_end,
            begin=session.on_instruction_begin,
            end=session.on_instruction_end,
            takes_microbatch=True,
            controller_pid=governor.pids[0],
            take_delivery_ns=take_delivery_ns,
        )


# ---------------------------------------------------------------------- a bare wake

_REQUEST, _REQUESTED_NS, _DELIVERED_NS, _QUIT = range(4)


@contextmanager
def _bare() -> Iterator[HookedRank]:
    """A rank whose hook leaves a clock in shared memory, and a process that notes when it came."""
    words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
    wake_fd, last_taken_ns, monotonic_ns = os.eventfd(0), 0, time.monotonic_ns
    write = ctypes.PyDLL(None).eventfd_write
    write.argtypes = (ctypes.c_int, ctypes.c_uint64)
    controller_pid = os.fork()
    if controller_pid == 0:
        while not words[_QUIT]:
            os.eventfd_read(wake_fd)
            words[_DELIVERED_NS] = monotonic_ns()
        os._exit(0)

    def begin(kind: str, *, microbatch: int) -> None:
        del kind
        mhz = planned_mhz(microbatch)
        if mhz != words[_REQUEST]:
            words[_REQUESTED_NS] = monotonic_ns()
            words[_REQUEST] = mhz
            write(wake_fd, 1)

    def take_delivery_ns() -> tuple[int, int] | None:
        nonlocal last_taken_ns
        requested_ns, delivered_ns = words[_REQUESTED_NS], words[_DELIVERED_NS]
        if delivered_ns < requested_ns or requested_ns == last_taken_ns:
            return None
        last_taken_ns = requested_ns
        return requested_ns, delivered_ns

    yield HookedRank(
        begin_step=lambda: None,
        end_step=lambda: None,
        begin=begin,
        end=lambda _: None,
        takes_microbatch=True,
        controller_pid=controller_pid,
        take_delivery_ns=take_delivery_ns,
    )
    words[_QUIT] = 1
    write(wake_fd, 1)
    os.waitpid(controller_pid, 0)


def main(open_rank: Callable[[], AbstractContextManager[HookedRank]], *files: str) -> None:
    """Run all series of the first file one after the other, and write what they found."""
    series = [Series(**fields) for fields in json.loads(Path(files[0]).read_text("utf-8"))]
    with open_rank() as rank:
        found = [run_series(each, rank, CallRecord()) for each in series]
    Path(files[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(_bare if sys.argv[1] == "bare" else _flyball, *sys.argv[2:])
