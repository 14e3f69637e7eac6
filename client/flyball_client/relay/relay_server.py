"""The relay: answers a node's ranks on a Unix socket, joins calls of theirs, passes on the rest.

It keeps nothing: a rank is answered only when the planner has answered, and a rank whose relay
has gone calls the planner itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, unquote

from flyball_client.relay.joining import Joined
from flyball_client.relay.messages import (
    MAX_HEADER_BYTES,
    PING,
    MessageError,
    RelayAnswer,
    RelayRequest,
    read_request,
)
from flyball_client.relay.polls import PlanPolls, PollKey
from flyball_client.relay.upstream import (
    ACKNOWLEDGEMENTS,
    MEASUREMENTS,
    REGISTRATIONS,
    BatchKind,
    Credentials,
    RankCall,
    Upstream,
)
from flyball_wire.version import flyball_version

_RANK = re.compile(
    r"/api/v1/jobs/(?P<job_id>[^/?]+)/ranks/(?P<rank>\d{1,7})(?P<what>/\w+)?(?:\?(?P<query>.*))?$"
)
_ACTIVATION = re.compile(r"/api/v1/jobs/[^/?]+/plans/\d+/activation(?:\?(?P<query>.*))?$")
# Ranks post every second or every other: those whose turns are the same soon post together.
_GATHER_S: dict[str, float] = {
    "PUT ": 0.05,
    "POST /acknowledgement": 0.02,
    "POST /measurements": 0.4,
}
_KINDS: dict[str, BatchKind] = {
    "PUT ": REGISTRATIONS,
    "POST /acknowledgement": ACKNOWLEDGEMENTS,
    "POST /measurements": MEASUREMENTS,
}
# A rank that has not called for so long is not waited for.
_GONE_AFTER_S = 15.0
_PEER = struct.Struct("3i")

_Key = tuple[str, Credentials]


class Relay:
    """The answers of a relay.

    Args:
        upstream: the planner.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._polls = PlanPolls(upstream)
        self._joined = {
            what: Joined[_Key](
                self._sender(kind), gather_s=_GATHER_S[what], expected=self._num_ranks
            )
            for what, kind in _KINDS.items()
        }
        # By job and credentials, when each rank called last, monotonic s.
        self._called_s: dict[_Key, dict[int, float]] = {}
        self._shared: dict[tuple[str, Credentials], asyncio.Task[RelayAnswer]] = {}

    async def answer(self, request: RelayRequest) -> RelayAnswer:
        """What a rank is answered."""
        if request.target == PING:
            return RelayAnswer.of_json({"relay": flyball_version(), "pid": os.getpid()})
        found = _RANK.search(request.target)
        if found is not None:
            return await self._answer_rank(request, found)
        found = _ACTIVATION.search(request.target)
        if found is not None and request.method == "GET":
            return await self._answer_shared(request, _wait_s(found["query"]))
        return await self._upstream.passed_on(request)

    async def _answer_rank(self, request: RelayRequest, found: re.Match[str]) -> RelayAnswer:
        rank = int(found["rank"])
        key = (unquote(found["job_id"]), request.credentials)
        self._called_s.setdefault(key, {})[rank] = time.monotonic()
        what = f"{request.method} {found['what'] or ''}"
        if what == "GET /plan":
            after_version = _number(found["query"], "after_version")
            poll = PollKey(
                job_id=key[0], after_version=int(after_version), credentials=request.credentials
            )
            return await self._polls.answer(poll, rank, request, wait_s=_wait_s(found["query"]))
        part = _part(request, what) if what in self._joined else None
        if part is None:
            return await self._upstream.passed_on(request)
        call = RankCall(rank=rank, part=part, request=request)
        return await self._joined[what].answer(key, call)

    async def _answer_shared(self, request: RelayRequest, wait_s: float) -> RelayAnswer:
        """The same question of several ranks is asked once."""
        key = (request.target, request.credentials)
        task = self._shared.get(key)
        if task is None:
            task = asyncio.create_task(self._upstream.passed_on(request, wait_s=wait_s))
            self._shared[key] = task
            task.add_done_callback(lambda _done: self._shared.pop(key, None))
        # The others still wait for it when this rank has gone.
        return await asyncio.shield(task)

    def _sender(
        self, kind: BatchKind
    ) -> Callable[[_Key, Sequence[RankCall]], Awaitable[list[RelayAnswer]]]:
        async def send(key: _Key, calls: Sequence[RankCall]) -> list[RelayAnswer]:
            return await self._upstream.together(kind, key[0], calls)

        return send

    def _num_ranks(self, key: _Key) -> int:
        since_s = time.monotonic() - _GONE_AFTER_S
        return sum(called_s > since_s for called_s in self._called_s.get(key, {}).values())


class RelayServer:
    """Listens for ranks until none has been there for a while.

    Args:
        relay: answers them.
        path: of the socket, which is made anew.
        idle_s: it ends when no rank is connected for so long, s.
    """

    def __init__(self, relay: Relay, path: Path, *, idle_s: float) -> None:
        self._relay = relay
        self._path = path
        self._idle_s = idle_s
        self._open: set[asyncio.Task[None]] = set()
        self._last_open_s = time.monotonic()

    async def run(self) -> None:
        """Until then.

        Raises:
            OSError: it cannot listen.
        """
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(
            self._on_connection, path=self._path, limit=MAX_HEADER_BYTES, backlog=256
        )
        try:
            while self._open or time.monotonic() - self._last_open_s < self._idle_s:
                await asyncio.sleep(min(1.0, self._idle_s / 2))
        finally:
            self._path.unlink(missing_ok=True)
            server.close()

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._open.add(task)
        try:
            if _is_own_user(writer.get_extra_info("socket")):
                await self._serve(reader, writer)
        except (OSError, MessageError):
            pass  # the rank has gone, or was none
        finally:
            self._open.discard(task)
            self._last_open_s = time.monotonic()
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (request := await read_request(reader)) is not None:
            answer = await self._relay.answer(request)
            writer.write(answer.encoded())
            await writer.drain()


def _part(request: RelayRequest, what: str) -> Mapping[str, Any] | None:
    """A rank's part of a batch body; None: its call is better passed on as it is."""
    try:
        document: object = json.loads(request.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    part = cast("dict[str, Any]", document)
    if what == "PUT ":
        return {"registration": part}
    return None if "rank" in part else part


def _number(query: str | None, name: str) -> float:
    """A number of a query; 0 where there is none."""
    texts = parse_qs(query or "").get(name, [])
    with contextlib.suppress(ValueError, IndexError, OverflowError):
        number = float(texts[-1])
        return number if 0 <= number < 2**53 else 0.0
    return 0.0


def _wait_s(query: str | None) -> float:
    return min(_number(query, "wait_s"), 600.0)


def _is_own_user(connection: socket.socket) -> bool:
    """The folder lets nobody else in; this is for a folder that was opened since."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(peer)
    return uid in {os.geteuid(), 0}
