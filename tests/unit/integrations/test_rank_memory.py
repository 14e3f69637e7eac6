"""Memory reported by a rank, and by all ranks together to the planner."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

import torch
from hypothesis import given
from hypothesis import strategies as st

from flyball_integrations.shared.rank_memory import (
    RankMemory,
    free_cuda_bytes,
    memory_by_stage,
    registered_memory,
)


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
