"""A rank's plan as it is sent: what was put in comes out, and its size is bounded."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.memory_planner import plan_of

from flyball_client.session.active_plan import compile_plan
from flyball_wire.codec import decode, encode
from flyball_wire.plans.rank_plan import MAX_PART_BYTES, RankPlan, most_bytes

KINDS = ("forward", "backward", "backward_weight")


def random_instructions(
    num: int, clocks_mhz: range, chance: random.Random
) -> list[tuple[str, int, int, int]]:
    return [
        (
            chance.choice(KINDS),
            chance.randrange(256),
            chance.choice(clocks_mhz),
            chance.randrange(8),
        )
        for _ in range(num)
    ]


def num_bytes(plan: RankPlan) -> int:
    return len(json.dumps(encode(plan), separators=(",", ":")).encode())


def bound_of(plan: RankPlan) -> int:
    return most_bytes(
        len(plan.instructions),
        num_clocks=len(plan.sm_clocks_mhz),
        num_requests=len(plan.requests),
        num_rows=len(plan.cycle_rows),
        cycle_length=len(plan.cycle),
    )


@given(
    num=st.integers(0, 40),
    # Indices of one byte and of two.
    num_clocks=st.sampled_from([1, 2, 256, 257, 2000]),
    num_rows=st.integers(0, 20),
    seed=st.integers(0, 2**32),
)
def test_what_was_planned_arrives_and_takes_no_more_than_the_bound(
    num: int, num_clocks: int, num_rows: int, seed: int
) -> None:
    chance, clocks_mhz = random.Random(seed), range(1, num_clocks + 1)
    rows = random_instructions(num, clocks_mhz, chance)
    distinct = [tuple(chance.choices(clocks_mhz, k=num)) for _ in range(num_rows)]
    cycle_mhz = chance.choices(distinct, k=2 * num_rows) if distinct else []
    requests = tuple((i + 1, i, chance.random() * 1e-5) for i in range(num))
    plan = plan_of(*rows, cycle_mhz=cycle_mhz)
    received = decode(RankPlan, json.loads(json.dumps(encode(plan))))
    assert received == plan
    compiled = compile_plan(received, stage=0, supported_mhz=())
    columns = (compiled.kinds, compiled.microbatches, compiled.sm_clocks_mhz, compiled.chunks)
    assert list(zip(*columns, strict=True)) == rows
    assert list(compiled.cycle_mhz or ()) == cycle_mhz
    with_requests = plan_of(*rows, cycle_mhz=cycle_mhz, requests=requests)
    assert num_bytes(with_requests) <= bound_of(with_requests)


@pytest.mark.parametrize("changes", [{"num_rows": 0}, {"num_rows": 64}])
def test_the_largest_plan_of_a_rank_fits(changes: dict[str, Any]) -> None:
    """64 stages, 256 microbatches, 8 chunks with weight gradients apart."""
    num, chance, clocks_mhz = 6144, random.Random(1), range(210, 1995, 15)
    rows = random_instructions(num, clocks_mhz, chance)
    cycle_mhz = [tuple(chance.choices(clocks_mhz, k=num)) for _ in range(changes["num_rows"])]
    plan = plan_of(
        *rows,
        cycle_mhz=cycle_mhz,
        requests=() if cycle_mhz else tuple((i + 1, i, i / 3e5) for i in range(num)),
    )
    assert num_bytes(plan) <= bound_of(plan) <= MAX_PART_BYTES
    compiled = compile_plan(plan_of(*rows, cycle_mhz=cycle_mhz), stage=0, supported_mhz=())
    assert list(compiled.cycle_mhz or ()) == cycle_mhz
