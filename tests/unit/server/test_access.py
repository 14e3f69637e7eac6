"""Tokens: what is kept of them, what they open, and how long an answer is remembered."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import pytest
from tests.planner.stores import TemporaryJobStore

from flyball_server.jobs.auth.access import (
    ANYBODY,
    OPERATOR,
    REMEMBERED_S,
    Access,
    TokenGate,
    create_token,
    digest_of,
    list_tokens,
    revoke_token,
    stored_access,
    why_no_operators,
)
from flyball_server.jobs.errors import InvalidFieldError, NoOperatorsTokenError, UnknownTokenError
from flyball_server.jobs.store.sql.job_reader import JobReader


class CountingStore(TemporaryJobStore):
    """Counts how often it is read."""

    num_reads = 0

    @contextmanager
    def reading(self) -> Generator[JobReader]:
        self.num_reads += 1
        with super().reading() as reader:
            yield reader


class OvertakenStore(CountingStore):
    """While it is read, after what is read of it stands, tokens change and the gate is told."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Callable[[], None]] = []

    @contextmanager
    def reading(self) -> Generator[JobReader]:
        with super().reading() as reader:
            reader.list_tokens()  # from here on it sees this moment
            while self.changes:
                self.changes.pop()()
            yield reader


class Clock:
    """Time that passes only when told to."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def store() -> Iterator[CountingStore]:
    made = CountingStore()
    made.open()
    yield made
    made.close()


def test_a_token_has_256_random_bits_of_which_only_the_digest_is_kept(store: CountingStore) -> None:
    record, token = create_token(store, job_id="job", note="night runs", has_operator=True)
    matched = re.fullmatch(r"fb_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", token)
    assert matched is not None
    assert record.token_id == matched.group(1)
    (kept,) = list_tokens(store)
    assert kept.digest == digest_of(token)
    assert matched.group(2) not in repr(kept)
    assert (kept.job_id, kept.note) == ("job", "night runs")
    assert create_token(store, job_id=None)[1] != token


def test_a_read_only_token_opens_all_jobs_and_is_no_operators(store: CountingStore) -> None:
    with pytest.raises(NoOperatorsTokenError):
        create_token(store, job_id=None, is_read_only=True)
    create_token(store, job_id=None)
    record, token = create_token(store, job_id=None, is_read_only=True)
    assert stored_access(store, token) == Access(job_id=None, is_read_only=True)
    assert not record.is_operators
    why = why_no_operators(list_tokens(store), token)
    assert why == "it is read-only"
    with pytest.raises(InvalidFieldError, match=r"^job_id"):
        create_token(store, job_id="job", is_read_only=True)
    assert len(list_tokens(store)) == 2


def test_a_jobs_token_cannot_be_the_first(store: CountingStore) -> None:
    with pytest.raises(NoOperatorsTokenError, match="flyball token create --operator"):
        create_token(store, job_id="job")
    assert list_tokens(store) == ()
    operators, _ = create_token(store, job_id=None)
    create_token(store, job_id="job")
    revoke_token(store, operators.token_id)
    with pytest.raises(NoOperatorsTokenError):
        create_token(store, job_id="job")


def test_from_the_first_token_on_one_is_asked_for_also_when_the_last_is_revoked(
    store: CountingStore,
) -> None:
    clock = Clock()
    gate = TokenGate(store, clock=clock)
    assert gate.look_up(None) == ANYBODY
    record, token = create_token(store, job_id="job", has_operator=True)
    clock.now_s += REMEMBERED_S
    assert gate.look_up(None) is None
    assert gate.look_up("anything") is None
    assert gate.look_up(token) == Access(job_id="job")
    revoke_token(store, record.token_id)
    gate.forget()
    assert gate.look_up(None) is None
    assert gate.look_up(token) is None
    with pytest.raises(UnknownTokenError, match=record.token_id):
        revoke_token(store, record.token_id)


@pytest.mark.parametrize("is_revoked", [True, False])
def test_a_change_of_tokens_while_one_is_looked_up_is_heeded(is_revoked: bool) -> None:
    store = OvertakenStore()
    store.open()
    gate = TokenGate(store)
    record, token = create_token(store, job_id=None) if is_revoked else (None, None)
    if is_revoked:
        gate.ask_always()

    def change() -> None:
        if record is not None:
            revoke_token(store, record.token_id)
        else:
            create_token(store, job_id=None)
        gate.forget()

    store.changes = [change]
    assert gate.look_up(token) == (
        OPERATOR if is_revoked else ANYBODY
    )  # as it was when it was read
    assert gate.remembered(token) is None
    assert gate.look_up(token) is None


def test_an_answer_is_remembered_and_the_store_not_read_again(store: CountingStore) -> None:
    clock = Clock()
    gate = TokenGate(store, clock=clock)
    record, token = create_token(store, job_id="job", has_operator=True)
    assert gate.look_up(token) == Access(job_id="job")
    num_reads = store.num_reads
    for _ in range(100):
        assert gate.remembered(token) == Access(job_id="job")
    assert store.num_reads == num_reads
    revoke_token(store, record.token_id)
    clock.now_s += REMEMBERED_S - 0.001
    assert gate.remembered(token) == Access(job_id="job")
    clock.now_s += 0.001
    assert gate.remembered(token) is None
    assert gate.look_up(token) is None


def test_a_token_of_the_settings_is_an_operators_and_needs_no_store(store: CountingStore) -> None:
    gate = TokenGate(store, operator_token="of the settings")  # noqa: S106 - a test's
    assert gate.remembered("of the settings") == OPERATOR
    assert gate.remembered("of the setting") is None
    assert gate.remembered(None) is None
    assert store.num_reads == 0


def test_memory_is_bounded(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball_server.jobs.auth.access._MAX_REMEMBERED", 2)
    gate = TokenGate(store)
    tokens = [create_token(store, job_id=None)[1] for _ in range(3)]
    for token in tokens:
        assert gate.look_up(token) == OPERATOR
    assert [gate.remembered(token) for token in tokens] == [None, OPERATOR, OPERATOR]
