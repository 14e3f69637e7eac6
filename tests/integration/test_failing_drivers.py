"""Drivers that fail for a moment, hang, or fail on one GPU alone: no clock stays locked for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.false_nvml.library import FalseNvml
from tests.governed_rank.driver_faults import (
    CODES,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_READY,
    RESET,
    UNKNOWN,
    WITHIN_S,
)
from tests.governed_rank.governed_rank import GovernedRank, node_dir_in
from tests.governed_rank.pretended_rank import leave_record
from tests.governed_rank.processes import send, wait_until
from tests.governed_rank.running_guard import RunningGuard
from tests.planner.live import live_planner
from tests.planner.samples import profile_csv

from flyball_client.api.planner_client import PlannerClient
from flyball_client.cli.doctor.machine_checks import check_records
from flyball_client.governor.lock_record import find_records
from flyball_client.governor.process_governor import ProcessGovernor, reap_left_behind
from flyball_client.gpu._base import GpuAddress
from flyball_client.gpu.nvml.device import NvmlGpu
from flyball_client.helper.rank_agent import LinkTimes
from flyball_client.session.rank_session import RankSession
from flyball_wire import routes

OFF_S = 0.4


@pytest.fixture
def own_governor(loaded_nvml: FalseNvml, tmp_path: Path) -> Iterator[ProcessGovernor]:
    """A governor whose rank is this process."""
    address = GpuAddress(control="nvml", uuid=loaded_nvml.uuid(0))
    with closing(ProcessGovernor(address, "rank 0", state_dir=tmp_path / "state")) as governor:
        governor.start(strict=True)
        yield governor
        loaded_nvml.work_again()
    wait_until(reap_left_behind, "its governor has ended")


def train_until(governor: ProcessGovernor, is_so: Callable[[], object], what: str) -> float:
    """Run steps at 510 and 1980 MHz until it is so; return how long, s."""

    def is_so_after_a_step() -> bool:
        for sm_clock_mhz in (510, 1980):
            governor.on_step_begin()
            governor.set_mhz(sm_clock_mhz)
            time.sleep(0.005)
        return bool(is_so())

    return wait_until(is_so_after_a_step, what)


def test_a_driver_that_fails_for_a_moment_costs_no_more_clocks_than_that(
    loaded_nvml: FalseNvml, own_governor: ProcessGovernor, caplog: pytest.LogCaptureFixture
) -> None:
    train_until(own_governor, lambda: own_governor.report().num_switches > 2, "clocks are set")
    for code in CODES:
        caplog.clear()
        before = own_governor.report()
        began_s = time.monotonic()
        loaded_nvml.fail("", code, lasts_s=OFF_S)
        over_s = began_s + OFF_S
        train_until(own_governor, lambda: time.monotonic() > over_s, "the driver works again")  # noqa: B023 - called at once
        failed = own_governor.report()
        train_until(
            own_governor,
            lambda: own_governor.report().num_switches > failed.num_switches + 2,  # noqa: B023
            "clocks are set again",
        )
        assert time.monotonic() < over_s + WITHIN_S
        assert failed.num_failures > before.num_failures
        assert not own_governor.is_over
        assert own_governor.no_clocks is None
        train_until(own_governor, lambda: len(caplog.messages) == 2, "it is logged")
        assert "cannot be changed for now, and is tried again" in caplog.messages[0]
        assert "can be changed again" in caplog.messages[1]


@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN])
def test_a_clock_that_a_closed_session_could_not_restore_is_restored_later(
    loaded_nvml: FalseNvml, own_governor: ProcessGovernor, tmp_path: Path, code: int
) -> None:
    own_governor.set_mhz(510)
    wait_until(lambda: loaded_nvml.locked_mhz() == 510, "locked")
    loaded_nvml.fail(RESET, code, lasts_s=2.0)
    own_governor.close()
    assert loaded_nvml.locked_mhz() == 510
    wait_until(lambda: loaded_nvml.locked_mhz() == 0, "restored", patience_s=2.0 + WITHIN_S)
    wait_until(lambda: find_records(tmp_path / "state") == [], "the record is cleared")


def test_a_takeover_while_the_driver_fails_restores_the_clock_too(
    loaded_nvml: FalseNvml, own_governor: ProcessGovernor
) -> None:
    own_governor.set_mhz(510)
    wait_until(lambda: loaded_nvml.locked_mhz() == 510 and all(own_governor.pids), "governed")
    time.sleep(0.5)  # the standby is ready
    loaded_nvml.fail("", UNKNOWN, lasts_s=1.0)
    send(own_governor.pids[0], signal.SIGKILL)
    time.sleep(1.0)
    wait_until(lambda: loaded_nvml.locked_mhz() == 0, "restored", patience_s=WITHIN_S)
    assert not own_governor.is_over


@pytest.mark.parametrize("code", [NO_PERMISSION, NOT_READY])
def test_governors_that_are_killed_while_the_driver_fails_are_replaced_when_it_works(
    loaded_nvml: FalseNvml, own_governor: ProcessGovernor, code: int
) -> None:
    """Before, a refusal at their start counted as a permission that was never there."""
    train_until(own_governor, lambda: own_governor.report().num_switches > 2, "clocks are set")
    loaded_nvml.fail("", code, lasts_s=1.5)
    for pid in own_governor.pids:
        send(pid, signal.SIGKILL)
    failed = own_governor.report()
    train_until(
        own_governor,
        lambda: own_governor.report().num_switches > failed.num_switches + 2,
        "clocks are set again",
    )
    assert not own_governor.is_over


@pytest.fixture
def new_rank(false_nvml: FalseNvml, tmp_path: Path) -> Iterator[Callable[[], GovernedRank]]:
    """Starts ranks on one GPU, which end with the test."""
    with ExitStack() as ranks:
        yield lambda: ranks.enter_context(GovernedRank(false_nvml, tmp_path))


def test_a_governor_that_starts_while_the_driver_fails_waits_for_it(
    loaded_nvml: FalseNvml, tmp_path: Path
) -> None:
    address = GpuAddress(control="nvml", uuid=loaded_nvml.uuid(0))
    leave_record(tmp_path / "state", address.uuid)
    loaded_nvml.fail("nvmlInitWithFlags", NOT_READY, lasts_s=1.0)
    loaded_nvml.fail(RESET, GPU_IS_LOST, lasts_s=1.5)
    with closing(ProcessGovernor(address, "rank 0", state_dir=tmp_path / "state")) as governor:
        governor.start(strict=True)
        governor.set_mhz(510)
        wait_until(lambda: loaded_nvml.locked_mhz() == 510, "locked")


def test_a_rank_that_lives_without_a_governor_is_an_error_and_the_guards(
    false_nvml: FalseNvml, new_rank: Callable[[], GovernedRank], tmp_path: Path
) -> None:
    rank = new_rank()
    rank.wait_until_governed()
    rank.wait_until_stood_by()
    pair = rank.pair
    for pid in (rank.pid, *pair):
        send(pid, signal.SIGSTOP)
    wait_until(lambda: _is_locked(rank, pair), "stopped while the clock is locked")
    for pid in pair:
        send(pid, signal.SIGKILL)
    wait_until(lambda: find_records(rank.state_dir)[0].is_ungoverned, "the pair has ended")
    (result,) = check_records(find_records(rank.state_dir))
    assert result.state == "problem"
    assert "lives without a governor" in result.found
    with RunningGuard(false_nvml, node_dir_in(tmp_path), UNGOVERNED_GRACE_S=0.5) as guard:
        wait_until(rank.is_restored, "restored by the guard")
        guard.wait_until_said("which lives without a governor")
    send(rank.pid, signal.SIGCONT)
    rank.wait_until_governed()
    rank.end()


def _is_locked(rank: GovernedRank, pair: tuple[int, int]) -> bool:
    if rank.nvml.locked_mhz():
        return True
    for pid in (rank.pid, *pair):
        send(pid, signal.SIGCONT)
    time.sleep(0.01)
    for pid in (rank.pid, *pair):
        send(pid, signal.SIGSTOP)
    return False


def test_a_call_that_hangs_on_one_gpu_keeps_the_guard_from_no_other(
    false_nvml: FalseNvml, tmp_path: Path
) -> None:
    node_dir = node_dir_in(tmp_path)
    state_dir = node_dir / str(os.geteuid())
    for index in (0, 1):
        leave_record(state_dir, false_nvml.uuid(index))
        false_nvml.set_range_mhz(510, 510, index)
    false_nvml.fail(RESET, 0, gpu=0, hangs_s=60.0)
    with RunningGuard(false_nvml, node_dir, DEADLINE_S=1.0) as guard:
        wait_until(lambda: false_nvml.range_mhz(1) == (0, 0), "restored", patience_s=WITHIN_S)
        assert false_nvml.range_mhz(0) == (510, 510)
        guard.wait_until_said("the driver has not answered for 1 s")
        false_nvml.work_again()
        wait_until(lambda: false_nvml.range_mhz(0) == (0, 0), "restored")
        wait_until(lambda: find_records(state_dir) == [], "the records are cleared")
        # SIGTERM ends a guard whose driver hangs.
        leave_record(state_dir, false_nvml.uuid(0))
        false_nvml.set_range_mhz(510, 510)
        false_nvml.fail(RESET, 0, gpu=0, hangs_s=60.0)
        time.sleep(1.0)


def test_another_programs_clock_is_undone_once_and_then_left_until_the_next_plan(
    loaded_nvml: FalseNvml, own_governor: ProcessGovernor, caplog: pytest.LogCaptureFixture
) -> None:
    def compute_until(is_so: Callable[[], object], what: str) -> None:
        def is_so_after_a_step() -> bool:
            own_governor.on_step_begin()
            own_governor.set_mhz(1605)
            time.sleep(0.02)
            return bool(is_so())

        wait_until(is_so_after_a_step, what)

    own_governor.begin_plan()
    compute_until(lambda: loaded_nvml.locked_mhz() == 1605, "locked")
    loaded_nvml.set_range_mhz(0, 0)  # nvidia-smi -rgc
    compute_until(lambda: loaded_nvml.locked_mhz() == 1605, "a reset is undone")
    loaded_nvml.set_range_mhz(600, 600)
    compute_until(lambda: own_governor.no_clocks is not None, "it yields")
    assert own_governor.report().num_asserted == 1
    compute_until(lambda: len(caplog.messages) == 2, "both are logged")
    assert "holds the SM clock at 600 MHz" in caplog.messages[1]
    assert "holds the SM clock at 600 MHz" in (own_governor.no_clocks or "")
    assert loaded_nvml.locked_mhz() == 600
    own_governor.begin_plan()
    compute_until(lambda: loaded_nvml.locked_mhz() == 1605, "the next plan's clock is set")
    assert own_governor.no_clocks is None


@pytest.mark.parametrize(
    ("application_mhz", "why"),
    [
        (0, "the driver accepts SM clocks, but the GPU runs at 1980 MHz whatever is set, which"),
        (
            1410,
            "the GPU runs at its application clock of 1410 MHz whatever is set (nvidia-smi -rac",
        ),
    ],
)
def test_clocks_that_are_accepted_without_effect_are_no_longer_set_and_no_limit_is_blamed(
    loaded_nvml: FalseNvml,
    own_governor: ProcessGovernor,
    caplog: pytest.LogCaptureFixture,
    application_mhz: int,
    why: str,
) -> None:
    loaded_nvml.set_conditions(application_mhz=application_mhz)
    loaded_nvml.ignore_locks()

    def yields_after_a_step() -> bool:
        own_governor.on_step_begin()
        own_governor.set_mhz(1605)
        time.sleep(0.02)
        return own_governor.no_clocks is not None

    own_governor.begin_plan()
    wait_until(yields_after_a_step, "it yields")
    assert (own_governor.no_clocks or "").startswith(why)
    report = own_governor.report()
    assert report.num_asserted == 1
    assert (report.num_power_capped, report.num_thermally_capped) == (0, 0)
    assert (report.num_misses > 0) == (application_mhz > 0)
    wait_until(lambda: loaded_nvml.range_mhz() == (0, 0), "nothing stays locked")
    own_governor.on_step_begin()
    assert any(why in message for message in caplog.messages)


def test_an_administrators_clock_is_in_the_jobs_notes_until_the_next_version(
    loaded_nvml: FalseNvml, tmp_path: Path
) -> None:
    address = GpuAddress(control="nvml", uuid=loaded_nvml.uuid(0))
    with ExitStack() as opened:
        served = opened.enter_context(live_planner())
        served.put_job(num_stages=1, num_ranks=1, policy="uniform").raise_for_status()
        served.put_profile(profile_csv(1)).raise_for_status()
        planner = opened.enter_context(PlannerClient(str(served.http.base_url)))
        governor = ProcessGovernor(address, "rank 0", state_dir=tmp_path / "state")
        session = RankSession(
            gpu=opened.enter_context(closing(NvmlGpu.open(uuid=address.uuid))),
            job_id="job",
            rank=0,
            stage=0,
            planner=planner,
            governor=governor,
            times=LinkTimes(gather_s=0.05),
        )
        opened.enter_context(session)
        path = routes.fill(routes.JOB, job_id="job")

        def train_until(is_so: Callable[[], object], what: str) -> None:
            def is_so_after_a_step() -> bool:
                session.on_step_begin()
                for kind in ("forward", "backward") * 2:
                    session.on_instruction_begin(kind)
                    time.sleep(0.01)
                    session.on_instruction_end(kind)
                session.on_step_end()
                return bool(is_so())

            wait_until(is_so_after_a_step, what)

        def notes() -> list[str]:
            found: list[str] = served.http.get(path).json()["notes"]
            return found

        train_until(lambda: session.active_version == 1, "on its plan")
        assert notes() == []
        loaded_nvml.set_range_mhz(600, 600)
        train_until(lambda: session.clock_report.num_asserted, "set again")
        loaded_nvml.set_range_mhz(600, 600)
        train_until(notes, "in the notes")
        assert notes() == [
            "rank 0 sets no clocks: another program holds the SM clock at 600 MHz; it stays until"
            " the next plan"
        ]
        assert session.active_version is None
        target = routes.fill(routes.TARGET, job_id="job")
        served.http.put(target, json={"policy": "baseline"}).raise_for_status()
        train_until(lambda: session.active_version == 2 and not notes(), "on the next version")
    wait_until(reap_left_behind, "its governor has ended")
