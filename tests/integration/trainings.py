"""Parts of the trainings that ranks of the integration tests run."""

from __future__ import annotations

import logging
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed

from flyball_client.api.errors import PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import EmulatedGpu, LeapingClock
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.rank_session import RankSession
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_profiles.stage_profile_csv import write_stage_profile

BLOCKING_POWER_W = 80.0
Rows = Sequence[tuple[int, float, float]]
"""SM clocks in MHz, each with the time in s and the energy in J at it."""

_ROWS: Mapping[InstructionKind, Rows] = {
    InstructionKind.FORWARD: ((1410, 0.1, 30.0), (1200, 0.11, 20.0)),
    InstructionKind.BACKWARD: ((1410, 0.2, 60.0), (1200, 0.22, 40.0)),
    InstructionKind.BACKWARD_INPUT: ((1410, 0.1, 30.0), (1200, 0.11, 20.0)),
    InstructionKind.BACKWARD_WEIGHT: ((1410, 0.1, 30.0), (1200, 0.11, 20.0)),
}


def points(rows: Rows) -> tuple[OperatingPoint, ...]:
    """Operating points of one instruction."""
    return tuple(
        OperatingPoint(frequency_mhz=mhz, time_s=time_s, energy_j=energy_j)
        for mhz, time_s, energy_j in rows
    )


def alike_stages(num_stages: int) -> StageProfile:
    """Backwards take twice as long as forwards: one extra forward on the first of two stages."""
    return StageProfile(
        points={
            (stage, kind): points(rows)
            for stage in range(num_stages)
            for kind, rows in _ROWS.items()
        },
        num_ranks_per_stage=(1,) * num_stages,
    )


def emulated_gpu(stage: int, num_stages: int, *, time_scale: float = 1e-4) -> EmulatedGpu:
    """The GPU of one of these stages, with its times multiplied by `time_scale`."""
    return EmulatedGpu(
        alike_stages(num_stages), stage, blocking_power_w=BLOCKING_POWER_W, time_scale=time_scale
    )


def plan_of(num_in_front: int, num_microbatches: int, *, version: int = 1) -> CompiledPlan:
    """So many forwards, then alternation, then the backwards that are left, all at 1200 MHz."""
    order = [("forward", microbatch) for microbatch in range(num_in_front)]
    for microbatch in range(num_microbatches):
        order.append(("backward", microbatch))
        if num_in_front + microbatch < num_microbatches:
            order.append(("forward", num_in_front + microbatch))
    kinds, microbatches = zip(*order, strict=True)
    return CompiledPlan(
        version=version,
        kinds=kinds,
        microbatches=microbatches,
        chunks=(0,) * len(kinds),
        sm_clocks_mhz=(1200,) * len(kinds),
        highest_sm_clock_mhz=1410,
        num_raised=0,
    )


def numbers_of(parameters: Iterator[torch.nn.Parameter]) -> list[str]:
    """Parameters to the last bit."""
    return [value.hex() for each in parameters for value in each.detach().flatten().tolist()]


def samples(*shape: int, seed: int = 11) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Microbatches without end, each with its labels."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        sample = torch.randn(*shape, generator=generator)
        yield sample, sample.roll(1, dims=1)


def steps_of(session: RankSession) -> dict[str, list[Any]]:
    """Plan version and unplanned instructions of each step that was measured."""
    return {
        "versions": [measured.plan_version for measured in session.history],
        "num_unplanned": [measured.num_unplanned for measured in session.history],
    }


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@contextmanager
def logged_warnings() -> Iterator[list[str]]:
    """Lines that Flyball logs within the block, from WARNING on."""
    lines: list[str] = []
    handler = _Lines(lines)
    loggers = [logging.getLogger(name) for name in ("flyball_client", "flyball_integrations")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield lines
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def printed_by(script: Path, *arguments: str) -> str:
    """Run an example in the process group that there is; return its output."""
    printed = StringIO()
    with (
        mock.patch.multiple(
            torch.distributed, init_process_group=mock.DEFAULT, destroy_process_group=mock.DEFAULT
        ),
        mock.patch.object(sys, "path", [str(script.parent), *sys.path]),
        mock.patch.object(sys, "argv", [str(script), *arguments]),
        redirect_stdout(printed),
    ):
        runpy.run_path(str(script), run_name="__main__")
    return printed.getvalue()


def takes_profile(planner: PlannerClient, job_id: str, profile: StageProfile) -> bool:
    """Put the profile; return False while the job is not registered yet."""
    try:
        planner.put_profile_csv(job_id, write_stage_profile(profile))
    except PlannerError:
        return False
    return True


def meet(clock: LeapingClock) -> None:
    """Let this rank's virtual time pass until all ranks have come."""
    now_s = torch.tensor(clock.now_s(), dtype=torch.float64)
    torch.distributed.all_reduce(now_s, op=torch.distributed.ReduceOp.MAX)
    clock.sleep_until(now_s.item())


def rank_0_says(decision: bool) -> bool:
    """Rank 0's decision, on every rank."""
    said = torch.tensor([int(decision)])
    torch.distributed.broadcast(said, src=0)
    return bool(said.item())


def all_ranks_say(decision: bool) -> bool:
    """Return on every rank whether all decide so."""
    said = torch.tensor([int(decision)])
    torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MIN)
    return bool(said.item())
