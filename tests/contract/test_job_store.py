"""The JobStore contract, over every store there is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.planner.samples import (
    job_record,
    job_spec,
    one_microbatch,
    plan_record,
    profile,
    rank_record,
    step_record,
)
from tests.unit.planning.tiny_pipelines import B, F, equal_profile, timed_profile

from flyball_pipeline.instruction import Checkpoint
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.errors import StoreClosedError
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.loop_state import AnnouncedSlowdown, Attempt, Comparison, JobLoopState
from flyball_server.jobs.planning_inputs import PlanningInputs, RankSlowdown, WorkModel
from flyball_server.jobs.records import NewestVersion
from flyball_server.jobs.step_records import StepDetail, StepTotals
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.sql.job_writer import MAX_KEPT_PROFILES
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.closed_loop import StragglerReason, Timetable, TimetableWindow
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.messages import JobState
from flyball_wire.online_profiling import ProfilingResult, ProfilingState
from flyball_wire.orders import OtherOrder
from flyball_wire.plan_options import Effort, PlanOptions, Policy
from flyball_wire.plans.plan import probe_of


class TestJobStore:
    def test_a_job_comes_out_as_it_went_in(self, store: JobStore) -> None:
        spec = job_spec(
            blocking_power_w=(70.1, 1 / 3),
            gpu="a100",
            activation_bytes=(1, 2**53 - 1),
            free_memory_bytes=(0, 7),
            policy="uniform",
            effort="high",
            schedule="envpipe",
            extra_forwards=(1, 0),
            other_orders=(OtherOrder(schedule="1f1b", line="run 1F1B"),),
            emulated=False,
        )
        job = job_record(
            registered=spec,
            spec=replace(spec, target="least-energy", effort=Effort.LOW),
            state=JobState.PLANNING_FAILED,
            problem="target: not met",
            changed_input=JobInput.TARGET,
            inputs_revision=3,
        )
        with store.writing("job") as writer:
            writer.save_job(job)
            assert writer.find_job("job") == job
        with store.reading() as reader:
            assert reader.find_job("job") == job

    def test_orders_chunks_and_weight_versions_come_out_as_they_went_in(
        self, store: JobStore
    ) -> None:
        order = (("forward", 0), ("forward", 0, 1), ("backward", 0, 1), ("backward", 0))
        given = {"order": (order, order), "virtual_stages": ((0, 3), (1, 2))}
        spec = job_spec(schedule="explicit", num_microbatches=1, **given)
        recomputing = job_spec(schedule="torchgpipe", checkpoint=Checkpoint.ALWAYS)
        jobs = (
            job_record(registered=spec, spec=replace(spec, target="least-energy")),
            job_record("other", registered=recomputing, spec=recomputing),
        )
        chunked = timed_profile(2, {F: 0.1, B: 1 / 3}, num_chunks=2)
        power = PlanOptions(blocking_power_w=(5.0,), policy=Policy.ENVELOPE)
        explicit = PlanRequest(profile=chunked, num_microbatches=1, options=power).with_options(
            schedule="explicit", **given
        )
        periodic = PlanRequest(profile=equal_profile(2), num_microbatches=4, options=power)
        requests = (explicit, periodic.with_options(schedule="pipedream"))
        plans = tuple(
            plan_record(version, plan=make_plan(request).plan)
            for version, request in enumerate(requests, start=1)
        )
        with store.writing("job") as writer:
            for job in jobs:
                writer.save_job(job)
            writer.save_profile("job", chunked)
            for plan in plans:
                writer.add_plan(plan)
        with store.reading() as reader:
            assert reader.list_jobs() == jobs
            assert reader.find_profile("job") == chunked
            assert reader.list_plans("job") == plans

    def test_jobs_are_listed_by_creation_then_by_name_by_its_characters(
        self, store: JobStore
    ) -> None:
        """Whatever the language of the database is."""
        late = job_record("0", seconds_later=1)
        with store.writing("job") as writer:
            for job in (late, *(job_record(name) for name in ("a", "B", "_", "Z.9", "a-1"))):
                writer.save_job(job)
        with store.reading() as reader:
            listed = [job.job_id for job in reader.list_jobs()]
            assert listed == ["B", "Z.9", "_", "a", "a-1", "0"]
            assert reader.count_jobs() == 6

    def test_ranks_are_saved_together_and_found_among_thousands_of_numbers(
        self, store_with_job: JobStore
    ) -> None:
        far = rank_record(0).evolve(rank=15_000)
        second = rank_record(
            1, acknowledged_version=2, current_step=2**53 - 1, dp_rank=3, tp_rank=1, cp_rank=2
        )
        with store_with_job.writing("job") as writer:
            writer.save_job(job_record("other"))
            writer.save_ranks([far, rank_record(2), rank_record(1), rank_record(0), second])
            writer.save_ranks(())
            writer.save_ranks([rank_record(2, host="another")])
        third = rank_record(2, host="another")
        with store_with_job.reading() as reader:
            found = reader.find_ranks("job", [*reversed(range(20_000)), 1])
            assert found == reader.list_ranks("job") == (rank_record(0), second, third, far)
            assert reader.find_ranks("job", [2, 1, 7]) == (second, third)
            assert not reader.find_ranks("job", ())
            assert not reader.find_ranks("other", [0, 1])
            assert not reader.list_ranks("other")

    def test_ranks_are_found_by_their_places(self, store_with_job: JobStore) -> None:
        last = rank_record(2).evolve(stage=0, dp_rank=3, tp_rank=1, cp_rank=2)
        with store_with_job.writing("job") as writer:
            writer.save_job(job_record("other"))
            writer.save_ranks([rank_record(0), rank_record(1), last, last.evolve(rank=3)])
            writer.save_ranks([rank_record(0, job_id="other")])
        many = [(0, dp_rank, 1, 2) for dp_rank in range(12_000)]
        with store_with_job.reading() as reader:
            assert reader.find_ranks_at("job", [(0, 0, 0, 0)]) == (rank_record(0),)
            found = reader.find_ranks_at("job", [*many, (1, 0, 0, 0)])
            assert found == (rank_record(1), last, last.evolve(rank=3))
            assert not reader.find_ranks_at("job", [(0, 3, 1, 1), (2, 0, 0, 0)])
            assert not reader.find_ranks_at("job", ())

    def test_the_newest_profile_of_each_conditions_is_kept(self, store_with_job: JobStore) -> None:
        def under(limit_w: float, energy_j: float = 30.0) -> StageProfile:
            conditions = GpuConditions(power_limit_w=limit_w)
            measured = profile(forward_energy_j=energy_j)
            return replace(measured, conditions=(conditions, None))

        with store_with_job.writing("job") as writer:
            writer.save_profile("job", profile())
            assert writer.profiled_conditions("job") is None
            for limit_w in range(1, MAX_KEPT_PROFILES + 3):
                writer.save_profile("job", under(limit_w))
            writer.save_profile("job", under(5, 29.0))
        with store_with_job.reading() as reader:
            found = reader.profiled_conditions("job")
            kept = reader.kept_profiles("job")
            assert reader.find_profile("job") == kept[0] == under(5, 29.0)
        assert found is not None
        assert found.of_stages == (GpuConditions(power_limit_w=5), None)
        limits_w = [one.power_limit_w for each in kept for one in each.conditions if one]
        assert limits_w == [5, *(w for w in range(MAX_KEPT_PROFILES + 2, 2, -1) if w != 5)]

    def test_conditions_of_ranks_are_noted_and_only_news_is_news(
        self, store_with_job: JobStore
    ) -> None:
        before = GpuConditions(power_limit_w=700.0, ecc=True, driver="580.1")
        now = replace(before, power_limit_w=500.5)
        with store_with_job.writing("job") as writer:
            writer.save_ranks([rank_record(0), rank_record(1, conditions=before)])
            assert writer.note_conditions("job", {0: before, 1: before, 7: before})
            assert not writer.note_conditions("job", {0: before, 1: before})
            assert writer.note_conditions("job", {1: now})
            assert not writer.note_conditions("job", {})
        with store_with_job.reading() as reader:
            assert [rank.conditions for rank in reader.list_ranks("job")] == [before, now]

    def test_a_profile_comes_out_to_the_last_bit_is_replaced_and_forgotten(
        self, store_with_job: JobStore
    ) -> None:
        newer = profile(forward_energy_j=0.1 + 0.2)
        with store_with_job.writing("job") as writer:
            digests = [writer.profile_digest("job")]
            for each in (profile(), newer):
                writer.save_profile("job", each)
                digests.append(writer.profile_digest("job"))
            assert len(set(digests)) == 3
        with store_with_job.reading() as reader:
            assert reader.find_profile("job") == newer
            assert reader.has_profile("job")
            assert not reader.has_profile("other")
        with store_with_job.writing("job") as writer:
            writer.delete_profile("job")
            writer.delete_profile("job")
            assert writer.find_profile("job") is None
            assert not writer.has_profile("job")

    def test_plans_come_out_to_the_last_bit_in_versions_that_rise_by_one(
        self, store_with_job: JobStore
    ) -> None:
        cycle_mhz = (((1410, 1410), (1410, 1395)), ((1395, 1410), (1410, 1410)))
        probe = probe_of(one_microbatch(2), cycle_mhz, 1 / 3)
        plans = (
            plan_record(1, plan=probe, measurement_detail=MeasurementDetail.CLOCKS),
            plan_record(2, baseline_cycle=(False, True, True, False)),
            plan_record(3, solve_s=0.1 * 3, digest="1-abc", baseline_cycle=(False, True)),
        )
        with store_with_job.writing("job") as writer:
            for plan in plans:
                writer.add_plan(plan)
        for version in (3, 5, 0):
            with pytest.raises(ValueError), store_with_job.writing("job") as writer:
                writer.add_plan(plan_record(version, solve_s=9.0))
        with store_with_job.reading() as reader:
            assert reader.list_plans("job") == plans
            assert reader.find_plan("job", 2) == plans[1]
            assert [entry.version for entry in reader.list_versions("job")] == [1, 2, 3]
            assert reader.list_versions("other") == ()
            assert reader.newest_version("job") == NewestVersion(
                version=3, first_step=None, baseline_cycle=(False, True), digest="1-abc"
            )
            assert reader.newest_version("other") is None

    def test_the_first_step_of_a_version_is_named_once(self, store_with_job: JobStore) -> None:
        with store_with_job.writing("job") as writer:
            writer.add_plan(plan_record(1))
            writer.name_first_step("job", 1, 17)
        with pytest.raises(ValueError), store_with_job.writing("job") as writer:
            writer.name_first_step("job", 1, 18)
        with pytest.raises(ValueError), store_with_job.writing("job") as writer:
            writer.name_first_step("job", 2, 18)
        with store_with_job.reading() as reader:
            assert reader.find_plan("job", 1) == plan_record(1, first_step=17)
            assert reader.list_versions("job")[0].first_step == 17

    def test_steps_come_out_by_step_then_rank_the_newest_or_between_two(
        self, store_with_job: JobStore
    ) -> None:
        steps = tuple(step_record(step, rank) for step in (1, 5, 9) for rank in (0, 1))
        with store_with_job.writing("job") as writer:
            writer.save_job(job_record("other"))
            writer.save_ranks([rank_record(0), rank_record(1)])
            writer.save_steps(steps[::-1])
        with store_with_job.reading() as reader:
            assert reader.list_newest_steps("job", 2) == steps[2:]
            assert reader.list_newest_steps("job", 100) == steps
            assert reader.list_newest_steps("other", 100) == ()
            assert reader.list_steps("job", 1, 9) == steps[:4]
            assert reader.list_steps("job", 10, 99) == ()

    def test_the_newest_step_is_told_of_all_of_a_version_and_between_two(
        self, store_with_job: JobStore
    ) -> None:
        with store_with_job.writing("job") as writer:
            assert writer.newest_step("job") is None
            writer.save_ranks([rank_record(0)])
            writer.save_ranks([rank_record(1)])
            writer.save_steps((step_record(0, 1), step_record(5, 1, plan_version=1)))
            writer.save_steps((step_record(9, plan_version=2), step_record(7, plan_version=1)))
        with store_with_job.reading() as reader:
            assert reader.newest_step("job") == 9
            assert reader.newest_step("job", version=1) == 7
            assert reader.newest_step("job", version=3) is None
            assert reader.newest_step("job", before_step=7) == 5
            assert reader.newest_step("job", before_step=1) == 0
            assert reader.newest_step("job", after_step=9) is None
            assert reader.newest_step("job", version=1, after_step=5, before_step=9) == 7
            assert reader.newest_step("other") is None

    def test_a_step_posted_again_is_replaced_and_of_one_twice_in_a_post_the_last_stays(
        self, store_with_job: JobStore
    ) -> None:
        newer = step_record(
            3, time_s=1 / 3, energy_j=None, plan_version=2, num_overruns=4, num_power_capped=2
        )
        with store_with_job.writing("job") as writer:
            writer.save_ranks([rank_record(0)])
            writer.save_steps((step_record(3), step_record(4), step_record(4, energy_j=None)))
            writer.save_steps((newer,))
            writer.save_steps(())
        with store_with_job.reading() as reader:
            assert reader.list_newest_steps("job", 10) == (newer, step_record(4, energy_j=None))

    def test_totals_of_steps_come_out_rising_over_all_their_ranks(
        self, store_with_job: JobStore
    ) -> None:
        """`test_step_fold.py` holds each figure to an oracle."""
        with store_with_job.writing("job") as writer:
            writer.save_ranks([rank_record(0), rank_record(1)])
            writer.save_steps(
                (
                    step_record(9, 1, plan_version=2),
                    step_record(9, 0, plan_version=1),
                    step_record(5, 0, num_without_clocks=1),
                    step_record(5, 1, num_without_clocks=1),
                    step_record(7, 0),
                    step_record(8, 0, energy_j=None, plan_version=4, num_thermally_capped=1),
                    step_record(8, 1, unknown_version=3),
                )
            )
        eighth = StepTotals(
            step=8,
            num_ranks=2,
            lowest_version=4,
            newest_version=4,
            num_with_plan=1,
            num_unknown=1,
            time_s=0.9,
            energy_j=None,
            num_unplanned=0,
            num_clock_misses=0,
            num_power_capped=0,
            num_thermally_capped=1,
        )
        with store_with_job.reading() as reader:
            found = reader.list_step_totals("job", after_step=5, limit=10)
            assert [each.step for each in found] == [7, 8, 9]
            assert (found[2].lowest_version, found[2].newest_version) == (1, 2)
            (first, *_) = reader.list_step_totals("job", after_step=-1, limit=1)
            assert (first.step, first.num_without_clocks) == (5, 2)
            assert reader.list_step_totals("job", after_step=7, limit=1) == (eighth,)
            assert reader.list_step_totals("other", after_step=-1, limit=10) == ()

    def test_details_of_steps_come_out_to_the_last_bit_are_replaced_and_dropped(
        self, store_with_job: JobStore
    ) -> None:
        details = tuple(
            StepDetail(
                job_id="job",
                rank=0,
                step=step,
                by_clock=(
                    ("forward", 0, 1410, 3, 0.1 + 0.2, 1e-9),
                    ("backward", 1, None, 1, 1 / 3, 0.0),
                ),
                instructions=(("forward", None, 0, 0.0, 0.1, 0.2, 0.3, 1410),),
                work=((1.5,), (512.0, 131_072.0)),
                step_plan=(0.18, 1065, 1410, -1 / 3),
            )
            for step in (4, 5, 6)
        )
        replacing = StepDetail(job_id="job", rank=0, step=5)
        with store_with_job.writing("job") as writer:
            writer.save_ranks([rank_record(0)])
            writer.save_step_details(details)
            writer.save_step_details((replacing,))
            assert writer.list_step_details("job", 5) == (replacing, details[2])
            assert writer.list_step_details("job", 5, limit=1) == (replacing,)
            assert [writer.newest_detail("job", step) for step in (9, 6, 4)] == [6, 5, None]
            writer.drop_step_details("job", 5)
        with store_with_job.reading() as reader:
            assert reader.list_step_details("job", 0) == (replacing, details[2])
            assert reader.list_step_details("job", 0, ranks={0, 7}) == (replacing, details[2])
            assert reader.list_step_details("job", 0, ranks={1}) == ()

    def test_what_steers_a_job_comes_out_as_it_went_in(self, store_with_job: JobStore) -> None:
        loop_state = JobLoopState(
            job_id="job",
            stragglers=(AnnouncedSlowdown(rank=3, slowdown=1.2, from_unix_s=1.5),),
            detected=(RankSlowdown(rank=1, slowdown=0.1 + 0.2, reason=StragglerReason.THERMAL),),
            timetable=Timetable(
                windows=(TimetableWindow(from_time="22:00", until_time="06:00", target="power:9"),)
            ),
            comparison=Comparison(num_pairs=5, version=2),
            profiling=ProfilingResult(state=ProfilingState.PROBING, blocking_power_w=(70.0, 1 / 3)),
            planned_inputs=PlanningInputs(
                target="fastest",
                rank_slowdowns=(RankSlowdown(rank=1, slowdown=2.0),),
                work=WorkModel(
                    version=3,
                    num_microbatches=96,
                    places=((0, "forward", 0), (1, "backward_input", 1)),
                    coefficients=((1 / 3, 2e-4, 0.0), (0.0, 1e-9, 3e-17)),
                    mean_work=(4096.0, 0.1 + 0.2),
                    shared_error=0.0123,
                    reserve=(0.02, 0.0),
                    num_queued=7,
                    problem="none",
                    num_before=2,
                ),
            ),
            attempts=(
                Attempt(digest="1-a", version=2),
                Attempt(digest="1-b", field="planning", problem="lost", again_unix_s=0.1 + 0.2),
            ),
        )
        with store_with_job.writing("job") as writer:
            writer.save_loop_state(JobLoopState(job_id="job"))
            writer.save_loop_state(loop_state)
        with store_with_job.reading() as reader:
            assert reader.find_loop_state("job") == loop_state

    def test_nothing_can_belong_to_a_job_or_a_rank_that_is_not_there(
        self, store_with_job: JobStore
    ) -> None:
        with pytest.raises(ValueError), store_with_job.writing("other") as writer:
            writer.save_profile("other", profile())
        with pytest.raises(ValueError), store_with_job.writing("other") as writer:
            writer.add_plan(plan_record(job_id="other"))
        with pytest.raises(ValueError), store_with_job.writing("job") as writer:
            writer.save_steps((step_record(),))
        with (
            pytest.raises(ValueError, match="no job other"),
            store_with_job.writing("job") as writer,
        ):
            writer.save_ranks([rank_record(0), rank_record(0, job_id="other")])
        with store_with_job.reading() as reader:
            assert not reader.list_ranks("job")

    def test_a_reader_sees_one_moment_while_a_writer_works(self, store_with_job: JobStore) -> None:
        changed = job_record(problem="changed")

        def write() -> None:
            with store_with_job.writing("job") as writer:
                writer.save_job(changed)

        with store_with_job.reading() as reader:
            before = reader.find_job("job")
            with ThreadPoolExecutor(1) as threads:
                threads.submit(write).result(timeout=30)
            assert reader.find_job("job") == before == job_record()
        with store_with_job.reading() as reader:
            assert reader.find_job("job") == changed

    def test_its_size_grows_with_what_is_stored(self, store_with_job: JobStore) -> None:
        before = store_with_job.space()
        assert before.size_bytes > 0
        assert before.free_bytes is None or before.free_bytes > 0
        with store_with_job.writing("job") as writer:
            writer.save_ranks([rank_record()])
            writer.save_steps(tuple(step_record(step) for step in range(5_000)))
        assert store_with_job.space().size_bytes > before.size_bytes
        store_with_job.close()
        with pytest.raises(StoreClosedError):
            store_with_job.space()

    def test_a_closed_store_says_so_and_keeps_everything(self, store_with_job: JobStore) -> None:
        store_with_job.close()
        store_with_job.close()
        for block in (
            store_with_job.reading(),
            store_with_job.writing("job"),
            store_with_job.lock("plan job"),
        ):
            with pytest.raises(StoreClosedError), block:
                pass
        for _ in range(2):
            store_with_job.open()
            with store_with_job.reading() as reader:
                assert reader.list_jobs() == (job_record(),)
