"""Hooks called as a device reaches them, with a device whose progress the test decides."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.client.memory_planner import compiled_plan
from tests.unit.client.recording_gpu import RecordingGpu
from tests.unit.integrations.hook_log import HookLog
from torch import nn

from flyball_client.session.rank_session import RankSession
from flyball_client.session.rank_settings import Timing
from flyball_integrations.data_parallel.microbatches import MicrobatchSteps
from flyball_integrations.data_parallel.rank_waits import RankWaits
from flyball_integrations.shared.device_hooks import DeviceHooks, DeviceTimeline

CUDA = torch.device("cuda", 0)
LONGEST_WAIT_S = 60.0


class Device:
    """A stream: events are reached, in order, when the test says so."""

    def __init__(self) -> None:
        self.num_launched = self.num_reached = self.num_events = 0
        self.moments_ms: list[float] = []
        self.fails: str | None = None
        self.changed = threading.Condition()

    def reach(self, *moments_ms: float) -> None:
        """Reach the next events at these moments."""
        with self.changed:
            self.moments_ms += moments_ms
            self.num_reached += len(moments_ms)
            self.changed.notify_all()

    def fail(self) -> None:
        """Let every wait fail."""
        with self.changed:
            self.fails = "CUDA error: an illegal memory access was encountered"
            self.changed.notify_all()

    # torch's module of the device

    def Event(self, *, enable_timing: bool, blocking: bool) -> Event:  # noqa: N802
        assert enable_timing
        assert blocking
        self.num_events += 1
        return Event(self)

    def current_stream(self, device: torch.device) -> Any:  # noqa: ANN401
        assert device == CUDA
        return SimpleNamespace(synchronize=self._refuse)

    def _refuse(self) -> None:
        raise AssertionError("the host must not wait")


class Event:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._number = -1

    def record(self, stream: object) -> None:
        del stream
        self._number = self._device.num_launched
        self._device.num_launched += 1

    def synchronize(self) -> None:
        with self._device.changed:
            assert self._device.changed.wait_for(
                lambda: self._device.fails or self._device.num_reached > self._number,
                LONGEST_WAIT_S,
            )
            if self._device.fails:
                raise RuntimeError(self._device.fails)

    def elapsed_time(self, after: Event) -> float:
        moments_ms = self._device.moments_ms
        return moments_ms[after._number] - moments_ms[self._number]


class SessionLog(HookLog):
    """A session that writes down its hooks with the time of its clock in ms."""

    def __init__(self, hooks: DeviceHooks) -> None:
        super().__init__()
        self._hooks = hooks
        self._began_s: float | None = None
        self.thread_names: set[str] = set()
        self.changed = threading.Condition()

    @property
    def next_step(self) -> int:
        return 7 + sum("step begins" in line for line in self.log)

    def add(self, line: str) -> None:
        self.thread_names.add(threading.current_thread().name)
        assert self._hooks.clock_s is not None
        now_s = self._hooks.clock_s()
        self._began_s = now_s if self._began_s is None else self._began_s
        with self.changed:
            super().add(f"{1000 * (now_s - self._began_s):.1f} {line}")
            self.changed.notify_all()

    def on_transfer(
        self,
        transfer: str,
        kind: str,
        *,
        time_s: float,
        microbatch: int | None = None,
        chunk: int = 0,
    ) -> None:
        self.add(f"{transfer} {kind} {microbatch} of {chunk}: {1000 * time_s:.1f} ms")

    def wait_for(self, num_lines: int) -> list[str]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.log) >= num_lines, LONGEST_WAIT_S)
        return list(self.log)


def stream_of(device: Device) -> tuple[DeviceHooks, SessionLog]:
    hooks = DeviceHooks(CUDA, "stream", device_module=device)
    return hooks, SessionLog(hooks)


def launch_step(hooks: Any, *, num_forwards: int = 1) -> None:  # noqa: ANN401
    hooks.on_step_begin()
    for microbatch in range(num_forwards):
        hooks.on_instruction_begin("forward", microbatch=microbatch)
        hooks.on_instruction_end("forward", microbatch=microbatch)
    hooks.on_step_end()


def test_hooks_are_called_when_the_device_reaches_them_with_its_own_time() -> None:
    device = Device()
    hooks, session = stream_of(device)
    launch_step(hooks.of(session))  # type: ignore[arg-type]
    hooks.synchronize()
    assert session.log == []
    device.reach(0.0, 2.5)
    assert session.wait_for(2) == ["0.0 step begins", "2.5 forward 0 of 0"]
    device.reach(14.0, 20.0)
    assert session.wait_for(4)[2:] == ["14.0 forward 0 of 0 ends", "20.0 step ends"]
    assert session.thread_names == {"flyball-device-timeline"}
    # A transfer lasts from one event to the next.
    timer = hooks.transfer_timer(session)  # type: ignore[arg-type]
    timer.begin()
    timer.end("receive", "forward", 3, chunk=1)
    device.reach(21.0, 28.5)
    assert session.wait_for(5)[4:] == ["28.5 receive forward 3 of 1: 7.5 ms"]
    hooks.close()


def test_after_a_failed_step_its_calls_are_dropped_and_the_next_step_is_followed() -> None:
    device = Device()
    hooks, session = stream_of(device)
    called = hooks.of(session)  # type: ignore[arg-type]
    called.on_step_begin()
    called.on_instruction_begin("forward", microbatch=0)
    device.reach(0.0)
    session.wait_for(1)
    called.on_step_begin()  # never reached, as the forward
    assert (hooks.next_step, session.next_step) == (9, 8)
    called.on_step_failed()
    assert session.wait_for(2)[1].endswith("step failed")
    assert hooks.next_step == session.next_step == 8
    launch_step(called)
    assert (hooks.next_step, session.next_step) == (9, 8)  # steps count as they are launched
    device.reach(4.0, 5.0, 6.0, 7.0, 9.0, 10.0)
    lines = session.wait_for(6)
    assert [line.split(" ", 1)[1] for line in lines[2:]] == [
        "step begins",
        "forward 0 of 0",
        "forward 0 of 0 ends",
        "step ends",
    ]
    assert lines[-1].startswith("10.0 ")
    hooks.close()


def test_an_error_of_the_device_ends_the_step_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = Device()
    hooks, session = stream_of(device)
    called = hooks.of(session)  # type: ignore[arg-type]
    launch_step(called)
    device.fail()
    assert session.wait_for(1) == ["0.0 step failed"]
    launch_step(called)
    hooks.close()
    assert session.log == ["0.0 step failed"]
    (record,) = caplog.records
    assert "no longer followed on the device: CUDA error" in record.getMessage()


def test_a_device_that_never_ends_holds_the_end_up_only_so_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flyball_integrations.shared.device_hooks._CLOSE_TIMEOUT_S", 0.05)
    device = Device()
    timeline = DeviceTimeline(CUDA, device_module=device)
    called: list[str] = []
    timeline.call(lambda: called.append("first"))
    timeline.close()
    assert called == []
    assert "did not finish within 0.05 s" in caplog.text
    device.reach(0.0)
    (thread,) = [each for each in threading.enumerate() if each.name == "flyball-device-timeline"]
    thread.join(LONGEST_WAIT_S)
    assert not thread.is_alive()
    assert called == []


def test_at_the_end_of_the_interpreter_what_was_launched_is_called() -> None:
    script = """
import torch
from tests.unit.integrations.test_device_hooks import CUDA, Device, DeviceTimeline
device = Device()
timeline = DeviceTimeline(CUDA, device_module=device)
import atexit
atexit.register(lambda: print("session closes"))
timeline.call(lambda: print("step ends"))
import threading
threading.Timer(0.05, lambda: device.reach(0.0)).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "step ends\nsession closes\n"


def test_in_a_forked_child_nothing_is_called_and_nothing_hangs() -> None:
    device = Device()
    hooks, session = stream_of(device)
    launch_step(hooks.of(session))  # type: ignore[arg-type]
    pid = os.fork()
    if pid == 0:
        launch_step(hooks.of(session))  # type: ignore[arg-type]
        hooks.close()
        os._exit(device.num_launched)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    device.reach(0.0, 1.0, 2.0, 3.0)
    assert len(session.wait_for(4)) == 4
    hooks.close()


def test_with_synchronize_the_stream_is_waited_for_and_on_the_cpu_nothing() -> None:
    waited: list[str] = []

    def current_stream(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(synchronize=lambda: waited.append(str(device)))

    module = SimpleNamespace(current_stream=current_stream, Event=None)
    hooks = DeviceHooks(torch.device("cuda", 3), "synchronize", device_module=module)
    session = HookLog()
    assert hooks.of(session) is session  # type: ignore[arg-type]
    assert hooks.clock_s is None
    assert waited == []  # asked for in each wait: training may change the stream
    hooks.synchronize()
    hooks.synchronize()
    assert waited == ["cuda:3"] * 2
    timings: tuple[Timing, ...] = ("stream", "synchronize")
    for timing in timings:
        hooks = DeviceHooks(torch.device("cpu"), timing)
        assert hooks.of(session) is session  # type: ignore[arg-type]
        assert hooks.clock_s is None
        hooks.synchronize()
        hooks.close()


def test_a_session_sets_the_same_clocks_by_stream_as_at_once_and_while_the_host_is_ahead() -> None:
    rows = (("forward", 0, 1200), ("forward", 1, 900), ("backward", 0, 1400), ("backward", 1, 900))

    def trained(device: Device | None) -> tuple[list[int | str], list[float]]:
        gpu = RecordingGpu()
        timing: Timing = "synchronize" if device is None else "stream"
        hooks = DeviceHooks(CUDA if device else torch.device("cpu"), timing, device_module=device)
        session = RankSession(
            gpu=gpu, job_id="j", rank=0, stage=0, planner=None, clock=hooks.clock_s
        )
        session.plans.put(compiled_plan(*rows), 0)
        with session:
            called = hooks.of(session)
            for _ in range(3):  # all three are launched before the device begins
                called.on_step_begin()
                for kind, microbatch, _ in rows:
                    called.on_instruction_begin(kind, microbatch=microbatch)
                    called.on_instruction_end(kind, microbatch=microbatch)
                called.on_step_end()
            if device is not None:
                assert gpu.told == []
                device.reach(*(10.0 * number for number in range(30)))
            hooks.close()
            return list(gpu.told), [step.time_s for step in session.history]

    at_once, _ = trained(None)
    by_stream, times_s = trained(Device())
    assert by_stream == at_once
    assert by_stream[:5] == [1200, 900, 1400, 900, 1200]
    assert times_s == pytest.approx([0.09] * 3)


def test_a_wait_within_a_microbatch_is_that_of_its_instruction_as_the_device_reaches_it() -> None:
    device = Device()
    hooks = DeviceHooks(CUDA, "stream", device_module=device)
    session = RankSession(
        gpu=None, job_id="job", rank=0, stage=0, planner=None, clock=hooks.clock_s
    )
    waits = RankWaits(session, device=CUDA, hooks=hooks)
    model = nn.Linear(1, 1)
    model.forward = waits.around(model.forward)
    steps = MicrobatchSteps(
        model, hooks.of(session), waits, synchronize=hooks.synchronize, meets=lambda: True
    )
    with steps.step():
        model(torch.ones(1, 1)).sum().backward()
    # Of the step, the forward, the wait in it, the backward, and the step's end.
    device.reach(0.0, 1.0, 2.0, 5.0, 9.0, 10.0, 30.0, 31.0)
    hooks.close()
    forward, backward = session.last_step_timings
    assert (forward.kind, backward.kind) == ("forward", "backward")
    assert forward.compute_time_s == pytest.approx(0.005)
    assert forward.receive_time_s == pytest.approx(0.003)
    assert (backward.compute_time_s, backward.receive_time_s) == pytest.approx((0.020, 0.0))
