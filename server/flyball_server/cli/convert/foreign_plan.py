"""A plan between two formats: an order, and its clocks and kernel schedules where there are any."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_pipeline.schedule import Schedule
from flyball_pipeline.schedules.explicit import num_microbatches_of, schedule_of_order
from flyball_pipeline.schedules.inputs import ExplicitOrder
from flyball_profiles.stage_profile import quantity_fault
from flyball_server.planning.errors import PlanningError
from flyball_server.replay.recorded_runs import RecordingError, schedule_of

Clocks = tuple[tuple[int, ...], ...]
KernelSchedules = tuple[tuple[tuple[str, ...], ...], ...]
"""Per stage and instruction, the kernel schedules (knobs) of its partitions."""

_ONE_F_ONE_B = "1f1b"
# A tree of a Python literal takes some hundred times its text.
_MAX_LITERAL_CHARACTERS = 4 * 2**20


@dataclass(frozen=True, kw_only=True)
class ForeignPlan:
    """Contents of a plan's file.

    Attributes:
        schedule: the complete order, called as the file does, `1f1b` where it is that order, or
            `explicit`.
        clocks_mhz: per stage, the clock of each instruction in the order of execution, MHz;
            None: the file has none.
        kernels: likewise Kareus's kernel schedules; None: the file has none.

    Raises:
        PlanningError: clocks or kernels are not one for each instruction, or a clock is none.
    """

    schedule: Schedule
    clocks_mhz: Clocks | None = None
    kernels: KernelSchedules | None = None

    def __post_init__(self) -> None:
        wanted = tuple(map(len, self.schedule.stages))
        for name, found in (("clocks", self.clocks_mhz), ("kernels", self.kernels)):
            if found is not None and tuple(map(len, found)) != wanted:
                raise PlanningError(
                    f"has {name} for {tuple(map(len, found))} instructions by stage, and"
                    f" {wanted} instructions",
                    field="stages",
                )
        for stage, clocks in enumerate(self.clocks_mhz or ()):
            for position, clock_mhz in enumerate(clocks):
                # A larger whole number is converted to no float.
                fault = quantity_fault("frequency_mhz", min(clock_mhz, 10**9))
                if fault:
                    raise PlanningError(
                        f"the clock {fault}, not {clock_mhz}", field=f"stages[{stage}][{position}]"
                    )

    @property
    def order(self) -> ExplicitOrder:
        """The order alone."""
        has_chunks = self.schedule.num_chunks > 1 or self.schedule.virtual_stages != tuple(
            (stage,) for stage in range(self.schedule.num_stages)
        )
        return ExplicitOrder(
            stages=self.schedule.stages,
            virtual_stages=self.schedule.virtual_stages if has_chunks else (),
        )

    @property
    def clocks(self) -> Clocks:
        """The clocks.

        Raises:
            PlanningError: there are none.
        """
        if self.clocks_mhz is None:
            raise PlanningError(
                "is an order without clocks; flyball plan --order makes a plan from it",
                field="stages",
            )
        return self.clocks_mhz


def named_schedule(order: ExplicitOrder) -> Schedule:
    """Return the order as a complete schedule, called `1f1b` where it is that.

    Raises:
        PlanningError: it is not complete.
    """
    schedule = schedule_of_order(order, num_microbatches_of(order))
    try:
        usual = schedule_of(_ONE_F_ONE_B, schedule.num_stages, schedule.num_microbatches)
    except RecordingError:
        return schedule
    is_usual = usual.stages == schedule.stages and not order.virtual_stages
    return usual if is_usual else schedule


def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """1F1B of this shape.

    Raises:
        PlanningError: there is no such shape.
    """
    try:
        return schedule_of(_ONE_F_ONE_B, num_stages, num_microbatches)
    except RecordingError as error:
        raise PlanningError(str(error), field="stages") from None


def order_of_kinds(stages: Sequence[Iterable[InstructionKind]]) -> ExplicitOrder:
    """Return the order of formats without microbatches: the n-th of a kind is of microbatch n."""
    numbered: list[tuple[Instruction, ...]] = []
    for kinds in stages:
        counts: Counter[InstructionKind] = Counter()
        instructions: list[Instruction] = []
        for kind in kinds:
            instructions.append(Instruction(kind, counts[kind]))
            counts[kind] += 1
        numbered.append(tuple(instructions))
    return ExplicitOrder(stages=tuple(numbered))


def kinds_of(schedule: Schedule, what: str) -> list[list[InstructionKind]]:
    """Kinds per stage, for a format without microbatches and chunks.

    Raises:
        PlanningError: microbatches do not run in turn, or a stage holds several chunks.
    """
    kinds = [[instruction.kind for instruction in stage] for stage in schedule.stages]
    if order_of_kinds(kinds).stages != schedule.stages:
        raise PlanningError(
            f"{schedule.name} does not run the microbatches of each stage in turn, whole stages at"
            f" once; {what} cannot hold that",
            field="stages",
        )
    return kinds


def kind_of(name: object, where: str) -> InstructionKind:
    """Return the instruction of this name.

    Raises:
        PlanningError: there is none.
    """
    kind = next((kind for kind in InstructionKind if kind == name), None)
    if kind is None:
        raise PlanningError(
            f"unknown instruction {str(name)[:40]!r}; known: {', '.join(InstructionKind)}",
            field=where,
        )
    return kind


def literal_stages(text: str) -> list[list[object]]:
    """Read a Python literal, a list of a list per stage; nothing is evaluated.

    Raises:
        PlanningError: it is something else, or longer than 4 MiB.
    """
    if len(text) > _MAX_LITERAL_CHARACTERS:
        raise PlanningError(
            f"longer than {_MAX_LITERAL_CHARACTERS // 2**20} MiB, the limit for a Python literal",
            field="stages",
        )
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
        raise PlanningError(
            f"{line}not a Python literal; lists, tuples, text and numbers are read, and nothing is"
            " evaluated",
            field="stages",
        ) from None
    if not isinstance(value, list | tuple) or not value:
        raise PlanningError("must be a list with a list per stage", field="stages")
    stages: list[list[object]] = []
    for stage, items in enumerate(value):
        if not isinstance(items, list | tuple) or not items:
            raise PlanningError("must be a list of instructions", field=f"stages[{stage}]")
        stages.append(list(items))
    return stages
