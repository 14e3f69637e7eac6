"""DeepSpeed's real engine in orders other than its own, over gloo on the CPU: the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.planner.live import live_planner

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from tests.integration.deepspeed_ranks import Findings, findings_by_num_ranks

# See there: all ranks change in this step, and one round later where one hears late.
_FIRST_PLANNED_STEP = 10
_LATE_FIRST_PLANNED_STEP = 18


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Findings]]:
    """What each rank found, of a run with two ranks and one with four."""
    folder = tmp_path_factory.mktemp("orders")
    with live_planner() as planner:
        variables = {"PLANNER_URL": str(planner.http.base_url)}
        return findings_by_num_ranks(
            "deepspeed_order_scenarios", folder, num_ranks=(2, 4), variables=variables
        )


@pytest.fixture
def two_ranks(runs: dict[int, list[Findings]]) -> list[Findings]:
    """Two stages."""
    return runs[2]


@pytest.fixture
def four_ranks(runs: dict[int, list[Findings]]) -> list[Findings]:
    """Four stages, or two stages of two ranks each."""
    return runs[4]


def _require_same_bits(
    ranks: Sequence[Findings], name: str, stock: str, *, first_planned_step: int
) -> None:
    """The same losses and parameters as DeepSpeed's, in another order from that step on."""
    for rank in ranks:
        found, expected = rank[name], rank[stock]
        assert found["losses"] == expected["losses"]
        assert found["parameters"] == expected["parameters"]
        assert found["orders"][:first_planned_step] == expected["orders"][:first_planned_step]
        num_steps = len(found["orders"])
        num_planned = num_steps - first_planned_step
        assert found["versions"] == [None] * first_planned_step + [1] * num_planned
        assert found["num_unplanned"] == [0] * num_steps
    assert len(ranks[0][stock]["parameters"]) == 2 * (8 * 8 + 8)
    assert len(set(ranks[0][stock]["losses"])) == len(ranks[0][stock]["losses"])


def _skip_where_left_out(is_left_out: bool) -> None:
    if is_left_out:
        pytest.skip("this DeepSpeed cannot checkpoint activations on the CPU")


def _models_of(rank: Findings) -> list[str]:
    """Return what was trained on four ranks."""
    models = ("pipeline", "checkpointing", "ZeRO-0", "ZeRO-1")
    return [model for model in models if f"{model} stock" in rank]


def _require_order(ranks: Sequence[Findings], name: str, by_rank: Sequence[str]) -> None:
    for rank, order in zip(ranks, by_rank, strict=True):
        assert rank[name]["orders"][-1] == order


@pytest.mark.parametrize("sends", ["eager", "pulled"])
def test_envpipes_order_on_two_stages_trains_to_the_same_bits(
    two_ranks: list[Findings], sends: str
) -> None:
    name = f"envpipe {sends}"
    _require_same_bits(two_ranks, name, "stock", first_planned_step=_FIRST_PLANNED_STEP)
    _require_order(two_ranks, name, ["FFFFBBBB", "FBFBFBFB"])
    _require_order(two_ranks, "stock", ["FFBFBFBB", "FBFBFBFB"])


@pytest.mark.parametrize("sends", ["eager", "pulled"])
def test_gpipe_whose_last_stage_holds_several_losses_trains_to_the_same_bits(
    two_ranks: list[Findings], sends: str
) -> None:
    name = f"gpipe {sends}"
    _require_same_bits(two_ranks, name, "stock", first_planned_step=_FIRST_PLANNED_STEP)
    _require_order(two_ranks, name, ["FFFFBBBB", "FFFFBBBB"])


@pytest.mark.parametrize("sends", ["eager", "pulled"])
@pytest.mark.parametrize("model", ["pipeline", "checkpointing"])
def test_envpipes_order_on_four_stages_trains_to_the_same_bits(
    four_ranks: list[Findings], model: str, sends: str
) -> None:
    name = f"{model} {sends}"
    _skip_where_left_out(name not in four_ranks[0])
    first_step = _FIRST_PLANNED_STEP
    _require_same_bits(four_ranks, name, f"{model} stock", first_planned_step=first_step)
    order = ["FFFFFFBBBBBB", "FFFFFBFBBBBB", "FFFBFBFBFBBB", "FBFBFBFBFBFB"]
    _require_order(four_ranks, name, order)


@pytest.mark.parametrize("sends", ["eager", "pulled"])
@pytest.mark.parametrize("zero", ["ZeRO-0", "ZeRO-1"])
def test_envpipes_order_with_data_parallelism_trains_to_the_same_bits(
    four_ranks: list[Findings], zero: str, sends: str
) -> None:
    name = f"{zero} {sends}"
    first_step = _FIRST_PLANNED_STEP
    _require_same_bits(four_ranks, name, f"{zero} stock", first_planned_step=first_step)
    _require_order(four_ranks, name, ["FFFFBBBB", "FFFFBBBB", "FBFBFBFB", "FBFBFBFB"])


def test_a_rank_that_hears_late_holds_all_others_back_until_it_has_the_plan(
    two_ranks: list[Findings],
) -> None:
    first_step = _LATE_FIRST_PLANNED_STEP
    _require_same_bits(two_ranks, "envpipe late", "stock late", first_planned_step=first_step)
    _require_order(two_ranks, "envpipe late", ["FFFBFBBB", "FBFBFBFB"])


def test_an_order_agreed_on_while_steps_have_another_size_is_run_once_they_have_the_plans(
    two_ranks: list[Findings],
) -> None:
    first_step = _FIRST_PLANNED_STEP
    for rank, order in zip(two_ranks, ["FFFBFBBB", "FBFBFBFB"], strict=True):
        found, stock = rank["envpipe resized"], rank["stock resized"]
        assert found["losses"] == stock["losses"]
        assert found["parameters"] == stock["parameters"]
        assert [len(ran) for ran in stock["orders"]] == [8] * 8 + [12] * 3 + [8] * 2
        assert found["orders"] == [*stock["orders"][: first_step + 1], order, order]
        assert found["versions"] == [None] * first_step + [1] * 3
        assert found["num_unplanned"][-2:] == [0, 0]


def test_probe_plans_set_clocks_in_deepspeeds_order_and_only_the_real_plan_changes_it(
    two_ranks: list[Findings],
) -> None:
    first_step = _LATE_FIRST_PLANNED_STEP
    for rank, order in zip(two_ranks, ["FFFBFBBB", "FBFBFBFB"], strict=True):
        found, stock = rank["probed"], rank["stock late"]
        assert found["losses"] == stock["losses"]
        assert found["parameters"] == stock["parameters"]
        assert found["orders"] == [*stock["orders"][:first_step], *[order] * 2]
        assert found["versions"] == [None] * 4 + [1] * 4 + [2] * 10 + [3] * 2
        cycles = [*[1410, 1200] * 2, *[1200, 1200, 1410] * 3, 1200]
        assert found["clocks_mhz"] == [[clock] for clock in (*[None] * 4, *cycles, 1200, 1200)]
        assert found["num_unplanned"] == [0] * 20


def test_orders_that_would_deadlock_or_have_no_room_are_not_run_and_said_once(
    two_ranks: list[Findings],
) -> None:
    long_enough = two_ranks[0]["stock late"]
    for rank in two_ranks:
        assert rank["refused"]["losses"] == rank["stock late"]["losses"]
        assert rank["refused"]["orders"] == rank["stock late"]["orders"]
        assert rank["refused"]["versions"] == [None] * len(long_enough["losses"])
    assert two_ranks[0]["refused"]["log"] == [
        "plan version 1 is not run, what is in force goes on: the stages would wait for each"
        " other for ever: stage 0 for backward 0, stage 1 for forward 2",
        "rank 0 cannot run the order of plan version 2: it holds 1 microbatches more than 1F1B,"
        " and memory is free for 0",
        "plan version 2 is not run, what is in force goes on: rank 0 cannot run it; see the log"
        " there",
    ]
    assert two_ranks[1]["refused"]["log"] == []


def test_an_evaluation_is_left_to_deepspeed_and_gives_the_same(
    two_ranks: list[Findings], four_ranks: list[Findings]
) -> None:
    for rank in two_ranks:
        assert len(set(rank["stock"]["evaluations"])) == 2
        for name in ("envpipe eager", "envpipe pulled", "gpipe eager", "gpipe pulled"):
            assert rank[name]["evaluations"] == rank["stock"]["evaluations"]
    for rank in four_ranks:
        for model in _models_of(rank):
            for sends in ("eager", "pulled"):
                expected = rank[f"{model} stock"]["evaluations"]
                assert rank[f"{model} {sends}"]["evaluations"] == expected


def test_detaching_leaves_deepspeed_as_it_was(
    two_ranks: list[Findings], four_ranks: list[Findings]
) -> None:
    for rank in (*two_ranks, *four_ranks):
        detached = [found for found in rank.values() if "changed_by_detach" in found]
        assert len(detached) == (6 if "planner" in rank else 2 * len(_models_of(rank)))
        for found in detached:
            assert found["changed_by_detach"] == []
            assert found["num_slots"] == [0, 0, 0, 0]
            assert found["is_stock_p2p"]


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


def test_the_job_is_registered_with_what_was_measured(two_ranks: list[Findings]) -> None:
    registration = two_ranks[0]["planner"]["registration"]
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
    assert two_ranks[0]["bytes"]["plain"] == 4 * 64
    assert two_ranks[1]["bytes"]["plain"] == 6 * 64
    for rank in two_ranks:
        assert rank["bytes"]["plain, a step later"] == rank["bytes"]["plain"]


def test_a_checkpointed_microbatch_in_flight_holds_what_each_layer_was_given(
    two_ranks: list[Findings],
) -> None:
    _skip_where_left_out("checkpointing" not in two_ranks[0]["bytes"])
    # Checkpointing keeps what each layer was given; the input of stage 0 has a gradient then.
    assert two_ranks[0]["bytes"]["checkpointing"] == 5 * 64
    assert two_ranks[1]["bytes"]["checkpointing"] == 6 * 64
    for rank in two_ranks:
        held = rank["bytes"]
        assert held["checkpointing, a step later"] == held["checkpointing"]
