"""Runs whose energy counter, driver or planner fails: what is lost of them, and what is claimed?

A GPU of the false NVML draws 50 W and a tenth of a watt per MHz, so that a plan's saving is known:
at 1410 MHz in place of 1980, in the same time, 23 %. To add a fault: a line in `RUN_FAULTS`.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.false_nvml.library import HIGHEST_MHZ, FalseNvml
from tests.governed_rank.driver_faults import CODES
from tests.governed_rank.processes import wait_until
from tests.governed_rank.random_kills import NUM_RANKS_AT_ONCE, Strike
from tests.planner.live import SERVE, serve_process
from tests.planner.patience import PATIENCE_S

from flyball_wire import routes
from flyball_wire.codec import encode
from flyball_wire.messages import JobRegistration

RANK = Path(__file__).with_name("measuring_rank.py")
PLANNED_MHZ = 1410
PLANNED_W, HIGHEST_W = (50 + 0.1 * mhz for mhz in (PLANNED_MHZ, HIGHEST_MHZ))
# A reading may be 0.25 s late, and a phase of a run takes 2.5 s or more.
TOLERANCE_PERCENT = 8.0
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
# Of both clocks, before a fault and after it.
_STEPS_A_PHASE = 60
_PROFILE = "stage,instruction,frequency,time,energy\n" + "".join(
    f"0,{kind},{mhz},{time_s},{time_s * (50 + 0.1 * mhz)}\n"
    for kind in ("forward", "backward")
    for mhz, time_s in ((HIGHEST_MHZ, 0.02), (PLANNED_MHZ, 0.0201))
)


class SoakPlanner:
    """A planner that can be killed, and comes back at the same address with its database.

    Args:
        folder: for its database.
    """

    def __init__(self, folder: Path) -> None:
        self._database = folder / "planner.sqlite"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = str(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"
        self._turn = threading.Lock()
        self._running = ExitStack()
        self._start()

    def kill(self) -> None:
        """Kill it, and start another one after a moment."""
        with self._turn:
            self._running.close()
            time.sleep(0.2)
            self._start()

    def close(self) -> None:
        """Kill it."""
        self._running.close()

    def call(self, method: str, route: str, **request: Any) -> Any:  # noqa: ANN401 - JSON
        """Call it until it answers; return the JSON of its answer."""
        # The runs beside this one may kill it too, one after another.
        give_up_s = time.monotonic() + NUM_RANKS_AT_ONCE * PATIENCE_S
        while True:
            try:
                answer = httpx.request(method, self.url + route, timeout=PATIENCE_S, **request)
                answer.raise_for_status()
                return answer.json()
            except httpx.TransportError:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(0.1)

    def _start(self) -> None:
        served = serve_process(self._database, "--port", self._port, flyball=SERVE)
        self._running.enter_context(served)


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """A rank in training, and its planner.

    Attributes:
        job_id: name of its job.
        nvml: whose first GPU it has.
        process: the rank.
        log: what it logs.
    """

    planner: SoakPlanner
    job_id: str
    nvml: FalseNvml
    process: subprocess.Popen[str]
    log: Path

    def report(self) -> Any:  # noqa: ANN401 - JSON
        """Return what the planner reports of the job."""
        return self.planner.call("GET", routes.fill(routes.REPORT, job_id=self.job_id))

    def wait_for_steps(self, num_steps: int, *, is_on_plan: bool) -> None:
        """Wait for so many more steps, counted ones where they are on a plan."""
        before = self._num_counted(is_on_plan=is_on_plan)

        def are_there() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return self._num_counted(is_on_plan=is_on_plan) >= before + num_steps

        what = f"{num_steps} steps, on plan: {is_on_plan}\n{self.log}"
        wait_until(are_there, what, pause_s=0.1)

    def _num_counted(self, *, is_on_plan: bool) -> int:
        report = self.report()
        if not is_on_plan:
            return int(report["num_steps"])
        return sum(int(version["num_steps"]) for version in report["versions"])

    def end(self) -> dict[str, int]:
        """Let the training end; what it says."""
        said, _ = self.process.communicate(timeout=PATIENCE_S + 30.0)
        assert self.process.returncode == 0, self.log.read_text()
        found: dict[str, int] = json.loads(said.splitlines()[-1])
        return found


Fault = Callable[[MeasuredRun, random.Random], float]


def _freezes(run: MeasuredRun, chooser: random.Random) -> float:
    lasts_s = chooser.uniform(0.6, 2.0)
    run.nvml.freeze_energy()
    time.sleep(lasts_s)
    run.nvml.freeze_energy(is_frozen=False)
    return 0.0


def _falls(run: MeasuredRun, chooser: random.Random) -> float:
    run.nvml.use_energy_j(-chooser.randint(20, run.nvml.energy_mj() // 1000))
    return 0.0


def _cannot_be_read(run: MeasuredRun, chooser: random.Random) -> float:
    lasts_s = chooser.uniform(0.05, 1.0)
    run.nvml.fail(ENERGY, chooser.choice(CODES), lasts_s=lasts_s)
    return lasts_s + 1.0  # the pause before it is read again


def _hangs(run: MeasuredRun, chooser: random.Random) -> float:
    lasts_s = chooser.uniform(0.05, 1.0)
    run.nvml.fail(ENERGY, 0, lasts_s=lasts_s, hangs_s=lasts_s)
    return lasts_s


def _driver_fails(run: MeasuredRun, chooser: random.Random) -> float:
    lasts_s = chooser.uniform(0.05, 1.0)
    run.nvml.fail("", chooser.choice(CODES), lasts_s=lasts_s)
    return lasts_s + 1.0


def _planner_is_killed(run: MeasuredRun, chooser: random.Random) -> float:
    time.sleep(chooser.uniform(0, 0.2))
    run.planner.kill()
    return 0.0


RUN_FAULTS: dict[str, Fault] = {
    "energy counter stands still": _freezes,
    "energy counter falls": _falls,
    "energy cannot be read": _cannot_be_read,
    "reading the energy hangs": _hangs,
    "driver fails while measured": _driver_fails,
    "planner, SIGKILL": _planner_is_killed,
}


def strike_runs(
    name: str, num_runs: int, *, library: Path, folder: Path, seed: int
) -> list[Strike]:
    """Let so many runs meet a fault, some at a time, with one planner.

    Args:
        name: of the fault in `RUN_FAULTS`.
        num_runs: how many.
        library: the false NVML, built.
        folder: for each rank's GPU and log, and the planner's database; must not exist yet.
        seed: of the moments.
    """
    folder.mkdir(parents=True)
    planner = SoakPlanner(folder)

    def strike_one(number: int) -> Strike:
        own_seed = 1000 * seed + number
        own_folder = folder / str(number)
        own_folder.mkdir()
        try:
            with _measured_run(planner, library, own_folder) as run:
                _meet(RUN_FAULTS[name], run, random.Random(own_seed))
        except (AssertionError, httpx.HTTPError) as error:
            return Strike(part=name, failure=f"seed {own_seed}, files in {own_folder}: {error}")
        return Strike(part=name)

    try:
        with ThreadPoolExecutor(NUM_RANKS_AT_ONCE) as pool:
            return list(pool.map(strike_one, range(num_runs)))
    finally:
        planner.close()


@contextmanager
def _measured_run(planner: SoakPlanner, library: Path, folder: Path) -> Iterator[MeasuredRun]:
    """A rank that trains without a plan, until the block ends."""
    job_id = f"run-{folder.name}"
    job = JobRegistration(
        num_stages=1, num_microbatches=1, blocking_power_w=(70.0,), target="least-energy"
    )
    planner.call("PUT", routes.fill(routes.JOB, job_id=job_id), json=encode(job))
    nvml = FalseNvml(library, folder, num_gpus=1)
    variables = {"FLYBALL_STATE_DIR": str(folder / "state"), "FLYBALL_CLOCK_CONTROL": "nvml"}
    log = folder / "rank.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, str(RANK), planner.url, job_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=nvml.environment | variables,
        )
    try:
        yield MeasuredRun(planner=planner, job_id=job_id, nvml=nvml, process=process, log=log)
    finally:
        process.kill()
        process.communicate()
        nvml.close()


def _meet(fault: Fault, run: MeasuredRun, chooser: random.Random) -> None:
    """Train without a plan, then on one; in one of both the fault comes; check what is stored."""
    comes_on_plan = chooser.random() < 0.5
    for is_on_plan in (False, True):
        if is_on_plan:
            path = routes.fill(routes.PROFILE, job_id=run.job_id)
            headers = {"Content-Type": "text/csv"}
            run.planner.call("PUT", path, content=_PROFILE, headers=headers)
        run.wait_for_steps(_STEPS_A_PHASE, is_on_plan=is_on_plan)
        if is_on_plan == comes_on_plan:
            time.sleep(chooser.uniform(0, 0.1))
            time.sleep(fault(run, chooser))
            run.wait_for_steps(_STEPS_A_PHASE, is_on_plan=is_on_plan)
    said = run.end()
    report = run.report()
    num_steps, num_dropped = said["num_steps"], said["num_dropped"]
    # Where another run kills the planner at this one's end, its last post has no answer.
    assert num_dropped == 0 or fault is _planner_is_killed, said
    assert num_steps - num_dropped <= report["num_steps"] <= num_steps, (report["num_steps"], said)
    assert run.nvml.range_mhz() == (0, 0), "locked after its end"
    _check_saving(report)
    _check_steps(run)


def _check_saving(report: Any) -> None:  # noqa: ANN401 - JSON
    """Each saving is that of the GPU's powers over the measured times, which load makes differ."""
    claimed = [each for each in report["versions"] if each["saving_percent"] is not None]
    certain = [each for each in claimed if each["energy_j"]["num_steps"] >= _STEPS_A_PHASE // 2]
    assert certain, report
    for version in certain:
        times_s = version["time_s"]["mean"], version["baseline_time_s"]["mean"]
        true_percent = 100 * (1 - PLANNED_W * times_s[0] / HIGHEST_W / times_s[1])
        claimed_percent = version["saving_percent"]["mean"]
        assert abs(claimed_percent - true_percent) < TOLERANCE_PERCENT, (true_percent, version)


def _check_steps(run: MeasuredRun) -> None:
    """The steps with energy have that of the GPU's powers together."""
    path = routes.fill(routes.STEPS, job_id=run.job_id)
    steps = run.planner.call("GET", path, params={"limit": 10_000})
    measured = [step for step in steps if step["energy_j"] is not None]
    assert len(measured) > _STEPS_A_PHASE
    energy_j = sum(step["energy_j"] for step in measured)
    time_s = sum(step["time_s"] for step in measured)
    power_w = energy_j / time_s
    assert 0.95 * PLANNED_W < power_w < 1.05 * HIGHEST_W, power_w
