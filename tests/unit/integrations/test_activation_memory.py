from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

import torch
from deepspeed.runtime.pipe import schedule
from hypothesis import given
from hypothesis import strategies as st

from flyball_integrations.activation_memory import (
    ActivationMeter,
    RankMemory,
    SavedTensorsMeter,
    free_cuda_bytes,
    memory_by_stage,
    registered_memory,
)


class WrittenMeter:
    """Adds the next of the given numbers for each block."""

    def __init__(self, *sizes: int) -> None:
        self.num_bytes = 0
        self._sizes = iter(sizes)

    @contextmanager
    def measuring(self, engine: object, buffer_id: int) -> Iterator[None]:
        yield
        self.num_bytes += next(self._sizes)


def engine_with(inputs: Any, outputs: Any = None) -> Any:  # noqa: ANN401 - stands for DeepSpeed's
    return SimpleNamespace(pipe_buffers={"inputs": [inputs], "outputs": [outputs]})


def forwards(meter: ActivationMeter, engine: object, num_forwards: int) -> None:
    """Receive and forward so many microbatches."""
    instructions = meter.wrap(
        {kind: lambda *_, **__: "done" for kind in (schedule.RecvActivation, schedule.ForwardPass)}
    )
    for _ in range(num_forwards):
        for execute in instructions.values():
            assert execute(engine, buffer_id=0) == "done"


MEASURED = (schedule.RecvActivation, schedule.ForwardPass)


def test_the_most_of_all_microbatches_but_the_first_counts() -> None:
    # Workspaces come with the first: 1000. Then 10 + 30, then 0 + 25 in a buffer used again.
    meter = ActivationMeter(WrittenMeter(10, 990, 10, 30, 0, 25), measured=MEASURED)
    with meter.measuring_step():
        forwards(meter, engine_with(torch.zeros(4)), 3)
    forwards(meter, engine_with(torch.zeros(4)), 3)  # outside it does not measure
    assert meter.activation_bytes == 40


def test_a_single_microbatch_counts_with_all_that_came_with_it() -> None:
    meter = ActivationMeter(WrittenMeter(10, 990), measured=MEASURED)
    assert meter.activation_bytes == 0
    with meter.measuring_step():
        forwards(meter, engine_with(torch.zeros(4)), 1)
    assert meter.activation_bytes == 1000


def test_an_input_that_gets_a_gradient_counts_once_more() -> None:
    received = torch.zeros(4, requires_grad=True)
    meter = ActivationMeter(WrittenMeter(10, 0), measured=MEASURED)
    with meter.measuring_step():
        forwards(meter, engine_with((received, torch.zeros(2, dtype=torch.int64))), 1)
    assert meter.activation_bytes == 10 + 4 * 4


def test_saved_tensors_are_counted_once_and_parameters_are_not() -> None:
    layer = torch.nn.Linear(8, 8)
    inputs = torch.zeros(2, 8)  # 64 bytes
    engine = engine_with(inputs)
    engine.module = layer
    meter = SavedTensorsMeter()
    with meter.measuring(engine, 0):
        # relu keeps its result, which is the output too; the layer keeps its input.
        engine.pipe_buffers["outputs"][0] = torch.relu(layer(inputs))
    assert meter.num_bytes == 64 + 64


def test_a_backward_under_measurement_gives_the_same_gradients() -> None:
    layer = torch.nn.Linear(8, 8)
    inputs = torch.randn(2, 8, requires_grad=True)
    torch.relu(layer(inputs)).sum().backward()
    assert inputs.grad is not None
    expected = inputs.grad.clone()
    inputs.grad = None
    engine = engine_with(inputs, torch.zeros(1))
    engine.module = layer
    with SavedTensorsMeter().measuring(engine, 0):
        outputs = torch.relu(layer(inputs))
    outputs.sum().backward()
    assert torch.equal(inputs.grad, expected)


def test_a_tenth_of_the_device_stays_free_beside_the_most_that_was_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 300 are free, 700 reserved: 1000 this process could have, 900 that it may.
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (300, 5000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 700)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 650)
    assert free_cuda_bytes() == 250
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 950)
    assert free_cuda_bytes() == 0


def test_a_stage_has_the_largest_activation_and_the_least_free_memory_of_its_ranks() -> None:
    rows = [(0, 100, 900), (1, 50, 500), (0, 110, 1000), (1, 50, 400)]
    assert memory_by_stage(rows, num_stages=2) == (
        RankMemory(activation_bytes=110, free_bytes=900),
        RankMemory(activation_bytes=50, free_bytes=400),
    )


@pytest.mark.parametrize(
    ("activation_bytes", "free_bytes", "registered"),
    [
        (100, 0, (100, 0)),
        (100, 399, (100, 300)),
        (100, 10**9, (100, 800)),  # all 8 microbatches
        (127, 127, (127, 127)),
        (1000, 5000, (1000, 5000)),
        (1001, 5000, (1008, 4032)),  # to a multiple of 8, and so only 4 fit
    ],
)
def test_what_is_registered_is_round_and_whole_microbatches(
    activation_bytes: int, free_bytes: int, registered: tuple[int, int]
) -> None:
    memory = RankMemory(activation_bytes=activation_bytes, free_bytes=free_bytes)
    found = registered_memory(memory, num_microbatches=8)
    assert (found.activation_bytes, found.free_bytes) == registered


@given(
    activation_bytes=st.integers(1, 2**45),
    free_bytes=st.integers(0, 2**48),
    num_microbatches=st.integers(1, 512),
)
def test_what_is_registered_never_promises_more_than_there_is(
    activation_bytes: int, free_bytes: int, num_microbatches: int
) -> None:
    memory = RankMemory(activation_bytes=activation_bytes, free_bytes=free_bytes)
    found = registered_memory(memory, num_microbatches=num_microbatches)
    assert found.num_more <= min(memory.num_more, num_microbatches)
    assert activation_bytes <= found.activation_bytes <= activation_bytes * 65 / 64 + 1
    # Saying it again says the same.
    assert registered_memory(found, num_microbatches=num_microbatches) == found
