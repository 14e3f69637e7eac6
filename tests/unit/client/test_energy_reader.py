"""Readings of an energy counter that takes long to answer."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tests.governed_rank.processes import wait_until

from flyball_client.session import energy_reader
from flyball_client.session.energy_reader import EnergyReader, _Reading

TIMEOUT_S = 60.0


class SlowGpu:
    """A GPU of another process, whose counter answers when the test says so."""

    address = SimpleNamespace(uuid="GPU-0")

    def __init__(self) -> None:
        self.energies_j: list[float | Exception] = []
        self.num_calls = 0
        self.changed = threading.Condition()

    def answer(self, energy_j: float | Exception) -> None:
        with self.changed:
            self.energies_j.append(energy_j)
            self.changed.notify_all()

    def wait_for_call(self, number: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.num_calls >= number, TIMEOUT_S)

    def total_energy_j(self) -> float:
        with self.changed:
            self.num_calls += 1
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.energies_j, TIMEOUT_S)
            answer = self.energies_j.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def reader_of(gpu: Any) -> EnergyReader:  # noqa: ANN401 - stands for a GpuDevice
    return EnergyReader(gpu, rank_name="job j rank 0")


def test_requests_return_at_once_and_one_reading_serves_those_that_came_before_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(energy_reader, "LATE_AFTER_S", TIMEOUT_S)  # on a busy computer
    gpu, read = SlowGpu(), list[tuple[str, float | None]]()
    reader = reader_of(gpu)
    reader.request(lambda energy_j: read.append(("end", energy_j)))
    gpu.wait_for_call(1)
    reader.request(lambda energy_j: read.append(("begin", energy_j)))
    reader.wait(0.01)  # it ends without an answer
    assert read == []
    gpu.answer(100.0)
    gpu.answer(130.0)  # the counter moves
    reader.wait(TIMEOUT_S)
    assert read == [("end", 100.0), ("begin", 100.0)]
    reader.request(lambda energy_j: read.append(("end", energy_j)))
    gpu.answer(160.0)
    gpu.answer(161.0)
    reader.wait(TIMEOUT_S)
    assert read[2:] == [("end", 160.0)]
    assert gpu.num_calls == 4


def test_a_call_that_hangs_measures_nothing_of_the_moments_before_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps that end meanwhile would have 0 J, and one of them the energy of all."""
    now_s = 100.0
    gpu, read = SlowGpu(), list[float | None]()
    reader = reader_of(gpu)
    monkeypatch.setattr(energy_reader, "time", SimpleNamespace(monotonic=lambda: now_s))
    for number in range(3):
        reader.request(read.append)
        gpu.wait_for_call(1)
        now_s += 0.2 * (number < 2)  # two of before, one of its end
    gpu.answer(50.0)
    wait_until(lambda: caplog.messages, "it is noted")
    reader.request(read.append)
    gpu.answer(60.0)
    gpu.answer(70.0)
    reader.wait(TIMEOUT_S)
    assert read == [None, None, None, 60.0]
    assert caplog.messages == [
        "job j rank 0: energy is not measured for now: its counter is read late",
        "job j rank 0: energy is measured again; 1 readings were missed",
    ]


class Counter:
    """A counter of another process, at a time of the test's choice, read step by step."""

    address = SimpleNamespace(uuid="GPU-0")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.energy_j = 100.0
        self.error: Exception | None = None
        self.num_calls = 0
        self.read: list[float | None] = []
        self.reader = reader_of(self)
        monkeypatch.setattr(energy_reader, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def total_energy_j(self) -> float:
        self.num_calls += 1
        if self.error is not None:
            raise self.error
        return self.energy_j

    def steps(self, number: int, *, step_s: float = 0.1, step_j: float = 10.0) -> None:
        """Read it at the end of so many steps."""
        for _ in range(number):
            self.now_s += step_s
            self.energy_j += step_j
            self.reader._note(_Reading(self.reader._read(), [self.read.append]))


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


@pytest.mark.parametrize("step_s", [0.02, 1.0])
def test_nothing_of_a_counter_that_stands_still_is_measured(
    counter: Counter, caplog: pytest.LogCaptureFixture, step_s: float
) -> None:
    counter.steps(3, step_s=step_s)
    assert counter.read == [110.0, 120.0]  # the last one waits for the counter to move
    num_steps = round(2.0 / step_s)
    counter.steps(num_steps, step_s=step_s, step_j=0.0)
    # When it stopped is unknown, so the step before is not measured either.
    assert counter.read == [110.0, 120.0, *[None] * (1 + num_steps)]
    assert caplog.messages == [
        "job j rank 0: energy is not measured for now: its counter does not move"
    ]
    counter.steps(2, step_s=step_s)
    assert counter.read[3 + num_steps :] == [140.0]
    assert "energy is measured again" in caplog.messages[1]


def test_a_counter_that_moves_less_often_than_steps_end_is_measured(counter: Counter) -> None:
    for _ in range(20):
        counter.steps(1, step_s=0.02, step_j=10.0)
        counter.steps(4, step_s=0.02, step_j=0.0)
    counter.steps(1)
    assert len(counter.read) == 100
    assert None not in counter.read


def test_a_counter_that_fails_is_read_again_after_pauses_that_grow(
    counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    counter.steps(2)
    counter.error = RuntimeError("Timeout")
    counter.steps(100)
    # After 1, 2, 4 s; the reading before is of a counter that moved.
    assert counter.num_calls == 2 + 4
    assert counter.read == [110.0, 120.0, *[None] * 100]
    counter.error = None
    counter.steps(100)
    assert counter.read[-10:] == pytest.approx([2000.0 + 10 * i for i in range(2, 12)])
    failed, again = caplog.messages
    assert failed == "job j rank 0: energy is not measured for now: Timeout"
    assert "energy is measured again; " in again


def test_a_counter_that_falls_goes_on_from_there(counter: Counter) -> None:
    counter.steps(2)
    counter.energy_j = 0.0
    counter.steps(3)
    assert counter.read == [110.0, 120.0, 10.0, 20.0]


def test_a_callback_that_fails_does_not_end_the_readings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpu, read = SlowGpu(), list[float | None]()
    reader = reader_of(gpu)

    def fail(energy_j: float | None) -> None:
        raise ValueError(energy_j)

    for energy_j in (1.0, 2.0, 3.0):
        gpu.answer(energy_j)
    reader.request(fail)
    reader.request(read.append)
    reader.wait(TIMEOUT_S)
    assert read in ([1.0], [2.0])
    assert "a step's energy is lost" in caplog.text


def test_its_thread_ends_with_it_and_serves_what_was_requested_before() -> None:
    gpu, read = SlowGpu(), list[float | None]()
    reader = reader_of(gpu)
    reader.request(read.append)
    gpu.answer(1.0)
    gpu.answer(2.0)
    reader.close(TIMEOUT_S)
    reader.request(read.append)
    assert read == [1.0]
    thread = threading.enumerate()[-1]
    assert thread.name == "flyball-energy-reader"
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
