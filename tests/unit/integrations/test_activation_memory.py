from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

import torch
from deepspeed.runtime.pipe import schedule

from flyball_integrations.deepspeed.activation_memory import ActivationMeter, Measuring


def written(*sizes: int) -> Measuring:
    """Takes the next of the given numbers for each block."""
    left = iter(sizes)

    @contextmanager
    def measuring(engine: object, buffer_id: int) -> Iterator[list[int]]:
        yield [next(left)]

    return measuring


def forwards(meter: ActivationMeter, inputs: object, num_forwards: int) -> None:
    """Receive and forward so many microbatches."""
    engine = SimpleNamespace(pipe_buffers={"inputs": [inputs], "outputs": [None]})
    instructions = meter.wrap(
        {kind: lambda *_, **__: "done" for kind in (schedule.RecvActivation, schedule.ForwardPass)}
    )
    for _ in range(num_forwards):
        for execute in instructions.values():
            assert execute(engine, buffer_id=0) == "done"


MEASURED = (schedule.RecvActivation, schedule.ForwardPass)


def test_the_most_of_all_microbatches_but_the_first_counts() -> None:
    # Workspaces come with the first: 1000. Then 10 + 30, then 0 + 25 in a buffer used again.
    meter = ActivationMeter(written(10, 990, 10, 30, 0, 25), measured=MEASURED)
    with meter.measuring_step():
        forwards(meter, torch.zeros(4), 3)
    forwards(meter, torch.zeros(4), 3)  # outside it does not measure
    assert meter.activation_bytes == 40


def test_a_single_microbatch_counts_whole_and_an_input_that_gets_a_gradient_once_more() -> None:
    received = torch.zeros(4, requires_grad=True)
    meter = ActivationMeter(written(10, 990), measured=MEASURED)
    assert meter.activation_bytes == 0
    with meter.measuring_step():
        forwards(meter, (received, torch.zeros(2, dtype=torch.int64)), 1)
    assert meter.activation_bytes == 1000 + 4 * 4
