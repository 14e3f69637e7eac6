"""Megatron-Core's real schedules under Flyball, on 4 ranks, over gloo on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import pytest
from tests.integration.rank_server import Findings, RankServer

if find_spec("megatron") is None:
    pytest.skip("needs megatron-core", allow_module_level=True)

_WAYS = ("patch", "timers")

# Written by hand for 4 microbatches. 1F1B: the stages behind are the warm-up forwards.
# Interleaved: 2 (stages behind) + (chunks - 1) (ranks) warm-up forwards, chunk a (the first)
# on as many microbatches as there are ranks before chunk b; backwards begin with chunk b.
_INTERLEAVED = [
    "F0a F1a F2a F3a F0b F1b F2b F3b B0b B1b B2b B3b B0a B1a B2a B3a",
    "F0a F1a F2a F3a F0b F1b F2b F3b B0b B1b B2b B3b B0a B1a B2a B3a",
    "F0a F1a F2a F3a F0b F1b F2b B0b F3b B1b B2b B3b B0a B1a B2a B3a",
    "F0a F1a F2a F3a F0b B0b F1b B1b F2b B2b F3b B3b B0a B1a B2a B3a",
]
_ORDERS = {
    "1f1b": [
        "F0a F1a F2a F3a B0a B1a B2a B3a",
        "F0a F1a F2a B0a F3a B1a B2a B3a",
        "F0a F1a B0a F2a B1a F3a B2a B3a",
        "F0a B0a F1a B1a F2a B2a F3a B3a",
    ],
    # Overlapped sends change no order.
    "interleaved, overlapped": _INTERLEAVED,
    "interleaved": _INTERLEAVED,
}


@pytest.fixture(scope="module")
def ranks(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> list[Findings]:
    """Results of each rank."""
    folder = tmp_path_factory.mktemp("megatron")
    return rank_server.run("megatron_scenarios", folder, num_ranks=4)


def _runs(ranks: Sequence[Findings]) -> list[tuple[str, str, Findings, Findings]]:
    """(order that is expected, way of hooking, what was found with it, what without)."""
    return [
        (orders[number], way, rank[schedule][way], rank[schedule])
        for number, rank in enumerate(ranks)
        for schedule, orders in _ORDERS.items()
        for way in _WAYS
    ]


def test_hooks_see_megatrons_order_and_an_evaluation_between_steps_is_no_step(
    ranks: Sequence[Findings],
) -> None:
    for order, _, found, _ in _runs(ranks):
        assert found["first_step"] == found["second_step"] == order
        assert found["steps_after_evaluation"] == 1
        # A step goes on until the optimizer's part is over where it is asked to.
        assert found["steps_inside_a_step"] == 1
        # The one after `detach` is not counted.
        assert found["steps"] == 2
        assert "call detach() first" in found["attached_twice"]


def test_gradients_and_losses_are_the_same_bits_with_and_without(
    ranks: Sequence[Findings],
) -> None:
    for _, _, found, stock in _runs(ranks):
        for when in ("", "_after_detach"):
            assert found[f"gradients{when}"] == stock["gradients"]
            assert found[f"losses{when}"] == stock["losses"]
    for rank in ranks:
        for run in _ORDERS:
            assert all(any(gradient) for gradient in rank[run]["gradients"])
    assert len(ranks[-1]["1f1b"]["losses"]) == 4


def test_where_nothing_is_hooked_inside_a_step_it_runs_at_the_plans_clock(
    ranks: Sequence[Findings],
) -> None:
    for rank in ranks:
        for schedule in _ORDERS:
            found, stock = rank[schedule]["whole"], rank[schedule]
            assert found["losses"] == stock["losses"]
            assert found["gradients"] == stock["gradients"]
            assert found["rebound"] == []
            assert found["ran"] == [["step", 1200]]
            assert found["steps"] == [[1, 0]]


def test_announced_steps_have_the_same_bits_and_iterators_keep_their_type(
    ranks: Sequence[Findings],
) -> None:
    for rank in ranks:
        for schedule in _ORDERS:
            found = rank[schedule]["announced"]
            assert found["flyball"] == found["stock"]
            assert found["are_as_given"]
            # While a step runs, the next one's four microbatches; each chunk's iterator has them.
            assert {tuple(each) for each in found["announced"]} == {(1, 4), (2, 4)}


def test_detach_leaves_no_trace_and_the_timers_way_changes_no_function(
    ranks: Sequence[Findings],
) -> None:
    for _, way, found, _ in _runs(ranks):
        assert found["left_behind"] == []
        assert found["timers_are_restored"]
        rebound = [name for name in found["rebound"] if name != "_flyball_attachment"]
        if way == "timers":
            assert rebound == []
            # Timers that were there go on, and receives are timed.
            assert found["forward_compute_s"] > 0
            assert found["receive_s"] > 0
        else:
            assert {"forward_step", "backward_step"} < set(rebound)
