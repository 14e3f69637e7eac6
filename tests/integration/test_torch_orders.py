"""Generated orders against torch.distributed.pipelining's own, action by action."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.planning.tiny_pipelines import (
    LOOPED_SCHEDULES,
    V_SCHEDULES,
    B,
    F,
    I,
    W,
    context_of,
    timed_profile,
)

from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_pipeline.schedule import Schedule
from flyball_pipeline.schedules.explicit import explicit_order
from flyball_server.cli.order_files import read_order
from flyball_server.planning.scheduling import schedule_for

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

Actions = list[Any]
"""Order of one rank: torch's `_Action`s."""

KINDS: dict[str, InstructionKind] = {"F": F, "B": B, "I": I, "W": W}
TIMES_S = {F: 1.0, B: 2.0, I: 1.0, W: 1.0}

TORCH_CLASSES = {
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "zb-h1": "ScheduleInterleavedZeroBubble",  # with one stage a rank
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
SHAPES = [
    (num_stages, num_chunks, num_microbatches)
    for num_stages in (1, 2, 3, 4, 5)
    for num_chunks in (1, 2, 3)
    for num_microbatches in (1, 2, 3, 4, 6, 8, 10, 12)
]


def torch_actions(
    name: str, num_stages: int, num_chunks: int, num_microbatches: int
) -> list[Actions]:
    """Per rank, what torch's schedule of this name runs; made without process groups.

    Its constructor wants stages of a model; the orders depend on the numbers alone.
    """
    of_class = getattr(schedules, TORCH_CLASSES[name])
    schedule = of_class.__new__(of_class)
    schedule.pp_group_size = num_stages
    schedule.n_local_stages = num_chunks
    schedule._n_microbatches = num_microbatches
    schedule._num_stages = schedule.num_stages = num_stages * num_chunks
    schedule.number_of_rounds = max(1, num_microbatches // num_stages)
    schedule.microbatches_per_round = num_microbatches // schedule.number_of_rounds
    schedule._stages = [None] * num_chunks
    ranks: list[Actions] = []
    for rank in range(num_stages):
        schedule.rank = rank
        ranks.append(list(schedule._calculate_single_rank_operations(rank)))
    return ranks


def order_of(ranks: Sequence[Actions], schedule: Schedule) -> list[list[Instruction]]:
    """Torch's actions as instructions, two that overlap one after the other."""
    return [
        [
            Instruction(
                KINDS[action.computation_type.value],
                action.microbatch_index,
                schedule.virtual_stages[rank].index(action.stage_index),
            )
            for whole in actions
            if whole is not None
            for action in (whole.sub_actions or (whole,))
        ]
        for rank, actions in enumerate(ranks)
    ]


def can_be_interleaved(num_stages: int, num_microbatches: int) -> bool:
    """As torch asks: whole rounds of about as many microbatches as ranks."""
    return num_microbatches % max(1, num_microbatches // num_stages) == 0


def is_possible(name: str, num_stages: int, num_chunks: int, num_microbatches: int) -> bool:
    """Return whether the schedule has this shape, in torch and here."""
    if name in V_SCHEDULES:
        return num_chunks == 2 and (name == "zbv" or num_microbatches >= 2 * num_stages)
    if name in LOOPED_SCHEDULES:
        fits = name == "looped-bfs" or can_be_interleaved(num_stages, num_microbatches)
        return num_chunks > 1 and fits
    # torch rounds its microbatches even where each rank has one stage.
    return num_chunks == 1


def ours(name: str, num_stages: int, num_chunks: int, num_microbatches: int) -> Schedule:
    profile = timed_profile(num_stages, TIMES_S, num_chunks)
    return schedule_for(name, context_of(profile, num_microbatches))


@pytest.mark.parametrize("name", sorted(TORCH_CLASSES))
def test_generated_orders_are_torchs_own(name: str) -> None:
    shapes = [shape for shape in SHAPES if is_possible(name, *shape)]
    assert len(shapes) >= 20
    for shape in shapes:
        made = ours(name, *shape)
        assert [list(stage) for stage in made.stages] == order_of(
            torch_actions(name, *shape), made
        ), shape


@pytest.mark.parametrize(
    ("name", "of_class"), [("gpipe", "ScheduleGPipe"), ("1f1b", "Schedule1F1B")]
)
def test_single_stage_orders_are_those_that_torch_tells(name: str, of_class: str) -> None:
    """All ranks of GPipe; of 1F1B not the last, whose forwards torch 2.13 tells one too high."""
    for num_stages, num_microbatches in [(1, 4), (2, 3), (4, 4), (4, 11)]:
        torch_class = getattr(schedules, of_class)
        schedule = torch_class.__new__(torch_class)
        schedule._num_stages, schedule._n_microbatches = num_stages, num_microbatches
        told = schedule._get_pipeline_order()
        made = ours(name, num_stages, 1, num_microbatches)
        for rank in range(num_stages if name == "gpipe" else num_stages - 1):
            computations = [
                action
                for action in told[rank]
                if action is not None and action.computation_type.value in KINDS
            ]
            assert [
                Instruction(KINDS[action.computation_type.value], action.microbatch_index)
                for action in computations
            ] == list(made.stages[rank])


@pytest.mark.parametrize(
    ("name", "shape"),
    [("looped-bfs", (2, 3, 5)), ("zb-h1", (4, 1, 6)), ("zbv", (3, 2, 7)), ("dualpipev", (3, 2, 8))],
)
def test_an_order_that_torch_wrote_as_csv_is_read_as_ours(
    tmp_path: Path, name: str, shape: tuple[int, int, int]
) -> None:
    """By torch's own writer: a row per rank, a cell per action, empty ones for waits."""
    made = ours(name, *shape)
    path = tmp_path / "order.csv"
    writer = getattr(schedules, TORCH_CLASSES[name])
    torch_schedule = writer.__new__(writer)
    torch_schedule.pipeline_order = dict(enumerate(torch_actions(name, *shape)))
    torch_schedule._dump_csv(str(path), format="compute_only")
    read = explicit_order(*read_order(path))
    assert read.virtual_stages == made.virtual_stages
    assert read.stages == made.stages


def test_transfers_and_sharding_in_torchs_csv_are_no_computations(tmp_path: Path) -> None:
    """Rows as `_add_send_recv` and `_add_unshard_reshard` make them, in torch's own grammar."""
    texts = [
        ["0UNSHARD", "0F0", "0SEND_F0", "", "0RECV_B0", "0B0", "0RESHARD", "0REDUCE_GRAD"],
        ["1RECV_F0", "1F0", "1I0", "1SEND_B0", "1W0"],
    ]
    for row in texts:
        for text in filter(None, row):
            assert str(schedules._Action.from_str(text)) == text
    path = tmp_path / "order.csv"
    path.write_text("".join(",".join(row) + "\n" for row in texts), encoding="utf-8")
    assert explicit_order(*read_order(path)).stages == (
        (Instruction(F, 0), Instruction(B, 0)),
        (Instruction(F, 0), Instruction(I, 0), Instruction(W, 0)),
    )
