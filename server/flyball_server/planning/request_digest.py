"""What a plan is asked for, as a short text: equal where the requests are."""

from __future__ import annotations

import hashlib
from dataclasses import fields

from flyball_server.planning.kept_results import profile_digest
from flyball_server.planning.stragglers.slowed_pipelines import PacedRequest


def request_digest(paced: PacedRequest) -> str:
    """The digest of all that a plan for these paces depends on."""
    request = paced.request
    rest = [
        (field.name, getattr(request, field.name))
        for field in fields(request)
        if field.name != "profile"
    ]
    paces = sorted(map(repr, paced.paces))
    told = repr((rest, paces, paced.num_pipelines if paces else 1))
    return hashlib.sha256(told.encode() + profile_digest(request.profile)).hexdigest()
