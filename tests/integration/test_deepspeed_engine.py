"""DeepSpeed's real pipeline engine under Flyball, over gloo on the CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from tests.integration.rank_server import Findings, RankServer
from tests.planner.live import live_planner
from tests.planner.ports import free_port

from flyball_wire import routes

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

# As in the scenarios.
_FIRST_PLANNED_STEP = 10
_NUM_STEPS = 14
# Written by hand: the forwards in front, alternation, and the backwards that are left.
_FOUR_STAGES = ["FFFFFFBBBBBB", "FFFFFBFBBBBB", "FFFBFBFBFBBB", "FBFBFBFBFBFB"]
_TWO_STAGES = ["FFFBFBBB", "FBFBFBFB"]
_TWO_STAGES_GROWN = ["FFBFBFBFBFBB", "FBFBFBFBFBFB"]
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
    ranks: Sequence[Findings], name: str, stock: str, orders: Sequence[str]
) -> None:
    """The same losses and parameters as DeepSpeed's, in another order from the first step on."""
    for rank, order in zip(ranks, orders, strict=True):
        found, expected = rank[name], rank[stock]
        for quantity in ("losses", "parameters", "evaluations"):
            assert found[quantity] == expected[quantity]
        assert found["orders"] == [order] * _NUM_STEPS
        num_planned = _NUM_STEPS - _FIRST_PLANNED_STEP
        assert found["versions"] == [None] * _FIRST_PLANNED_STEP + [1] * num_planned
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


def test_steps_of_another_size_run_in_deepspeeds_own_order(two_ranks: list[Findings]) -> None:
    for rank, order in zip(two_ranks, _TWO_STAGES, strict=True):
        found, stock = rank["envpipe resized"], rank["stock resized"]
        assert found["losses"] == stock["losses"]
        assert found["parameters"] == stock["parameters"]
        assert [len(ran) for ran in stock["orders"]] == [8] * 8 + [12] * 3 + [8] * 3
        assert found["orders"] == [*[order] * 8, *stock["orders"][8:11], *[order] * 3]
        assert found["num_unplanned"][_FIRST_PLANNED_STEP + 1 :] == [0] * 3


def test_announced_steps_have_the_same_bits_also_where_the_batch_grows(
    two_ranks: list[Findings],
) -> None:
    for rank in two_ranks:
        found, stock = rank["announced"], rank["stock resized"]
        for quantity in ("losses", "evaluations", "parameters", "orders"):
            assert found[quantity] == stock[quantity]
        work = found["work"]
        assert len(work) == _NUM_STEPS
        assert work == two_ranks[0]["announced"]["work"]
        # The first step is not known ahead, and those behind one of another size are announced
        # with as many microbatches as that.
        assert [len(each) for each in work[1:8] + work[12:]] == [4] * 9
        assert len({str(each) for each in work[1:]}) == _NUM_STEPS - 1


def test_probe_plans_and_the_plan_after_them_set_clocks_in_the_order_that_runs(
    two_ranks: list[Findings],
) -> None:
    for rank, order in zip(two_ranks, _TWO_STAGES, strict=True):
        found = rank["probed"]
        assert found["losses"] == rank["stock"]["losses"]
        assert found["orders"] == [order] * _NUM_STEPS
        assert found["versions"] == [None] * 4 + [1] * 4 + [2] * 4 + [3] * 2
        cycles = *[1410, 1200] * 2, *[1200, 1200, 1410], 1200
        assert found["clocks_mhz"] == [[clock] for clock in (*[None] * 4, *cycles, 1200, 1200)]
        assert found["num_unplanned"] == [0] * _NUM_STEPS


def test_ranks_that_attach_in_different_orders_are_all_refused_and_can_try_again(
    two_ranks: list[Findings],
) -> None:
    for rank, order in zip(two_ranks, _TWO_STAGES, strict=True):
        found = rank["mixed"]
        problem = re.sub(r"\([0-9a-f]{12}\)", "(digest)", found["problem"])
        assert problem == (
            "the ranks would run different orders, and wait for each other forever: rank 0: 1f1b of"
            " 2 stages and 4 microbatches, p2p stock (digest); rank 1: envpipe with 1, 0 more"
            " forwards in front of 2 stages and 4 microbatches, p2p eager (digest); give all of"
            " them the same pipeline and the same arguments"
        )
        assert (found["is_untouched"], found["num_steps"]) == (True, 1)
        assert found["orders"] == [order]


def test_a_real_planner_plans_the_order_that_runs_and_another_one_when_the_batch_grows(
    two_ranks: list[Findings],
) -> None:
    for rank, order, grown in zip(two_ranks, _TWO_STAGES, _TWO_STAGES_GROWN, strict=True):
        found = rank["planner"]
        num_before = found["sizes"].index(6)
        assert found["losses"] == found["as DeepSpeed does"]["losses"]
        assert found["parameters"] == found["as DeepSpeed does"]["parameters"]
        assert set(found["orders"][:num_before]) == {order}
        assert set(found["orders"][num_before:]) == {grown}
        planned = found["versions"][found["versions"].index(1) : num_before]
        assert (set(planned), len(planned) >= 4) == ({1}, True)
        # Two steps leave the plan, and none is in force until there is one for them.
        after = found["versions"][num_before:]
        num_waited = after.index(2) - 2
        assert after[:2] == [1, 1]
        assert after[2:] == [None] * num_waited + [2] * (len(after) - 2 - num_waited)
        unplanned = found["num_unplanned"]
        assert not any(unplanned[:num_before] + unplanned[num_before + 2 :])
    registration = two_ranks[0]["registration"]
    assert (registration["num_stages"], registration["num_microbatches"]) == (2, 6)
    assert (registration["num_ranks"], registration["effort"]) == (2, "low")
    assert registration["blocking_power_w"] == [80.0]
    # EnvPipe's order was built for 4.
    assert (registration["schedule"], registration["extra_forwards"]) == ("1f1b", None)
    assert {other["schedule"] for other in registration["other_orders"]} == {"1f1b", "envpipe"}
