"""Cache of results by the content of their argument: a running job is planned repeatedly."""

from __future__ import annotations

import functools
import hashlib
from array import array
from collections.abc import Callable
from typing import TypeVar

from flyball_profiles.stage_profile import StageProfile
from flyball_server.kit.lru import Lru

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")


def kept_by_digest(
    digest_of: Callable[[ArgumentT], bytes], *, num_kept: int
) -> Callable[[Callable[[ArgumentT], ResultT]], Callable[[ArgumentT], ResultT]]:
    """Return a decorator that caches the last results of a pure function, not its errors.

    Args:
        digest_of: function that returns a digest of all that the result depends on.
        num_kept: number of cached results.
    """

    def decorated(function: Callable[[ArgumentT], ResultT]) -> Callable[[ArgumentT], ResultT]:
        results = Lru[bytes, ResultT](num_kept)

        @functools.wraps(function)
        def cached(argument: ArgumentT) -> ResultT:
            digest = digest_of(argument)
            result = results.get(digest)
            if result is None:
                result = function(argument)
                results.put(digest, result)
            return result

        return cached

    return decorated


def profile_digest(profile: StageProfile) -> bytes:
    """Return a digest of a profile's content."""
    digest = hashlib.sha256(repr(profile.num_ranks_per_stage).encode())
    for key, points in profile.points.items():
        digest.update(repr(key).encode())
        figures = [
            figure
            for point in points
            for figure in (
                *(point.frequency_mhz, point.time_s, point.energy_j, point.rank_waiting_s),
                *(point.time_error_s, point.jitter),
            )
        ]
        digest.update(array("d", figures).tobytes())
    for chunk in profile.chunks:
        digest.update(profile_digest(chunk))
    return digest.digest()
