"""The JobStore contract on turns and signals, and on writing transactions of several subjects."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.samples import job_record

from flyball_server.jobs.store.contract import JobStore


def is_free(store: JobStore, name: str) -> bool:
    """Return whether another thread would get this turn now."""

    def ask() -> bool:
        with store.lock(name, waits=False) as is_mine:
            return is_mine

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(ask).result(PATIENCE_S)


def test_a_turn_belongs_to_one_thread_at_a_time_and_goes_to_the_next_who_waits(
    store: JobStore,
) -> None:
    inside: list[int] = []

    def take_turns() -> None:
        for _ in range(5):
            with store.lock("plan job") as is_mine:
                assert is_mine
                inside.append(1)
                assert len(inside) == 1
                inside.pop()

    with ThreadPoolExecutor(4) as threads:
        with store.lock("plan job"):
            waiting = [threads.submit(take_turns) for _ in range(4)]
            assert not is_free(store, "plan job")
            assert not any(each.done() for each in waiting)
        for ended in waiting:
            ended.result(PATIENCE_S)


def test_without_waiting_a_turn_is_not_had_while_another_has_it(store: JobStore) -> None:
    class InterruptionError(Exception):
        pass

    with pytest.raises(InterruptionError), store.lock("plan job") as is_mine:
        assert is_mine
        assert not is_free(store, "plan job")
        assert is_free(store, "plan other")
        raise InterruptionError
    assert is_free(store, "plan job")
    assert is_free(store, "plan job")


def test_a_signal_reaches_who_listens_also_before_the_store_is_opened(store: JobStore) -> None:
    heard: list[str | None] = []
    store.signal("unheard")
    store.close()
    store.listen(heard.append)
    store.open()
    names = [f"job-{number}" for number in range(200)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(store.signal, names))
    wait_until(lambda: set(names) <= set(heard))
    assert set(heard) <= {*names, "unheard", None}


@pytest.mark.parametrize("job_ids", ["abcd", "aaaa"])
def test_writers_of_the_same_and_of_different_jobs_lose_no_change(
    store: JobStore, job_ids: str
) -> None:
    for job_id in set(job_ids):
        with store.writing(job_id) as writer:
            writer.save_job(job_record(job_id))
    start = threading.Barrier(4)

    def count_up(job_id: str) -> None:
        start.wait(PATIENCE_S)
        for _ in range(5):
            with store.writing(job_id) as writer:
                job = writer.find_job(job_id)
                assert job is not None
                writer.save_job(job.evolve(inputs_revision=job.inputs_revision + 1))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count_up, job_ids, timeout=PATIENCE_S))
    with store.reading() as reader:
        counts = {job.job_id: job.inputs_revision for job in reader.list_jobs()}
    assert counts == {job_id: 5 * job_ids.count(job_id) for job_id in job_ids}
