"""DeepSpeed's real pipeline engine under Flyball, on 2 and 4 stages, over gloo on the CPU."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from tests.integration.deepspeed_ranks import Findings, findings_by_num_ranks


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Findings]]:
    """What each rank found, of a run with two ranks and one with four."""
    return findings_by_num_ranks(
        "deepspeed_scenarios",
        tmp_path_factory.mktemp("deepspeed"),
        num_ranks=(2, 4),
        variables={"NOBODY_THERE": _address_of_nobody()},
    )


@pytest.fixture(params=[2, 4], ids=["2 stages", "4 stages"])
def ranks(request: pytest.FixtureRequest, runs: dict[int, list[Findings]]) -> list[Findings]:
    """What each rank found, by rank."""
    return runs[request.param]


def test_hooks_see_each_stage_run_1f1b_in_the_order_of_its_microbatches(
    ranks: Sequence[Findings],
) -> None:
    # Written by hand from 1F1B with 4 microbatches: min(stages - stage - 1, 4) warm-up
    # forwards, then alternation, then the backwards that are left.
    by_num_stages = {
        2: ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"],
        4: [
            "F0 F1 F2 F3 B0 B1 B2 B3",
            "F0 F1 F2 B0 F3 B1 B2 B3",
            "F0 F1 B0 F2 B1 F3 B2 B3",
            "F0 B0 F1 B1 F2 B2 F3 B3",
        ],
    }
    for stage, (rank, order) in enumerate(zip(ranks, by_num_stages[len(ranks)], strict=True)):
        found = rank["hooks_see_what_runs"]
        assert found["stage"] == stage
        assert found["first_step"] == _calls_of_step(order)


def test_an_evaluation_between_steps_is_not_seen_and_confuses_nothing(
    ranks: Sequence[Findings],
) -> None:
    for rank in ranks:
        found = rank["hooks_see_what_runs"]
        assert found["during_evaluation"] == []
        # The third step ran after the hooks were taken off, and left no trace.
        assert found["second_step_and_after_removal"] == found["first_step"]


def test_eager_p2p_trains_to_the_same_bits(ranks: Sequence[Findings]) -> None:
    for rank in ranks:
        assert len(rank["p2p_stock"]["parameters"]) == 2 * (8 * 8 + 8)
        assert rank["p2p_eager"]["losses"] == rank["p2p_stock"]["losses"]
        assert rank["p2p_eager"]["parameters"] == rank["p2p_stock"]["parameters"]


def test_training_moves_the_loss_so_equal_bits_mean_something(ranks: Sequence[Findings]) -> None:
    losses = [float.fromhex(loss) for loss in ranks[0]["p2p_stock"]["losses"]]
    assert len(set(losses)) == len(losses)


def test_eager_p2p_is_in_force_in_training_steps_only(ranks: Sequence[Findings]) -> None:
    for rank in ranks:
        assert not rank["p2p_eager"]["stock_in_steps"]
        assert rank["p2p_eager"]["stock_in_evaluation"]
        assert rank["p2p_eager"]["stock_afterwards"]


def test_attach_sets_three_attributes_of_the_engine_and_detach_removes_them(
    ranks: Sequence[Findings],
) -> None:
    for rank in ranks:
        found = rank["attached_without_planner"]
        assert found["replaced"] == ["_INSTRUCTION_MAP", "_flyball_attachment", "train_batch"]
        assert found["attributes"] == rank["p2p_stock"]["attributes"]
        assert found["train_batch_is_the_class's"]
        assert found["map_is_the_class's"]


def test_attaching_twice_is_refused(ranks: Sequence[Findings]) -> None:
    for rank in ranks:
        assert "detach(engine) first" in rank["attached_without_planner"]["attached_twice"]


def test_training_goes_on_at_default_clocks_while_the_planner_is_away(
    ranks: Sequence[Findings],
) -> None:
    for rank in ranks:
        found = rank["attached_without_planner"]
        assert found["losses"] == rank["p2p_stock"]["losses"]
        assert found["parameters"] == rank["p2p_stock"]["parameters"]
        assert found["steps"] == [0, 1, 2]
        assert found["versions"] == [None, None, None]
        assert found["clock_mhz"] == 1410


def _calls_of_step(order: str) -> list[list[str | int | None]]:
    kinds = {"F": "forward", "B": "backward"}
    calls: list[list[str | int | None]] = [["step-begin"]]
    for unit in order.split():
        kind, microbatch = kinds[unit[0]], int(unit[1:])
        calls += [["begin", kind, microbatch], ["end", kind, microbatch]]
    return [*calls, ["step-end"]]


def _address_of_nobody() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
