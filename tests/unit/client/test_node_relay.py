"""The relay of a node: what it joins, what it passes on, and what each rank is answered."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from flyball_client.relay.meeting_place import NoRelayError, meeting_place, take_lock
from flyball_client.relay.messages import MessageError, RelayAnswer, RelayRequest, read_request
from flyball_client.relay.relay_server import Relay
from flyball_client.relay.upstream import Upstream

JOB = "/api/v1/jobs/gpt"
PLANNER = "http://127.0.0.1:1"
Answering = Callable[[httpx.Request], httpx.Response]


class Planner:
    """What the relay asks, and what it is told."""

    def __init__(self, answering: Answering) -> None:
        self.asked: list[str] = []
        self.bodies: list[Any] = []
        self._answering = answering

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.raw_path.decode()}")
        self.bodies.append(json.loads(request.content) if request.content else None)
        return self._answering(request)


def call(method: str, target: str, document: object = None, **headers: str) -> RelayRequest:
    body = b"" if document is None else json.dumps(document).encode()
    return RelayRequest(method=method, target=target, headers=headers, body=body)


def post(rank: int, step: int = 3, *, token: str | None = None) -> RelayRequest:
    headers = {} if token is None else {"flyball-token": token}
    steps = [{"step": step, "plan_version": 1, "time_s": 1.0, "energy_j": 2.0}]
    return call("POST", f"{JOB}/ranks/{rank}/measurements", {"steps": steps}, **headers)


def poll(rank: int, *, after_version: int = 1, wait_s: float = 5) -> RelayRequest:
    query = f"after_version={after_version}&wait_s={wait_s}"
    return call("GET", f"{JOB}/ranks/{rank}/plan?{query}")


def answers(planner: Planner, *calls: RelayRequest) -> list[RelayAnswer]:
    """What the relay answers to calls that come at once."""

    async def scenario(relay: Relay) -> list[RelayAnswer]:
        return list(await asyncio.gather(*(relay.answer(each) for each in calls)))

    return with_relay(planner, scenario)


def with_relay(
    planner: Planner, scenario: Callable[[Relay], Awaitable[list[RelayAnswer]]]
) -> list[RelayAnswer]:
    async def run() -> list[RelayAnswer]:
        transport = httpx.MockTransport(planner)
        async with httpx.AsyncClient(base_url=PLANNER, transport=transport) as http:
            async with asyncio.timeout(30):
                return await scenario(Relay(Upstream(http)))

    return asyncio.run(run())


def accept(request: httpx.Request) -> httpx.Response:
    """Store what is posted, for ranks 0 and 1; single posts too."""
    document = json.loads(request.content)
    if "ranks" not in document:
        return httpx.Response(200, json={"stored": len(document["steps"])})
    ranks = [entry["rank"] for entry in document["ranks"]]
    failures = [{"rank": rank, "status": 404, "detail": "unknown"} for rank in ranks if rank > 1]
    known = [{"rank": rank, "stored": 1} for rank in ranks if rank <= 1]
    return httpx.Response(200, json={"ranks": known, "failures": failures})


def decoded(answer: RelayAnswer) -> tuple[int, Any]:
    return answer.status, json.loads(answer.body)


# ------------------------------------------------------------------ posts


def test_posts_of_a_nodes_ranks_are_one_call_and_each_rank_is_answered_its_own() -> None:
    planner = Planner(accept)
    first, second, third = answers(planner, post(0), post(1), post(2))
    assert decoded(first) == decoded(second) == (200, {"stored": 1})
    assert decoded(third) == (404, {"detail": "unknown", "errors": []})
    joined = [body for body in planner.bodies if "ranks" in body]
    assert sorted(entry["rank"] for body in joined for entry in body["ranks"]) == [1, 2]


def test_a_rank_that_is_alone_is_passed_on_at_once_as_it_is() -> None:
    planner = Planner(accept)
    (answer,) = answers(planner, post(0))
    assert decoded(answer) == (200, {"stored": 1})
    assert planner.asked == [f"POST {JOB}/ranks/0/measurements"]


def test_two_posts_of_one_rank_are_both_sent() -> None:
    planner = Planner(accept)

    async def scenario(relay: Relay) -> list[RelayAnswer]:
        await relay.answer(post(1))  # so that the relay knows of two ranks
        return list(
            await asyncio.gather(
                relay.answer(post(0, 4)), relay.answer(post(0, 5)), relay.answer(post(1, 4))
            )
        )

    outcomes = with_relay(planner, scenario)
    assert [outcome.status for outcome in outcomes] == [200, 200, 200]
    steps = [
        (entry.get("rank", 0), step["step"])
        for body in planner.bodies[1:]
        for entry in body.get("ranks", [body])
        for step in entry["steps"]
    ]
    assert sorted(steps) == [(0, 4), (0, 5), (1, 4)]


def test_calls_with_other_credentials_are_never_joined() -> None:
    planner = Planner(accept)
    calls = (post(0, token="one"), post(1, token="two"))  # noqa: S106
    assert [answer.status for answer in answers(planner, *calls)] == [200, 200]
    assert planner.asked == [f"POST {JOB}/ranks/{rank}/measurements" for rank in (0, 1)]


@pytest.mark.parametrize("status", [404, 405, 400, 413, 422])
def test_ranks_are_passed_on_singly_where_the_joined_call_is_refused(status: int) -> None:
    """404 and 405: an older planner; 400, 413 and 422: one of them is wrong, or it is too much."""

    def refuse(request: httpx.Request) -> httpx.Response:
        is_joined = request.url.path.endswith("/ranks/measurements")
        return httpx.Response(status, json={"detail": "no"}) if is_joined else accept(request)

    planner = Planner(refuse)

    async def scenario(relay: Relay) -> list[RelayAnswer]:
        await relay.answer(post(1))
        return list(await asyncio.gather(relay.answer(post(0)), relay.answer(post(1, 4))))

    outcomes = with_relay(planner, scenario)
    assert [decoded(outcome) for outcome in outcomes] == [(200, {"stored": 1})] * 2
    assert len(planner.asked) == 4


def test_a_refusal_that_is_everybodys_is_told_to_all() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/ranks/measurements"):
            return httpx.Response(503, json={"detail": "full"}, headers={"Retry-After": "7"})
        return accept(request)

    planner = Planner(refuse)

    async def scenario(relay: Relay) -> list[RelayAnswer]:
        await relay.answer(post(1))
        return list(await asyncio.gather(relay.answer(post(0)), relay.answer(post(1, 4))))

    outcomes = with_relay(planner, scenario)
    assert [outcome.status for outcome in outcomes] == [503, 503]
    assert outcomes[0].headers == {"retry-after": "7"}


def test_a_planner_that_is_away_is_a_502_that_says_so() -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    (answer,) = answers(Planner(away), post(0))
    status, problem = decoded(answer)
    assert (status, problem["detail"]) == (502, f"the planner at {PLANNER} cannot be reached")


def test_a_call_whose_connection_was_closed_meanwhile_is_made_again() -> None:
    failures = [httpx.RemoteProtocolError("closed")]

    def closed_once(request: httpx.Request) -> httpx.Response:
        if failures:
            raise failures.pop()
        return accept(request)

    (answer,) = answers(Planner(closed_once), post(0))
    assert answer.status == 200


@pytest.mark.parametrize("body", ["[1]", "{", '{"rank": 1, "steps": []}', "NaN"])
def test_a_body_that_cannot_be_joined_is_the_planners_to_judge(body: str) -> None:
    planner = Planner(lambda _request: httpx.Response(422, json={"detail": "no"}))
    planner.bodies = []
    planner_call = RelayRequest(
        method="POST", target=f"{JOB}/ranks/0/measurements", headers={}, body=body.encode()
    )

    def refuse(request: httpx.Request) -> httpx.Response:
        assert request.content.decode() == body
        return httpx.Response(422, json={"detail": "no"})

    async def scenario(relay: Relay) -> list[RelayAnswer]:
        return [await relay.answer(planner_call)]

    async def run() -> list[RelayAnswer]:
        async with httpx.AsyncClient(
            base_url=PLANNER, transport=httpx.MockTransport(refuse)
        ) as http:
            return await scenario(Relay(Upstream(http)))

    assert [answer.status for answer in asyncio.run(run())] == [422]


# ------------------------------------------------------------------ polls and all else


def plans(request: httpx.Request) -> httpx.Response:
    ranks = [int(rank) for rank in request.url.params["ranks"].split(",")]
    known = [{"ranks": [rank for rank in ranks if rank < 2], "plan": {"version": 2}}]
    failures = [{"rank": rank, "status": 404, "detail": "unknown"} for rank in ranks if rank > 1]
    return httpx.Response(200, json={"plans": known, "failures": failures})


def test_ranks_wait_for_a_plan_by_one_call() -> None:
    planner = Planner(plans)
    first, second, third = answers(planner, poll(0), poll(1), poll(2))
    assert decoded(first) == decoded(second) == (200, {"version": 2})
    assert third.status == 404
    (asked,) = planner.asked
    assert asked.startswith(f"GET {JOB}/ranks/plans?ranks=0,1,2&after_version=1&wait_s=")


def test_ranks_that_hold_other_versions_wait_by_calls_of_their_own() -> None:
    planner = Planner(plans)
    answers(planner, poll(0, after_version=1), poll(1, after_version=0))
    assert sorted(asked.split("&")[1] for asked in planner.asked) == [
        "after_version=0",
        "after_version=1",
    ]


def test_a_rank_that_comes_while_a_call_is_held_is_asked_for_in_the_next() -> None:
    calls: list[str] = []
    held, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.params["ranks"])
        held.set()
        await may_answer.wait()
        return plans(request)

    async def run() -> list[RelayAnswer]:
        transport = httpx.MockTransport(slow)
        async with httpx.AsyncClient(base_url=PLANNER, transport=transport) as http:
            relay = Relay(Upstream(http))
            async with asyncio.timeout(30):
                first = asyncio.create_task(relay.answer(poll(0)))
                await held.wait()
                second = asyncio.create_task(relay.answer(poll(1)))
                await asyncio.sleep(0)
                may_answer.set()
                return [await first, await second]

    assert [answer.status for answer in asyncio.run(run())] == [200, 200]
    assert calls == ["0", "1"]


def test_nothing_newer_is_told_to_all_who_wait() -> None:
    planner = Planner(lambda _request: httpx.Response(204))
    assert [answer.status for answer in answers(planner, poll(0), poll(1))] == [204, 204]


def test_an_older_planner_holds_a_call_for_each_rank() -> None:
    def older(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/ranks/plans"):
            return httpx.Response(405, json={"detail": "no"})
        return httpx.Response(200, json={"rank": request.url.path.split("/")[-2]})

    planner = Planner(older)
    outcomes = answers(planner, poll(0), poll(1))
    assert [decoded(outcome) for outcome in outcomes] == [
        (200, {"rank": "0"}),
        (200, {"rank": "1"}),
    ]


def test_the_same_question_of_all_ranks_is_asked_once() -> None:
    planner = Planner(lambda _request: httpx.Response(200, json={"version": 1, "first_step": 9}))
    target = f"{JOB}/plans/1/activation?wait_s=10"
    outcomes = answers(planner, *(call("GET", target) for _ in range(4)))
    assert [decoded(outcome)[1]["first_step"] for outcome in outcomes] == [9, 9, 9, 9]
    assert planner.asked == [f"GET {target}"]


def test_any_other_call_is_passed_on_as_it_is() -> None:
    planner = Planner(lambda _request: httpx.Response(200, text="a,b", headers={"x": "y"}))
    (answer,) = answers(planner, call("GET", f"{JOB}/profile"))
    assert (answer.status, answer.body) == (200, b"a,b")
    assert planner.asked == [f"GET {JOB}/profile"]


# ------------------------------------------------------------------ requests, meeting place


def read(text: bytes) -> RelayRequest | None:
    async def run() -> RelayRequest | None:
        reader = asyncio.StreamReader(limit=1024)
        reader.feed_data(text)
        reader.feed_eof()
        return await read_request(reader)

    return asyncio.run(run())


def test_a_request_is_read_with_its_body() -> None:
    found = read(b"POST /a?b=1 HTTP/1.1\r\nFlyball-Token: t\r\nContent-Length: 2\r\n\r\nhi")
    assert found == RelayRequest(
        method="POST",
        target="/a?b=1",
        headers={"flyball-token": "t", "content-length": "2"},
        body=b"hi",
    )
    assert found.credentials == (("flyball-token", "t"),)
    assert found.passed_on == {"flyball-token": "t"}


def test_a_connection_that_is_closed_has_no_further_request() -> None:
    assert read(b"") is None


@pytest.mark.parametrize(
    "text",
    [
        b"nonsense\r\n\r\n",
        b"GET http://elsewhere/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhi",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"a" * 2000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_request_of_a_rank_is_refused(text: bytes) -> None:
    with pytest.raises(MessageError):
        read(text)


def test_ranks_of_a_job_meet_at_one_place_and_others_elsewhere(tmp_path: Path) -> None:
    environ = {"FLYBALL_STATE_DIR": str(tmp_path)}
    places = [
        meeting_place(url, job, environ).socket
        for url, job in (("http://a", "j"), ("http://a", "j"), ("http://b", "j"), ("http://a", "k"))
    ]
    assert places[0] == places[1]
    assert len(set(places)) == 3


def test_a_folder_that_others_can_enter_is_no_meeting_place(tmp_path: Path) -> None:
    (tmp_path / "relays").mkdir(mode=0o700)
    (tmp_path / "relays").chmod(0o755)
    with pytest.raises(NoRelayError, match="alone"):
        meeting_place("http://a", "j", {"FLYBALL_STATE_DIR": str(tmp_path)})


def test_a_link_is_no_meeting_place(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "relays").symlink_to(tmp_path / "other")
    with pytest.raises(NoRelayError, match="alone"):
        meeting_place("http://a", "j", {"FLYBALL_STATE_DIR": str(tmp_path)})


def test_a_name_that_is_too_long_for_a_socket_is_told(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 100)
    with pytest.raises(NoRelayError, match="FLYBALL_STATE_DIR"):
        meeting_place("http://a", "j", {"FLYBALL_STATE_DIR": str(folder)})


def test_a_lock_is_held_by_one_as_long_as_its_descriptor_is_open(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    held = take_lock(lock)
    assert held is not None
    assert take_lock(lock) is None
    os.close(held)
    again = take_lock(lock)
    assert again is not None
    os.close(again)
