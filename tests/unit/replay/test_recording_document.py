"""Files of recorded runs: what is read, what is refused and how, and the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from tests.recorded_run_schema import validate
from tests.shared_data import needs_shared_data, recorded_runs
from tests.unit.replay.synthetic_runs import Document, synthetic_document

from flyball_server.replay.recorded_runs import RecordingError
from flyball_server.replay.recording_document import recording_document, recording_from_document


@pytest.fixture(scope="module")
def valid() -> Document:
    return synthetic_document(count=4)


def test_what_is_written_is_read_again_and_fits_the_schema(valid: Document) -> None:
    recording = recording_from_document(valid)
    written = recording_document(recording)
    validate(written)
    validate(valid)
    assert recording_from_document(json.loads(json.dumps(written))) == recording


def test_totals_stand_for_iterations_and_means_for_medians(valid: Document) -> None:
    of_times = recording_from_document(valid).runs[1]
    document = deepcopy(valid)
    run = document["runs"][1]
    del run["iteration_time_s"]
    run["iterations"] = {
        "count": of_times.iterations.num_iterations,
        "time_s_mean": of_times.iterations.mean_s,
        "time_s_deviation": of_times.iterations.deviation_s,
    }
    for times in run["instruction_times"]:
        times["time_s_mean"] = times.pop("time_s_median")
    validate(document)
    recording = recording_from_document(document)
    of_totals = recording.runs[1]
    assert of_totals.iterations.mean_s == of_times.iterations.mean_s
    assert of_totals.iterations.standard_error_s == of_times.iterations.standard_error_s
    assert not of_totals.instruction_times[0].is_median
    assert recording_from_document(recording_document(recording)) == recording


@needs_shared_data
def test_published_runs_fit_the_schema() -> None:
    for path in recorded_runs():
        document = json.loads(path.read_text(encoding="utf-8"))
        # The runs of a file are alike: two are validated.
        validate({**document, "runs": [document["runs"][0], document["runs"][-1]]})
        recording = recording_from_document(document)
        assert recording.num_stages == document["pp"]
        assert [run.name for run in recording.runs] == [run["name"] for run in document["runs"]]


GONE = object()


def _set(*path: str | int, to: Any = GONE) -> Callable[[Document], None]:  # noqa: ANN401 - any JSON
    def change(document: Document) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        if to is GONE:
            del place[path[-1]]
        else:
            place[path[-1]] = to

    return change


_RUN: tuple[str | int, ...] = ("runs", 2)
_TIMES: tuple[str | int, ...] = (*_RUN, "instruction_times", 0)
NAN = float("nan")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("pp"), "pp: must be a count"),
        (_set("pp", to=10**12), "run baseline, stage 3: clocks_mhz: has 3 stages"),
        (_set("num_microbatches", to=9), "run baseline, stage 0: clocks_mhz: has 16 clocks"),
        (_set("num_microbatches", to=True), "num_microbatches: must be a count"),
        (_set("schedule", to="zb-h1"), "schedule: 'zb-h1' is known, but not replayed"),
        (_set("schedule", to="none"), "schedule: 'none' is unknown"),
        (_set(*_RUN, "schedule", to="gpipe"), "run plan-2: schedule: is 'gpipe'"),
        (_set("runs", to={}), "runs: must be a list"),
        (_set("runs", to=[]), "runs: must hold at least two runs"),
        (_set(*_RUN, to=[]), "runs[2]: must be an object"),
        (_set(*_RUN, "name"), "run 2: name: must be 1 to 200 printable characters"),
        (_set(*_RUN, "name", to="a\nb"), "run 2: name: must be 1 to 200 printable characters"),
        (_set(*_RUN, "name", to="plan-1"), "run plan-1: name: two runs have it"),
        (_set(*_RUN, "clocks_mhz"), "run plan-2: clocks_mhz: must be a list"),
        (_set(*_RUN, "clocks_mhz", 1), "run plan-2, stage 2: clocks_mhz: has 2 stages"),
        (_set(*_RUN, "clocks_mhz", 1, 3), "run plan-2, stage 1: clocks_mhz: has 15 clocks"),
        (_set(*_RUN, "clocks_mhz", 1, to=7), "run plan-2, stage 1: clocks_mhz: has no list"),
        (_set(*_RUN, "clocks_mhz", 1, 3, to=1050.5), "stage 1: clocks_mhz[3]: must be a whole"),
        (_set(*_RUN, "clocks_mhz", 1, 3, to=10**30), "stage 1: clocks_mhz[3]: must be from 1"),
        (_set(*_RUN, "clocks_mhz", 1, 3, to=1111), "stage 1: instruction_times: has no"),
        (_set(*_RUN, "iteration_time_s", to=[]), "run plan-2: iteration_time_s: must hold"),
        (_set(*_RUN, "iteration_time_s", 0, to=NAN), "run plan-2: iteration_time_s[0]: must be"),
        (_set(*_RUN, "iteration_time_s", 0, to=1e9), "iteration_time_s[0]: must be from"),
        (_set(*_RUN, "energy_j_per_stage", 0), "stage 2: energy_j_per_stage: has 2 stages"),
        (_set(*_RUN, "energy_j_per_stage", 1, to=NAN), "run plan-2, stage 1: energy_j_per_stage"),
        (_set(*_RUN, "energy_j_per_stage", 1, to=1e13), "at most 1e+12 (check the unit)"),
        (_set(*_TIMES, "stage", to=3), "run plan-2: instruction_times[0]: stage 3 of 3"),
        (_set(*_TIMES, "instruction", to="step"), "instruction: must be forward or backward"),
        (_set(*_TIMES, "frequency_mhz", to=1375), "stage 0: instruction_times[0]: unknown clock"),
        (_set(*_TIMES, "time_s_median", to=NAN), "stage 0: instruction_times[0]: time_s_median"),
        (_set(*_TIMES, "samples", to=0), "stage 0: instruction_times[0]: samples: must be at"),
        (_set(*_RUN, "instruction_times", 0), "stage 0: instruction_times: has no"),
    ],
)
def test_a_fault_is_named_with_its_run_and_stage(
    valid: Document, change: Callable[[Document], None], said: str
) -> None:
    document = deepcopy(valid)
    change(document)
    with pytest.raises(RecordingError) as refused:
        recording_from_document(document)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("document", [None, [], "runs", 3])
def test_what_is_no_object_is_refused(document: object) -> None:
    with pytest.raises(RecordingError, match="document: must be an object"):
        recording_from_document(document)


def test_the_same_times_twice_are_refused(valid: Document) -> None:
    document = deepcopy(valid)
    times = document["runs"][1]["instruction_times"]
    times.append(times[0])
    with pytest.raises(RecordingError, match=r"run plan-1, stage 0: .*is there twice"):
        recording_from_document(document)


def test_keys_that_are_not_needed_are_ignored(valid: Document) -> None:
    document = deepcopy(valid)
    document["source"], document["runs"][0]["weather"] = "a cluster", "fair"
    assert recording_from_document(document) == recording_from_document(valid)
