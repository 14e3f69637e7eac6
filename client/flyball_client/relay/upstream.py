"""The relay's side to the planner: calls over few connections, and batch calls of several ranks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import httpx

from flyball_client.api.planner_errors import CONNECTION_ERRORS, error_from_exception
from flyball_client.relay.messages import RelayAnswer, RelayRequest
from flyball_wire import routes

Credentials = tuple[tuple[str, str], ...]

_TIMEOUT_S = 5.0
# A planner that had no batch calls may be a newer one by now.
_OLDER_FOR_S = 60.0
# A path that an older planner does not have, and a method that it does not take there.
_NOT_THERE = frozenset({404, 405})
# Refusals that are one rank's, and were all ranks' if they were passed on.
_OF_ONE_RANK = frozenset({400, 413, 422})
_KEPT_HEADERS = ("retry-after", "flyball-retry-after", "x-request-id")
_BATCH_JSON = "application/json"


@dataclass(frozen=True, kw_only=True)
class RankCall:
    """A rank's call that may be joined with others of its kind.

    Attributes:
        part: its part of the batch call's body.
        request: the call by itself.
    """

    rank: int
    part: Mapping[str, Any]
    request: RelayRequest


@dataclass(frozen=True, kw_only=True)
class BatchKind:
    """A kind of call that the planner takes from several ranks together.

    Attributes:
        method, route: of the batch call.
        own_fields: of a rank's entry in the answer, what its own call is answered with; None: the
            entry as it is.
    """

    method: str
    route: str
    own_fields: tuple[str, ...] | None


REGISTRATIONS = BatchKind(method="PUT", route=routes.RANKS, own_fields=None)
ACKNOWLEDGEMENTS = BatchKind(
    method="POST", route=routes.RANKS_ACKNOWLEDGEMENTS, own_fields=("version", "first_step")
)
MEASUREMENTS = BatchKind(method="POST", route=routes.RANKS_MEASUREMENTS, own_fields=("stored",))


class Upstream:
    """One planner.

    Args:
        http: its base URL is the planner's without a path; closed by the caller.
        prefix: the path of the planner's address, empty in general.
    """

    def __init__(self, http: httpx.AsyncClient, prefix: str = "") -> None:
        self._http = http
        self._prefix = prefix
        self._shown_url = str(http.base_url).rstrip("/") + prefix
        self._older_until_s = -1.0

    @property
    def is_older(self) -> bool:
        """Whether the planner had no batch calls when it was asked last."""
        return time.monotonic() < self._older_until_s

    async def passed_on(self, request: RelayRequest, *, wait_s: float = 0.0) -> RelayAnswer:
        """The planner's answer to a rank's call as it is."""
        return await self._send(
            request.method, request.target, request.passed_on, request.body, wait_s=wait_s
        )

    async def together(
        self, kind: BatchKind, job_id: str, calls: Sequence[RankCall]
    ) -> list[RelayAnswer]:
        """The answers to calls of different ranks of a job, in their order."""
        if len(calls) == 1 or self.is_older:
            return await self._singly(calls)
        first = calls[0].request
        body = json.dumps({"ranks": [{"rank": call.rank, **call.part} for call in calls]})
        answer = await self._send(
            kind.method,
            self._prefix + routes.fill(kind.route, job_id=job_id),
            {**dict(first.credentials), "content-type": _BATCH_JSON},
            body.encode(),
        )
        if answer.status in _NOT_THERE:
            self._older_until_s = time.monotonic() + _OLDER_FOR_S
        if answer.status in _NOT_THERE | _OF_ONE_RANK:
            return await self._singly(calls)
        if answer.status != 200:
            return [answer] * len(calls)
        by_rank = _answers_of_ranks(answer.body, kind.own_fields)
        return [by_rank.get(call.rank, _nonsense(self._shown_url)) for call in calls]

    async def plans(
        self,
        job_id: str,
        ranks: Sequence[int],
        *,
        after_version: int,
        wait_s: float,
        credentials: Credentials,
    ) -> dict[int, RelayAnswer] | RelayAnswer | None:
        """By rank the newer plan or what is wrong; or one answer for all; None: no batch calls."""
        query = f"ranks={','.join(map(str, ranks))}&after_version={after_version}"
        path = self._prefix + routes.fill(routes.RANKS_PLANS, job_id=job_id)
        target = f"{path}?{query}&wait_s={wait_s:g}"
        answer = await self._send("GET", target, dict(credentials), b"", wait_s=wait_s)
        if answer.status in _NOT_THERE:
            self._older_until_s = time.monotonic() + _OLDER_FOR_S
            return None
        return _plans_of_ranks(answer.body) if answer.status == 200 else answer

    async def _singly(self, calls: Sequence[RankCall]) -> list[RelayAnswer]:
        return list(await asyncio.gather(*(self.passed_on(call.request) for call in calls)))

    async def _send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        wait_s: float = 0.0,
    ) -> RelayAnswer:
        timeout = httpx.Timeout(_TIMEOUT_S, read=wait_s + _TIMEOUT_S)
        try:
            request = self._http.build_request(
                method, target, headers=dict(headers), content=body, timeout=timeout
            )
            try:
                response = await self._http.send(request)
            except CONNECTION_ERRORS:
                # The planner may have closed a connection that was not used for a while.
                response = await self._http.send(request)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            return RelayAnswer.problem(502, str(error_from_exception(self._shown_url, error)))
        return RelayAnswer(
            status=response.status_code,
            body=response.content,
            content_type=response.headers.get("content-type", _BATCH_JSON),
            headers={
                name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers
            },
        )


def _answers_of_ranks(body: bytes, own_fields: tuple[str, ...] | None) -> dict[int, RelayAnswer]:
    answers: dict[int, RelayAnswer] = {}
    for entry in _entries(body, "ranks"):
        own = entry if own_fields is None else {name: entry.get(name) for name in own_fields}
        answers[_rank(entry)] = RelayAnswer.of_json(own)
    return answers | _failures(body)


def _plans_of_ranks(body: bytes) -> dict[int, RelayAnswer]:
    answers: dict[int, RelayAnswer] = {}
    for entry in _entries(body, "plans"):
        plan = RelayAnswer.of_json(entry.get("plan"))
        ranks = cast("list[object]", entry.get("ranks") or [])
        answers |= {rank: plan for rank in ranks if isinstance(rank, int)}
    return answers | _failures(body)


def _failures(body: bytes) -> dict[int, RelayAnswer]:
    return {
        _rank(entry): RelayAnswer.problem(int(entry["status"]), str(entry.get("detail", "")))
        for entry in _entries(body, "failures")
        if isinstance(entry.get("status"), int)
    }


def _entries(body: bytes, name: str) -> list[dict[str, Any]]:
    """A list of the answer; empty where it does not talk like a planner."""
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if not isinstance(document, dict):
        return []
    found = cast("dict[str, object]", document).get(name)
    entries = cast("list[object]", found if isinstance(found, list) else [])
    return [cast("dict[str, Any]", entry) for entry in entries if isinstance(entry, dict)]


def _rank(entry: Mapping[str, Any]) -> int:
    rank = entry.get("rank")
    return rank if isinstance(rank, int) else -1


def _nonsense(shown_url: str) -> RelayAnswer:
    return RelayAnswer.problem(
        502, f"what answers at {shown_url} does not talk like a planner; check the address"
    )
