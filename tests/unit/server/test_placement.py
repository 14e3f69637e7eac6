"""Plans that count the GPUs of a node whose clock changes queue."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace

import pytest
from tests.planner.one_rank import register_rank
from tests.planner.running import two_stages
from tests.planner.samples import job_services, job_spec, rank_record
from tests.planner.use_cases import put_profile, register_job

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_server.jobs.findings import placement
from flyball_server.jobs.findings.placement import SHORTEST_PERIOD_S, PlacementReconciler
from flyball_server.jobs.planning_inputs import MeasuredDelays
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.registry.inspection import get_job, get_plan
from flyball_server.jobs.wanted.request import with_measured_delays
from flyball_server.planning.policies.frontier import within_calls
from flyball_server.planning.request_options import clock_transitions
from flyball_server.views.planned_delays import planned_delays
from flyball_wire.plan_options import PlanOptions

NUM_PIPELINES = 2
A100 = load_gpu_window("a100").transitions


class Placed:
    """A job of two stages and two pipelines, whose ranks register one after the other."""

    def __init__(self, **options: object) -> None:
        self.services = job_services()
        options = {"gpu": "a100", "effort": "low"} | options
        register_job(self.services, "job", job_spec(num_ranks=2 * NUM_PIPELINES, **options))
        put_profile(self.services, "job", two_stages())
        self._reconciler = PlacementReconciler()

    def register(self, rank: int, node: str | None, *, host: str = "pod") -> None:
        record = rank_record(
            rank, stage=rank % 2, dp_rank=rank // 2, host=f"{host}-{rank}", node=node
        )
        register_rank(self.services, record)

    def react(self) -> float | None:
        wait_s = self._reconciler(self.services, "job")
        PlanReconciler()(self.services, "job")
        return wait_s

    @property
    def newest(self) -> int:
        return get_job(self.services, "job").newest_version or 0

    @property
    def transitions(self) -> ClockTransitions | None:
        plan = get_plan(self.services, "job", self.newest).plan
        assert not plan.is_separate
        return plan.transitions

    @property
    def text(self) -> str | None:
        with self.services.store.reading() as reader:
            found = reader.find_job("job")
            assert found is not None
            planned_inputs = reader.find_loop_state("job").planned_inputs
            delays = planned_delays(found.spec, planned_inputs)
        return None if delays is None else delays.text


def at(monkeypatch: pytest.MonkeyPatch, monotonic: Callable[[], float]) -> None:
    monkeypatch.setattr(placement, "time", SimpleNamespace(monotonic=monotonic))


@pytest.fixture(autouse=True)
def _time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read of the clock is a period later."""
    moments = count(0.0, SHORTEST_PERIOD_S)
    at(monkeypatch, lambda: next(moments))


def test_a_job_is_planned_anew_once_all_its_ranks_are_known_to_share_nodes() -> None:
    """Pods of their own on two machines: both GPUs of a stage are in the same one."""
    assert A100 is not None
    job = Placed()
    for rank in range(4):
        assert (job.newest, job.transitions, job.text) == (1, A100, None)
        job.register(rank, f"boot-{rank % 2}")
        job.react()
    together = "2 GPUs of a node that change their clocks together (as the ranks are placed)"
    assert (job.newest, job.transitions, job.text) == (2, A100.of_queue(2), together)
    # A rank moves to a machine of its own, and another one too.
    job.register(0, "boot-2")
    job.react()
    assert job.newest == 2, "stage 1 still shares one"
    for rank in (1, 3):
        job.register(rank, None)  # hosts count where no machine is named
    for _ in range(2):
        job.react()
    assert (job.newest, job.transitions) == (3, A100)
    # All four in one machine: those of the other stage count too.
    for rank in range(4):
        job.register(rank, "boot")
    for _ in range(2):
        job.react()
    assert (job.newest, job.transitions) == (4, A100.of_queue(2).beside_other_stages())
    assert job.text == (
        f"{together}, 4 GPUs of a node that set clocks one at a time (as the ranks are placed)"
    )


@pytest.mark.parametrize(
    "options",
    [
        {"transition_ms": 5.0},
        {"gpu": None},
        {"gpu": "a40"},
        {"gpus_at_once": 1, "gpus_in_node": 1},
        {"gpus_at_once": 2, "gpus_in_node": 2},
    ],
)
def test_a_job_without_a_queue_or_with_a_given_number_keeps_its_plan(
    options: dict[str, object],
) -> None:
    job = Placed(**options)
    before = job.transitions
    for rank in range(4):
        job.register(rank, "boot")
    assert job.react() is None
    assert (job.newest, job.transitions) == (1, before)
    if options.get("gpus_at_once") == 2:
        assert A100 is not None
        assert before == A100.of_queue(2)
        assert job.text == "2 GPUs of a node that change their clocks together (given)"


def test_a_large_job_is_read_once_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Placed()
    at(monkeypatch, lambda: 100.0)
    assert job.react() is None
    for rank in range(4):
        job.register(rank, "boot")
    assert job.react() == SHORTEST_PERIOD_S
    assert job.newest == 1
    at(monkeypatch, lambda: 100.0 + SHORTEST_PERIOD_S)
    assert job.react() is None
    assert job.newest == 2


@pytest.mark.parametrize("num_in_node", [2, 4])
def test_measured_delays_have_the_queue_of_a_stage_in_them_and_not_that_of_others(
    num_in_node: int,
) -> None:
    assert A100 is not None
    options = PlanOptions(transitions=A100, gpus_at_once=2, gpus_in_node=num_in_node)
    delays = MeasuredDelays(version=1, num_steps=9, up_s=0.02)
    planned = with_measured_delays(options, 2, delays, has_given_transitions=False)
    measured = A100.of_queue(2).with_medians(0.02, None)
    expected = measured.beside_other_stages() if num_in_node > 2 else measured
    assert clock_transitions(planned) == expected
    # The limit of the node's calls is kept where other stages have GPUs in it.
    assert (within_calls(planned, 1.0, 2).max_switches is None) is (num_in_node == 2)
