"""Finish times and totals by compiled code: those of the simulator, to the last bit."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings

from flyball_server.planning.model import finish_times
from flyball_server.planning.model.finish_times import FinishTimes, predicted_time_and_energy
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import (
    earliest_finish_s,
    latest_finish_s,
    time_and_energy,
)

from .tiny_pipelines import assigned_models


@settings(max_examples=60, deadline=None)
@given(assigned_models())
def test_they_are_those_of_the_simulator(assigned: tuple[PipelineModel, list[int]]) -> None:
    model, assignment = assigned
    durations_s = model.durations_s(assignment)
    compiled = FinishTimes(model.dag, compiled_from=0)
    earliest_s = earliest_finish_s(model.dag, durations_s)
    assert compiled.earliest_s(durations_s) == earliest_s
    latest_s = latest_finish_s(model.dag, durations_s, max(earliest_s))
    assert compiled.latest_s(durations_s, max(earliest_s)) == latest_s
    with patch.object(finish_times, "COMPILED_FROM", 0):
        assert predicted_time_and_energy(model, assignment) == time_and_energy(model, assignment)
