"""Two stages of three microbatches: orders, an engine, what a switch of orders has around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from flyball_wire.messages import MeasurementDetail

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

import torch
from deepspeed.runtime.pipe import schedule

from flyball_client.session.plan_cursor import CompiledPlan
from flyball_integrations.shared.stage_orders import StageOrder, one_f_one_b

NUM_MICROBATCHES = 3
ALL_IN_FRONT = StageOrder.of_instructions(
    ["forward"] * 3 + ["backward"] * 3, [*range(3), *range(3)]
)
ONE_F_ONE_B = tuple(one_f_one_b(NUM_MICROBATCHES, 2, stage) for stage in range(2))
EXTRA_IN_FRONT = (ALL_IN_FRONT, ONE_F_ONE_B[1])


class Meter:
    """Remembers in which steps it was on."""

    def __init__(self) -> None:
        self.is_on = False

    @contextmanager
    def measuring_step(self) -> Iterator[None]:
        self.is_on = True
        yield
        self.is_on = False

    def wrap(self, instructions: Any) -> Any:  # noqa: ANN401 - as they are
        return instructions


def engine(*, stage_id: int = 0) -> Any:  # noqa: ANN401 - stands for DeepSpeed's engine
    return SimpleNamespace(
        stage_id=stage_id,
        num_stages=2,
        num_pipe_buffers=0,
        pipe_buffers={"inputs": [], "outputs": []},
        device=torch.device("cpu"),
        is_last_stage=lambda: stage_id == 1,
    )


def stock(num_microbatches: int = NUM_MICROBATCHES, *, stage_id: int = 0) -> Any:  # noqa: ANN401
    """The schedule that DeepSpeed would run."""
    return schedule.TrainSchedule(num_microbatches, 2, stage_id)


def computed(run: schedule.PipeSchedule) -> list[tuple[str, int]]:
    """Forwards and backwards of a schedule, with their buffers, in their order."""
    return [
        (type(command).__name__, command.buffer_id)
        for commands in run
        for command in commands
        if isinstance(command, schedule.ForwardPass | schedule.BackwardPass)
    ]


def plan(order: StageOrder, *, version: int = 1, num_rows: int = 0) -> CompiledPlan:
    """One clock throughout, or a cycle of so many rows."""
    cycle_mhz = tuple((1200 - 15 * row,) * len(order.units) for row in range(num_rows))
    return CompiledPlan(
        version=version,
        kinds=tuple("forward" if unit.is_forward else "backward" for unit in order.units),
        microbatches=tuple(unit.microbatch for unit in order.units),
        chunks=(0,) * len(order.units),
        sm_clocks_mhz=(1200,) * len(order.units),
        highest_sm_clock_mhz=1400,
        num_raised=0,
        cycle_mhz=cycle_mhz or None,
        measurement_detail=MeasurementDetail.CLOCKS if num_rows else MeasurementDetail.TOTALS,
    )
