"""Jobs whose order is compared with others: when, how often, and what is stored."""

from __future__ import annotations

from threading import Semaphore

import pytest
from tests.planner.one_rank import register_rank
from tests.planner.running import NUM_MICROBATCHES, two_stages
from tests.planner.samples import job_services, job_spec, rank_record
from tests.planner.use_cases import put_profile, register_job

from flyball_server.jobs.findings.announcements import announce_straggler
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.reconcile import order_advice
from flyball_server.jobs.reconcile.order_advice import OrderAdviceReconciler
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.registry.inspection import get_job, notes
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.order_advice import advise_order
from flyball_server.views.report import get_report
from flyball_wire.closed_loop import StragglerAnnouncement
from flyball_wire.messages import JobSpec
from flyball_wire.orders import OrderAdvice, OtherOrder

ORDERS = (OtherOrder(schedule="envpipe", line="run [{extra_forwards}]"),)


class Compared:
    """A planned job, and what the reconciler asks for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
        self.num_solved = 0
        monkeypatch.setattr(order_advice, "advise_order", self._advised)
        self.services = job_services()
        given = {"effort": "low", "other_orders": ORDERS} | options
        self.spec: JobSpec = job_spec(num_microbatches=NUM_MICROBATCHES, **given)
        register_job(self.services, "job", self.spec)
        for rank in range(2):
            register_rank(self.services, rank_record(rank))
        self.reconcile = OrderAdviceReconciler()

    def _advised(self, *asked: object) -> OrderAdvice | None:
        self.num_solved += 1
        return advise_order(*asked)  # type: ignore[arg-type] # as the reconciler has them

    def react(self) -> float | None:
        return self.reconcile(self.services, "job")

    @property
    def loop_state(self) -> JobLoopState:
        with self.services.store.reading() as reader:
            return reader.find_loop_state("job")


def test_a_planned_job_is_compared_once_and_says_so_in_notes_and_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Compared(monkeypatch)
    assert (job.react(), job.num_solved) == (None, 0)  # no profile yet
    put_profile(job.services, "job", two_stages())
    for _ in range(2):
        assert job.react() is None
    assert job.num_solved == 1
    advice = job.loop_state.order_advice
    assert advice is not None
    assert (advice.schedule, advice.line) == ("envpipe", "run [1,0]")
    summary = get_job(job.services, "job")
    assert summary.findings.order_advice == get_report(job.services, "job").order_advice == advice
    assert notes(job.services, summary)[0] == advice.text
    assert summary.newest_version == 1  # nothing is changed


def test_a_straggler_needs_no_other_comparison_and_another_profile_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Compared(monkeypatch)
    put_profile(job.services, "job", two_stages())
    job.react()
    before = job.loop_state.order_advice
    announce_straggler(job.services, "job", StragglerAnnouncement(rank=1, slowdown=1.5))
    PlanReconciler()(job.services, "job")
    assert get_job(job.services, "job").newest_version == 2
    job.react()
    assert (job.num_solved, job.loop_state.order_advice) == (1, before)
    put_profile(job.services, "job", two_stages(2.0))
    job.react()
    assert job.num_solved == 2


@pytest.mark.parametrize(
    "options", [{"other_orders": ()}, {"policy": "envelope", "effort": "normal"}]
)
def test_a_job_that_can_run_no_other_order_or_has_no_frontier_gets_no_advice(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    job = Compared(monkeypatch, **options)
    put_profile(job.services, "job", two_stages())
    assert job.react() is None
    assert job.loop_state.order_advice is None
    assert job.num_solved == bool(job.spec.other_orders)


def test_a_comparison_waits_for_a_free_slot_and_one_that_fails_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Compared(monkeypatch)
    put_profile(job.services, "job", two_stages())
    busy = OrderAdviceReconciler(Semaphore(0))
    assert busy(job.services, "job") == 1.0

    def refuse(*_: object) -> None:
        job.num_solved += 1
        raise PlanningError("took too long", field="planning")

    monkeypatch.setattr(order_advice, "advise_order", refuse)
    for _ in range(2):
        assert job.react() is None
    assert (job.num_solved, job.loop_state.order_advice) == (1, None)


def test_inputs_that_change_meanwhile_are_compared_next(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Compared(monkeypatch)
    put_profile(job.services, "job", two_stages())

    def changing(*asked: object) -> OrderAdvice | None:
        job.num_solved += 1
        if job.num_solved == 1:
            put_profile(job.services, "job", two_stages(2.0))
        return advise_order(*asked)  # type: ignore[arg-type] # as the reconciler has them

    monkeypatch.setattr(order_advice, "advise_order", changing)
    job.react()
    assert job.loop_state.order_comparison is None
    job.react()
    assert (job.num_solved, job.loop_state.order_advice is None) == (2, False)
