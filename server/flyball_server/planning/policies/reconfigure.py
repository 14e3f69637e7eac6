"""EnvPipe's reconfiguration: clocks on the critical path are raised until it is all-highest.

A move only ever raises a clock by at least one profiled step, so it always ends. Where the
critical path is the outer envelope, everything on it is already at the highest clock, so one
condition serves for both of EnvPipe's ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from flyball_pipeline.paths import earliest_finish_s
from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import critical_path
from flyball_wire.plan_options import Reconfigure

GREEDY_STEPS = 3

PathRaise = Callable[[PipelineModel, Assignment, Sequence[int], int], bool]
"""Raises clocks on a critical path in place; False when all of it is at the highest."""


def reconfigure(
    model: PipelineModel, assignment: Assignment, manner: Reconfigure, granularity_mhz: int
) -> Assignment:
    """Raise clocks on the critical path, `manner` by `manner`, until it is all-highest.

    Args:
        model: the pipeline.
        assignment: initial assignment; left as it is.
        manner: `default` raises nothing; `greedy` the last unit of the path that is below the
            highest, by three steps; `balanced` every unit that has the path's lowest clock, by
            one step.
        granularity_mhz: a step goes to the first profiled frequency at least this much higher,
            at most the highest.

    Raises:
        PlanningError: the granularity is below 1 MHz.
    """
    steps = reconfiguring_steps(model, assignment, manner, granularity_mhz)
    return functools.reduce(lambda _, step: step, steps)


def reconfiguring_steps(
    model: PipelineModel, assignment: Assignment, manner: Reconfigure, granularity_mhz: int
) -> Iterator[Assignment]:
    """Return the stages of `reconfigure`: the start, then the clocks after each of its steps.

    Raises:
        PlanningError: as in `reconfigure`, before the first.
    """
    raise_path = path_raise(manner, granularity_mhz)
    raised = list(assignment)
    durations_s = model.durations_s(raised)
    while True:
        yield list(raised)
        path = critical_path(model.dag, durations_s, earliest_finish_s(model.dag, durations_s))
        if not raise_path(model, raised, path, granularity_mhz):
            return
        for node in path:
            durations_s[node] = model.points[node][raised[node]].time_s


def path_raise(manner: Reconfigure, granularity_mhz: int) -> PathRaise:
    """Return how `manner` raises a critical path once, wherever that path is known from.

    Raises:
        PlanningError: as in `reconfigure`.
    """
    if granularity_mhz < 1:  # a step that raises nothing would never end
        raise PlanningError(
            f"must be at least 1 MHz, not {granularity_mhz}", field="reconfigure_granularity_mhz"
        )
    return RECONFIGURATIONS[manner]


def _raise_nothing(*_: object) -> bool:
    return False


def _raise_last(
    model: PipelineModel, assignment: Assignment, path: Sequence[int], granularity_mhz: int
) -> bool:
    for node in reversed(path):
        if assignment[node] > 0:
            for _ in range(GREEDY_STEPS):
                assignment[node] = _one_step_up(
                    model.points[node], assignment[node], granularity_mhz
                )
            return True
    return False


def _raise_lowest(
    model: PipelineModel, assignment: Assignment, path: Sequence[int], granularity_mhz: int
) -> bool:
    below_highest = [node for node in path if assignment[node] > 0]
    if not below_highest:
        return False
    clocks_mhz = {
        node: model.points[node][assignment[node]].frequency_mhz for node in below_highest
    }
    lowest_mhz = min(clocks_mhz.values())
    for node in below_highest:
        if clocks_mhz[node] == lowest_mhz:
            assignment[node] = _one_step_up(model.points[node], assignment[node], granularity_mhz)
    return True


def _one_step_up(points: tuple[OperatingPoint, ...], choice: int, granularity_mhz: int) -> int:
    wanted_mhz = points[choice].frequency_mhz + granularity_mhz
    while choice > 0 and points[choice].frequency_mhz < wanted_mhz:
        choice -= 1
    return choice


RECONFIGURATIONS: dict[Reconfigure, PathRaise] = {
    Reconfigure.DEFAULT: _raise_nothing,
    Reconfigure.GREEDY: _raise_last,
    Reconfigure.BALANCED: _raise_lowest,
}
