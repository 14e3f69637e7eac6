"""Files of recorded runs: what is read, what is refused and how, and the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from tests.recorded_run_schema import validate
from tests.shared_data import needs_shared_data, recorded_runs
from tests.unit.replay.synthetic_runs import Document, recording_of, synthetic_document

from flyball_wire.codec import encode
from flyball_wire.errors import CodecError


@pytest.fixture(scope="module")
def valid() -> Document:
    return synthetic_document(count=4)


def test_what_is_written_is_read_again_and_valid_documents_fit_the_schema(valid: Document) -> None:
    recording = recording_of(valid)
    validate(valid)
    assert recording_of(json.loads(json.dumps(encode(recording)))) == recording


def test_totals_stand_for_iterations_and_means_for_medians(valid: Document) -> None:
    of_times = recording_of(valid).runs[1]
    document = deepcopy(valid)
    run = document["runs"][1]
    del run["iteration_time_s"]
    run["iterations"] = encode(of_times.totals)
    for times in run["instruction_times"]:
        times["time_s_mean"] = times.pop("time_s_median")
    validate(document)
    of_totals = recording_of(document).runs[1]
    assert of_totals.totals == of_times.totals
    assert [times.time_s for times in of_totals.instruction_times] == [
        times.time_s for times in of_times.instruction_times
    ]


@needs_shared_data
def test_published_runs_fit_the_schema() -> None:
    for path in recorded_runs():
        document = json.loads(path.read_text(encoding="utf-8"))
        # The runs of a file are alike: two are validated.
        validate({**document, "runs": [document["runs"][0], document["runs"][-1]]})
        recording = recording_of(document)
        assert recording.order.num_stages == document["pp"]
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
TOTALS = {"count": 1, "time_s_mean": 1.0, "time_s_deviation": 0.0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("pp"), "pp is missing"),
        (_set("pp", to=10**12), "run baseline: clocks_mhz: has 3 stages, pp is"),
        (_set("num_microbatches", to=9), "run baseline, stage 0: clocks_mhz: has 16 clocks"),
        (_set("num_microbatches", to=0), "num_microbatches: must be at least 1, not 0"),
        (_set("schedule", to="zb-h1"), "schedule: 'zb-h1' is known, but not replayed"),
        (_set("schedule", to="none"), "schedule: 'none' is unknown"),
        (_set(*_RUN, "schedule", to="gpipe"), "run plan-2: schedule: is 'gpipe'"),
        (_set("runs", to=[]), "runs: must hold at least two runs"),
        (_set(*_RUN, "name", to="a\nb"), "runs[2]: name: must be 1 to 200 printable characters"),
        (_set(*_RUN, "name", to="plan-1"), "run plan-1: two runs have this name"),
        (_set(*_RUN, "clocks_mhz", 1), "run plan-2: clocks_mhz: has 2 stages"),
        (_set(*_RUN, "clocks_mhz", 1, 3), "run plan-2, stage 1: clocks_mhz: has 15 clocks"),
        (_set(*_RUN, "clocks_mhz", 1, 3, to=10**30), "runs[2]: clocks_mhz of stage 1: must be"),
        (_set(*_RUN, "clocks_mhz", 1, 3, to=1111), "stage 1: instruction_times: has no"),
        (_set(*_RUN, "iteration_time_s", to=[]), "runs[2]: give iteration_time_s, of at least"),
        (_set(*_RUN, "iteration_time_s", 0, to=1e9), "iteration_time_s[0]: must be from"),
        (_set(*_RUN, "iterations", to=TOTALS), "runs[2]: give iteration_time_s, of at least"),
        (_set(*_RUN, "energy_j_per_stage", 0), "run plan-2: energy_j_per_stage: has 2 stages"),
        (_set(*_RUN, "energy_j_per_stage", 1, to=1e13), "above 0, at most 1e+12, not 1"),
        (_set(*_TIMES, "stage", to=3), "run plan-2, stage 3: instruction_times: backward at"),
        (_set(*_TIMES, "instruction", to="step"), "instruction: must be forward or backward"),
        (_set(*_TIMES, "frequency_mhz", to=1375), "backward at 1375 MHz is not in the run's plan"),
        (_set(*_TIMES, "time_s_median", to=-1), "instruction_times[0]: time_s_median: must be"),
        (_set(*_TIMES, "time_s_median"), "instruction_times[0]: give time_s_median or time_s_mean"),
        (_set(*_TIMES, "samples", to=0), "instruction_times[0]: samples: must be at least 1"),
        (_set(*_TIMES, "source", to="hearsay"), "source: must be run or profile"),
        (_set(*_RUN, "instruction_times", 0), "stage 0: instruction_times: has no"),
    ],
)
def test_a_fault_is_named_with_its_place(
    valid: Document, change: Callable[[Document], None], said: str
) -> None:
    document = deepcopy(valid)
    change(document)
    with pytest.raises(CodecError) as refused:
        recording_of(document)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400
