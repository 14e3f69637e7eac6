"""Digest of a planning request: equal where the requests are."""

from __future__ import annotations

import hashlib
from dataclasses import fields

from flyball_server.planning.memoize import profile_digest
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest


def request_digest(slowed: SlowedRequest) -> str:
    """The digest of all that a plan for these slowdown factors depends on."""
    request = slowed.request
    rest = [
        (field.name, getattr(request, field.name))
        for field in fields(request)
        if field.name != "profile"
    ]
    slowdowns = sorted(map(repr, slowed.slowdowns))
    told = repr((rest, slowdowns, slowed.num_pipelines if slowdowns else 1))
    return hashlib.sha256(told.encode() + profile_digest(request.profile)).hexdigest()
