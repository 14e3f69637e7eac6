"""Readings of an energy counter that takes long to answer."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from flyball_client.session.energy_reader import EnergyReader

TIMEOUT_S = 20.0


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


def test_requests_return_at_once_and_one_reading_serves_those_that_came_before_its_end() -> None:
    gpu, read = SlowGpu(), list[tuple[str, float | None]]()
    reader = reader_of(gpu)
    reader.request(lambda energy_j: read.append(("end", energy_j)))
    gpu.wait_for_call(1)
    reader.request(lambda energy_j: read.append(("begin", energy_j)))
    reader.wait(0.01)  # it ends without an answer
    assert read == []
    gpu.answer(100.0)
    reader.wait(TIMEOUT_S)
    assert read == [("end", 100.0), ("begin", 100.0)]
    reader.request(lambda energy_j: read.append(("end", energy_j)))
    gpu.answer(130.0)
    reader.wait(TIMEOUT_S)
    assert read[2:] == [("end", 130.0)]
    assert gpu.num_calls == 2


def test_a_counter_that_fails_is_not_read_again(caplog: pytest.LogCaptureFixture) -> None:
    gpu, read = SlowGpu(), list[float | None]()
    reader = reader_of(gpu)
    gpu.answer(RuntimeError("GPU is lost"))
    for _ in range(2):
        reader.request(read.append)
        reader.wait(TIMEOUT_S)
    assert read == [None, None]
    assert gpu.num_calls == 1
    assert caplog.messages == ["job j rank 0: energy is not measured: GPU is lost"]


def test_a_callback_that_fails_does_not_end_the_readings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpu, read = SlowGpu(), list[float | None]()
    reader = reader_of(gpu)

    def fail(energy_j: float | None) -> None:
        raise ValueError(energy_j)

    reader.request(fail)
    reader.request(read.append)
    gpu.answer(1.0)
    gpu.answer(2.0)
    reader.wait(TIMEOUT_S)
    assert read in ([1.0], [2.0])
    assert "a step's energy is lost" in caplog.text


def test_its_thread_ends_with_it_and_serves_what_was_requested_before() -> None:
    gpu, read = SlowGpu(), list[float | None]()
    reader = reader_of(gpu)
    reader.request(read.append)
    gpu.answer(1.0)
    reader.close(TIMEOUT_S)
    reader.request(read.append)
    assert read == [1.0]
    thread = threading.enumerate()[-1]
    assert thread.name == "flyball-energy-reader"
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_without_a_gpu_and_for_one_of_this_process_the_answer_comes_at_once() -> None:
    read = list[float | None]()
    reader_of(None).request(read.append)
    reader_of(SimpleNamespace(address=None, total_energy_j=lambda: 7.0)).request(read.append)
    assert read == [None, 7.0]
