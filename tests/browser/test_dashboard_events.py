"""Dashboard's event streams in a browser, and a job's page that follows them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.browser.modules import Modules
from tests.browser.views import job, plan, step

# ------------------------------------------------------------------ streams


STREAM = (
    "retry: 1000\r\n\r\n:\n\nid: 7\nevent: steps\ndata: [1,\ndata: 2]\n\nevent: gone\ndata:{}\n\n"
)
MESSAGES = [
    {"name": "steps", "data": "[1,\n2]", "id": "7"},
    {"name": "gone", "data": "{}", "id": "7"},  # the id holds until there is another
]


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_events_are_read_from_any_pieces_of_a_stream(modules: Modules, piece: int) -> None:
    body = """
        const parser = new m.StreamParser();
        const found = [];
        for (let at = 0; at < text.length; at += piece) {
            found.push(...parser.take(text.slice(at, at + piece)));
        }
        return found;
    """
    assert modules.run("event_stream", body, text=STREAM, piece=piece) == MESSAGES


# Opens streams with these answers until they are used up or no more are requested; returns the
# requests and what the follower got. `hold` is a silent stream. A status is an answer of the
# planner, in a list one of a proxy. 25 s pass from request to request. `hideAt`: number of answers
# after which the tab is hidden until it has fallen asleep.
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
                // Asleep: the tab is shown again after a while.
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
SILENT = [False, "The planner does not respond", 0]


def refused(status: int, final: int = 0) -> list[Any]:
    """Return the state after an answer of this status."""
    return [False, f"no: {status}", final]


def follow(modules: Modules, *answers: str | int | list[int], **values: int) -> dict[str, Any]:
    """Return the requests to a planner with these answers, and what the follower got."""
    options: dict[str, Any] = {
        name: values.pop(name, None) for name in ("retry", "hideAt", "failing")
    }
    options |= {"answers": answers, "changes": values}
    found: dict[str, Any] = modules.run("event_stream", FOLLOW, **options)
    return found


@pytest.mark.parametrize(
    ("answers", "asked", "states"),
    [
        # An end without an error is no trouble.
        ([STEPS, STEPS], ["", "41", "41"], [LIVE]),
        ([STEPS, 0, 500, STEPS], ["", *["41"] * 4], [LIVE, refused(0), refused(500), LIVE]),
        (["hold", STEPS], ["", "", "41"], [LIVE, SILENT, LIVE]),
        # A proxy's refusals, and those of the planner that may change.
        (
            [[404], [401], 409, 429, STEPS],
            [*[""] * 5, "41"],
            [*map(refused, (404, 401, 409, 429)), LIVE],
        ),
        # Final refusals of the planner.
        *(([status, STEPS], [""], [refused(status, status)]) for status in (401, 403, 404, 422)),
    ],
)
def test_a_stream_is_resumed_unless_the_planner_refuses_it(
    modules: Modules, answers: list[Any], asked: list[str], states: list[Any]
) -> None:
    found = follow(modules, *answers, silence_ms=20)
    assert [last_id or "" for _, last_id in found["asked"]] == asked
    assert found["states"] == states
    assert found["events"] == [["steps", [1]]] * answers[: len(asked)].count(STEPS)


def test_a_planner_that_holds_no_more_calls_is_polled(modules: Modules) -> None:
    """After a minute a stream is tried again."""
    found = follow(modules, 503, *[STEPS] * 5, retry=5)
    polls = ["wait_s=0"] * 3  # 0, 25 and 50 s after it was refused
    assert [query for query, _ in found["asked"]] == ["", *polls, "", "", ""]
    assert found["events"] == [["steps", [1]]] * 5
    assert found["states"] == [LIVE]


def test_an_error_of_the_page_is_no_trouble_of_the_planner(modules: Modules) -> None:
    found = follow(modules, STEPS.replace("[1]", "[9]") + STEPS, failing=9)
    assert found["events"] == [["steps", [9]], ["steps", [1]]]
    assert found["states"] == [LIVE]
    assert found["logged"] == ["Error: a fault of the page's own"]


def test_a_hidden_tab_follows_nothing_until_it_is_shown(modules: Modules) -> None:
    """Hidden from the beginning, or from its second answer on; its figures are stale meanwhile."""
    held = follow(modules, "hold", STEPS, hideAt=0, hidden_ms=20)
    assert held["states"] == [LIVE, ASLEEP, 1, LIVE]
    assert held["events"] == [["steps", [1]]]
    # Between two questions, where the planner holds no stream.
    polled = follow(modules, 503, STEPS, STEPS, retry=5, hideAt=2, hidden_ms=20, poll_ms=400)
    assert polled["states"] == [LIVE, ASLEEP, 2, LIVE]
    assert polled["asked"][2] == ["wait_s=0", "41"]


@pytest.mark.parametrize(
    ("status", "text", "detail", "is_final"),
    [
        (404, '{"detail": "Job x is not known", "errors": []}', "Job x is not known", True),
        (409, '{"detail": "Job x is not known", "errors": []}', "Job x is not known", False),
        (404, "<h1>Not here</h1>", "The planner answers 404", False),
        (502, "<h1>Not here</h1>", "The planner answers 502", False),
    ],
)
def test_an_error_has_the_planners_text_if_there_is_one(
    modules: Modules, status: int, text: str, detail: str, is_final: bool
) -> None:
    body = """
        const answer = new Response(text, { status, headers: { "Retry-After": "5" } });
        const error = await m.ApiError.of(answer);
        return [error.status, error.detail, error.retryAfter_s, error.isFinal];
    """
    found = modules.run("api_error", body, text=text, status=status)
    assert found == [status, detail, 5, is_final]


# ------------------------------------------------------------------ the state of a job


OVERVIEW = ["overview", job()]
LATER = "2026-01-06T00:00:00+00:00"


def state_after(modules: Modules, *events: list[Any]) -> Any:  # noqa: ANN401 - JSON
    """Return the state of the page after these events."""
    code = "events.reduce((state, [name, data]) => m.afterEvent(state, { name, data }), null)"
    return modules.run("job_state", code, events=events)


def test_a_step_that_comes_again_replaces_the_one_before(modules: Modules) -> None:
    early, later = ["steps", [step(1), step(2, num_ranks=1)]], ["steps", [step(2), step(3)]]
    found = state_after(modules, OVERVIEW, early, later, ["steps", [step(0)]])
    assert found["steps"] == [step(number) for number in range(4)]
    # Nothing is known of a job before its overview.
    assert state_after(modules, early) is None


def test_another_run_under_the_same_name_begins_from_nothing(modules: Modules) -> None:
    events: list[list[Any]] = [OVERVIEW, ["steps", [step(1)]], ["overview", job(num_steps=1)]]
    assert len(state_after(modules, *events)["steps"]) == 1
    assert state_after(modules, *events, ["overview", job(created_at=LATER)])["steps"] == []


@pytest.mark.parametrize(("num_stages", "kept"), [(8, 2000), (1000, 128)])
def test_no_more_steps_are_kept_than_shown(modules: Modules, num_stages: int, kept: int) -> None:
    body = """
        const all = Array.from({ length: 2500 }, (_, step) => ({ step }));
        let state = m.afterEvent(null, { name: "overview", data: job });
        state = m.afterEvent(state, { name: "steps", data: all.slice(1000) });
        state = m.withSteps(state, all.slice(0, 1500), 0);
        return [state.steps.length, state.steps[0].step, state.steps.at(-1).step];
    """
    found = modules.run("job_state", body, job=job(num_stages=num_stages))
    assert found == [kept, 2500 - kept, 2499]


# ------------------------------------------------------------------ a job's page


# The page of a job with a stub of the planner: `tell` sends an event, each request waits in `asked`
# for its answer.
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


def on_page(modules: Modules, body: str, **values: object) -> Any:  # noqa: ANN401 - JSON
    """Return the result of a function body that has a job's page."""
    values = {"name": "job", "job": job(num_stages=2, num_ranks=2), **values}
    return modules.run("job_page", PAGE.replace("BODY", body), **values)


def test_missed_steps_are_requested_and_do_not_replace_newer_ones(modules: Modules) -> None:
    body = """
        const found = {};
        tell("overview", job);
        tell("steps", [steps[4], steps[5], steps[6]]);
        found.isAskedAtFirst = asked.some(({ path }) => path.includes("stages"));
        // After a time without a stream the events go on further up.
        tell("steps", [steps[10], steps[11]]);
        const missed = question("stages");
        tell("steps", [{ ...steps[11], time_s: 7 }]);
        missed.resolve([steps[7], steps[8], steps[10], { ...steps[11], time_s: 6 }]);
        await drawn();
        found.newest_s = page.state.steps.at(-1).time_s;
        found.missed = [missed.path.split("?")[1], numbers()];
        // Where nothing lies between, the job numbers its steps like that.
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
    assert found["isAskedAtFirst"] is False
    assert found["missed"] == ["limit=2000&after_step=6", [4, 5, 6, 7, 8, 10, 11]]
    assert found["isAskedAgain"] is False
    assert found["last"] == "limit=2000&after_step=17"


def test_steps_requested_in_vain_are_requested_again(modules: Modules) -> None:
    """All that were missed until an answer comes."""
    body = """
        const found = [];
        const note = () => found.push([question("stages").path.split("=").at(-1), numbers()]);
        const refuse = async () => {
            question("stages").reject(new Error("cut off"));
            await drawn();
        };
        tell("overview", job);
        tell("steps", steps.slice(0, 5));
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
    assert found[0] == ["4", [0, 1, 2, 3, 4, 8, 9, 12, 13]]
    assert found[1] == ["4", [*range(15)]]
    assert found[2:] == [0, 7]


def test_a_new_run_under_the_same_name_keeps_no_choices(modules: Modules) -> None:
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
    history = [plan(number, 2 * number) for number in (1, 2)]
    steps = [step(number) for number in range(3)]
    found = on_page(modules, body, history=history, steps=steps, later=LATER)
    assert (found["before"], found["after"]) == ("100", "500")
    assert found["timeline"] == "version=1"  # not version 2, which was shown
    assert (found["steps"], found["aborted"], found["kept"]) == ([], True, 0)


def test_a_panel_that_fails_says_so_and_leaves_the_others(modules: Modules) -> None:
    body = """
        tell("overview", job);
        tell("history", history);
        await drawn();
        main.querySelector("#panel-timeline").scrollIntoView();
        while (question("timeline") === undefined) await drawn();
        question("timeline").resolve({ version: 1 });
        await drawn();
        tell("overview", { ...job, state: "ended", newest_version: 2 });
        await drawn();
        return [text("#panel-timeline"), text("#panel-job"), logged.length];
    """
    history = [plan(1, 2)]
    timeline, head, num_logged = on_page(modules, body, history=history)
    assert "This part of the page has failed" in timeline
    assert "v2 never held" in head
    assert num_logged == 1
