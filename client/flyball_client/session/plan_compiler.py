"""Checking a plan as it came from the planner, and fitting its clocks to the rank's GPU."""

from __future__ import annotations

from itertools import pairwise

from flyball_client.session.plan_cursor import CompiledPlan
from flyball_wire.errors import CodecError
from flyball_wire.messages import RankPlan


def compile_plan(plan: RankPlan, *, stage: int, supported_mhz: tuple[int, ...]) -> CompiledPlan:
    """The plan, checked and ready to follow.

    A clock that the GPU does not support becomes the next one above, so that no instruction
    takes longer than planned.

    Args:
        plan: as it came from the planner.
        stage: that this rank runs.
        supported_mhz: SM clocks that can be locked, MHz, falling, at least one.

    Raises:
        CodecError: it is for another stage, an instruction is not
            `[kind, microbatch, MHz]` or `[kind, microbatch, MHz, chunk]`, or a row of its cycle
            has not one clock above 0 for each of them, or the counter is to be read elsewhere
            than after instructions, in their order.
    """
    if plan.stage != stage:
        raise CodecError(
            f"plan version {plan.version} is for stage {plan.stage}, and this is stage {stage}"
        )
    rows = [_row(item, position) for position, item in enumerate(plan.instructions)]
    _check_cycle(plan)
    _check_counter_reads(plan)
    wanted_mhz = tuple(clock_mhz for _, _, clock_mhz, _ in rows)
    cycle_mhz = plan.cycle_mhz
    given_mhz = {
        clock_mhz: _at_or_above(clock_mhz, supported_mhz)
        for row in (wanted_mhz, *(cycle_mhz or ()))
        for clock_mhz in row
    }
    # Rows that are alike become one, so that the cursor sees at a glance that nothing changes.
    given_rows = {row: _given(row, given_mhz) for row in cycle_mhz or ()}
    set_mhz = (wanted_mhz,) if cycle_mhz is None else cycle_mhz
    return CompiledPlan(
        version=plan.version,
        kinds=tuple(kind for kind, _, _, _ in rows),
        microbatches=tuple(microbatch for _, microbatch, _, _ in rows),
        chunks=tuple(chunk for _, _, _, chunk in rows),
        sm_clocks_mhz=_given(wanted_mhz, given_mhz),
        highest_sm_clock_mhz=supported_mhz[0],
        num_raised=sum(clock_mhz != given_mhz[clock_mhz] for row in set_mhz for clock_mhz in row),
        cycle_mhz=None if cycle_mhz is None else tuple(given_rows[row] for row in cycle_mhz),
        report=plan.report,
        counter_reads=plan.counter_reads or (),
    )


def _given(wanted_mhz: tuple[int, ...], given_mhz: dict[int, int]) -> tuple[int, ...]:
    return tuple(given_mhz[clock_mhz] for clock_mhz in wanted_mhz)


def _row(item: tuple[str | int, ...], position: int) -> tuple[str, int, int, int]:
    match item:
        case (str(kind), int(microbatch), int(clock_mhz)) if clock_mhz > 0:
            return kind, microbatch, clock_mhz, 0
        case (str(kind), int(microbatch), int(clock_mhz), int(chunk)) if clock_mhz > 0:
            return kind, microbatch, clock_mhz, chunk
        case _:
            raise CodecError(
                f"instructions[{position}] must be [kind, microbatch, MHz] or"
                " [kind, microbatch, MHz, chunk]"
            )


def _check_cycle(plan: RankPlan) -> None:
    if plan.cycle_mhz is None:
        return
    if not plan.cycle_mhz:
        raise CodecError("cycle_mhz must have at least one row, or be null")
    for number, row in enumerate(plan.cycle_mhz):
        if len(row) != len(plan.instructions):
            raise CodecError(
                f"cycle_mhz[{number}] must have a clock for each of the {len(plan.instructions)}"
                f" instructions, not {len(row)}"
            )
        if any(clock_mhz <= 0 for clock_mhz in row):
            raise CodecError(f"cycle_mhz[{number}] must have clocks above 0 MHz only")


def _check_counter_reads(plan: RankPlan) -> None:
    reads, num_instructions = plan.counter_reads or (), len(plan.instructions)
    is_rising = all(before < after for before, after in pairwise(reads))
    if not is_rising or any(not 1 <= position <= num_instructions for position in reads):
        raise CodecError(
            f"counter_reads must rise and be from 1 to the {num_instructions} instructions"
        )


def _at_or_above(wanted_mhz: int, supported_mhz: tuple[int, ...]) -> int:
    return min((mhz for mhz in supported_mhz if mhz >= wanted_mhz), default=supported_mhz[0])
