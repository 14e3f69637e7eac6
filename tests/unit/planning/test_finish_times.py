"""Finish times by compiled code: those of Python, to the last bit."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings

from flyball_server.planning.model import finish_times
from flyball_server.planning.model.finish_times import earliest_finish_s, latest_finish_s
from flyball_server.planning.model.pipeline_model import PipelineModel

from .tiny_pipelines import assigned_models


@settings(max_examples=60, deadline=None)
@given(assigned_models())
def test_compiled_finish_times_are_those_of_python(
    assigned: tuple[PipelineModel, list[int]],
) -> None:
    model, assignment = assigned
    durations_s = model.durations_s(assignment)
    earliest_s = earliest_finish_s(model.dag, durations_s)
    latest_s = latest_finish_s(model.dag, durations_s, max(earliest_s))
    with patch.object(finish_times, "COMPILED_FROM", 0):
        assert earliest_finish_s(model.dag, durations_s) == earliest_s
        assert latest_finish_s(model.dag, durations_s, max(earliest_s)) == latest_s
