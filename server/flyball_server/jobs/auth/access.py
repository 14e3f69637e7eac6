"""Access control: creation, listing and revocation of tokens, and their rights.

A token is `fb_ID_SECRET`. Its secret is 256 random bits, which cannot be guessed, so a fast hash
is sufficient; a slow one is needed only for passwords that a person has chosen.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from flyball_server.jobs.errors import InvalidFieldError, NoOperatorsTokenError, UnknownTokenError
from flyball_server.jobs.lifecycle.job_life import utc_now
from flyball_server.jobs.records import JOB_ID_PATTERN, RUN_SIGN, TokenRecord
from flyball_server.jobs.store.contract import TOKENS, JobStore
from flyball_server.kit.lru import Lru

# Validity of cached rights in s: a token revoked by another process stays valid this long.
REMEMBERED_S = 5.0
_MAX_REMEMBERED = 4096
_NO_TOKEN = ""  # no digest


class TokenGate:
    """Rights of callers by their tokens; without any token in the store, all have all rights.

    Once a token has existed, the gate requires one until its process ends: revoking the last one
    does not open the planner. Thread-safe. Only digests of tokens are cached.

    Args:
        store: store of the tokens.
        operator_token: additional operator's token from the settings; None: no such token. One of
            `create_token` has the rights of its record, and none once it is revoked.
        clock: monotonic, s.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        operator_token: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        is_additional = operator_token is not None and not _TOKEN.fullmatch(operator_token)
        self._operator_digest = digest_of(operator_token or "") if is_additional else None
        self._asks = operator_token is not None
        self._clock = clock
        # By digest, and by `_NO_TOKEN`: the rights, and the end of their validity.
        self._remembered = Lru[str, tuple[Access, float]](_MAX_REMEMBERED)

    def remembered(self, token: str | None) -> Access | None:
        """Return the cached rights of this token, or of none; None: read the store."""
        if not self._asks:
            key = _NO_TOKEN
        elif token is None:
            return None
        else:
            key = digest_of(token)
            if self._is_operators(key):
                return OPERATOR
        access, until_s = self._remembered.get(key) or (None, 0.0)
        return access if self._clock() < until_s else None

    def look_up(self, token: str | None) -> Access | None:
        """Return the rights of this token, or of none; None: no rights. May read the store.

        Raises:
            StoreError: the store cannot be read; the caller gets no access.
        """
        known = self.remembered(token)  # another thread may just have read it
        if known is not None:
            return known
        # An answer that was read before a change of tokens is written to a discarded cache.
        remembered = self._remembered
        access, key = None, _NO_TOKEN
        if not self._asks and not list_tokens(self._store):
            access = ANYBODY
        else:
            self._asks = True
            if token is not None:
                access, key = stored_access(self._store, token), digest_of(token)
        if access is not None:
            remembered.put(key, (access, self._clock() + REMEMBERED_S))
        return access

    def ask_always(self) -> None:
        """Require a token from every caller, even while no token exists."""
        self._asks = True

    def forget(self) -> None:
        """Drop the cached rights after a change of tokens."""
        self._remembered = Lru[str, tuple[Access, float]](_MAX_REMEMBERED)

    def _is_operators(self, digest: str) -> bool:
        kept = self._operator_digest
        return kept is not None and hmac.compare_digest(digest, kept)


_PREFIX = "fb"
_ID_BYTES = 8
_SECRET_BYTES = 32
_TOKEN = re.compile(r"fb_([0-9a-f]{8,32})_[A-Za-z0-9_-]{20,200}")
# Digest to compare a token of an unknown id with, so that it takes as long as a known one.
_NO_DIGEST = "0" * 64


@dataclass(frozen=True, kw_only=True)
class Access:
    """Rights of a caller.

    Attributes:
        job_id: ID of the only accessible job, with its earlier runs; None: access to all.
        is_read_only: true if it permits no change.
        has_token: false where no token exists, so that none was asked for.
    """

    job_id: str | None
    is_read_only: bool = False
    has_token: bool = True

    def opens(self, job_id: str) -> bool:
        """Return whether this job, or earlier run of one, is open to it."""
        return self.job_id is None or self.job_id == job_id.partition(RUN_SIGN)[0]


OPERATOR = Access(job_id=None)
ANYBODY = Access(job_id=None, has_token=False)


def digest_of(token: str) -> str:
    """Return the SHA-256 of a token, hexadecimal; only this digest is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def create_token(
    store: JobStore,
    *,
    job_id: str | None,
    is_read_only: bool = False,
    note: str = "",
    now: Callable[[], datetime] = utc_now,
    has_operator: bool = False,
) -> tuple[TokenRecord, str]:
    """Create a token, an operator's if it is neither a job's nor read-only.

    Args:
        store: store of the token.
        job_id: ID of the only job that it grants access to, registered or not; None: all jobs.
        is_read_only: true for a token that changes nothing; it has no job.
        note: description for the list of tokens.
        now: current time.
        has_operator: true if there is an operator's token outside the store.

    Returns:
        The stored record, and the token itself, which is not stored anywhere.

    Raises:
        InvalidFieldError: the job ID is invalid, or the note is not printable text.
        NoOperatorsTokenError: the token is not an operator's, and no operator's token exists.
    """
    if job_id is not None and re.fullmatch(JOB_ID_PATTERN, job_id) is None:
        raise InvalidFieldError(
            "job_id", "must be 1 to 128 of A-Z a-z 0-9 . _ + -, no dot or plus first"
        )
    token_id = secrets.token_hex(_ID_BYTES)
    token = f"{_PREFIX}_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    record = TokenRecord(
        token_id=token_id,
        digest=digest_of(token),
        job_id=job_id,
        is_read_only=is_read_only,
        created_at=now(),
        note=note,
    )
    with store.writing(TOKENS) as writer:
        if not (record.is_operators or has_operator or has_operators(writer.list_tokens())):
            raise NoOperatorsTokenError
        writer.save_token(record)
    return record, token


def list_tokens(store: JobStore) -> tuple[TokenRecord, ...]:
    """Return the records of all tokens, in the order of their creation."""
    with store.reading() as reader:
        return reader.list_tokens()


def has_operators(tokens: tuple[TokenRecord, ...]) -> bool:
    """Return whether one of them is an operator's."""
    return any(token.is_operators for token in tokens)


def why_no_operators(tokens: tuple[TokenRecord, ...], token: str) -> str | None:
    """Return why a token of the settings must not be an operator's; None: it may be."""
    matched = _TOKEN.fullmatch(token)
    if matched is None:
        return None  # of somebody's choice
    record = next((each for each in tokens if each.token_id == matched.group(1)), None)
    if record is None:
        return "this database does not have it: it was revoked, or is another planner's"
    if record.is_operators:
        return None
    return "it is read-only" if record.is_read_only else f"it is for job {record.job_id} only"


def revoke_token(store: JobStore, token_id: str) -> None:
    """Revoke a token.

    Raises:
        UnknownTokenError: no token has this public part.
    """
    with store.writing(TOKENS) as writer:
        if writer.find_token(token_id) is None:
            raise UnknownTokenError(token_id=token_id)
        writer.delete_token(token_id)


def stored_access(store: JobStore, token: str) -> Access | None:
    """Return the rights of a token according to the store; None: no rights.

    The store is read for every well-formed token, so that a known ID takes as long as an
    unknown one.
    """
    matched = _TOKEN.fullmatch(token)
    if matched is None:
        return None
    with store.reading() as reader:
        record = reader.find_token(matched.group(1))
    kept = _NO_DIGEST if record is None else record.digest
    is_right = hmac.compare_digest(digest_of(token), kept)
    if record is None or not is_right:
        return None
    return Access(job_id=record.job_id, is_read_only=record.is_read_only)
