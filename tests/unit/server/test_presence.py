"""Heartbeats of ranks: noted at each call, written to the store later."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
from tests.planner.one_rank import register_rank
from tests.planner.samples import MOMENT, CountingPlanner, Services, job_spec, rank_record
from tests.planner.use_cases import register_job

from flyball_server.jobs.errors import StoreUnavailableError
from flyball_server.jobs.lifecycle.heartbeats import Heartbeats
from flyball_server.jobs.registry.inspection import get_job
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.sql.job_writer import JobWriter

LATER = MOMENT + timedelta(minutes=5)


@pytest.fixture
def services() -> JobServices:
    made = Services(CountingPlanner()).jobs
    register_job(made, "job", job_spec())
    for rank in (0, 1):
        register_rank(made, rank_record(rank))
    return replace(made, now=lambda: LATER)


def last_seen(services: JobServices) -> list[object]:
    return [rank.last_seen_at for rank in get_job(services, "job").ranks]


def test_a_job_that_cannot_be_written_holds_up_no_other_and_is_told_the_next_time(
    services: JobServices,
) -> None:
    store, busy = services.store, {"busy", "job", "busier"}

    class Busy:
        def writing(self, subject: str) -> AbstractContextManager[JobWriter]:
            if subject in busy:
                raise StoreUnavailableError(location=subject, reason="it is busy")
            return store.writing(subject)

    heartbeats = Heartbeats()
    for job_id in ("busy", "job", "busier"):
        heartbeats.note(job_id, (0,))
    for seen_at in (MOMENT, LATER):
        with pytest.raises(StoreUnavailableError):
            heartbeats.keep(replace(services, store=cast("JobStore", Busy())))
        assert last_seen(services) == [seen_at, MOMENT]
        busy.discard("job")


def test_what_is_left_is_told_at_the_end(services: JobServices) -> None:
    heartbeats = Heartbeats()
    heartbeats.start(services)
    heartbeats.note("job", (0, 1))
    heartbeats.stop()
    assert last_seen(services) == [LATER, LATER]
