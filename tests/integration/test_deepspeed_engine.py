"""DeepSpeed's real pipeline engine under Flyball, over gloo on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.integration.rank_server import Findings, RankServer
from tests.planner.live import live_planner
from tests.planner.ports import free_port

from flyball_wire import routes

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

# All ranks change in this step, and one round later where one of them is late.
_FIRST_PLANNED_STEP = 10
_LATE_FIRST_PLANNED_STEP = 18
_NUM_STEPS = 20
# Written by hand: the forwards in front, alternation, and the backwards that are left.
_FOUR_STAGES = ["FFFFFFBBBBBB", "FFFFFBFBBBBB", "FFFBFBFBFBBB", "FBFBFBFBFBFB"]
_TWO_PIPELINES = ["FFFFBBBB", "FFFFBBBB", "FBFBFBFB", "FBFBFBFB"]


@pytest.fixture(scope="module")
def two_ranks(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> list[Findings]:
    """Findings of two stages, and what the planner knows of their job."""
    with live_planner() as planner:
        url = str(planner.http.base_url)
        folder = tmp_path_factory.mktemp("two-ranks")
        ranks = rank_server.run("deepspeed_scenarios", folder, num_ranks=2, PLANNER_URL=url)
        job = planner.http.get(routes.fill(routes.JOB, job_id="orders")).json()
    return [rank | {"registration": job["registration"]} for rank in ranks]


@pytest.fixture(scope="module")
def four_ranks(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> list[Findings]:
    """Findings of four stages, and of two stages of two ranks each."""
    nobody = f"http://127.0.0.1:{free_port()}"
    folder = tmp_path_factory.mktemp("four-ranks")
    return rank_server.run("deepspeed_scenarios", folder, num_ranks=4, NOBODY_THERE=nobody)


def require_same_bits(
    ranks: Sequence[Findings],
    name: str,
    stock: str,
    orders: Sequence[str],
    *,
    first_planned_step: int = _FIRST_PLANNED_STEP,
) -> None:
    """The same losses and parameters as DeepSpeed's, in another order from that step on."""
    num_planned = _NUM_STEPS - first_planned_step
    for rank, order in zip(ranks, orders, strict=True):
        found, expected = rank[name], rank[stock]
        for quantity in ("losses", "parameters", "evaluations"):
            assert found[quantity] == expected[quantity]
        assert found["orders"] == expected["orders"][:first_planned_step] + [order] * num_planned
        assert found["versions"] == [None] * first_planned_step + [1] * num_planned
        assert found["num_unplanned"] == [0] * _NUM_STEPS
        # `detach` leaves DeepSpeed as it was.
        assert (found["changed_by_detach"], found["is_stock_p2p"]) == ([], True)
        assert found["num_slots"] == [0, 0, 0, 0]
    # Training moves the loss, so equal bits mean something.
    assert len(set(ranks[0][stock]["losses"])) == _NUM_STEPS
    assert len(set(ranks[0][stock]["evaluations"])) == 2
    assert len(ranks[0][stock]["parameters"]) == 2 * (8 * 8 + 8)


def test_hooks_are_called_for_each_stages_1f1b_in_the_order_of_its_microbatches(
    four_ranks: Sequence[Findings],
) -> None:
    # Written by hand from 1F1B with 6 microbatches: min(stages - stage - 1, 6) warm-up
    # forwards, then alternation, then the backwards that are left.
    orders = [
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    ]
    kinds = {"F": "forward", "B": "backward"}
    for stage, (rank, order) in enumerate(zip(four_ranks, orders, strict=True)):
        step = [
            f"{kinds[unit[0]]} {unit[1:]} of 0{call}"
            for unit in order.split()
            for call in ("", " ends")
        ]
        # Neither the evaluation in between nor the step after the removal left a trace.
        expected = ["step begins", *step, "step ends"] * 2
        assert rank["hooked"] == {"stage": stage, "calls": expected}


def test_attached_without_a_planner_training_has_the_same_bits_at_default_clocks(
    four_ranks: Sequence[Findings],
) -> None:
    for rank in four_ranks:
        found, stock = rank["away"], rank["pipeline stock"]
        for quantity in ("losses", "parameters", "evaluations", "orders"):
            assert found[quantity] == stock[quantity]
        assert found["versions"] == [None] * _NUM_STEPS
        assert found["clock_mhz"] == 1410
        num_with_eager_p2p, num_trained = found["num_with_eager_p2p"]
        assert num_with_eager_p2p == num_trained
        # `attach` sets three attributes of the engine, once, and `detach` removes them.
        assert found["replaced"] == ["_INSTRUCTION_MAP", "_flyball_attachment", "train_batch"]
        assert found["attributes"] == stock["attributes"]
        assert found["is_stock_p2p"]
        assert "detach(engine) first" in found["attached_twice"]


@pytest.mark.parametrize("sends", ["eager", "pulled"])
def test_gpipes_order_whose_last_stage_holds_several_losses_trains_to_the_same_bits(
    two_ranks: list[Findings], sends: str
) -> None:
    require_same_bits(two_ranks, f"gpipe {sends}", "stock", ["FFFFBBBB", "FFFFBBBB"])
    assert [rank["stock"]["orders"][-1] for rank in two_ranks] == ["FFBFBFBB", "FBFBFBFB"]


@pytest.mark.parametrize(
    ("model", "sends", "orders"),
    [
        ("pipeline", "eager", _FOUR_STAGES),
        ("pipeline", "pulled", _FOUR_STAGES),
        ("checkpointing", "pulled", _FOUR_STAGES),
        ("ZeRO-0", "eager", _TWO_PIPELINES),
        ("ZeRO-1", "pulled", _TWO_PIPELINES),
    ],
)
def test_envpipes_order_on_four_ranks_trains_to_the_same_bits(
    four_ranks: list[Findings], model: str, sends: str, orders: list[str]
) -> None:
    if f"{model} stock" not in four_ranks[0]:
        pytest.skip("this DeepSpeed cannot checkpoint activations on the CPU")
    require_same_bits(four_ranks, f"{model} {sends}", f"{model} stock", orders)


def test_all_ranks_change_the_order_once_the_last_one_has_the_plan(
    two_ranks: list[Findings],
) -> None:
    orders = ["FFFBFBBB", "FBFBFBFB"]
    first_step = _LATE_FIRST_PLANNED_STEP
    require_same_bits(two_ranks, "envpipe late", "stock", orders, first_planned_step=first_step)


def test_an_order_agreed_on_while_steps_have_another_size_is_run_once_they_have_the_plans(
    two_ranks: list[Findings],
) -> None:
    first_step = _FIRST_PLANNED_STEP
    for rank, order in zip(two_ranks, ["FFFBFBBB", "FBFBFBFB"], strict=True):
        found, stock = rank["envpipe resized"], rank["stock resized"]
        assert found["losses"] == stock["losses"]
        assert found["parameters"] == stock["parameters"]
        assert [len(ran) for ran in stock["orders"]] == [8] * 8 + [12] * 3 + [8] * 9
        assert found["orders"] == [*stock["orders"][: first_step + 1], *[order] * 9]
        assert found["versions"] == [None] * first_step + [1] * 10
        assert found["num_unplanned"][first_step + 1 :] == [0] * 9


def test_probe_plans_set_clocks_in_deepspeeds_order_and_only_the_real_plan_changes_it(
    two_ranks: list[Findings],
) -> None:
    first_step = _LATE_FIRST_PLANNED_STEP
    for rank, order in zip(two_ranks, ["FFFBFBBB", "FBFBFBFB"], strict=True):
        found, stock = rank["probed"], rank["stock"]
        assert found["losses"] == stock["losses"]
        assert found["orders"] == [*stock["orders"][:first_step], *[order] * 2]
        assert found["versions"] == [None] * 4 + [1] * 4 + [2] * 10 + [3] * 2
        cycles = [*[1410, 1200] * 2, *[1200, 1200, 1410] * 3, 1200]
        assert found["clocks_mhz"] == [[clock] for clock in (*[None] * 4, *cycles, 1200, 1200)]
        assert found["num_unplanned"] == [0] * _NUM_STEPS


def test_orders_that_would_deadlock_or_have_no_room_are_not_run_and_logged_once(
    two_ranks: list[Findings],
) -> None:
    for rank in two_ranks:
        assert rank["refused"]["losses"] == rank["stock"]["losses"]
        assert rank["refused"]["orders"] == rank["stock"]["orders"]
        assert rank["refused"]["versions"] == [None] * _NUM_STEPS
    deadlock, no_room, refused = two_ranks[0]["refused"]["log"]
    assert "stage 0 for backward 0, stage 1 for forward 2" in deadlock
    assert "it holds 1 microbatches more than 1F1B, and memory is free for 0" in no_room
    assert "plan version 2" in refused
    assert two_ranks[1]["refused"]["log"] == []


def test_the_order_that_a_real_planner_chooses_is_run_in_the_middle_of_training(
    two_ranks: list[Findings],
) -> None:
    # EnvPipe's: one extra forward in front lets the backwards behind it run at the lower clock.
    for rank, order in zip(two_ranks, ["FFFBFBBB", "FBFBFBFB"], strict=True):
        found = rank["planner"]
        assert found["losses"] == found["as DeepSpeed does"]["losses"]
        assert found["parameters"] == found["as DeepSpeed does"]["parameters"]
        first_step = found["versions"].index(1)
        assert found["versions"][first_step:] == [1] * 4
        assert found["num_unplanned"] == [0] * len(found["versions"])
        stock_order = found["as DeepSpeed does"]["orders"][0]
        assert set(found["orders"][:first_step]) == {stock_order}
        assert set(found["orders"][first_step:]) == {order}


def test_the_job_is_registered_with_the_memory_that_was_measured(
    two_ranks: list[Findings],
) -> None:
    registration = two_ranks[0]["registration"]
    assert (registration["num_stages"], registration["num_microbatches"]) == (2, 4)
    assert (registration["num_ranks"], registration["effort"]) == (2, "low")
    assert registration["blocking_power_w"] == [80.0]
    assert registration["schedule"] == "auto:envpipe,gpipe"
    activation_bytes = registration["activation_bytes"]
    assert len(activation_bytes) == 2
    # A gigabyte is free: more than all four microbatches are not counted.
    assert registration["free_memory_bytes"] == [4 * size for size in activation_bytes]


def test_a_microbatch_in_flight_holds_what_is_kept_for_its_backward(
    two_ranks: list[Findings],
) -> None:
    # One tensor of 2 x 8 floats is 64 bytes. Stage 0 keeps the input, its clone, which the
    # first layer saves, what it gives to the second, and the output. Stage 1 keeps the same,
    # the input's gradient and the label.
    assert [rank["bytes"]["plain"] for rank in two_ranks] == [[4 * 64] * 2, [6 * 64] * 2]


def test_a_checkpointed_microbatch_in_flight_holds_the_input_of_each_layer(
    two_ranks: list[Findings],
) -> None:
    if "checkpointing" not in two_ranks[0]["bytes"]:
        pytest.skip("this DeepSpeed cannot checkpoint activations on the CPU")
    # The input of stage 0 has a gradient then.
    assert [rank["bytes"]["checkpointing"] for rank in two_ranks] == [[5 * 64] * 2, [6 * 64] * 2]
