"""The JobStore contract as far as the REST API shows it: over each store, and a live server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.contract import visible_stores
from tests.contract.visible_stores import LONG_S, VisibleJob, VisibleStore
from tests.planner.patience import PATIENCE_S
from tests.planner.samples import profile, profile_csv, registration

from flyball_profiles.stage_profile_csv import parse_stage_profile
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_wire import routes

PREFIX = "flyball_test"


@pytest.fixture(scope="module", params=visible_stores.ALL, ids=lambda made: made.__name__)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VisibleStore]:
    """Every store behind its planner, for all tests of this file: each has jobs of its own."""
    start = request.param(request, tmp_path_factory.mktemp("visible"))
    with VisibleStore(start=start).opened() as opened:
        yield opened


@pytest.fixture
def job(store: VisibleStore) -> VisibleJob:
    """A job that nobody has registered yet."""
    return store.job()


def step(number: int, **changes: object) -> dict[str, Any]:
    """A measured step."""
    return {"step": number, "plan_version": None, "time_s": 0.5, "energy_j": 10.0, **changes}


def stored_steps(job: VisibleJob) -> dict[int, tuple[float, float | None]]:
    """By number: time and energy."""
    return {each["step"]: (each["time_s"], each["energy_j"]) for each in job.get(routes.STEPS)}


class TestJobStoreThroughRest:
    @pytest.mark.parametrize(
        "route",
        [
            routes.JOB,
            routes.PROFILE,
            routes.PLANS,
            routes.HISTORY,
            routes.STEPS,
            routes.STAGES_OF_STEPS,
            routes.STRAGGLERS,
            routes.TIMETABLE,
            routes.REPORT,
        ],
    )
    def test_of_a_job_that_is_not_there_there_is_nothing(self, job: VisibleJob, route: str) -> None:
        assert job.http.get(job.path(route)).status_code == 404

    def test_a_job_comes_out_as_it_went_in(self, job: VisibleJob) -> None:
        body = registration(
            blocking_power_w=[70.1, 1 / 3],
            gpu="a100",
            activation_bytes=[1, MAX_COUNT],
            free_memory_bytes=[0, 7],
            policy="uniform",
            effort="high",
            reserve=0.1 + 0.2,
            run="run ä",
            restart_count=3,
        )
        job.register(**body)
        told = job.get(routes.JOB)["registration"]
        assert {name: told[name] for name in body} == {**body, "num_ranks": 2}
        listed = [each for each in job.http.get(routes.JOBS).json() if each["job_id"] == job.job_id]
        assert [each["registration"] for each in listed] == [told]

    def test_registering_a_job_again_replaces_it(self, job: VisibleJob) -> None:
        first = job.register()
        job.register(num_microbatches=7)
        again = job.get(routes.JOB)
        assert again["registration"]["num_microbatches"] == 7
        assert again["created_at"] == first["created_at"]

    def test_jobs_are_listed_by_creation(self, store: VisibleStore) -> None:
        prefix = store.job().job_id
        names = [f"{prefix}-{letter}" for letter in "cab"]
        for name in names:
            store.job(name).register()
        listed = [each["job_id"] for each in store.http.get(routes.JOBS).json()]
        assert [name for name in listed if name.startswith(prefix + "-")] == names

    def test_ranks_come_out_by_number_and_are_replaced(self, job: VisibleJob) -> None:
        job.register(num_ranks=3)
        for rank, host in ((1, "old"), (0, "node"), (1, "new")):
            job.register_rank(rank, host=host, dp_rank=rank)
        ranks = job.get(routes.JOB)["ranks"]
        assert [(each["rank"], each["host"], each["dp_rank"]) for each in ranks] == [
            (0, "node", 0),
            (1, "new", 1),
        ]

    def test_a_profile_comes_out_to_the_last_bit_and_is_replaced(self, job: VisibleJob) -> None:
        job.register()
        energy_j = 30 + 1 / 3
        for text in (profile_csv(), profile_csv(forward_energy_j=energy_j)):
            job.put_profile(text)
        told = job.http.get(job.path(routes.PROFILE)).raise_for_status().text
        assert parse_stage_profile(told) == profile(forward_energy_j=energy_j)

    def test_plan_versions_rise_from_one_and_an_older_one_never_changes(
        self, job: VisibleJob
    ) -> None:
        job.fill()
        first = job.get(routes.PLAN, version=1)
        for energy_j in (31, 32):
            job.put_profile(profile_csv(forward_energy_j=energy_j))
        assert [each["version"] for each in job.get(routes.PLANS)] == [1, 2, 3]
        assert job.get(routes.PLAN, version=1) == first
        assert [each["version"] for each in job.get(routes.HISTORY)] == [1, 2, 3]
        assert job.http.get(job.path(routes.PLAN, version=4)).status_code == 404

    def test_the_first_step_of_a_version_is_named_once_all_ranks_hold_it(
        self, job: VisibleJob
    ) -> None:
        job.fill()
        assert job.acknowledge(0, 1)["first_step"] is None
        assert job.get(routes.FIRST_STEP, version=1)["first_step"] is None
        named = job.acknowledge(1, 1, current_step=9)["first_step"]
        assert named > 9
        # Whoever repeats it, from whatever step, hears the same.
        assert job.acknowledge(0, 1, current_step=99)["first_step"] == named
        assert job.get(routes.PLAN, version=1)["first_step"] == named
        assert job.get(routes.JOB)["active_version"] == 1

    def test_steps_come_out_rising_over_all_their_ranks(self, job: VisibleJob) -> None:
        job.register()
        for rank in (0, 1):
            job.register_rank(rank)
        job.measure(1, step(9, time_s=1 / 3, energy_j=0.5, num_unplanned=2)).raise_for_status()
        job.measure(
            0,
            step(9, time_s=0.25, energy_j=0.25, num_unplanned=1, num_clock_misses=4),
            step(7, num_power_capped=2),
            step(8, energy_j=None, num_thermally_capped=1),
        ).raise_for_status()
        job.measure(1, step(8)).raise_for_status()
        found = job.get(routes.STEPS)
        assert stored_steps(job) == {7: (0.5, 10.0), 8: (0.5, None), 9: (1 / 3, 0.75)}
        assert [each["step"] for each in found] == [7, 8, 9]
        assert [each["num_ranks"] for each in found] == [1, 2, 2]
        assert [each["num_unplanned"] for each in found] == [0, 0, 3]
        assert [each["num_clock_misses"] for each in found] == [0, 0, 4]
        assert [each["num_power_capped"] for each in found] == [2, 0, 0]
        assert [each["num_thermally_capped"] for each in found] == [0, 1, 0]
        newest = job.get(routes.STEPS, query={"limit": 2})
        assert newest == found[1:]

    def test_a_step_posted_again_is_replaced_and_of_one_twice_in_a_post_the_last_stays(
        self, job: VisibleJob
    ) -> None:
        job.register()
        job.register_rank(0)
        job.measure(0, step(3), step(4)).raise_for_status()
        newest = step(3, time_s=0.1 + 0.2, energy_j=None)
        job.measure(0, step(3, time_s=9.0), newest).raise_for_status()
        assert stored_steps(job) == {3: (0.1 + 0.2, None), 4: (0.5, 10.0)}

    def test_steps_are_added_up_by_stage_and_a_rank_counts_where_it_is_now(
        self, job: VisibleJob
    ) -> None:
        job.register(num_ranks=3)
        for rank, stage in enumerate((0, 0, 1)):
            job.register_rank(rank, stage)
            job.measure(rank, step(5, time_s=rank + 1.0)).raise_for_status()

        def stages() -> list[tuple[int, int, float, float]]:
            (found,) = job.get(routes.STAGES_OF_STEPS)
            return [
                (each["stage"], each["num_ranks"], each["time_s"], each["energy_j"])
                for each in found["stages"]
            ]

        assert stages() == [(0, 2, 2.0, 20.0), (1, 1, 3.0, 10.0)]
        job.register_rank(1, 1)
        assert stages() == [(0, 1, 1.0, 10.0), (1, 2, 3.0, 20.0)]

    def test_the_newest_steps_by_stage_after_one(self, job: VisibleJob) -> None:
        job.register()
        job.register_rank(0)
        job.measure(0, *(step(number) for number in (1, 2, 3, 5, 6))).raise_for_status()

        def numbers(**query: int) -> list[int]:
            return [each["step"] for each in job.get(routes.STAGES_OF_STEPS, query=query)]

        assert numbers(limit=3) == [3, 5, 6]
        assert numbers(after_step=5) == [6]
        assert numbers(after_step=MAX_COUNT) == []

    def test_whole_numbers_up_to_the_largest_are_kept(self, job: VisibleJob) -> None:
        job.register()
        job.register_rank(0)
        largest = step(MAX_COUNT, plan_version=MAX_COUNT, num_overruns=MAX_COUNT)
        job.measure(0, largest).raise_for_status()
        (found,) = job.get(routes.STEPS)
        assert found["step"] == found["num_overruns"] == MAX_COUNT
        assert found["plan_versions"] == [MAX_COUNT]

    def test_nothing_can_belong_to_what_is_not_there(self, job: VisibleJob) -> None:
        with pytest.raises(httpx.HTTPStatusError, match="404"):
            job.register_rank(0)
        with pytest.raises(httpx.HTTPStatusError, match="404"):
            job.put_profile()
        assert job.measure(0, step(1)).status_code == 404
        job.register()
        assert job.measure(0, step(1)).status_code == 404
        assert job.get(routes.STEPS) == []

    def test_a_call_that_is_refused_stores_nothing(self, job: VisibleJob) -> None:
        job.fill()
        before = job.everything()
        assert job.measure(0, step(1), step(2, time_s=-1)).status_code == 422
        refused = job.http.put(job.path(routes.TARGET), json={"target": "fastest", "what": 1})
        assert refused.status_code == 422
        unread = job.http.put(
            job.path(routes.PROFILE), content="no profile", headers=visible_stores.CSV
        )
        assert unread.status_code == 422
        other = job.http.put(job.path(routes.JOB), json=registration(num_stages=3))
        assert other.status_code == 409
        assert _without_times(job.everything()) == _without_times(before)

    def test_callers_at_once_lose_no_change(self, job: VisibleJob) -> None:
        # What steers a job is read, changed and stored whole: a lost change would be a straggler.
        job.register(num_ranks=8)
        with ThreadPoolExecutor(8) as threads:

            def announce(rank: int) -> int:
                body = {"rank": rank, "slowdown": 1.5 + rank}
                return job.http.post(job.path(routes.STRAGGLERS), json=body).status_code

            def measure(rank: int) -> list[int]:
                job.register_rank(rank, rank % 2)
                return [job.measure(rank, step(number)).status_code for number in range(5)]

            measured = [threads.submit(measure, rank) for rank in range(8)]
            assert [each.result(PATIENCE_S) for each in measured] == [[200] * 5] * 8
            told = list(threads.map(announce, range(8), timeout=PATIENCE_S))
        assert set(told) <= {200, 201}
        found = {each["rank"]: each["slowdown"] for each in job.get(routes.STRAGGLERS)}
        assert found == {rank: 1.5 + rank for rank in range(8)}
        assert [each["num_ranks"] for each in job.get(routes.STEPS)] == [8] * 5

    def test_a_plan_that_many_ask_for_at_once_is_made_once(self, job: VisibleJob) -> None:
        job.register()
        with ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(job.put_profile) for _ in range(4)]
            assert {each.result(PATIENCE_S)["newest_version"] for each in asked} == {1}
        assert len(job.get(routes.PLANS)) == 1

    def test_whoever_waits_is_woken_by_what_another_stores(self, job: VisibleJob) -> None:
        job.register()
        for rank in (0, 1):
            job.register_rank(rank)
        query = {"after_version": 0, "wait_s": LONG_S}
        with ThreadPoolExecutor(2) as threads:
            waiting = [
                threads.submit(job.get, routes.RANK_PLAN, rank=rank, query=query) for rank in (0, 1)
            ]
            job.put_profile()
            assert [each.result(PATIENCE_S)["version"] for each in waiting] == [1, 1]

    def test_what_steers_a_job_comes_out_as_it_went_in_and_is_replaced(
        self, job: VisibleJob
    ) -> None:
        job.register(policy="frontier")
        job.register_rank(0)
        for slowdown in (2.0, 1 + 0.1 + 0.2):
            body = {"rank": 0, "slowdown": slowdown, "from_time": "2099-01-01T00:00:00.25+00:00"}
            job.http.post(job.path(routes.STRAGGLERS), json=body).raise_for_status()
        (straggler,) = job.get(routes.STRAGGLERS)
        assert straggler["slowdown"] == 1 + 0.1 + 0.2
        assert straggler["from_time"] == "2099-01-01T00:00:00.250000+00:00"
        window = {"from_time": "22:00", "until_time": "06:00", "target": "power:9"}
        timetable = {"windows": [{**window, "days": ["mon", "sun"]}], "timezone": "Europe/Vienna"}
        path = job.path(routes.TIMETABLE)
        job.http.put(path, json={"windows": [window]}).raise_for_status()
        job.http.put(path, json=timetable).raise_for_status()
        assert job.get(routes.TIMETABLE)["timetable"] == timetable

    def test_jobs_do_not_see_each_others_things(self, store: VisibleStore, job: VisibleJob) -> None:
        other = store.job()
        other.register()
        before = other.everything()
        job.fill()
        job.measure(0, step(1)).raise_for_status()
        assert other.everything() == before

    def test_a_job_is_forgotten_with_all_that_belongs_to_it_and_its_name_is_free(
        self, store: VisibleStore, job: VisibleJob
    ) -> None:
        other = store.job()
        for each in (job, other):
            each.fill()
            each.measure(1, step(1)).raise_for_status()
        others = other.everything()
        assert job.http.delete(job.path(routes.JOB)).status_code == 409
        job.leave()
        assert job.http.delete(job.path(routes.JOB)).status_code == 204
        assert job.http.delete(job.path(routes.JOB)).status_code == 404
        assert job.http.get(job.path(routes.STEPS)).status_code == 404
        job.register()
        found = job.everything()
        assert found[routes.PROFILE] is None
        assert (found[routes.PLANS], found[routes.STEPS], found[routes.JOB]["ranks"]) == (
            [],
            [],
            [],
        )
        job.register_rank(1)
        assert job.get(routes.STEPS) == []
        assert _without_times(other.everything()) == _without_times(others)

    def test_a_run_that_is_kept_under_another_name_keeps_all_that_belongs_to_it(
        self, store: VisibleStore, job: VisibleJob
    ) -> None:
        job.fill()
        job.measure(0, step(3, plan_version=1)).raise_for_status()
        job.leave()
        before = _without_times(job.everything())
        job.register(num_microbatches=5)
        kept = store.job(f"{job.job_id}@1")
        found = _without_times(kept.everything())
        for route in (routes.STEPS, routes.STAGES_OF_STEPS, routes.PROFILE):
            assert found[route] == before[route]
        (old_plan,), (kept_plan,) = before[routes.PLANS], found[routes.PLANS]
        assert kept_plan == {**old_plan, "job_id": kept.job_id}
        assert found[routes.JOB]["state"] == "ended"
        assert [each["rank"] for each in found[routes.JOB]["ranks"]] == [0, 1]
        assert job.get(routes.JOB)["ranks"] == job.get(routes.STEPS) == []

    def test_tokens_come_out_by_creation_and_are_forgotten(self, store: VisibleStore) -> None:
        names = [store.job().job_id for _ in range(3)]
        made = [
            store.http.post(routes.TOKENS, json={"job_id": name, "note": "ä"})
            .raise_for_status()
            .json()
            for name in names
        ]

        def listed() -> list[str]:
            found = store.http.get(routes.TOKENS).raise_for_status().json()
            return [each["job_id"] for each in found if each["job_id"] in names]

        assert listed() == names
        path = routes.fill(routes.TOKEN, token_id=made[1]["token_id"])
        store.http.delete(path).raise_for_status()
        assert listed() == [names[0], names[2]]

    # Of those that share a planner the last one: it ends that.
    def test_a_planner_that_starts_again_knows_everything(self, store: VisibleStore) -> None:
        job = store.job()
        job.fill()
        job.acknowledge(0, 1)
        job.measure(0, step(1, time_s=1 / 3)).raise_for_status()
        before = _without_times(job.everything())
        store.start_again()
        assert _without_times(store.job(job.job_id).everything()) == before


def _without_times(found: Any) -> Any:  # noqa: ANN401 - JSON
    """The same without when ranks were heard of, which goes on, and what that is told of in."""
    if isinstance(found, dict):
        left_out = {"last_seen_at", "notes"}
        return {name: _without_times(of) for name, of in found.items() if name not in left_out}
    return [_without_times(of) for of in found] if isinstance(found, list) else found
