"""A rank's pipeline as it is sent, packed and unpacked: its orders, clocks, times and energies."""

from __future__ import annotations

import itertools
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from flyball_pipeline.clock_rounding import ChangeDelays
from flyball_pipeline.dag import AlikeNodes, DependencyDag, build_dag
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_pipeline.retiming import NO_RESERVE, StepReserve
from flyball_pipeline.schedule import Schedule
from flyball_pipeline.schedules.explicit import EXPLICIT
from flyball_pipeline.step_curves import ClockPoint
from flyball_pipeline.work import WorkCoefficients
from flyball_wire.errors import CodecError
from flyball_wire.plans.rank_plan import RankPipeline, little_endian

N = TypeVar("N", int, float)


def packed_pipeline(
    schedule: Schedule,
    clocks_mhz: Sequence[Sequence[int]],
    points: Mapping[AlikeNodes, Sequence[ClockPoint]],
    *,
    waiting_power_w: Sequence[float],
    tail_s: float = 0.0,
    transfer_s: Sequence[float] = (),
    coefficients: Mapping[AlikeNodes, WorkCoefficients] | None = None,
    lengths_range: tuple[float, float] | None = None,
    deadline_ratio: float = 1.0,
    reserve: StepReserve = NO_RESERVE,
    delays: ChangeDelays | None = None,
) -> RankPipeline:
    """Return a pipeline for its ranks.

    Args:
        schedule: order of the instructions.
        clocks_mhz: planned clock of each instruction, by stage, MHz.
        points: points by stage, kind and chunk.
        waiting_power_w: as in `RankPipeline`.
        tail_s: as in `RankPipeline`.
        transfer_s: as in `RankPipeline`.
        coefficients: by stage, kind and chunk, all of `points`; None: not known.
        lengths_range: as in `RankPipeline`.
        deadline_ratio: as in `RankPipeline`.
        reserve: room for errors of the factors.
        delays: delays of clock changes; None: they change at once.

    Raises:
        PipelineError: the pipeline never flushes, so that it has no steps.
    """
    if schedule.is_periodic:
        raise PipelineError(f"{schedule.name} never flushes", field="schedule")
    kinds = {kind: index for index, kind in enumerate(dict.fromkeys(kind for _, kind, _ in points))}
    return RankPipeline(
        num_microbatches=schedule.num_microbatches,
        virtual_stages=schedule.virtual_stages,
        kinds=tuple(map(str, kinds)),
        groups=tuple((stage, kinds[kind], chunk) for stage, kind, chunk in points),
        instructions=tuple(
            _packed(array("H", row)) for row in _instruction_rows(schedule, clocks_mhz, points)
        ),
        points=tuple(
            _packed(array("d", itertools.chain.from_iterable(of_group)))
            for of_group in points.values()
        ),
        waiting_power_w=tuple(waiting_power_w),
        tail_s=tail_s,
        transfer_s=tuple(transfer_s),
        coefficients=tuple(coefficients[place] for place in points) if coefficients else (),
        lengths_range=lengths_range,
        deadline_ratio=deadline_ratio,
        reserve=(reserve.of_step, reserve.of_instruction),
        change_delays_s=None if delays is None else (delays.up_s, delays.down_s),
    )


def _instruction_rows(
    schedule: Schedule,
    clocks_mhz: Sequence[Sequence[int]],
    points: Mapping[AlikeNodes, Sequence[ClockPoint]],
) -> Iterator[list[int]]:
    """Yield each stage's instructions: number of the group, microbatch, number of the point."""
    group_of = {place: index for index, place in enumerate(points)}
    point_of = {
        (*place, point.clock_mhz): index
        for place, of_group in points.items()
        for index, point in enumerate(of_group)
    }
    of_stages = zip(schedule.stages, clocks_mhz, strict=True)
    for stage, (instructions, of_stage_mhz) in enumerate(of_stages):
        row: list[int] = []
        for (kind, microbatch, chunk), mhz in zip(instructions, of_stage_mhz, strict=True):
            place = (stage, kind, chunk)
            row += group_of[place], microbatch, point_of[*place, mhz]
        yield row


def unpacked_pipeline(
    part: RankPipeline,
) -> tuple[DependencyDag, list[tuple[ClockPoint, ...]], list[int]]:
    """Return the DAG of a step, and for each of its nodes the points and the planned clock.

    Raises:
        CodecError: an array or an index is wrong, or the order cannot run.
    """
    stages = [list(_index_rows(row)) for row in part.instructions]
    try:
        points = [
            tuple(ClockPoint(int(mhz), time_s, energy_j) for mhz, time_s, energy_j in of_group)
            for of_group in map(_float_rows, part.points)
        ]
        kinds = [(InstructionKind(part.kinds[kind]), chunk) for _, kind, chunk in part.groups]
        schedule = Schedule(
            name=EXPLICIT,
            num_microbatches=part.num_microbatches,
            virtual_stages=part.virtual_stages,
            stages=tuple(
                tuple(
                    Instruction(kinds[group][0], microbatch, kinds[group][1])
                    for group, microbatch, _ in of_stage
                )
                for of_stage in stages
            ),
        )
        dag = build_dag(schedule).with_delays(part.tail_s, part.transfer_s)
        of_nodes = [points[group] for of_stage in stages for group, _, _ in of_stage]
        clocks_mhz = [
            points[group][point].clock_mhz for of_stage in stages for group, _, point in of_stage
        ]
    except (IndexError, OverflowError, ValueError) as error:
        raise CodecError(f"pipeline: {error}") from None
    return dag, of_nodes, clocks_mhz


def _packed(numbers: array[N]) -> str:
    return b64encode(little_endian(numbers).tobytes()).decode()


def _index_rows(text: str) -> Iterator[tuple[int, int, int]]:
    return _threes(array("H", _bytes_of(text, 2)))


def _float_rows(text: str) -> Iterator[tuple[float, float, float]]:
    return _threes(array("d", _bytes_of(text, 8)))


def _bytes_of(text: str, size: int) -> bytes:
    try:
        packed = b64decode(text, validate=True)
    except ValueError:
        packed = b"?"
    if len(packed) % (3 * size):
        raise CodecError(f"pipeline: arrays must be base64 of three numbers of {size} bytes each")
    return packed


def _threes(packed: array[N]) -> Iterator[tuple[N, N, N]]:
    numbers = little_endian(packed)
    return zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
