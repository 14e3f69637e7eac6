"""A rank on a false GPU whose power limit is lowered while it trains, and a real planner."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.false_nvml.library import FalseNvml
from tests.governed_rank.processes import wait_until
from tests.planner.live import LivePlanner, live_planner

from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.nvml.device import NvmlGpu
from flyball_client.helper.rank_agent import LinkTimes
from flyball_client.session import conditions_watch
from flyball_client.session.rank_session import RankSession
from flyball_wire import routes

pytestmark = pytest.mark.slow

TIMES = LinkTimes(poll_wait_s=1.0, gather_s=0.05, first_retry_s=0.02, longest_retry_s=0.1)
CLOCKS_MHZ = (1980, 1740, 1500, 1200)
MAX_Q = 1 << 1
MODULE = "the module's power limit 600 W (profiled: 900 W)"
MEMORY = "memory clock 1593 MHz (profiled: 2619 MHz)"


def profile_csv(conditions: str, *, factor: float = 1.0) -> str:
    """One stage that draws 650 W at 1980 MHz, measured under these conditions."""
    rows = [
        f"0,{kind},{mhz},{time_s},{energy_j},{conditions}"
        for kind, scale in (("forward", 0.1), ("backward", 0.2))
        for mhz in CLOCKS_MHZ
        for time_s in [factor * scale * (0.7 + 0.3 * 1980 / mhz)]
        for energy_j in [time_s * (150 + 500 * (mhz / 1980) ** 2)]
    ]
    return "\n".join(["stage,instruction,frequency,time,energy,conditions", *rows, ""])


@pytest.fixture
def session_of(
    loaded_nvml: FalseNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[LivePlanner], RankSession]]:
    """Makes the session of the only rank; it reads its GPU's conditions often."""
    for name in [*os.environ]:
        if name.startswith(("FLYBALL_", "TORCHELASTIC_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FLYBALL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(conditions_watch, "READ_PERIOD_S", 0.2)
    gpu = NvmlGpu.open(uuid=loaded_nvml.uuid(0))
    clients: list[PlannerClient] = []

    def make(planner: LivePlanner) -> RankSession:
        clients.append(PlannerClient(str(planner.http.base_url)))
        return RankSession(gpu=gpu, job_id="job", rank=0, stage=0, planner=clients[0], times=TIMES)

    yield make
    for client in clients:
        client.close()
    gpu.close()


def train_until(session: RankSession, is_so: Callable[[], bool], what: str) -> None:
    """Train step after step until it is so."""

    def after_a_step() -> bool:
        session.on_step_begin()
        for kind in ("forward", "backward"):
            session.on_instruction_begin(kind, microbatch=0)
            session.on_instruction_end(kind)
        session.on_step_end()
        return is_so()

    wait_until(after_a_step, what)


def num_changed(planner: LivePlanner) -> float:
    """Return the metric of the job's ranks under other conditions."""
    text = planner.http.get("/metrics").text
    name = 'flyball_ranks_under_other_conditions{emulated="false",training_job="job"}'
    (value,) = [line.split()[-1] for line in text.splitlines() if line.startswith(name)]
    return float(value)


# What changes at once, what restores it, and how it is told.
CHANGES: tuple[tuple[dict[str, Any], dict[str, Any], tuple[str, str]], ...] = (
    (
        {"module_limit_w": 600, "profiles": MAX_Q},
        {"module_limit_w": 900, "profiles": 0},
        (MODULE, "power profile max-q (profiled: none)"),
    ),
    (
        {"memory_mhz": 1593, "ecc": False},
        {"memory_mhz": 0, "ecc": True},
        (MEMORY, "ECC off (profiled: on)"),
    ),
)
UNTIL_RESTORED = (
    "; the highest clocks are kept until that is restored, or a profile measured under it is sent"
)


def test_each_condition_that_changes_in_mid_run_ends_the_plan_until_it_is_restored(
    loaded_nvml: FalseNvml, session_of: Callable[[LivePlanner], RankSession]
) -> None:
    loaded_nvml.set_module_w(150)
    loaded_nvml.set_conditions(module_limit_w=900)
    under = "module_power_limit_w=900 power_profile=none memory_clock_mhz=2619 ecc=on"
    path = routes.fill(routes.JOB, job_id="job")
    with live_planner() as planner:
        planner.put_job(
            num_stages=1, num_microbatches=1, emulated=False, effort="low", target="slowdown:10%"
        ).raise_for_status()
        planner.put_profile(profile_csv(f"power_limit_w=700 {under}")).raise_for_status()
        session = session_of(planner)

        def notes() -> list[str]:
            return [line for line in planner.http.get(path).json()["notes"] if "profiled" in line]

        def is_of(policy: str) -> bool:
            version = session.active_version
            if version is None:
                return False
            plan = planner.http.get(routes.fill(routes.PLAN, job_id="job", version=version))
            return bool(plan.json()["plan"]["policy"] == policy)

        with session:
            train_until(session, lambda: is_of("frontier"), "the plan is in force")
            # A profile that others keep from being enforced changes nothing.
            loaded_nvml.set_conditions(unenforced=MAX_Q)
            for change, back, changed in CHANGES:
                assert notes() == []
                loaded_nvml.set_conditions(**change)
                wanted = {f"rank 0: {each}{UNTIL_RESTORED}" for each in changed}
                train_until(
                    session,
                    lambda: is_of("baseline") and {*notes()} == wanted,  # noqa: B023 - called at once
                    f"{wanted}: the highest clocks",
                )
                loaded_nvml.set_conditions(**back)
                train_until(session, lambda: is_of("frontier"), f"{wanted}: restored")


def test_a_power_limit_lowered_in_mid_run_ends_the_plan_until_a_profile_for_it_is_sent(
    loaded_nvml: FalseNvml, session_of: Callable[[LivePlanner], RankSession]
) -> None:
    path = routes.fill(routes.JOB, job_id="job")
    with live_planner() as planner:
        planner.put_job(
            num_stages=1, num_microbatches=1, emulated=False, effort="low", target="slowdown:10%"
        ).raise_for_status()
        planner.put_profile(profile_csv("power_limit_w=700 driver=false-0")).raise_for_status()
        session = session_of(planner)

        def notes() -> list[str]:
            return [line for line in planner.http.get(path).json()["notes"] if "profiled" in line]

        def policy() -> str:
            version = session.active_version
            if version is None:
                return ""
            plan = planner.http.get(routes.fill(routes.PLAN, job_id="job", version=version))
            return str(plan.json()["plan"]["policy"])

        with session:
            train_until(session, lambda: policy() == "frontier", "the plan is in force")
            assert notes() == []
            assert loaded_nvml.locked_mhz() < 1980
            loaded_nvml.set_conditions(limit_w=500)
            train_until(session, lambda: policy() == "baseline", "the highest clocks are kept")
            assert notes() == [f"rank 0: power limit 500 W (profiled: 700 W){UNTIL_RESTORED}"]
            assert num_changed(planner) == 1.0
            planner.put_profile(profile_csv("power_limit_w=500", factor=1.02)).raise_for_status()
            train_until(session, lambda: policy() == "frontier", "planned from that profile")
            assert notes() == []
            assert num_changed(planner) == 0.0
            loaded_nvml.set_conditions(limit_w=700)
            profile = routes.fill(routes.PROFILE, job_id="job")
            train_until(
                session,
                lambda: "power_limit_w=700" in planner.http.get(profile).text,
                "the first profile is planned from",
            )
            train_until(session, lambda: policy() == "frontier", "its plan is in force")
            assert notes() == []
    assert loaded_nvml.range_mhz() == (0, 0)
