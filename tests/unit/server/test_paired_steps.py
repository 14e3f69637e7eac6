"""Pairs of a comparison, counted again and again: as if from the beginning, each step read once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.planner.samples import job_record, plan_record, rank_record, step_record
from tests.planner.stores import opened_store

from flyball_server.jobs.measurements import step_reading
from flyball_server.jobs.measurements.step_reading import PairedSteps, num_paired_steps
from flyball_server.jobs.records import PlanRecord, StepRecord, StepTotals
from flyball_server.jobs.store.contract import JobReader, JobStore

NUM_RANKS = 2
ABBA = (False, True, True, False)


@pytest.fixture
def store() -> JobStore:
    made = opened_store()
    with made.writing("job") as writer:
        writer.save_job(job_record())
        for rank in range(NUM_RANKS):
            writer.save_ranks([rank_record(rank)])
    return made


def compared(**changes: Any) -> PlanRecord:  # noqa: ANN401 - of a record
    """Version 1 from step 10 on, in turn with the highest clocks."""
    return plan_record(1, **{"first_step": 10, "baseline_cycle": ABBA, **changes})


def both(steps: Iterable[int], version: int = 1) -> list[StepRecord]:
    return [
        step_record(step, rank, plan_version=version) for step in steps for rank in range(NUM_RANKS)
    ]


@dataclass
class CountingReader:
    """A reader that notes the steps that it was asked for."""

    reader: JobReader
    read: list[int]

    def list_step_totals(
        self, job_id: str, *, after_step: int, limit: int
    ) -> tuple[StepTotals, ...]:
        piece = self.reader.list_step_totals(job_id, after_step=after_step, limit=limit)
        self.read += [totals.step for totals in piece]
        return piece


def post(store: JobStore, *steps: StepRecord) -> None:
    with store.writing("job") as writer:
        writer.save_steps(steps)


def both_counts(store: JobStore, pairs: PairedSteps, record: PlanRecord) -> tuple[int, int]:
    """Counted on, and from the beginning."""
    with store.reading() as reader:
        return pairs.read(reader), num_paired_steps(reader, record, NUM_RANKS)


def test_counting_on_comes_to_what_counting_from_the_beginning_does(
    store: JobStore,
) -> None:
    record = compared()
    pairs = PairedSteps(record, NUM_RANKS)
    counts = []
    # A cycle has two pairs of a step of either kind; the first step of the version never counts.
    for step in range(8, 19):
        post(store, *both([step]))
        counted, anew = both_counts(store, pairs, record)
        assert counted == anew
        counts.append(counted)
    assert counts == [0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3]


def test_a_step_that_waits_for_a_rank_counts_when_that_has_come(store: JobStore) -> None:
    record = compared()
    pairs = PairedSteps(record, NUM_RANKS)
    post(store, *both(range(10, 14)), step_record(14, 0, plan_version=1), *both([15, 16, 17]))
    assert both_counts(store, pairs, record) == (2, 2)
    post(store, step_record(14, 1, plan_version=1))
    assert both_counts(store, pairs, record) == (3, 3)


def test_a_settled_step_is_read_once(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_reading, "STEPS_A_PIECE", 4)
    pairs = PairedSteps(compared(), NUM_RANKS)
    read: list[int] = []
    for last in (15, 15, 17, 24):
        post(store, *both(range(10, last + 1)))
        with store.reading() as reader:
            pairs.read(CountingReader(reader, read))  # type: ignore[arg-type]  # what it asks for
    assert read == [*range(11, 25)]


def test_steps_of_a_newer_version_end_the_counting(store: JobStore) -> None:
    record = compared()
    pairs = PairedSteps(record, NUM_RANKS)
    post(store, *both(range(10, 15)), *both([15], version=2), *both(range(16, 24)))
    assert both_counts(store, pairs, record) == (1, 1)
    post(store, *both(range(24, 40)))
    assert both_counts(store, pairs, record) == (1, 1)


@pytest.mark.parametrize("changes", [{"first_step": None}, {"baseline_cycle": ()}])
def test_a_version_that_compares_nothing_has_no_pairs(
    store: JobStore, changes: dict[str, Any]
) -> None:
    record = compared(**changes)
    post(store, *both(range(10, 30)))
    assert both_counts(store, PairedSteps(record, NUM_RANKS), record) == (0, 0)
