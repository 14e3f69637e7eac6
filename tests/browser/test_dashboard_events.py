"""How the dashboard follows a planner, in a browser: streams of events, a job's page with them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.browser.modules import Modules, modules
from tests.browser.views import job, plan, step

__all__ = ["modules"]

# ------------------------------------------------------------------ streams


STREAM = (
    "retry: 1000\r\n\r\n:\n\nid: 7\nevent: steps\ndata: [1,\ndata: 2]\n\nevent: gone\ndata:{}\n\n"
)
MESSAGES = [
    {"name": "steps", "data": "[1,\n2]", "id": "7"},
    {"name": "gone", "data": "{}", "id": "7"},  # the id holds until there is another
]


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_events_are_put_together_wherever_their_stream_was_cut(
    modules: Modules, piece: int
) -> None:
    body = """
        const parser = new m.StreamParser();
        const found = [];
        for (let at = 0; at < text.length; at += piece) {
            found.push(...parser.take(text.slice(at, at + piece)));
        }
        return found;
    """
    assert modules.run("event_stream", body, text=STREAM, piece=piece) == MESSAGES


# Opens stream after stream, each as `answers` says, until they are used up or nothing is asked for
# any more; returns what was asked for and what was told. `hold` is a stream that says nothing.
# A status is the planner's own answer, in a list a proxy's. 25 s pass from question to question.
# `hideAt`: after so many answers nobody looks at the tab until it has fallen asleep.
FOLLOW = """
    const { ApiError } = await import("/dashboard/scripts/api_error.js");
    const asked = [], events = [], states = [], logged = [];
    let now_ms = 0, isHidden = hideAt === 0, stop;
    const logs = console.error;
    console.error = (error) => logged.push(String(error));
    performance.now = () => now_ms;
    Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
    const look = (isSeen) => {
        isHidden = !isSeen;
        document.dispatchEvent(new Event("visibilitychange"));
    };
    const held = (signal) => new ReadableStream({
        start: (stream) => signal.addEventListener("abort", () => stream.error(signal.reason)),
    });
    await new Promise((resolve) => {
        const open = async (init, query) => {
            const answer = answers[asked.length];
            asked.push([query, init.headers.get("Last-Event-ID")]);
            now_ms += 25_000;
            if (answer === undefined) {
                resolve();
                return new Promise(() => {});
            }
            if (answer === "hold") return new Response(held(init.signal));
            const status = Number(answer);
            if (Number.isNaN(status)) return new Response(answer);
            const isPlanners = !Array.isArray(answer);
            throw new ApiError(status, `no: ${status}`, { retryAfter_s: retry, isPlanners });
        };
        const times = {
            ...m.TIMES, firstPause_ms: 1, longestPause_ms: 2, nextStream_ms: 1, poll_ms: 1,
            ...changes,
        };
        stop = m.followEvents(open, {
            onEvent: ({ name, data }) => {
                events.push([name, data]);
                if (asked.length === hideAt) look(false);
                if (data[0] === failing) throw new Error("a fault of the page's own");
            },
            onState: (connected, text, refusal) => {
                const told = JSON.stringify([connected, text, refusal]);
                if (states.at(-1) !== told) states.push(told);
                if (refusal !== 0) setTimeout(resolve, 50);
                // Asleep: whoever looks at it after a while finds it as it was.
                if (!connected && text === "") setTimeout(() => {
                    states.push(JSON.stringify(asked.length));
                    look(true);
                }, 50);
            },
        }, times);
    });
    stop();
    console.error = logs;
    delete performance.now;
    delete document.hidden;
    return { asked, events, logged, states: states.map((each) => JSON.parse(each)) };
"""
STEPS = "id: 41\nevent: steps\ndata: [1]\n\n"
LIVE = [True, "", 0]
ASLEEP = [False, "", 0]


def follow(
    modules: Modules,
    *answers: str | int | list[int],
    retry: int | None = None,
    hide_at: int | None = None,
    failing: int | None = None,
    **changes: int,
) -> dict[str, Any]:
    """Return what is asked of a planner that answers like this, and what is told of it."""
    found: dict[str, Any] = modules.run(
        "event_stream",
        FOLLOW,
        answers=answers,
        retry=retry,
        hideAt=hide_at,
        failing=failing,
        changes=changes,
    )
    return found


def test_a_stream_that_ends_is_taken_up_where_it_was(modules: Modules) -> None:
    found = follow(modules, STEPS, STEPS)
    assert found["events"] == [["steps", [1]], ["steps", [1]]]
    assert found["asked"] == [["", None], ["", "41"], ["", "41"]]
    assert found["states"] == [LIVE]  # an end that was meant is no trouble


def test_a_stream_that_cannot_be_had_is_told_and_asked_for_again(modules: Modules) -> None:
    found = follow(modules, STEPS, 0, 500, STEPS)
    assert [query for query, _ in found["asked"]] == [""] * 5
    assert found["states"] == [LIVE, [False, "no: 0", 0], [False, "no: 500", 0], LIVE]


@pytest.mark.parametrize("status", [401, 403, 404, 422])
def test_a_stream_that_the_planner_refuses_is_not_asked_for_again(
    modules: Modules, status: int
) -> None:
    found = follow(modules, status, STEPS)
    assert len(found["asked"]) == 1
    assert found["states"] == [[False, f"no: {status}", status]]


def test_what_a_proxy_refuses_or_the_planner_for_now_is_asked_for_again(modules: Modules) -> None:
    found = follow(modules, [404], [401], 409, 429, STEPS)
    assert found["events"] == [["steps", [1]]]
    told = [[False, f"no: {status}", 0] for status in (404, 401, 409, 429)]
    assert found["states"] == [*told, LIVE]


def test_a_planner_that_holds_no_more_calls_is_asked_for_what_there_is_now(
    modules: Modules,
) -> None:
    """And after a minute whether it holds them again."""
    found = follow(modules, 503, *[STEPS] * 5, retry=5)
    polls = ["wait_s=0"] * 3  # 0, 25 and 50 s after it was refused
    assert [query for query, _ in found["asked"]] == ["", *polls, "", "", ""]
    assert found["events"] == [["steps", [1]]] * 5
    assert found["states"] == [LIVE]


def test_a_fault_of_the_pages_own_is_no_trouble_of_the_planners(modules: Modules) -> None:
    found = follow(modules, STEPS.replace("[1]", "[9]") + STEPS, failing=9)
    assert found["events"] == [["steps", [9]], ["steps", [1]]]
    assert found["states"] == [LIVE]
    assert found["logged"] == ["Error: a fault of the page's own"]


def test_a_silent_stream_is_given_up_and_asked_for_again(modules: Modules) -> None:
    found = follow(modules, "hold", STEPS, silence_ms=20)
    assert found["states"] == [LIVE, [False, "The planner does not respond", 0], LIVE]
    assert found["events"] == [["steps", [1]]]


def test_a_tab_that_nobody_looks_at_follows_nothing_until_it_is_looked_at(modules: Modules) -> None:
    """Nobody from the beginning, or from its second answer on; its figures are old meanwhile."""
    held = follow(modules, "hold", STEPS, hide_at=0, hidden_ms=20)
    assert held["states"] == [LIVE, ASLEEP, 1, LIVE]
    assert held["events"] == [["steps", [1]]]
    # Between two questions, where the planner holds no stream.
    polled = follow(modules, 503, STEPS, STEPS, retry=5, hide_at=2, hidden_ms=20, poll_ms=400)
    assert polled["states"] == [LIVE, ASLEEP, 2, LIVE]
    assert polled["asked"][2] == ["wait_s=0", "41"]


def test_an_errors_words_are_the_planners_own_where_it_has_any(modules: Modules) -> None:
    body = """
        const answer = new Response(text, { status, headers: { "Retry-After": "5" } });
        const error = await m.ApiError.of(answer);
        return [error.status, error.detail, error.retryAfter_s, error.isFinal];
    """
    problem = '{"detail": "Job x is not known", "errors": []}'
    for status, is_final in ((404, True), (409, False)):
        found = modules.run("api_error", body, text=problem, status=status)
        assert found == [status, "Job x is not known", 5, is_final]
    for status in (404, 502):
        page = modules.run("api_error", body, text="<h1>Not here</h1>", status=status)
        assert page == [status, f"The planner answers {status}", 5, False]


# ------------------------------------------------------------------ what is known of a job


AFTER = """
    let state = null;
    for (const [name, data] of events) state = m.afterEvent(state, { name, data });
    return state;
"""


def numbers(steps: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Each step with how many of its ranks have posted it."""
    return [(each["step"], each["num_ranks"]) for each in steps]


def test_nothing_is_shown_of_a_job_before_its_overview_has_come(modules: Modules) -> None:
    assert modules.run("job_state", AFTER, events=[["steps", [step(1)]]]) is None


def test_a_step_that_comes_again_stands_in_the_place_of_the_one_before(modules: Modules) -> None:
    events = [
        ["overview", job("job")],
        ["steps", [step(1), step(2, num_ranks=1)]],
        ["steps", [step(2), step(3)]],
        ["steps", [step(0)]],
    ]
    found = modules.run("job_state", AFTER, events=events)
    assert numbers(found["steps"]) == [(0, 2), (1, 2), (2, 2), (3, 2)]


def test_steps_that_were_asked_for_are_not_put_over_newer_ones(modules: Modules) -> None:
    """Step 2 came whole while the answer was on its way; step 1 was missed for its second rank."""
    body = "return m.withSteps(state, asked, told).steps;"
    state = modules.run(
        "job_state",
        AFTER,
        events=[["overview", job("job")], ["steps", [step(1, num_ranks=1), step(2), step(3)]]],
    )
    asked = [step(0), step(1), step(2, num_ranks=1)]
    found = modules.run("job_state", body, state=state, asked=asked, told=0)
    assert numbers(found) == [(0, 2), (1, 1), (2, 2), (3, 2)]
    found = modules.run("job_state", body, state=state, asked=asked, told=2)
    assert numbers(found) == [(0, 2), (1, 2), (2, 2), (3, 2)]


@pytest.mark.parametrize(("num_stages", "kept"), [(8, 2000), (1000, 128)])
def test_no_more_steps_are_kept_than_can_be_shown(
    modules: Modules, num_stages: int, kept: int
) -> None:
    body = """
        const all = Array.from({ length: 2500 }, (_, step) => ({ step }));
        let state = m.afterEvent(null, { name: "overview", data: job });
        state = m.afterEvent(state, { name: "steps", data: all.slice(1000) });
        state = m.withSteps(state, all.slice(0, 1500), 0);
        return [state.steps.length, state.steps[0].step, state.steps.at(-1).step];
    """
    found = modules.run("job_state", body, job=job("job", num_stages=num_stages))
    assert found == [kept, 2500 - kept, 2499]


def test_another_run_under_the_same_name_begins_from_nothing(modules: Modules) -> None:
    events = [
        ["overview", job("job")],
        ["steps", [step(1)]],
        ["overview", job("job", num_steps=1)],
    ]
    assert len(modules.run("job_state", AFTER, events=events)["steps"]) == 1
    events.append(["overview", job("job", created_at="2026-01-06T00:00:00+00:00")])
    assert modules.run("job_state", AFTER, events=events)["steps"] == []


# ------------------------------------------------------------------ a job's page


# The whole page of a job with a planner that is made up: `tell` are its events, each answer waits
# in `asked` until it is given. `run` is the test's.
PAGE = """
    const asked = [], calls = [], logs = console.error, logged = [];
    console.error = (error) => logged.push(String(error));
    console.warn = () => {};
    const ask = (path, init) => new Promise((resolve, reject) => {
        asked.push({ path, signal: init?.signal, resolve, reject });
    });
    const note = (name) => (...values) => calls.push([name, ...values]);
    const connection = { heard() {}, set() {}, trouble() {}, stop: note("stop") };
    let follower;
    const api = { get: ask, put: (path, _, init) => ask(path, init), follow: (path, each) => {
        follower = each;
        calls.push(["follow", path]);
        return note("stopped");
    } };
    const main = document.createElement("main");
    document.body.append(main);
    const page = new m.JobPage(main, { api, connection, announce() {}, reopen() {} }, name);
    const tell = (name, data) => follower.onEvent({ name, data });
    const drawn = async () => {
        await new Promise((resolve) => requestAnimationFrame(resolve));
        await new Promise((resolve) => setTimeout(resolve));
    };
    const question = (part) => asked.filter(({ path }) => path.includes(part)).at(-1);
    const numbers = () => page.state.steps.map((each) => each.step);
    const text = (selector) => main.querySelector(selector)?.textContent;
    try {
        return await (async () => { BODY })();
    } finally {
        page.destroy();
        main.remove();
        console.error = logs;
    }
"""
CREATED_LATER = "2026-01-06T00:00:00+00:00"


def on_page(modules: Modules, body: str, **values: object) -> Any:  # noqa: ANN401 - JSON
    """Return what a function body returns that has a job's page before it."""
    values = {"name": "job", "job": job("job", num_stages=2, num_ranks=2), **values}
    return modules.run("job_page", PAGE.replace("BODY", body), **values)


def test_older_steps_do_not_overwrite_newer_ones_and_missed_ones_are_asked_for(
    modules: Modules,
) -> None:
    body = """
        const found = {};
        tell("overview", job);
        tell("steps", [steps[5], steps[6]]);
        const first = question("stages");
        tell("steps", [{ ...steps[6], time_s: 7 }]);
        first.resolve([steps[4], steps[5], { ...steps[6], time_s: 6 }]);
        await drawn();
        found.newest_s = page.state.steps.at(-1).time_s;
        found.first = [first.path.split("?")[1], numbers()];
        // Nobody has looked for a while: the events go on further up.
        tell("steps", [steps[10], steps[11]]);
        const missed = question("stages");
        missed.resolve([steps[7], steps[8], steps[10]]);
        await drawn();
        found.missed = [missed.path.split("?")[1], numbers()];
        // Where nothing lay between, the job numbers its steps like that.
        tell("steps", [steps[14]]);
        question("stages").resolve([steps[14]]);
        await drawn();
        const num_asked = asked.length;
        tell("steps", [steps[17]]);
        await drawn();
        found.isAskedAgain = asked.length > num_asked;
        tell("steps", [steps[21]]);
        await drawn();
        found.last = question("stages").path.split("?")[1];
        return found;
    """
    found = on_page(modules, body, steps=[step(number) for number in range(22)])
    assert found["newest_s"] == 7
    assert found["first"] == ["limit=2000&after_step=-1", [4, 5, 6]]
    assert found["missed"] == ["limit=2000&after_step=6", [4, 5, 6, 7, 8, 10, 11]]
    assert found["isAskedAgain"] is False
    assert found["last"] == "limit=2000&after_step=17"


def test_steps_that_could_not_be_had_are_asked_for_again_with_the_next_ones(
    modules: Modules,
) -> None:
    """Those before the first, and all that were missed since until an answer comes."""
    body = """
        const found = [];
        const note = () => found.push([question("stages").path.split("=").at(-1), numbers()]);
        const refuse = async () => {
            question("stages").reject(new Error("cut off"));
            await drawn();
        };
        tell("overview", job);
        tell("steps", [steps[3]]);
        await refuse();
        tell("steps", [steps[4]]);
        note();
        question("stages").resolve(steps.slice(0, 5));
        await drawn();
        tell("steps", [steps[8], steps[9]]);
        await refuse();
        tell("steps", [steps[9]]);
        await refuse();
        tell("steps", [steps[12], { ...steps[13], time_s: 7 }]);
        note();
        question("stages").resolve(steps.slice(5, 14));
        await drawn();
        const num_asked = asked.length;
        tell("steps", [steps[14]]);
        await drawn();
        note();
        return [...found, asked.length - num_asked, page.state.steps[13].time_s];
    """
    found = on_page(modules, body, steps=[step(number) for number in range(15)])
    assert found[0] == ["-1", [3, 4]]
    assert found[1] == ["4", [0, 1, 2, 3, 4, 8, 9, 12, 13]]
    assert found[2] == ["4", [*range(15)]]
    assert found[3:] == [0, 7]


def test_a_new_run_under_the_same_name_has_nothing_of_what_was_chosen_before(
    modules: Modules,
) -> None:
    body = """
        tell("overview", job);
        tell("history", history);
        tell("steps", steps);
        await drawn();
        for (const button of main.querySelectorAll(".choice, .history button")) {
            if (["100", "Show"].includes(button.textContent)) button.click();
        }
        const chosen = () => text(".choice[aria-pressed=true]");
        const [before, old] = [chosen(), [...asked]];
        const panels = [...main.querySelectorAll(".panel")];
        tell("overview", { ...job, created_at: later, active_version: null });
        tell("history", history.slice(0, 1));
        for (const { resolve } of old) resolve([steps[0]]);
        await drawn();
        const timeline = question("timeline").path.split("?")[1];
        return {
            before, timeline, after: chosen(), steps: numbers(),
            aborted: old.filter(({ signal }) => signal?.aborted).length === old.length,
            kept: panels.filter((panel) => main.contains(panel)).length,
        };
    """
    history = [plan(number, 2 * number, "2026-01-05T09:30:00Z") for number in (1, 2)]
    steps = [step(number) for number in range(3)]
    found = on_page(modules, body, history=history, steps=steps, later=CREATED_LATER)
    assert (found["before"], found["after"]) == ("100", "500")
    assert found["timeline"] == "version=1"  # not version 2, which was looked at
    assert (found["steps"], found["aborted"], found["kept"]) == ([], True, 0)


def test_a_panel_that_fails_at_an_answer_says_so_and_leaves_the_others(modules: Modules) -> None:
    body = """
        tell("overview", job);
        tell("history", history);
        await drawn();
        question("timeline").resolve({ version: 1 });
        await drawn();
        tell("overview", { ...job, state: "ended", newest_version: 2 });
        await drawn();
        return [text("#panel-timeline"), text("#panel-job"), logged.length];
    """
    history = [plan(1, 2, "2026-01-05T09:30:00Z")]
    timeline, head, num_logged = on_page(modules, body, history=history)
    assert "This part of the page has failed" in timeline
    assert "v2 never held" in head
    assert num_logged == 1


def test_names_that_mean_another_address_are_no_jobs(modules: Modules) -> None:
    for name in (".", ".."):
        body = "return [calls, asked.length, text('h1')];"
        calls, num_asked, title = on_page(modules, body, name=name)
        assert (calls, num_asked) == ([["stop"]], 0)
        assert title == "There is no such job here"


def test_of_two_questions_for_a_jobs_notes_the_newer_one_is_answered(modules: Modules) -> None:
    body = """
        const isNote = ({ path }) => path === "api/v1/jobs/job";
        tell("overview", job);
        await drawn();
        const first = asked.find(isNote);
        tell("overview", { ...job, num_present: 1 });
        await drawn();
        const second = asked.filter(isNote).at(-1);
        const timetable = { timetable: null, current_target: "fastest", next_change: null };
        for (const { path, resolve } of asked) if (path.endsWith("timetable")) resolve(timetable);
        second.resolve({ notes: ["the newer"] });
        first.resolve({ notes: ["the older"] });
        await drawn();
        const isAborted = [first, second].map(({ signal }) => signal.aborted);
        page.destroy();
        return [text(".notes"), isAborted, second.signal.aborted];
    """
    assert on_page(modules, body) == ["the newer", [True, False], True]
