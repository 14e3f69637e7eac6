"""Types that cross HTTP about tokens; as in wire.py."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_wire.strictness import Sent


@dataclass(frozen=True, kw_only=True)
class TokenRequest(Sent):
    """A token to be made: for one job, or an operator's.

    Attributes:
        job_id: the one job that it opens; null: given by `operator` only.
        operator: it opens everything.
        note: what people know it by.
    """

    job_id: str | None = None
    operator: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class TokenView:
    """What is known of a token.

    Attributes:
        token_id: its public part, by which it is revoked.
        job_id: the one job that it opens; null: everything.
        created_at: ISO 8601, UTC.
    """

    token_id: str
    job_id: str | None
    note: str
    created_at: str


@dataclass(frozen=True, kw_only=True)
class NewToken:
    """A token that was made; `token` is shown this once."""

    token: str
    token_id: str
    job_id: str | None
    note: str
    created_at: str
