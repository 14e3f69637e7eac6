"""A rank's part of a plan as it is sent: names, clocks and times once, and indices into them."""

from __future__ import annotations

import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar, Unpack

from flyball_wire.errors import CodecError
from flyball_wire.measurements import MeasurementDetail

MAX_ANSWER_BYTES = 2**20
"""Largest body that a rank reads of a planner."""

MAX_PART_BYTES = 1_000_000
"""Largest part of a plan that a planner makes."""

# The largest plan of a rank that was made, of 64 stages, 256 microbatches and 8 chunks with weight
# gradients apart, has 6144 instructions.
MAX_INSTRUCTIONS = 16_384

_MOST_ONE_BYTE_CLOCKS = 256

T = TypeVar("T", bound=Hashable)
N = TypeVar("N", int, float)

Instruction = tuple[str, int, int, int]
"""Kind, microbatch, clock in MHz, chunk."""


@dataclass(frozen=True, kw_only=True)
class RankPipeline:
    """Pipeline of a rank, from which the clocks of single steps are chosen.

    It has the order of all stages, the planned clocks, and times and energies by clock. Arrays are
    base64 of little-endian numbers.

    Attributes:
        kinds: distinct kinds of instructions.
        groups: `[stage, kind, chunk]` of instructions with the same points; kind is an index into
            `kinds`.
        instructions: per stage, in the order of execution, three numbers of two bytes for each
            instruction: its group, its microbatch, and the point of the group at its planned clock.
        points: per group, three numbers of eight bytes for each clock: MHz, time in s and energy
            in J of one instruction, with the slowdown factors of the plan.
        waiting_power_w: per stage, power of all its GPUs while they wait, W.
        tail_s: part of a step outside its instructions, s.
        transfer_s: time of a transfer between neighbouring stages, one for all or one for each
            pair, s; empty: none.
        coefficients: per group, its `WorkCoefficients`; empty: none are known, and steps whose
            work is given as factors alone get plans of their own.
        lengths_range: sums of a microbatch's lengths that the coefficients hold for; steps with
            others get no plans of their own; null: any.
        deadline_ratio: time of a step by its plan over that of the slowest pipeline at the highest
            clocks, at least 1.
        reserve: as in `StepReserve`, of the step and of each instruction.
        change_delays_s: longest delay of a change to a higher clock, and shortest of one to a lower
            clock, as in `ChangeDelays`, s; null: clocks change at once.
    """

    num_microbatches: int
    virtual_stages: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...]
    groups: tuple[tuple[int, int, int], ...]
    instructions: tuple[str, ...]
    points: tuple[str, ...]
    waiting_power_w: tuple[float, ...]
    tail_s: float = 0.0
    transfer_s: tuple[float, ...] = ()
    coefficients: tuple[tuple[float, float, float], ...] = ()
    lengths_range: tuple[float, float] | None = None
    deadline_ratio: float = 1.0
    reserve: tuple[float, float] = (0.0, 0.0)
    change_delays_s: tuple[float, float] | None = None

    @property
    def most_bytes(self) -> int:
        """Upper bound of its size as JSON."""
        num_items = 3 * len(self.groups) + sum(map(len, self.virtual_stages))
        num_figures = len(self.waiting_power_w) + len(self.transfer_s) + 3 * len(self.coefficients)
        rows = (*self.instructions, *self.points)
        return 1024 + sum(3 + len(row) for row in rows) + 8 * num_items + 25 * num_figures


class _Header(TypedDict, total=False):
    """Fields of a RankPlan that are sent as they are."""

    job_id: str
    version: int
    stage: int
    first_step: int | None
    predicted_iteration_time_s: float
    requests: tuple[tuple[int, int, float], ...]
    measurement_detail: MeasurementDetail
    num_timed_steps: int
    pipeline: RankPipeline | None
    baseline_cycle: tuple[bool, ...]
    plan_id: str | None


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """Plan of one rank: its stage's instructions in order, each with its clock.

    Attributes:
        first_step: as in PlanView.
        kinds: distinct kinds of `instructions`.
        sm_clocks_mhz: distinct clocks of `instructions` and cycle in MHz.
        instructions: `[kind, microbatch, chunk, clock]` in the order of execution; kind and clock
            are indices into `kinds` and `sm_clocks_mhz`.
        predicted_iteration_time_s: predicted iteration time of the whole pipeline in s.
        cycle: per step of a cycle that begins at `first_step` and repeats, an index into
            `cycle_rows`; empty: the same in every step, as in `instructions`.
        cycle_rows: distinct rows of the cycle: base64 of the clock of each of `instructions`, as an
            index into `sm_clocks_mhz`, of one byte, or where there are more than 256 clocks of two,
            the low one first.
        requests: `[position, after_position, offset_s]`: the clock of `instructions[position]` is
            requested `offset_s` after the begin of `instructions[after_position]`, and at the
            latest as its own begins; any other clock as the instruction before ends. A position of
            the number of instructions is the next step's first one. In a step whose clocks
            differ from `after_position` to the one before `position`, or do not change at
            `position`, a row has no effect.
        measurement_detail: detail of this rank's measurements.
        num_timed_steps: number of steps on the plan, from its second one on, of which the times of
            single instructions are posted whatever the detail.
        pipeline: the rank's pipeline, where the clocks of single steps are chosen from it; null:
            steps get no plans of their own.
        baseline_cycle: with a pipeline, by step of the cycle, true where a comparison runs the
            highest clocks and a step gets no plan of its own; empty: no comparison.
        plan_id: unique identifier of the plan. The rank sends it with requests and measurements,
            since a restored database may give the same version to another plan.
    """

    job_id: str
    version: int
    stage: int
    first_step: int | None
    kinds: tuple[str, ...]
    sm_clocks_mhz: tuple[int, ...]
    instructions: tuple[tuple[int, int, int, int], ...]
    predicted_iteration_time_s: float
    cycle: tuple[int, ...] = ()
    cycle_rows: tuple[str, ...] = ()
    requests: tuple[tuple[int, int, float], ...] = ()
    measurement_detail: MeasurementDetail = MeasurementDetail.TOTALS
    num_timed_steps: int = 0
    pipeline: RankPipeline | None = None
    baseline_cycle: tuple[bool, ...] = ()
    plan_id: str | None = None

    def cycle_row(self, number: int) -> Sequence[int]:
        """Return a distinct row of the cycle: per instruction an index into `sm_clocks_mhz`.

        Raises:
            CodecError: It is not base64 of an index for each instruction.
        """
        try:
            packed = b64decode(self.cycle_rows[number], validate=True)
        except ValueError:
            raise CodecError(f"cycle_rows[{number}] must be base64") from None
        size = _index_bytes(len(self.sm_clocks_mhz))
        num = len(self.instructions)
        if len(packed) != size * num:
            raise CodecError(
                f"cycle_rows[{number}] must have a clock for each of the {num} instructions"
            )
        row = packed if size == 1 else little_endian(array("H", packed))
        if max(row, default=-1) >= len(self.sm_clocks_mhz):
            raise CodecError(f"cycle_rows[{number}] must have indices into sm_clocks_mhz")
        return row


def rank_plan(
    instructions: Sequence[Instruction],
    *,
    cycle_mhz: Sequence[tuple[int, ...]] = (),
    **header: Unpack[_Header],
) -> RankPlan:
    """Return a rank's plan.

    Args:
        instructions: Instructions in the order of execution.
        cycle_mhz: Per step of the cycle, the clock of each instruction in MHz; empty: no cycle.
        header: The other fields.
    """
    kinds = _indices(str(kind) for kind, _, _, _ in instructions)
    rows = _indices(cycle_mhz)
    clocks = _indices(sorted({mhz for _, _, mhz, _ in instructions}.union(*rows), reverse=True))
    return RankPlan(
        **header,
        kinds=tuple(kinds),
        sm_clocks_mhz=tuple(clocks),
        instructions=tuple(
            (kinds[kind], microbatch, chunk, clocks[mhz])
            for kind, microbatch, mhz, chunk in instructions
        ),
        cycle=tuple(rows[row] for row in cycle_mhz),
        cycle_rows=tuple(_packed(map(clocks.__getitem__, row), len(clocks)) for row in rows),
    )


def most_bytes(
    num_instructions: int,
    *,
    num_clocks: int,
    num_requests: int = 0,
    num_rows: int = 0,
    cycle_length: int = 0,
) -> int:
    """Return an upper bound of the size in bytes of a RankPlan as JSON.

    It counts the longest form of each item, such as `[63,16383,63,65535],` of an instruction and
    `[16384,16383,1.2345678901234567e-05],` of a request. The numbers are those of the plan's lists,
    and of the rows of its cycle that differ.
    """
    row_bytes = 4 * -(-num_instructions * _index_bytes(num_clocks) // 3) + 3
    return (
        4096
        + 22 * num_instructions
        + 8 * num_clocks
        + 40 * num_requests
        + row_bytes * num_rows
        # With its entry in the baseline's cycle.
        + 13 * cycle_length
    )


def _indices(items: Iterable[T]) -> dict[T, int]:
    """Return the distinct items in order of appearance, each with its index."""
    return {item: index for index, item in enumerate(dict.fromkeys(items))}


def _packed(row: Iterable[int], num_clocks: int) -> str:
    is_wide = _index_bytes(num_clocks) > 1
    packed = little_endian(array("H", row)).tobytes() if is_wide else bytes(row)
    return b64encode(packed).decode()


def _index_bytes(num_clocks: int) -> int:
    return 1 if num_clocks <= _MOST_ONE_BYTE_CLOCKS else 2


def little_endian(numbers: array[N]) -> array[N]:
    """Swap the bytes, in place, where this machine is big-endian; return the array."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
