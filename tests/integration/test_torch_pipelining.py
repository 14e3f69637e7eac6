"""All schedules of torch.distributed.pipelining under Flyball, over gloo on the CPU."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from flyball_server.planning.scheduling import schedule_for

pytest.importorskip("torch", reason="needs the extra 'torch'")

from tests.integration.command_in_process import document_of
from tests.integration.rank_server import Findings, RankServer
from tests.integration.trainings import alike_stages

from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_server.planning.scheduling import ScheduleContext

_NUM_RANKS = 3
_LOOPED = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble")
_V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
_WITH_CHUNKS = (*_LOOPED, *_V_SHAPED)
_SCHEDULES = ("GPipe", "1F1B", *_WITH_CHUNKS)
_SPLIT = ("InterleavedZeroBubble", *_V_SHAPED)
# As in the scenarios.
_FIRST_PLANNED_STEP = 3


@pytest.fixture(scope="module")
def ranks(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> list[Findings]:
    """Results of each rank."""
    folder = tmp_path_factory.mktemp("torch")
    return rank_server.run("torch_hook_scenarios", folder, num_ranks=_NUM_RANKS)


@pytest.mark.parametrize("name", _SCHEDULES)
def test_a_hooked_schedule_trains_to_the_same_bits(ranks: Sequence[Findings], name: str) -> None:
    losses = [loss for rank in ranks for loss in rank[name]["losses"]]
    assert len(set(losses)) == len(losses) > 0
    for rank in ranks:
        found, stock = rank[name], rank[f"{name} stock"]
        assert found["losses"] == stock["losses"]
        assert found["parameters"] == stock["parameters"]
        assert found["orders"] == stock["orders"]
        assert found["changed_by_detach"] == []
        # An evaluation is left to torch.
        assert (found["seen_in_evaluation"], found["history"]) == (False, [0, 1])


def test_announced_steps_have_the_same_bits_and_all_ranks_learn_their_work(
    ranks: Sequence[Findings],
) -> None:
    for rank in ranks:
        for quantity in ("losses", "parameters", "orders"):
            assert rank["announced"][quantity] == rank["order stock"][quantity]
        # Two neighbouring sequences are a microbatch; the middle rank has no batch.
        expected = [
            [
                [2 * first + 1, first**2 + (first + 1) ** 2]
                for first in range(1 + step, 17 + step, 2)
            ]
            for step in range(5)
        ]
        work = rank["announced"]["work"]
        # In the first steps the middle rank may learn of it too late.
        assert work[-1] == expected[-1]
        assert all(own in (None, each) for own, each in zip(work, expected, strict=True))


@pytest.mark.parametrize("name", ["GPipe", *_WITH_CHUNKS])
def test_the_hooks_come_in_the_order_that_torch_has(ranks: Sequence[Findings], name: str) -> None:
    for rank in ranks:
        found = rank[name]
        assert found["steps"] == [found["pipeline_order"]] * len(found["steps"])
    kinds = {kind for rank in ranks for kind, _, _ in rank[name]["hooks"]}
    split = {"backward_input", "backward_weight"} if name in _SPLIT else set()
    # DualPipeV has whole backwards too; the others of them have none.
    whole = {"backward"} if name == "DualPipeV" or not split else set()
    assert kinds == {"forward"} | split | whole


def test_the_last_rank_of_1f1b_counts_its_forwards_from_1_in_torchs_order_and_from_0_when_it_runs(
    ranks: Sequence[Findings],
) -> None:
    for rank in ranks[:-1]:
        assert rank["1F1B"]["steps"][0] == rank["1F1B"]["pipeline_order"]
    last = ranks[-1]["1F1B"]
    assert last["pipeline_order"][:4] == ["2F1", "2B0", "2F2", "2B1"]
    assert last["steps"][0][:4] == ["2F0", "2B0", "2F1", "2B1"]


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("GPipe", "0:0,0:1,0:2"),
        ("1F1B", "0:0,0:1,0:2"),
        ("Interleaved1F1B", None),
        ("InterleavedZeroBubble", None),
    ],
)
def test_traces_of_torchs_profiler_are_the_steps_that_ran(
    ranks: Sequence[Findings], tmp_path: Path, name: str, places: str | None
) -> None:
    traces = [tmp_path / f"{rank}.json" for rank in range(_NUM_RANKS)]
    for path, rank in zip(traces, ranks, strict=True):
        path.write_text(rank[f"{name} traced"]["trace"])
    profile, out = tmp_path / "profile.csv", tmp_path / "clocks.csv"
    profile.write_text(write_stage_profile(alike_stages(_NUM_RANKS)))
    options: list[str | Path] = ["--profile", profile, "--clocks", out, "--blocking-power", "80"]
    options += [] if places is None else ["--trace-places", places]
    document = document_of("replay", "--steps", *traces, *options, "--no-transitions")
    assert document["steps"] == 2
    rows = list(csv.DictReader(out.read_text().splitlines()))
    for step in ("1", "2"):  # those that the profiler recorded
        for stage, rank in enumerate(ranks):
            ran = [
                [row["instruction"], int(row["microbatch"]), int(row.get("chunk", 0))]
                for row in rows
                if (row["step"], row["dp_rank"], row["stage"]) == (step, "0", str(stage))
            ]
            assert ran == rank[name]["hooks"]


@pytest.mark.parametrize(("name", "registered"), [("GPipe", "gpipe"), ("1F1B", "1f1b")])
def test_what_is_registered_by_name_is_what_the_planner_generates(
    ranks: Sequence[Findings], name: str, registered: str
) -> None:
    context = ScheduleContext(profile=alike_stages(_NUM_RANKS), num_microbatches=8)
    for found, instructions in zip(ranks, schedule_for(registered, context).stages, strict=True):
        registration = found[name]["registration"]
        assert (registration["schedule"], registration["order"]) == (registered, None)
        assert found[name]["hooks"] == [[kind, m, chunk] for kind, m, chunk in instructions]


@pytest.mark.parametrize("name", _WITH_CHUNKS)
def test_every_rank_registers_the_order_of_the_whole_pipeline(
    ranks: Sequence[Findings], name: str
) -> None:
    looped, v_shaped = [[0, 3], [1, 4], [2, 5]], [[0, 5], [1, 4], [2, 3]]
    for found in ranks:
        registration = found[name]["registration"]
        assert registration["schedule"] == "explicit"
        assert registration["num_stages"] == registration["num_ranks"] == _NUM_RANKS
        assert registration["num_microbatches"] == 8
        assert registration["virtual_stages"] == (looped if name in _LOOPED else v_shaped)
        assert registration["order"] == [rank[name]["hooks"] for rank in ranks]


def test_each_half_of_an_overlapped_pair_is_sent_at_once_while_attached(
    ranks: Sequence[Findings],
) -> None:
    for rank in ranks:
        before, attached, after = rank["DualPipeV"]["pairs"]
        assert (before > 0, attached, after) == (True, 0, before)
        assert {sum(rank[name]["pairs"]) for name in _SCHEDULES if name != "DualPipeV"} == {0}


def test_with_overlapped_pairs_a_rank_that_fails_fails_them_all_and_they_can_try_again(
    ranks: Sequence[Findings],
) -> None:
    problems = [rank["one rank fails"]["problem"] for rank in ranks]
    assert "register_step_post_hook" in problems.pop(2)
    assert problems == ["attach failed on rank 2, so it is undone here; see the log there"] * 2
    for rank in ranks:
        found = rank["one rank fails"]
        assert (found["is_untouched"], found["num_steps"]) == (True, 1)
    # A rank that does not come is not waited for without end.
    *problems, of_the_absent = [rank["one rank is away"]["problem"] for rank in ranks]
    assert of_the_absent == ""
    for problem in problems:
        assert problem.startswith("not all ranks called attach within 1 s of each other")
        assert "undone here, rank 2 missing: " in problem
        assert "\n" not in problem


def test_ranks_that_attach_in_different_orders_are_all_refused(ranks: Sequence[Findings]) -> None:
    for rank in ranks:
        found = rank["mixed"]
        assert found["is_untouched"]
        for problem, extra in zip(found["problems"], ("1, 1, 0", "3, 1, 0"), strict=True):
            assert f"wait for each other forever: ranks 0, 1: envpipe with {extra} more" in problem
            assert "; rank 2: envpipe with 2, 1, 0 more forwards in front of 3 stages" in problem


def test_what_comes_from_another_rank_is_waited_for_and_nothing_else(
    ranks: Sequence[Findings],
) -> None:
    for stage, rank in enumerate(ranks):
        found = rank["GPipe"]
        for (kind, _, _), receive_s in zip(found["hooks"], found["receive_s"], strict=True):
            comes_from_here = stage == (0 if kind == "forward" else _NUM_RANKS - 1)
            # Before its first backward a rank waits for its forwards' sends.
            if not (comes_from_here and kind == "backward"):
                assert (receive_s > 0) is not comes_from_here


def test_an_order_with_more_forwards_in_front_trains_to_the_same_bits(
    ranks: Sequence[Findings],
) -> None:
    planned = ["FFFFFFBFBFBBBBBB", "FFFBFBFBFBFBFBBB", "FBFBFBFBFBFBFBFB"]
    for rank, order in zip(ranks, planned, strict=True):
        found, stock = rank["order"], rank["order stock"]
        assert found["losses"] == stock["losses"]
        assert found["parameters"] == stock["parameters"]
        num_steps = len(stock["orders"])
        assert found["orders"] == [order] * num_steps
        num_planned = num_steps - _FIRST_PLANNED_STEP
        assert found["versions"] == [None] * _FIRST_PLANNED_STEP + [1] * num_planned
        assert found["num_unplanned"] == [0] * num_steps
        assert found["changed_by_detach"] == []
