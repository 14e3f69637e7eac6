"""Training without a pipeline: DDP and FSDP2 ranks under Flyball, over gloo on the CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

from tests.integration.data_parallel_scenarios import (
    KINDS,
    NUM_MICROBATCHES,
    NUM_RANKS,
    PARTS,
    ROWS,
    SLOWDOWN,
    STRAGGLER,
    TARGETS,
    step_profile,
    work_of,
)
from tests.integration.rank_server import Findings, RankServer
from tests.integration.trainings import BLOCKING_POWER_W
from tests.planner.live import serve_process

from flyball_profiles.stage_profile_csv import write_stage_profile

_BY_CLOCK = {mhz: (time_s, energy_j) for mhz, time_s, energy_j in ROWS}


@pytest.fixture(scope="module")
def ranks(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> list[Findings]:
    """Results of each rank."""
    folder = tmp_path_factory.mktemp("data-parallel")
    profile = folder / "step.csv"
    profile.write_text(write_stage_profile(step_profile()))
    with serve_process(folder / "planner.sqlite") as planner:
        return rank_server.run(
            "data_parallel_scenarios",
            folder,
            num_ranks=NUM_RANKS,
            PLANNER_URL=str(planner.http.base_url),
            FLYBALL_GPU=f"emulated:{profile},time_scale=0.01,blocking_power_w=80",
        )


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_parameters_are_the_same_bits(ranks: Sequence[Findings], kind: str) -> None:
    for rank in ranks:
        stock, found = rank[f"{kind} stock"], rank[f"{kind} flyball"]
        assert len(set(stock["losses"])) == len(stock["losses"]) == 11
        assert found["losses"] == stock["losses"]
        assert found["parameters"] == stock["parameters"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_one_instruction_also_after_one_that_failed(
    ranks: Sequence[Findings], kind: str
) -> None:
    for rank in ranks:
        found = rank[f"{kind} flyball"]
        # Step 3 raised: it is counted and not measured. Evaluations are no steps.
        assert found["steps"] == [0, 1, 2, 4, 5, 6]
        ((name, microbatch, time_s),) = found["last_step"]
        assert (name, microbatch) == ("step", 0)
        assert time_s >= 1.0  # padded to the profile's time by the GPU of FLYBALL_GPU
        assert found["is_emulated"] == 1.0
        # `detach` restores the model.
        assert (found["num_replaced"] > 0, found["is_restored"]) == (True, True)


@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_of_the_only_stage_runs_at_the_clock_of_the_target(
    ranks: Sequence[Findings], kind: str
) -> None:
    for target, sm_clock_mhz in (("slowdown:0.05", 1305), *TARGETS[kind]):
        time_s, energy_j = _BY_CLOCK[sm_clock_mhz]
        for rank in ranks:
            *measured, num_unplanned, num_overruns = rank[f"{kind} planned"][target]
            wanted = [sm_clock_mhz, time_s, time_s, energy_j / NUM_RANKS]
            assert measured == pytest.approx(wanted, rel=1e-3)
            assert (num_unplanned, num_overruns) == (0, 0)
    found = ranks[0][f"{kind} planned"]
    assert found["registration"] == "step"
    assert found["places"] == [[rank, 0, rank] for rank in range(NUM_RANKS)]


def test_a_straggler_is_found_and_the_others_slow_down_to_it(ranks: Sequence[Findings]) -> None:
    slow_s = SLOWDOWN * _BY_CLOCK[1410][0]
    own_s, own_j = _BY_CLOCK[1005]
    found = [rank["ddp planned"]["straggler"][:4] for rank in ranks]
    waiting_j = BLOCKING_POWER_W * (slow_s - own_s)
    assert found[0] == pytest.approx([1005, own_s, slow_s, own_j / 2 + waiting_j], rel=2e-3)
    assert found[STRAGGLER] == pytest.approx([1410, slow_s, slow_s, SLOWDOWN * 300], rel=2e-3)
    ((rank, source, slowdown),) = ranks[0]["ddp planned"]["stragglers"]
    assert (rank, source) == (STRAGGLER, "detected")
    # Up to a quarter of the window's steps may precede the slowdown.
    assert SLOWDOWN / 1.06 < slowdown < SLOWDOWN * 1.001


def test_emulated_ranks_wait_within_the_step_for_the_one_with_the_most_work(
    ranks: Sequence[Findings],
) -> None:
    for number, rank in enumerate(ranks):
        found = rank["work"]
        assert found["num_overruns"] == 0
        work = [work_of(number, step) for step in range(len(found["times_s"]))]
        assert found["compute_s"] == pytest.approx(work, rel=1e-3)
        assert found["times_s"] == pytest.approx([1.5] * len(work), rel=1e-3)


def test_a_rank_with_little_work_runs_slower_while_others_take_no_longer(
    ranks: Sequence[Findings],
) -> None:
    # A target of 5 % allows a step as much longer as the plan is, which has the next lower clock.
    longest_s = 1.5 * 1.03
    for rank in ranks:
        found = rank["own clocks"]
        own = 0
        for work, (sm_clock_mhz, compute_s, time_s) in zip(
            found["work"], found["ran"], strict=True
        ):
            planned_mhz, planned_s = (900, 1.33) if work == 1.0 else (1305, longest_s)
            # A step whose clocks come too late, on a busy machine, has the highest.
            is_own = sm_clock_mhz == planned_mhz
            own += sm_clock_mhz == 900
            assert is_own or sm_clock_mhz == 1410
            assert compute_s == pytest.approx(planned_s if is_own else work, rel=1e-3)
            assert time_s <= longest_s * 1.001
        # In every other step it has little work.
        assert own > 0


def test_a_rank_runs_slower_in_the_microbatches_that_have_little_work(
    ranks: Sequence[Findings],
) -> None:
    in_turn = [(part, number) for number in range(NUM_MICROBATCHES) for part in PARTS]
    for rank_number, rank in enumerate(ranks):
        found = rank["fsdp microbatches"]
        assert found["flyball"] == found["stock"]
        assert (found["num_unplanned"], found["num_overruns"]) == (0, 0)
        own = 0
        for step, time_s, ran in found["ran"]:
            # The ranks meet in each forward and backward; one has the most work.
            assert time_s == pytest.approx(1.5 * NUM_MICROBATCHES, rel=1e-3)
            assert [(part, number) for part, number, *_ in ran] == in_turn
            for part, number, sm_clock_mhz, compute_s in ran:
                work = work_of(rank_number, step + number)
                planned_mhz = 900 if work == 1.0 else 1410
                # A step whose clocks come too late, on a busy machine, has the highest.
                assert sm_clock_mhz in (planned_mhz, 1410)
                own += sm_clock_mhz == 900
                time_of_clock_s, _ = _BY_CLOCK[sm_clock_mhz]
                assert compute_s == pytest.approx(work * PARTS[part] * time_of_clock_s, rel=1e-3)
        # Two microbatches of each step have little work.
        assert own > 4


def test_with_no_sync_a_rank_runs_slower_in_all_microbatches_until_the_steps_end(
    ranks: Sequence[Findings],
) -> None:
    own = 0
    for rank_number, rank in enumerate(ranks):
        found = rank["ddp no_sync"]
        assert found["flyball"] == found["stock"]
        assert (found["num_unplanned"], found["num_overruns"]) == (0, 0)
        for step, time_s, ran in found["ran"]:
            assert time_s == pytest.approx(1.5 * NUM_MICROBATCHES, rel=1e-3)
            is_light = (rank_number + step) % 2 == 0
            clocks_mhz = {sm_clock_mhz for *_, sm_clock_mhz, _ in ran}
            # Also in the first microbatch, which has as much work as the other rank's.
            assert clocks_mhz in ({900} if is_light else {1410}, {1410})
            own += clocks_mhz == {900}
    assert own > 0


@pytest.mark.parametrize(("kind", "num_batches"), [("ddp", 2), ("fsdp", 1)])
def test_announced_steps_have_the_same_losses_and_positions(
    ranks: Sequence[Findings], kind: str, num_batches: int
) -> None:
    num_steps = 8 // num_batches
    for number, rank in enumerate(ranks):
        found = rank[f"{kind} announced"]
        assert found["flyball"] == found["stock"]
        assert len(set(found["flyball"]["losses"])) == 8
        assert found["flyball"]["positions"] == [
            {"position": num_batches * (1 + step)} for step in range(num_steps)
        ]
        rows = [2 + (5 * batch + number) % 7 for batch in range(8)]
        per_step = [
            float(sum(rows[num_batches * step :][:num_batches])) for step in range(num_steps)
        ]
        assert found["work"] == [[[num_rows, num_rows]] for num_rows in per_step]


def test_a_step_is_profiled_while_it_trains(ranks: Sequence[Findings]) -> None:
    found = ranks[0]["online"]
    assert (found["state"], found["problem"]) == ("finished", None)
    assert [(name, mhz) for name, mhz, *_ in found["points"]] == [
        ("step", mhz) for mhz in _BY_CLOCK
    ]
    for _, mhz, *measured in found["points"]:
        # The GPUs' times and energies scatter by 0.2 %, and a step lasts as long as the slower.
        assert measured == pytest.approx(_BY_CLOCK[mhz], rel=0.01)
    assert {rank["online"]["ran"][0] for rank in ranks} == {1305}


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_trains(ranks: Sequence[Findings], kind: str) -> None:
    first, *others = [rank[f"{kind} example"]["printed"] for rank in ranks]
    assert re.fullmatch(r"(step \d: loss \d\.\d{6}\n){3}", first)
    assert others == [""]
