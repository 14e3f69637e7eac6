"""Results that are found again: a running job is planned again and again from the same pipeline.

What is kept depends on the content of the arguments alone, so it is what would be made anew.
"""

from __future__ import annotations

import functools
import hashlib
from array import array
from collections.abc import Callable
from typing import Generic, TypeVar

from flyball_profiles.stage_profile import StageProfile

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")


class _ByDigest(Generic[ArgumentT]):
    """An argument; equal to those of the same digest."""

    def __init__(self, argument: ArgumentT, digest: bytes) -> None:
        self.argument = argument
        self._digest = digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByDigest) and other._digest == self._digest


def kept_by_digest(
    digest_of: Callable[[ArgumentT], bytes], *, num_kept: int
) -> Callable[[Callable[[ArgumentT], ResultT]], Callable[[ArgumentT], ResultT]]:
    """A decorator: the last results of a pure function are kept; its errors are not.

    Args:
        digest_of: of all of an argument that the result depends on.
        num_kept: results.
    """

    def decorated(function: Callable[[ArgumentT], ResultT]) -> Callable[[ArgumentT], ResultT]:
        @functools.lru_cache(maxsize=num_kept)
        def kept(argument: _ByDigest[ArgumentT]) -> ResultT:
            return function(argument.argument)

        @functools.wraps(function)
        def found(argument: ArgumentT) -> ResultT:
            return kept(_ByDigest(argument, digest_of(argument)))

        return found

    return decorated


def profile_digest(profile: StageProfile) -> bytes:
    """The digest of a profile's content."""
    digest = hashlib.sha256(repr(profile.num_ranks_per_stage).encode())
    for key, points in profile.points.items():
        digest.update(repr(key).encode())
        figures = [
            figure
            for point in points
            for figure in (point.frequency_mhz, point.time_s, point.energy_j)
        ]
        digest.update(array("d", figures).tobytes())
    for chunk in profile.chunks:
        digest.update(profile_digest(chunk))
    return digest.digest()
