"""The JobStore contract on turns and signals, and on writing transactions of several subjects."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.samples import job_record

from flyball_server.jobs.errors import StoreClosedError
from flyball_server.jobs.store.contract import JobStore


def is_free(store: JobStore, name: str) -> bool:
    """Return whether another thread would get this turn now."""

    def ask() -> bool:
        with store.lock(name, waits=False) as is_mine:
            return is_mine

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(ask).result(PATIENCE_S)


def test_a_turn_belongs_to_one_thread_at_a_time(store: JobStore) -> None:
    start = threading.Barrier(4)
    inside: list[int] = []

    def take_turns() -> None:
        start.wait(PATIENCE_S)
        for _ in range(5):
            with store.lock("plan job") as is_mine:
                assert is_mine
                inside.append(1)
                assert len(inside) == 1
                inside.pop()

    with ThreadPoolExecutor(4) as threads:
        for ended in [threads.submit(take_turns) for _ in range(4)]:
            ended.result(PATIENCE_S)


def test_without_waiting_a_turn_is_not_had_while_another_has_it(store: JobStore) -> None:
    with store.lock("plan job") as is_mine:
        assert is_mine
        assert not is_free(store, "plan job")
        assert is_free(store, "plan other")
    assert is_free(store, "plan job")
    assert is_free(store, "plan job")


def test_a_turn_is_given_back_when_its_block_raises(store: JobStore) -> None:
    class InterruptionError(Exception):
        pass

    with pytest.raises(InterruptionError), store.lock("plan job"):
        raise InterruptionError
    assert is_free(store, "plan job")


def test_whoever_waits_for_a_turn_gets_it_when_it_is_given_back(store: JobStore) -> None:
    order: list[str] = []

    def wait_for_it() -> None:
        with store.lock("plan job"):
            order.append("second")

    with ThreadPoolExecutor(1) as threads:
        with store.lock("plan job"):
            waiting = threads.submit(wait_for_it)
            assert not is_free(store, "plan job")
            order.append("first")
        waiting.result(PATIENCE_S)
    assert order == ["first", "second"]


def test_a_signal_reaches_the_listener(store: JobStore) -> None:
    heard: list[str | None] = []
    store.signal("unheard")
    store.listen(heard.append)
    store.signal("job")
    store.signal("other")
    wait_until(lambda: {"job", "other"} <= set(heard))
    assert set(heard) <= {"job", "other", "unheard", None}


def test_a_signal_of_many_threads_misses_no_job(store: JobStore) -> None:
    heard: list[str | None] = []
    store.listen(heard.append)
    names = [f"job-{number}" for number in range(200)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(store.signal, names))
    wait_until(lambda: set(names) <= set(heard))


def test_who_listens_may_do_so_before_the_store_is_opened_and_is_heard_after(
    store: JobStore,
) -> None:
    heard: list[str | None] = []
    store.close()
    store.listen(heard.append)
    store.open()
    store.signal("job")
    wait_until(lambda: "job" in heard)


def test_writers_of_different_jobs_lose_no_change(store: JobStore) -> None:
    start = threading.Barrier(4)

    def count_up(job_id: str) -> None:
        with store.writing(job_id) as writer:
            writer.save_job(job_record(job_id))
        start.wait(PATIENCE_S)
        for _ in range(10):
            with store.writing(job_id) as writer:
                job = writer.find_job(job_id)
                assert job is not None
                writer.save_job(job.evolve(inputs_revision=job.inputs_revision + 1))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count_up, "abcd", timeout=PATIENCE_S))
    with store.reading() as reader:
        assert [job.inputs_revision for job in reader.list_jobs()] == [10] * 4


def test_a_closed_store_gives_no_turn_that_others_could_hold_too(store: JobStore) -> None:
    store.close()
    with pytest.raises(StoreClosedError), store.lock("plan job"):
        pass
