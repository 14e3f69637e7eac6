"""EnvPipe's reconfiguration from measured receive times, one look at a time.

Choi et al., "EnvPipe: Performance-preserving DNN Training Framework for Saving Energy", USENIX
ATC 2023. `reconfigure` walks the critical path of a model; here the waits that ranks measured
tell which way it goes. A look either raises a clock or it is quiet, and there are only so many
clocks to raise, so it ends whatever is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.dag import NONE, DependencyDag
from flyball_server.planning.model.finish_times import FinishTimes
from flyball_server.planning.model.measured_pipeline import (
    MeasuredPipeline,
    receives_from_neighbour,
)
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import RELATIVE_TIME_TOLERANCE
from flyball_server.planning.policies.reconfigure import path_raise

# In EnvPipe's published configurations.
THRESHOLD_SCALE = 4.0
FINISH_LIMIT = 3


@dataclass(frozen=True, kw_only=True)
class MeasuredLoop:
    """Settings of reconfiguration from measurements.

    Attributes:
        model: order and operating points; its times are not looked at.
        manner: `default`, `greedy` or `balanced`, as in `reconfigure`.
        granularity_mhz: as in `reconfigure`.
        threshold_scale: a receive that takes longer than so many times one that waits for
            nothing has waited.
        finish_limit: so many quiet looks in a row end it, at least 1.
    """

    model: PipelineModel
    manner: str
    granularity_mhz: int
    threshold_scale: float = THRESHOLD_SCALE
    finish_limit: int = FINISH_LIMIT


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Next action after some observations at the same clocks.

    Attributes:
        raised: the next clocks; None: these stay.
        is_finished: nothing is left to do; else, with nothing raised, look again.
    """

    raised: Assignment | None = None
    is_finished: bool = False


def decide(
    loop: MeasuredLoop, assignment: Sequence[int], looks: Sequence[MeasuredPipeline]
) -> Decision:
    """Raise by the first look that finds something to raise.

    Args:
        loop: how.
        assignment: the clocks at which all looks were measured; left as it is.
        looks: in the order of time.

    Raises:
        PlanningError: as in `reconfigure`, or the waits were not measured.
    """
    raise_path = path_raise(loop.manner, loop.granularity_mhz)
    raised = list(assignment)
    for look in looks[: loop.finish_limit]:
        path = measured_critical_path(loop.model.dag, look, loop.threshold_scale)
        if raise_path(loop.model, raised, path, loop.granularity_mhz):
            return Decision(raised=raised)
    return Decision(is_finished=len(looks) >= loop.finish_limit)


def measured_critical_path(
    dag: DependencyDag, measured: MeasuredPipeline, threshold_scale: float = THRESHOLD_SCALE
) -> list[int]:
    """Nodes of the critical path in the order of time, walked back by EnvPipe's rule.

    A node whose receive was short was delayed by the one before it on its stage, another one by
    the neighbour that it received from. It begins with the last node of the stage that is done
    last, by the computing times: EnvPipe's, stage 0's last backward, in the orders that it knows.

    Raises:
        PlanningError: no stage has told how long it received.
    """
    has_neighbours = any(receives_from_neighbour(dag, node) for node in range(dag.num_nodes))
    if has_neighbours and not any(measured.received_s):
        raise PlanningError("no rank tells how long it waits for its input", field="received_s")
    finish_s = FinishTimes(dag).earliest_s(measured.computed_s)
    node = max(dag.last_of_stages, key=lambda index: (finish_s[index], -dag.stage[index]))
    threshold_s = max(
        threshold_scale * unwaited_receive_s(dag, measured, finish_s),
        RELATIVE_TIME_TOLERANCE * finish_s[node],
    )
    path: list[int] = []
    while node != NONE:
        path.append(node)
        node = _delayed_by(dag, node, has_waited=measured.received_s[node] > threshold_s)
    return path[::-1]


def unwaited_receive_s(
    dag: DependencyDag, measured: MeasuredPipeline, finish_s: Sequence[float]
) -> float:
    """Return how long a receive takes whose message has been sent before, s; 0 where there is none.

    EnvPipe takes the least receive time of the last stage, which is right where that stage is
    so heavy that its inputs wait for it. Here only receives count whose message had been sent
    before, by the computing times: on the last stage if it has any, else on all.

    Args:
        dag: of the pipeline.
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


def _delayed_by(dag: DependencyDag, node: int, *, has_waited: bool) -> int:
    before = dag.order_predecessor[node]
    if receives_from_neighbour(dag, node) and (has_waited or before == NONE):
        return dag.data_predecessor[node]
    return before
