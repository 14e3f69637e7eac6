"""Cache of timelines as compressed JSON, which may take megabytes."""

from __future__ import annotations

import zlib

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool

from flyball_server.jobs.services import JobServices
from flyball_server.kit.checked_documents import adapter_of
from flyball_server.kit.lru import Lru
from flyball_server.kit.single_flight import SingleFlight
from flyball_server.views.plan_timeline import TimelineKey, get_timeline, timeline_key
from flyball_wire.read_models import PlanTimeline

# Limit on all compressed answers; one of 64 stages and 256 microbatches takes some 0.5 MB.
MAX_REMEMBERED_BYTES = 32 * 2**20
# Timelines computed concurrently; each of a long pipeline takes a core for seconds.
TIMELINES_AT_ONCE = 2
# Higher levels take much longer for little.
_LEVEL = 5
_GZIP_BITS = 31  # zlib: with a gzip header


class TimelineAnswers:
    """Least-recently-used cache of answers in gzip format.

    `ask` is used on one event loop at a time, the other methods on any thread.

    Args:
        max_bytes: limit on the size of all answers; the newest is kept in any case.
    """

    def __init__(self, max_bytes: int = MAX_REMEMBERED_BYTES) -> None:
        self._kept = Lru[TimelineKey, bytes](max_bytes, size_of=len)
        self._making = SingleFlight[TimelineKey, bytes]()
        self._threads = CapacityLimiter(TIMELINES_AT_ONCE)

    async def ask(self, services: JobServices, job_id: str, version: int | None) -> bytes:
        """Return the answer; concurrent requests for the same answer compute it once.

        Raises:
            UnknownError, WrongStateError: as for `get_timeline`.
        """
        key = await run_in_threadpool(timeline_key, services, job_id, version)
        return self._kept.get(key) or await self._making.run(
            key,
            lambda: to_thread.run_sync(self.get, services, job_id, version, limiter=self._threads),
        )

    def known(self, services: JobServices, job_id: str, version: int | None) -> bytes | None:
        """Return the answer if it is cached.

        Raises:
            UnknownJobError, UnknownPlanError, MissingPlanError: as for `timeline_key`.
        """
        return self._kept.get(timeline_key(services, job_id, version))

    def get(self, services: JobServices, job_id: str, version: int | None) -> bytes:
        """Return the answer; it is computed on this thread if it is not cached.

        Raises:
            UnknownError, WrongStateError: as for `get_timeline`.
        """
        found = self.known(services, job_id, version)
        if found is None:
            key, timeline = get_timeline(services, job_id, version)
            found = _compressed(timeline)
            self._kept.put(key, found)
        return found


def uncompressed(answer: bytes) -> bytes:
    """Return the JSON of an answer."""
    return zlib.decompress(answer, _GZIP_BITS)


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether an Accept-Encoding header (empty: none) permits gzip: RFC 9110, 12.5.3."""
    weights: dict[str, bool] = {}
    for item in accept_encoding.lower().split(","):
        name, _, parameters = item.partition(";")
        weight = parameters.replace(" ", "").removeprefix("q=")
        weights[name.strip()] = weight.strip("0.") != "" or not parameters
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", False)))


def _compressed(timeline: PlanTimeline) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_BITS)
    return packer.compress(adapter_of(PlanTimeline).dump_json(timeline)) + packer.flush()
