"""Running totals of a job equal what all of its steps together give, on every store."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from statistics import fmean, variance

import pytest
from tests.planner.samples import (
    MOMENT,
    CountingPlanner,
    job_record,
    job_spec,
    plan_record,
    rank_record,
    step_record,
)

from flyball_server.jobs.lifecycle.job_life import LifeTimes
from flyball_server.jobs.measurements import step_fold, step_reading
from flyball_server.jobs.measurements.measurements import RankPost, store_together
from flyball_server.jobs.measurements.pruning import prune_some
from flyball_server.jobs.measurements.step_fold import StepFold
from flyball_server.jobs.measurements.step_reading import GIVE_UP_S, read_fold
from flyball_server.jobs.savings.savings import JobSavings, savings_of
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StepRecord
from flyball_server.jobs.store.contract import JobStore
from flyball_server.views.job_figures import SharedReading
from flyball_server.views.job_reading import JobReading
from flyball_server.views.report import get_report
from flyball_wire.messages import JobState

NUM_RANKS = 3
RETENTION_S = 7200.0
ABBA = (False, True, True, False)
# By version, its first step; version 2 is compared with the highest clocks in turn.
FIRST_STEPS = {1: 20, 2: 50, 3: 90}
_Posted = dict[tuple[int, int], StepRecord]


class Planner:
    """A planner with a job on a store, with a clock moved by hand."""

    def __init__(self, store: JobStore) -> None:
        self.passed_s = 0.0
        self.services = JobServices(
            store=store,
            notify_pollers=lambda _: None,
            planner=CountingPlanner(),
            now=lambda: MOMENT + timedelta(seconds=self.passed_s),
            life=LifeTimes(step_retention_s=RETENTION_S),
        )
        self.figures = SharedReading(JobReading(self.services, max_labelled=5))

    def post(self, rank: int, steps: Iterable[StepRecord]) -> None:
        """A post of one rank."""
        store_together(self.services, "job", [RankPost(rank=rank, steps=tuple(steps))])

    def start(self, start_id: str) -> None:
        """Another start of the training."""
        self._change_job(start=start_id, state=JobState.PLANNED)

    def end(self) -> None:
        """The training is over: no step is awaited any more."""
        self._change_job(state=JobState.ENDED)

    def _change_job(self, **changes: object) -> None:
        with self.services.store.writing("job") as writer:
            writer.save_job(writer.require_job("job").evolve(**changes))

    def prune(self) -> None:
        while prune_some(self.services, "job"):
            pass

    def fold(self) -> StepFold:
        """The totals as a planner reads them that has just started."""
        with self.services.store.reading() as reader:
            return read_fold(reader, reader.require_job("job"))

    def num_stored(self) -> int:
        """Steps of this run in the stored totals, without those that are read since."""
        with self.services.store.reading() as reader:
            place = reader.find_fold_place("job")
        return 0 if place is None else place.after_step + 1


@pytest.fixture
def planner(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> Planner:
    monkeypatch.setattr(step_reading, "ROWS_A_PIECE", 8 * NUM_RANKS)
    spec = job_spec(num_ranks=NUM_RANKS)
    with store.writing("job") as writer:
        writer.save_job(job_record(spec=spec, registered=spec))
        writer.save_ranks(rank_record(rank, stage=rank % 2) for rank in range(NUM_RANKS))
        for version, first_step in FIRST_STEPS.items():
            cycle = ABBA if version == 2 else ()
            writer.add_plan(plan_record(version, baseline_cycle=cycle))
            writer.name_first_step("job", version, first_step)
    return Planner(store)


# ------------------------------------------------------------------ an oracle


@dataclass
class Counted:
    """Steps of a version as lists."""

    times_s: list[float] = field(default_factory=list)
    energies_j: list[float] = field(default_factory=list)
    baseline_j: list[float] = field(default_factory=list)
    num_left_out: int = 0


@dataclass
class Everything:
    """A job's steps, one after the other, as the report defines its figures."""

    times_s: list[float] = field(default_factory=list)
    energies_j: list[float | None] = field(default_factory=list)
    versions: dict[int, Counted] = field(default_factory=lambda: defaultdict(Counted))
    num_unknown: int = 0

    def add_run(self, posted: _Posted) -> None:
        """Add the measurements of one run, by rank and step."""
        settled: object = "nothing"
        for step in sorted({step for _, step in posted}):
            records = [posted[rank, step] for rank in range(NUM_RANKS) if (rank, step) in posted]
            settled = self._add_step(records, settled)

    def _add_step(self, records: list[StepRecord], settled: object) -> object:
        """Return the version that clocks have settled for, or a word."""
        if any(record.unknown_version is not None for record in records):
            self.num_unknown += 1
            return "nothing"
        versions = {record.plan_version for record in records}
        newest = max(version or 0 for version in versions)
        of_version = self.versions[newest]
        if len(records) < NUM_RANKS:
            of_version.num_left_out += 1
            return settled
        energies_j = [record.energy_j for record in records]
        known_j = [energy_j for energy_j in energies_j if energy_j is not None]
        energy_j = sum(known_j) if len(known_j) == NUM_RANKS else None
        time_s = max(record.time_s for record in records)
        self.times_s.append(time_s)
        self.energies_j.append(energy_j)
        num_lost = sum(record.num_clock_misses - record.num_power_capped for record in records)
        is_good = len(versions) == 1 and num_lost <= 0
        is_good = is_good and not any(record.num_unplanned for record in records)
        if is_good and settled == newest:
            step = records[0].step
            is_baseline = newest == 2 and ABBA[(step - FIRST_STEPS[2]) % 4]
            if not is_baseline:
                of_version.times_s.append(time_s)
            if energy_j is not None:
                (of_version.baseline_j if is_baseline else of_version.energies_j).append(energy_j)
        else:
            of_version.num_left_out += 1
        return newest if len(versions) == 1 else "nothing"


def variance_of_mean(values: list[float]) -> float:
    """By non-overlapping batches of n^(1/3) values, and at most 30; 256 values at most."""
    length: int = max(round(float(len(values)) ** (1 / 3)), -(-len(values) // 30))
    num_batches = len(values) // length
    means = [fmean(values[n * length : (n + 1) * length]) for n in range(num_batches)]
    return variance(means) / num_batches


def assert_equal(savings: JobSavings, expected: Everything) -> None:
    assert savings.num_steps == len(expected.times_s)
    assert savings.num_unknown == expected.num_unknown
    assert savings.time_s == pytest.approx(sum(expected.times_s))
    known_j = [energy_j for energy_j in expected.energies_j if energy_j is not None]
    if len(known_j) == len(expected.energies_j):
        assert savings.energy_j == pytest.approx(sum(known_j))
    else:
        assert savings.energy_j is None
    assert [each.version for each in savings.versions] == sorted(v for v in expected.versions if v)
    for found in savings.versions:
        counted = expected.versions[found.version]
        assert found.num_steps == len(counted.times_s)
        assert found.num_left_out == counted.num_left_out
        for estimate, values in (
            (found.time_s, counted.times_s),
            (found.energy_j, counted.energies_j),
        ):
            assert (estimate is None) == (not values)
            if estimate is not None:
                assert estimate.num_steps == len(values)
                assert estimate.mean == pytest.approx(fmean(values))
        if found.time_s is not None and len(counted.times_s) > 8:
            assert found.time_s.low is not None
            half = found.time_s.mean - found.time_s.low
            # Student's t is 1.96 to 4.4 from 30 batches down to 3.
            deviation = variance_of_mean(counted.times_s) ** 0.5
            assert 1.96 * deviation <= half <= 4.4 * deviation
        if found.version == 2 and found.baseline_energy_j is not None:
            assert found.baseline_energy_j.mean == pytest.approx(fmean(counted.baseline_j))


# ------------------------------------------------------------------ random programs


def measured(chance: random.Random, run: int, rank: int, step: int) -> StepRecord:
    """A step as a rank posts it; in each run with other figures."""
    version = max((v for v, first in FIRST_STEPS.items() if step >= first), default=None)
    record = step_record(
        step,
        rank,
        plan_version=version,
        time_s=chance.uniform(0.5, 1.5) + run,
        energy_j=None if chance.random() < 0.01 else chance.uniform(50, 150),
    )
    kind = chance.random()
    if kind < 0.02:
        return record.evolve(num_unplanned=2)
    if kind < 0.04:
        return record.evolve(num_clock_misses=2, num_power_capped=chance.choice((1, 2)))
    if kind < 0.05:
        return record.evolve(plan_version=None)
    return record.evolve(plan_version=None, unknown_version=9) if kind < 0.055 else record


def posts_of(chance: random.Random, steps: list[StepRecord]) -> list[list[StepRecord]]:
    """The posts of one rank: pieces in order, some of them repeated a while later."""
    posts: list[list[StepRecord]] = []
    while steps:
        size = chance.randint(1, 12)
        posts.append(steps[:size])
        steps = steps[size:]
    for _ in range(len(posts) // 4):
        again = chance.randrange(len(posts))
        posts.insert(chance.randint(again, len(posts)) + 1, posts[again])
    return posts


def in_some_order(
    chance: random.Random, by_rank: Mapping[int, list[list[StepRecord]]]
) -> list[tuple[int, list[StepRecord]]]:
    """The posts of all ranks; one rank may be far ahead of another."""
    left = {rank: list(posts) for rank, posts in by_rank.items()}
    order: list[tuple[int, list[StepRecord]]] = []
    while any(left.values()):
        rank = chance.choice([rank for rank, posts in left.items() if posts])
        order.append((rank, left[rank].pop(0)))
    return order


def test_totals_equal_those_of_all_steps_in_any_order_with_repeats_restarts_and_pruning(
    planner: Planner,
) -> None:
    chance = random.Random(0)
    expected = Everything()
    begun, num_stored = 0, []
    for run in range(3):
        planner.start(f"start-{run}")
        end = begun + chance.randint(40, 130)
        posted = {
            (rank, step): measured(chance, run, rank, step)
            for rank in range(NUM_RANKS)
            for step in range(begun, end)
            if chance.random() > 0.01
        }
        expected.add_run(posted)
        by_rank = {
            rank: posts_of(chance, [posted[place] for place in sorted(posted) if place[0] == rank])
            for rank in range(NUM_RANKS)
        }
        for rank, steps in in_some_order(chance, by_rank):
            planner.passed_s += chance.choice((0.0, 0.1))
            planner.post(rank, steps)
            if chance.random() < 0.1:
                planner.figures.overview_of("job")
        num_stored.append(planner.num_stored())
        planner.end()
        assert_equal(savings_of(planner.fold()), expected)
        assert get_report(planner.services, "job").num_steps == len(expected.times_s)
        planner.passed_s += chance.choice((10.0, 2 * RETENTION_S))
        planner.prune()
        assert_equal(savings_of(planner.fold()), expected)
        # The next run begins from a checkpoint.
        begun = chance.randint(0, end - 1)
    assert max(num_stored) > 0, "nothing was read from the stored totals"
    # What has followed the job all the time says what a planner says that has just started.
    for reading in (planner.figures, Planner(planner.services.store).figures):
        overview = reading.overview_of("job")
        assert overview.num_steps == len(expected.times_s)
        assert overview.num_unknown_steps == expected.num_unknown


def test_steps_that_a_rank_posts_very_late_count_once(planner: Planner) -> None:
    """One rank cannot reach its planner for a while; the others go on."""
    chance = random.Random(0)
    num_steps = 100
    posted = {
        (rank, step): measured(chance, 0, rank, step)
        for rank in range(NUM_RANKS)
        for step in range(num_steps)
    }
    begin, end = 12, 71
    away = [posted[2, step] for step in range(begin, end)]
    for step in range(num_steps):
        planner.passed_s += GIVE_UP_S / 4
        for rank in range(NUM_RANKS):
            if rank < 2 or not begin <= step < end:
                planner.post(rank, [posted[rank, step]])
        if step % 4 == 0:
            planner.figures.overview_of("job")
    assert planner.fold().num_steps < num_steps
    for steps in posts_of(chance, away):
        planner.post(2, steps)
    expected = Everything()
    expected.add_run(posted)
    fold = planner.fold()
    savings = savings_of(fold)
    assert fold.num_late > 0
    assert savings.num_steps == len(expected.times_s)
    assert savings.time_s == pytest.approx(sum(expected.times_s))
    assert fold.num_unplanned == sum(
        record.num_unplanned
        for step in range(num_steps)
        for rank in range(NUM_RANKS)
        for record in [posted[rank, step]]
        if all(posted[each, step].unknown_version is None for each in range(NUM_RANKS))
    )
    for found in savings.versions:
        counted = expected.versions[found.version]
        # All of them were posted: none is missing.
        assert "missing" not in {each.kind for each in found.deviations}
        assert found.num_steps == len(counted.times_s)
        assert found.num_left_out == counted.num_left_out
    assert planner.figures.overview_of("job").num_steps == savings.num_steps


def test_of_steps_that_a_rank_never_posts_a_bounded_number_is_known(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_fold, "MOST_MISSING", 40)
    for begin in range(0, 60, 20):
        planner.passed_s += GIVE_UP_S + 1
        for rank in (0, 1):
            planner.post(rank, [step_record(step, rank) for step in range(begin, begin + 20)])
    planner.end()
    assert len(planner.fold().missing) == 40


def test_planners_that_share_a_store_count_each_step_once(planner: Planner) -> None:
    chance = random.Random(3)
    planners = [planner, Planner(planner.services.store)]
    posted = {
        (rank, step): measured(chance, 0, rank, step)
        for rank in range(NUM_RANKS)
        for step in range(60)
    }

    def post_all(rank: int) -> None:
        for number, begin in enumerate(range(0, 60, 5)):
            steps = [posted[rank, step] for step in range(begin, begin + 5)]
            for each in planners if number % 3 == 0 else planners[number % 2 :][:1]:
                each.post(rank, steps)

    with ThreadPoolExecutor(NUM_RANKS) as threads:
        list(threads.map(post_all, range(NUM_RANKS)))
    expected = Everything()
    expected.add_run(posted)
    for each in planners:
        assert_equal(savings_of(each.fold()), expected)
        assert each.figures.overview_of("job").num_steps == len(expected.times_s)


def test_a_run_that_starts_over_on_a_newer_plan_is_another_run_without_a_start(
    planner: Planner,
) -> None:
    chance = random.Random(5)
    expected = Everything()
    for steps, begun in ((range(60), 0), (range(90, 120), 30)):
        posted = {
            (rank, begun + number): measured(chance, 0, rank, step).evolve(step=begun + number)
            for number, step in enumerate(steps)
            for rank in range(NUM_RANKS)
        }
        expected.add_run(posted)
        for first in range(begun, begun + len(steps), 3):
            for rank in range(NUM_RANKS):
                planner.post(rank, [posted[rank, step] for step in range(first, first + 3)])
    assert_equal(savings_of(planner.fold()), expected)


def test_a_post_adds_a_piece_of_the_steps_that_are_left(planner: Planner) -> None:
    """After an outage thousands of ranks post all at once."""
    with planner.services.store.writing("job") as writer:
        writer.save_steps(
            tuple(step_record(step, rank) for rank in range(NUM_RANKS) for step in range(60))
        )
    reached = []
    for step in range(60, 75):
        for rank in range(NUM_RANKS):
            planner.post(rank, [step_record(step, rank)])
            reached.append(planner.num_stored())
    pieces = [later - before for before, later in pairwise(reached)]
    assert max(pieces) <= 8
    assert reached[-1] >= 60
    assert planner.fold().num_steps == 75
