"""Modules of the frontier in a browser: marks, axes, labels, progress; the panel alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.browser.modules import Modules
from tests.browser.views import FRONTIER, PREDICTED, frontier_state, measured, plan, point

MEASURED = {**measured(2.1, 910.0), "version": 3}


def marks(modules: Modules, **changes: object) -> Any:  # noqa: ANN401 - JSON
    """Return the marks of the chart."""
    code = "m.marksOf(frontier, state)"
    state = frontier_state(**changes)
    return modules.run("frontier_curve", code, frontier=FRONTIER, state=state)


# ------------------------------------------------------------------ marks and axes


def test_marks_have_labels_and_figures_and_equal_plans_only_one(modules: Modules) -> None:
    found = marks(modules)
    assert [mark["label"] for mark in found] == [
        "baseline: highest clocks",
        "EnvPipe: uniform, default",
        "EnvPipe: envelope, default; envelope, balanced",
        "version 3, in force",
        "version 3, measured",
    ]
    assert found[0]["words"] == "baseline: highest clocks: 2.000 s, 1.000 kJ, predicted"
    assert found[-1]["words"] == "version 3, measured: 2.100 s, 910.0 J, steps 10 to 19"


def test_the_curves_of_fixed_clocks_are_drawn_beside_the_plans(modules: Modules) -> None:
    code = """
      const picture = new m.FrontierPicture();
      picture.draw({ frontier, marks: [], canChoose: false }, 640, 400);
      return ["line", "constant", "global"].map((name) =>
        picture.element.querySelector(`.frontier-${name}`).getAttribute("d"));
    """
    drawn = modules.run("frontier_picture", code, frontier=FRONTIER)
    plans, constant, for_all = ([part.split() for part in d[1:].split("L")] for d in drawn)
    # The same times, so the same places; the more energy, the higher up, where y is less.
    assert [x for x, _ in plans] == [x for x, _ in constant] == [x for x, _ in for_all]
    assert float(for_all[1][1]) < float(constant[1][1]) < float(plans[1][1])


def test_lines_to_labels_lie_below_all_marks_and_marks_that_touch_share_a_label(
    modules: Modules,
) -> None:
    code = """
      const picture = new m.FrontierPicture();
      picture.draw({ frontier, marks, canChoose: false }, 600, height);
      const found = (name) => [...picture.element.querySelectorAll(name)];
      const isBelow = (line, mark) =>
        (line.compareDocumentPosition(mark) & Node.DOCUMENT_POSITION_FOLLOWING) > 0;
      const lines = found(".frontier-leader");
      const others = [...found(".frontier-mark"), ...found(".frontier-point")];
      const isAllBelow = lines.every((line) => others.every((mark) => isBelow(line, mark)));
      const labels = found(".frontier-label").map((label) => label.textContent);
      return [lines.length > 0, isAllBelow, labels];
    """
    planned = {**PREDICTED, "iteration_time_s": 2.1, "energy_j": 905.0}
    args = {"frontier": FRONTIER, "marks": marks(modules, predicted=planned), "height": 200}
    there, is_below, labels = modules.run("frontier_picture", code, **args)
    assert (there, is_below) == (True, True)
    assert labels[0] == "version 3, in force; version 3, measured"
    apart = marks(modules, predicted={**planned, "energy_j": 950.0})
    *_, labels = modules.run("frontier_picture", code, **{**args, "marks": apart, "height": 400})
    assert labels[:2] == ["version 3, measured", "version 3, in force"]


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"emulated": True}, "version 3, measured on emulated GPUs"),
        ({"measured": {**MEASURED, "clocks": "highest"}}, "highest clocks, measured"),
        ({"measured": {**MEASURED, "energy_j": None}}, "version 3, in force"),
        ({"measured": None}, "version 3, in force"),
        ({"measured": None, "active_version": None}, "version 3, newest"),
        ({"measured": None, "predicted": None}, "EnvPipe: envelope, default; envelope, balanced"),
    ],
)
def test_labels_name_the_origin_of_a_mark(
    modules: Modules, changes: dict[str, object], label: str
) -> None:
    assert marks(modules, **changes)[-1]["label"] == label


def test_a_point_has_its_figures_its_slowdown_and_its_exact_deadline(modules: Modules) -> None:
    sentence, slowdown, deadline, faster = modules.run(
        "frontier_curve",
        "[m.pointSentence(point, baseline), m.targetOf(point, baseline), m.deadlineOf(point),"
        " m.targetOf({ deadline_s: 1.5 }, baseline)]",
        point={**point(2.2, 800.0, 784.0), "deadline_s": 2.8290389777777794},
        baseline=FRONTIER["baseline"],
    )
    assert sentence == "2.200 s, 800.0 J; saves 20.0 %, +10.00 % time; gap 2.04 %; predicted"
    assert float(deadline.removeprefix("deadline:")) == 2.8290389777777794
    share = float(slowdown.removeprefix("slowdown:").removesuffix("%")) / 100
    assert 2.0 * (1 + share) == pytest.approx(2.8290389777777794, rel=1e-9)
    assert faster == "deadline:1.5"


def test_another_profile_or_schedule_needs_a_new_frontier(modules: Modules) -> None:
    other_profile = {**PREDICTED, "baseline_energy_j": 1001.0}
    other_target = {**PREDICTED, "iteration_time_s": 2.2, "energy_j": 550.0}
    states = [
        frontier_state([plan(3, 5), *newer])
        for newer in (
            [],
            [plan(4, 5, predicted=other_target)],
            [plan(4, 5, kind="probe", predicted=None)],
            [plan(4, 5, predicted=other_profile)],
            [plan(4, 5, schedule="zbv")],
        )
    ]
    keys = modules.run("frontier_curve", "states.map(m.frontierKey)", states=states)
    assert keys[1:3] == [keys[0]] * 2
    assert keys[0] not in keys[3:]


# ------------------------------------------------------------------ progress of a target

ASKED = {"target": "fastest", "versionBefore": 3, "version": 4, "inForce": None}
OWN = "fastest is the job's own target now"


@pytest.mark.parametrize(
    ("asked", "changes", "words"),
    [
        ({}, {}, "Version 4 is made. It waits until 2 ranks have it."),
        (
            {},
            {"num_present": 1},
            "Version 4 is made. It takes effect when 2 ranks have it; of these, 1 are present.",
        ),
        ({}, {"first_step": 120}, "Version 4 holds from step 120."),
        ({}, {"active_version": 5}, "Version 5 has replaced version 4."),
        ({}, {"state": "ended"}, "The job has ended; version 4 was never active."),
        ({"version": 3}, {}, "The job was planned for fastest already: version 3 stays."),
        (
            {"version": 3, "inForce": "power:8000"},
            {},
            f"{OWN}. The timetable has power 8000 W in force; outside its windows the new one"
            " holds.",
        ),
        ({"version": 3, "inForce": "not known"}, {}, f"{OWN}: version 3 stays."),
        (
            {"version": None, "versionBefore": None},
            {},
            "fastest is the job's target now. It is planned as soon as there is a profile.",
        ),
    ],
)
def test_the_progress_of_a_target_is_described(
    modules: Modules, asked: dict[str, object], changes: dict[str, Any], words: str
) -> None:
    overview = {name: value for name, value in changes.items() if name != "first_step"}
    history = [plan(3, 5), plan(4, changes.get("first_step"))]
    found = modules.run(
        "frontier_target",
        "m.progressOf(asked, state)",
        asked={name: each for name, each in {**ASKED, **asked}.items() if each != "not known"},
        state=frontier_state(history, **overview),
    )
    assert found == {"words": words, "isOver": "is made" not in words}


# ------------------------------------------------------------------ the panel alone

# A panel with a stub of the planner: each request waits in `asked` for its answer.
ALONE = """
    const asked = [];
    const ask = (path, body) => new Promise((resolve, reject) => {
        asked.push({ path, target: body?.target, resolve, reject });
    });
    const api = { get: (path) => ask(path), put: ask };
    const place = document.createElement("section");
    document.body.append(place);
    const context = { api, path: "job", announce() {}, guard: (action) => action() };
    const panel = new m.FrontierPanel(place, context);
    const rest = () => new Promise((resolve) => setTimeout(resolve));
    const question = (part) => asked.filter(({ path }) => path.includes(part)).at(-1);
    const points = () => [...place.querySelectorAll(".frontier-point")];
    const strip = place.querySelector(".frontier-confirm");
    // As assistive technology clicks: without a place.
    const choose = (index) => points()[index].dispatchEvent(
        new MouseEvent("click", { bubbles: true }),
    );
    const run = () => strip.querySelector(".primary").click();
    panel.update(state);
    question("frontier?").resolve(frontier);
    await rest();
    try {
        return await (async () => { BODY })();
    } finally {
        panel.destroy();
        place.remove();
    }
"""


def on_panel(modules: Modules, body: str, **values: object) -> Any:  # noqa: ANN401 - JSON
    """Return the result of a function body that has a panel with the frontier."""
    values = {"state": frontier_state(), "frontier": FRONTIER, **values}
    return modules.run("frontier_panel", ALONE.replace("BODY", body), **values)


def test_a_plan_chosen_while_another_is_planned_can_be_run_after_it(modules: Modules) -> None:
    body = """
        const found = [];
        const look = () => found.push([
            strip.hidden,
            strip.querySelector(".primary").disabled,
            document.activeElement.textContent,
        ]);
        choose(0);
        run();
        choose(1);
        look();
        run();
        question("target").resolve({ newest_version: 4 });
        await rest();
        // Without its answer the target is accepted all the same.
        question("timetable").reject(new Error("away"));
        await rest();
        look();
        const progress = place.querySelector(".frontier-progress");
        const { textContent, className } = progress;
        run();
        const targets = asked.map(({ target }) => target).filter(Boolean);
        return [found, targets, [textContent, className.includes("problem")]];
    """
    found, targets, progress = on_panel(modules, body)
    assert progress == ["Version 4 is made. It waits until 2 ranks have it.", False]
    assert found == [[False, True, "Cancel"], [False, False, "Cancel"]]
    assert targets == ["slowdown:0%", "slowdown:10%"]


def test_an_outdated_frontier_says_so_and_offers_no_plan(modules: Modules) -> None:
    body = """
        const found = [place.querySelector("form").hidden];
        const look = () => found.push([
            place.querySelector(".frontier-message").textContent,
            points()[0].ariaDisabled,
            strip.hidden,
        ]);
        choose(0);
        look();
        panel.update(changed);
        choose(1);
        look();
        question("frontier?").reject(new Error("away"));
        await rest();
        look();
        panel.update(changed);
        question("frontier?").resolve(frontier);
        await rest();
        choose(1);
        look();
        return found;
    """
    other = {**PREDICTED, "baseline_energy_j": 1001.0}
    found = on_panel(modules, body, changed=frontier_state([plan(4, 5, predicted=other)]))
    lead = "The job has changed since this frontier was computed. "
    assert found == [
        False,
        ["", None, False],
        [f"{lead}Computing the frontier\u2026", "true", True],
        [f"{lead}The frontier could not be computed: The planner does not respond", "true", True],
        ["", None, False],
    ]
