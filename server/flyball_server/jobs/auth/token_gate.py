"""Token check of a call; answers are remembered for a few seconds."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable

from flyball_server.jobs.auth.access import OPERATOR, Access, digest_of, list_tokens, stored_access
from flyball_server.jobs.store.contract import JobStore

# A token that is revoked by another process opens what it opened for no longer than this, s.
REMEMBERED_S = 5.0
_MAX_REMEMBERED = 4096


class TokenGate:
    """Lets in whoever presents a token, and everybody while there is no token at all.

    Once there has been one, the gate asks for tokens until its process ends: to revoke the last
    one does not open the planner. Any thread may use it. What is remembered are digests.

    Args:
        store: where tokens are kept.
        operator_token: one more operator's token, of the settings; None: there is none.
        clock: s, for what is remembered.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        operator_token: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._operator_digest = None if operator_token is None else digest_of(operator_token)
        self._asks = operator_token is not None
        self._clock = clock
        self._lock = threading.Lock()
        # By digest: what the token opens, and until when that is remembered.
        self._remembered: dict[str, tuple[Access, float]] = {}
        self._open_until_s = -1.0
        # How often what was remembered was forgotten: an answer read before that is not kept.
        self._num_changes = 0

    def remembered(self, token: str | None) -> Access | None:
        """Return the remembered rights of this token, or of none; None: ask the store."""
        now_s = self._clock()
        if not self._asks:
            return OPERATOR if now_s < self._open_until_s else None
        if token is None:
            return None
        digest = digest_of(token)
        if self._is_operators(digest):
            return OPERATOR
        with self._lock:
            access, until_s = self._remembered.get(digest, (None, now_s))
        return access if now_s < until_s else None

    def look_up(self, token: str | None) -> Access | None:
        """Return what this token, or none, opens; None: nothing. May read the store.

        Raises:
            StoreError: it cannot be read; nobody is let in then.
        """
        known = self.remembered(token)  # another thread may just have looked
        if known is not None:
            return known
        num_changes = self._num_changes
        if not self._asks:
            if not list_tokens(self._store):
                with self._lock:
                    if num_changes == self._num_changes:
                        self._open_until_s = self._clock() + REMEMBERED_S
                return OPERATOR
            self._asks = True
        if token is None:
            return None
        access = stored_access(self._store, token)
        if access is not None:
            self._remember(digest_of(token), access, num_changes)
        return access

    def ask_always(self) -> None:
        """Let nobody in without a token, even while there is none."""
        self._asks = True

    def forget(self) -> None:
        """Look at the store before anybody else is let in: tokens have changed."""
        with self._lock:
            self._num_changes += 1
            self._remembered.clear()
            self._open_until_s = -1.0

    def _is_operators(self, digest: str) -> bool:
        kept = self._operator_digest
        return kept is not None and hmac.compare_digest(digest, kept)

    def _remember(self, digest: str, access: Access, num_changes: int) -> None:
        now_s = self._clock()
        with self._lock:
            if num_changes != self._num_changes:
                return
            self._remembered.pop(digest, None)
            if len(self._remembered) >= _MAX_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]  # the oldest
            self._remembered[digest] = (access, now_s + REMEMBERED_S)
