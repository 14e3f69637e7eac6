"""What the frontier panel is made of, in a browser: marks, axes, labels, progress in words."""

from __future__ import annotations

from typing import Any

import pytest
from tests.browser.frontier_views import FRONTIER, MEASURED, PREDICTED, point, state, summary
from tests.browser.modules import Modules, modules

__all__ = ["modules"]

NARROW_SPACE = "\u202f"


def labels(modules: Modules, **changes: object) -> list[str]:
    """Of the marks in the chart."""
    marks = modules.run(
        "frontier_curve",
        "return m.marksOf(frontier, state);",
        frontier=FRONTIER,
        state=state([summary(3)], **changes),
    )
    return [mark["label"] for mark in marks]


# ------------------------------------------------------------------ marks and axes


def test_baseline_envpipe_plan_and_measured_are_marked_and_equal_plans_once(
    modules: Modules,
) -> None:
    assert labels(modules) == [
        "baseline: highest clocks",
        "EnvPipe: uniform, default",
        "EnvPipe: envelope, default; envelope, balanced",
        "version 3, in force",
        "version 3, measured",
    ]


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"emulated": True}, "version 3, measured on emulated GPUs"),
        ({"measured": {**MEASURED, "clocks": "highest"}}, "highest clocks, measured"),
        ({"measured": {**MEASURED, "energy_j": None}}, "version 3, in force"),
        ({"measured": None}, "version 3, in force"),
        ({"measured": None, "active_version": None}, "version 3, newest"),
        (
            {"measured": None, "predicted": None},
            "EnvPipe: envelope, default; envelope, balanced",
        ),
    ],
)
def test_what_was_measured_and_what_is_only_planned_are_told_apart(
    modules: Modules, changes: dict[str, object], label: str
) -> None:
    assert labels(modules, **changes)[-1] == label


def test_marks_say_in_words_what_is_predicted_and_what_measured(modules: Modules) -> None:
    marks = modules.run(
        "frontier_curve",
        "return m.marksOf(frontier, state);",
        frontier=FRONTIER,
        state=state(),
    )
    words = [mark["words"].replace(NARROW_SPACE, " ") for mark in marks]
    assert words[0] == "baseline: highest clocks: 2.000 s, 1.000 kJ, predicted"
    assert words[-1] == "version 3, measured: 2.100 s, 910.0 J, steps 10 to 19"


def extent(modules: Modules, measured: dict[str, Any]) -> dict[str, Any]:
    """Return what the axes span, and what is outside."""
    found: dict[str, Any] = modules.run(
        "frontier_curve",
        "return m.extentOf(frontier, m.marksOf(frontier, state));",
        frontier=FRONTIER,
        state=state(measured=measured),
    )
    return found


def test_the_axes_span_all_marks_the_bound_and_what_was_measured(modules: Modules) -> None:
    found = extent(modules, {**MEASURED, "iteration_time_s": 2.6, "energy_j": 1200.0})
    assert found["outside"] == []
    assert found["extent"]["fastest_s"] < 2.0
    assert found["extent"]["slowest_s"] > 2.6
    assert found["extent"]["least_j"] < 800.0
    assert found["extent"]["most_j"] > 1200.0


def test_a_measured_point_far_from_what_is_predicted_does_not_squeeze_the_rest(
    modules: Modules,
) -> None:
    """Eight pipelines are measured where the profile is one's: eight times the energy."""
    found = extent(modules, {**MEASURED, "energy_j": 8000.0})
    assert [mark["kind"] for mark in found["outside"]] == ["measured"]
    assert found["extent"]["most_j"] < 1100.0


def test_a_point_is_told_against_the_baseline_and_gives_its_deadline_back(
    modules: Modules,
) -> None:
    sentence, target = modules.run(
        "frontier_curve",
        "return [m.pointSentence(point, baseline), m.targetOf(point)];",
        point={**point(2.2, 800.0, 784.0), "deadline_s": 2.8290389777777794},
        baseline=FRONTIER["baseline"],
    )
    assert sentence.replace(NARROW_SPACE, " ") == (
        "2.200 s, 800.0 J; saves 20.0 %, +10.00 % time; gap 2.04 %; predicted"
    )
    assert float(target.removeprefix("deadline:")) == 2.8290389777777794


def test_another_profile_or_schedule_asks_for_a_new_frontier_and_another_target_does_not(
    modules: Modules,
) -> None:
    other_profile = {**PREDICTED, "baseline_energy_j": 1001.0}
    other_target = {**PREDICTED, "iteration_time_s": 2.2, "energy_j": 800.0}
    states = [
        state(),
        state([summary(3), summary(4, predicted=other_target)]),
        state([summary(3), summary(4, kind="probe", predicted=None)]),
        state([summary(3), summary(4, predicted=other_profile)]),
        state([summary(3), summary(4, schedule="zbv")]),
    ]
    keys = modules.run("frontier_curve", "return states.map(m.frontierKey);", states=states)
    assert keys[1:3] == [keys[0]] * 2
    assert keys[0] not in keys[3:]


# ------------------------------------------------------------------ labels

ROOM = {"x": 0, "y": 0, "width": 400, "height": 300}
PLACE = "return m.placeLabels(marks, spots, room);"


def mark(x: float, y: float, **changes: object) -> dict[str, Any]:
    """A mark of 5 px with a label of 100 x 16 px."""
    return {"x": x, "y": y, "radius": 5, "width": 100, "height": 16, **changes}


def is_apart(one: dict[str, float], other: dict[str, float]) -> bool:
    """Return whether two labels of 100 x 16 px leave each other alone."""
    return abs(one["x"] - other["x"]) >= 100 or abs(one["y"] - other["y"]) >= 16


def test_a_label_alone_stands_beside_its_mark(modules: Modules) -> None:
    """5 px of the mark and 5 px of room to its right, its middle at the mark's height."""
    [placed] = modules.run("label_layout", PLACE, marks=[mark(100, 100)], spots=[], room=ROOM)
    assert placed == {"x": 110, "y": 92, "isFar": False}


def test_labels_of_marks_close_together_do_not_overlap_and_stay_in_the_picture(
    modules: Modules,
) -> None:
    marks = [mark(20 + 6 * each, 150 + 5 * each) for each in range(7)]
    placed = modules.run("label_layout", PLACE, marks=marks, spots=[], room=ROOM)
    for index, one in enumerate(placed):
        assert 0 <= one["x"] <= 300
        assert 0 <= one["y"] <= 284
        assert all(is_apart(one, other) for other in placed[index + 1 :])


def test_a_label_keeps_off_points_where_there_is_room(modules: Modules) -> None:
    """Points to the right of the mark: its label goes to the left."""
    spots = [{"x": 215 + 10 * each, "y": 100, "radius": 6} for each in range(10)]
    [placed] = modules.run("label_layout", PLACE, marks=[mark(200, 100)], spots=spots, room=ROOM)
    assert placed == {"x": 90, "y": 92, "isFar": False}


def test_a_label_is_not_put_where_it_seems_to_be_anothers(modules: Modules) -> None:
    """Two marks one above the other: right of the lower one is as near to the upper one."""
    placed = modules.run(
        "label_layout", PLACE, marks=[mark(200, 100), mark(200, 88)], spots=[], room=ROOM
    )
    assert placed[0]["y"] > 100
    assert placed[1]["y"] + 16 < 100


def test_a_preferred_side_is_taken_where_it_is_free(modules: Modules) -> None:
    [placed] = modules.run(
        "label_layout", PLACE, marks=[mark(200, 100, prefers=[0, 1])], spots=[], room=ROOM
    )
    assert placed == {"x": 150, "y": 110, "isFar": False}


@pytest.mark.parametrize(
    ("line", "is_crossing"),
    [
        ([0, 0, 10, 10], False),
        ([0, 0, 30, 30], True),
        ([25, 0, 25, 100], True),
        ([0, 25, 100, 25], True),
        ([45, 0, 45, 100], False),
        ([0, 60, 60, 60], False),
        ([25, 25, 26, 26], True),
    ],
)
def test_a_line_that_meets_a_rectangle_is_seen(
    modules: Modules, line: list[int], is_crossing: bool
) -> None:
    """The rectangle goes from 20 to 40 both ways."""
    rectangle = {"x": 20, "y": 20, "width": 20, "height": 20}
    found = modules.run(
        "label_layout", "return m.crosses(line, rectangle);", line=line, rectangle=rectangle
    )
    assert found is is_crossing


# ------------------------------------------------------------------ what became of a target

ASKED = {"target": "fastest", "versionBefore": 3, "version": 4, "inForce": None}
UNKNOWN = "not known"


@pytest.mark.parametrize(
    ("asked", "changes", "words", "is_over"),
    [
        ({}, {}, "Version 4 is made. It waits until 2 ranks have it.", False),
        (
            {},
            {"num_present": 1},
            "Version 4 is made. It takes effect when 2 ranks have it; of these, 1 were heard of"
            " lately.",
            False,
        ),
        ({}, {"first_step": 120}, "Version 4 holds from step 120.", True),
        ({}, {"active_version": 5}, "Version 5 has replaced version 4.", True),
        (
            {"version": 3},
            {},
            "The job was planned for fastest already: version 3 stays.",
            True,
        ),
        (
            {"version": 3, "inForce": "power:8000"},
            {},
            "fastest is the job's own target now. The timetable has power 8000 W in force; outside"
            " its windows the new one holds.",
            True,
        ),
        (
            {"version": 3, "inForce": UNKNOWN},
            {},
            "fastest is the job's own target now: version 3 stays.",
            True,
        ),
        ({}, {"state": "ended"}, "The job has ended; version 4 was never active.", True),
        (
            {"version": None, "versionBefore": None},
            {},
            "fastest is the job's target now. It is planned as soon as there is a profile.",
            True,
        ),
    ],
)
def test_what_becomes_of_a_target_is_told(
    modules: Modules,
    asked: dict[str, object],
    changes: dict[str, Any],
    words: str,
    is_over: bool,
) -> None:
    overviews = {name: value for name, value in changes.items() if name != "first_step"}
    told = modules.run(
        "frontier_target",
        "return m.progressOf(asked, state);",
        asked={name: value for name, value in {**ASKED, **asked}.items() if value != UNKNOWN},
        state=state([summary(3), summary(4, first_step=changes.get("first_step"))], **overviews),
    )
    told["words"] = told["words"].replace(NARROW_SPACE, " ")
    assert told == {"words": words, "isOver": is_over}
