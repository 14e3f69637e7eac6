"""A pipeline's instructions one by one, with their time and energy at every clock of their stage.

A plan's point of an instruction is at the plan's clock. Where a clock changes late, part of the
instruction runs at the clock before, which may be any clock of its stage.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flyball_pipeline.dag import step_dag
from flyball_pipeline.schedule import Schedule
from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.model.array_dag import ArrayDag, array_dag


@dataclass(frozen=True, kw_only=True)
class ClockRequest:
    """Request of an instruction's clock at another time than the default.

    It is made no later than the instruction begins.

    Attributes:
        after: instruction of the same stage whose begin it follows, before its own one, or for a
            stage's first instruction in the iteration before; between them no clock changes.
        offset_s: time after that in s, not negative.
    """

    after: int
    offset_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ClockedInstructions:
    """The instructions of an iteration in the order in which they run, and their clocks.

    They are numbered as the DAG's nodes are. Where a node stands for all microbatches of a
    steady-state period, each of these is an instruction of its own, stage after stage.

    Attributes:
        dag: DAG of the instructions.
        node: per instruction, its node in the model's DAG.
        first, last: per stage, its first and its last instruction.
        clocks_mhz: per stage, its clocks in MHz, falling; a clock is an index into these.
        group: per instruction, an index into the three attributes below.
        clock_of_choice: per group and operating point, its clock.
        times_s, energies_j: per group and clock, time in s and energy in J; of a clock that the
            profile lacks, those of the next higher clock, else of the highest, as `EmulatedGpu`
            and policy `constant` have it.
    """

    dag: ArrayDag
    node: Sequence[int]
    first: tuple[int, ...]
    last: tuple[int, ...]
    clocks_mhz: tuple[tuple[int, ...], ...]
    group: Sequence[int]
    clock_of_choice: tuple[tuple[int, ...], ...]
    times_s: tuple[tuple[float, ...], ...]
    energies_j: tuple[tuple[float, ...], ...]

    @property
    def num_instructions(self) -> int:
        """Number of instructions of an iteration."""
        return len(self.node)

    @functools.cached_property
    def before(self) -> list[int]:
        """Per instruction, that before it on its stage; of the first the last."""
        before = list(self.dag.order_predecessor)
        for first, last in zip(self.first, self.last, strict=True):
            before[first] = last
        return before

    def clocks(self, assignment: Sequence[int]) -> list[int]:
        """Return each instruction's clock in a plan.

        Args:
            assignment: per node, an index into its operating points.
        """
        of_choice, group = self.clock_of_choice, self.group
        return [of_choice[group[i]][assignment[node]] for i, node in enumerate(self.node)]


PointGroups = tuple[tuple[tuple[int, tuple[OperatingPoint, ...]], ...], tuple[int, ...]]
"""Stage and operating points of each group of nodes that share both; per node, its group."""


def clocked_instructions(
    schedule: Schedule, dag: ArrayDag, groups: PointGroups
) -> ClockedInstructions:
    """Return the instructions of a pipeline.

    Args:
        schedule: order that the DAG is of.
        dag: DAG of the order.
        groups: groups of its nodes.
    """
    stage_and_points, group_of_node = groups
    of_stages: list[set[int]] = [set() for _ in schedule.stages]
    for stage, of_group in stage_and_points:
        of_stages[stage].update(point.frequency_mhz for point in of_group)
    clocks_mhz = tuple(tuple(sorted(of_stage, reverse=True)) for of_stage in of_stages)
    share = 1 / schedule.num_microbatches if schedule.is_periodic else 1
    held = [
        [_held(of_group, clock_mhz) for clock_mhz in clocks_mhz[stage]]
        for stage, of_group in stage_and_points
    ]
    nodes = list(itertools.chain.from_iterable(dag.nodes_of(schedule)))
    of_step = (
        replace(array_dag(step_dag(schedule)), tail_s=dag.tail_s) if schedule.is_periodic else dag
    )
    numbered = list(enumerate(of_step.stage))
    last = {stage: instruction for instruction, stage in numbered}
    first = {stage: instruction for instruction, stage in reversed(numbered)}
    return ClockedInstructions(
        dag=of_step,
        node=nodes,
        first=tuple(map(first.__getitem__, range(schedule.num_stages))),
        last=tuple(map(last.__getitem__, range(schedule.num_stages))),
        clocks_mhz=clocks_mhz,
        group=[group_of_node[node] for node in nodes],
        clock_of_choice=tuple(
            tuple(clocks_mhz[stage].index(point.frequency_mhz) for point in of_group)
            for stage, of_group in stage_and_points
        ),
        times_s=tuple(tuple(share * point.time_s for point in of_group) for of_group in held),
        energies_j=tuple(tuple(share * point.energy_j for point in of_group) for of_group in held),
    )


def _held(points: tuple[OperatingPoint, ...], clock_mhz: int) -> OperatingPoint:
    """Return the lowest point of at least this clock, else the highest."""
    return points[max(0, sum(point.frequency_mhz >= clock_mhz for point in points) - 1)]
