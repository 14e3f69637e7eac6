"""What is stored of a token: never the token."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flyball_server.jobs.bounds import check_text
from flyball_server.jobs.records import Record


@dataclass(frozen=True, kw_only=True)
class TokenRecord(Record):
    """A token that lets its bearer in.

    Attributes:
        token_id: the token's public part, by which it is found and listed.
        digest: SHA-256 of the whole token, hexadecimal.
        job_id: the one job that it opens; None: an operator's, which opens all.
        created_at: UTC.
        note: what people know it by.
    """

    token_id: str
    digest: str
    job_id: str | None
    created_at: datetime
    note: str = ""

    def __post_init__(self) -> None:
        check_text("note", self.note)
