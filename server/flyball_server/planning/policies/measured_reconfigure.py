"""EnvPipe's reconfiguration from measured receive times, one observation at a time.

Choi et al., "EnvPipe: Performance-preserving DNN Training Framework for Saving Energy", USENIX
ATC 2023. `reconfigure` walks the critical path of a model; here the waits that ranks measured
tell which way it goes. An observation raises a clock or is quiet, and there are finitely many
clocks to raise, so it ends whatever is measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flyball_pipeline.dag import NONE
from flyball_pipeline.paths import earliest_finish_s
from flyball_pipeline.schedule import Schedule
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.array_dag import ArrayDag
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import RELATIVE_TIME_TOLERANCE
from flyball_server.planning.policies.reconfigure import path_raise
from flyball_wire.plan_options import Reconfigure


class StageInstructionTimes(NamedTuple):
    """One instruction as one rank ran it; microbatch None: unknown."""

    kind: str
    microbatch: int | None
    chunk: int
    received_s: float
    computed_s: float


MeasuredStep = Sequence[Sequence[StageInstructionTimes]]
"""Per stage, what one of its ranks ran in one step, in the order of execution."""


@dataclass(frozen=True, kw_only=True)
class MeasuredPipeline:
    """Times of a pipeline at unchanging clocks.

    Attributes:
        computed_s: per node of the DAG, how long it computed, s.
        received_s: per node, how long its stage received its input before, waiting included, s;
            0 where it receives none.
    """

    computed_s: tuple[float, ...]
    received_s: tuple[float, ...]


def is_as_ordered(schedule: Schedule, stage: int, ran: Sequence[StageInstructionTimes]) -> bool:
    """Return True if a rank of this stage ran the instructions of the order, in that order."""
    ordered = schedule.stages[stage]
    return len(ran) == len(ordered) and all(
        (times.kind, times.chunk) == (kind, chunk) and times.microbatch in (None, microbatch)
        for times, (kind, microbatch, chunk) in zip(ran, ordered, strict=True)
    )


def pipeline_of_steps(
    schedule: Schedule, dag: ArrayDag, steps: Sequence[MeasuredStep]
) -> MeasuredPipeline:
    """Return the median over steps, for each node of the DAG.

    A node that stands for all microbatches of a steady-state period has their sum.

    Args:
        schedule: schedule that all stages ran, as `is_as_ordered` has it.
        dag: DAG of that schedule.
        steps: one at least, all at the same clocks.
    """
    nodes = list(itertools.chain.from_iterable(dag.nodes_of(schedule)))
    times_s = np.zeros((2, len(steps), dag.num_nodes))
    for number, step in enumerate(steps):
        ran = [times for stage in step for times in stage]
        np.add.at(times_s[0, number], nodes, [times.computed_s for times in ran])
        np.add.at(times_s[1, number], nodes, [times.received_s for times in ran])
    computed_s, received_s = np.median(times_s, axis=1).tolist()
    return MeasuredPipeline(computed_s=tuple(computed_s), received_s=tuple(received_s))


def receives_from_neighbour(dag: ArrayDag, node: int) -> bool:
    """Return whether what this node works on comes from another stage."""
    source = dag.data_predecessor[node]
    return source != NONE and dag.stage[source] != dag.stage[node]


def slowest(dag: ArrayDag, pipelines: Sequence[MeasuredPipeline]) -> MeasuredPipeline:
    """Return the data-parallel pipeline that ends last, by the computing times.

    Args:
        dag: DAG of each of them.
        pipelines: one at least; of equal ones the first counts.
    """
    return max(pipelines, key=lambda pipeline: max(earliest_finish_s(dag, pipeline.computed_s)))


# In EnvPipe's published configurations: threshold of a wait, as a multiple of a receive without
# one, and quiet observations that end the loop.
THRESHOLD_SCALE = 4.0
FINISH_LIMIT = 3


@dataclass(frozen=True, kw_only=True)
class MeasuredLoop:
    """Settings of reconfiguration from measurements.

    Attributes:
        model: order and operating points; its times are not used.
        manner: as in `reconfigure`.
        granularity_mhz: as in `reconfigure`.
        finish_limit: quiet observations in a row that end the loop, at least 1.
    """

    model: PipelineModel
    manner: Reconfigure
    granularity_mhz: int
    finish_limit: int = FINISH_LIMIT


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Next action after some observations at the same clocks.

    Attributes:
        raised: the next clocks; None: these stay.
        is_finished: nothing is left to do; else, with nothing raised, measure again.
    """

    raised: Assignment | None = None
    is_finished: bool = False


def decide(
    loop: MeasuredLoop, assignment: Sequence[int], windows: Sequence[MeasuredPipeline]
) -> Decision:
    """Raise by the first observation window that finds something to raise.

    Args:
        loop: how.
        assignment: the clocks at which all windows were measured; left as it is.
        windows: in the order of time.

    Raises:
        PlanningError: as in `reconfigure`, or the waits were not measured.
    """
    raise_path = path_raise(loop.manner, loop.granularity_mhz)
    raised = list(assignment)
    for window in windows[: loop.finish_limit]:
        path = measured_critical_path(loop.model.dag, window)
        if raise_path(loop.model, raised, path, loop.granularity_mhz):
            return Decision(raised=raised)
    return Decision(is_finished=len(windows) >= loop.finish_limit)


def measured_critical_path(dag: ArrayDag, measured: MeasuredPipeline) -> list[int]:
    """Nodes of the critical path in the order of time, walked back by EnvPipe's rule.

    A node whose receive was short was delayed by the one before it on its stage, another one by
    the neighbour that it received from. It begins with the last node of the stage that is done
    last, by the computing times: EnvPipe's, stage 0's last backward in its own orders.

    Raises:
        PlanningError: no stage has reported its receive times.
    """
    has_neighbours = any(receives_from_neighbour(dag, node) for node in range(dag.num_nodes))
    if has_neighbours and not any(measured.received_s):
        raise PlanningError("no rank reports the wait for its input", field="received_s")
    finish_s = earliest_finish_s(dag, measured.computed_s)
    node = max(dag.last_of_stages, key=lambda index: (finish_s[index], -dag.stage[index]))
    threshold_s = max(
        THRESHOLD_SCALE * unwaited_receive_s(dag, measured, finish_s),
        RELATIVE_TIME_TOLERANCE * finish_s[node],
    )
    path: list[int] = []
    while node != NONE:
        path.append(node)
        node = _delayed_by(dag, node, has_waited=measured.received_s[node] > threshold_s)
    return path[::-1]


def unwaited_receive_s(
    dag: ArrayDag, measured: MeasuredPipeline, finish_s: Sequence[float]
) -> float:
    """Return how long a receive takes whose message has been sent before, s; 0 where there is none.

    EnvPipe takes the least receive time of the last stage, which is right where that stage is
    so heavy that its inputs wait for it. Here only receives count whose message had been sent
    before, by the computing times: on the last stage if it has any, else on all.

    Args:
        dag: DAG of the pipeline.
        measured: its times.
        finish_s: per node, when it is done by the computing times, s.
    """
    unwaited = [
        node
        for node, before in enumerate(dag.order_predecessor)
        if before != NONE
        and receives_from_neighbour(dag, node)
        and finish_s[dag.data_predecessor[node]] <= finish_s[before]
    ]
    last_stage = max(dag.stage)
    of_last = [node for node in unwaited if dag.stage[node] == last_stage]
    return min((measured.received_s[node] for node in of_last or unwaited), default=0.0)


def _delayed_by(dag: ArrayDag, node: int, *, has_waited: bool) -> int:
    before = dag.order_predecessor[node]
    if receives_from_neighbour(dag, node) and (has_waited or before == NONE):
        return dag.data_predecessor[node]
    return before
