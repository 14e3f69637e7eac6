"""A real DeepSpeed run of two stages with Flyball attached beside the same without.

By turns in the same processes, so that what else the machine does meets both alike.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyball_client.api.planner_client import PlannerClient
from flyball_lab.demo.options import child_environment, missing_prerequisites
from flyball_lab.demo.processes import (
    ChildProcess,
    Interruption,
    start_planner,
    wait_for_planner,
)
from flyball_lab.demo.run_folder import DemoFailedError, RunFolder
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_wire.messages import JobRegistration
from flyball_wire.python_child import python_environment
from hooks_gpus import HIGHEST_MHZ, FalseGpus
from hooks_process import BENCHMARKS
from measured_process import BenchmarkError

NUM_STAGES = 2
# What the ranks compute on: the machine's own cores, which Flyball's processes and the planner then
# share with them; or a device that leaves the cores free, as a GPU does: their computations are
# slept through.
PROCESSOR, EMULATED = "the processor", "an emulated device"
DEVICES = (PROCESSOR, EMULATED)
# As NVML needs on a V100.
SET_LATENCY_US = 5000
# On a busy machine there are fewer pairs, and a wider interval.
MIN_PAIRS, BUDGET_S = 6, 240.0
GIVE_UP_S = 900.0
CONFIDENCE = 0.95
NUM_RESAMPLES = 2000
JOB_ID = "hooks"


@dataclass(frozen=True, kw_only=True)
class TrainingFigure:
    """Step times with Flyball attached, a plan in force, beside those without.

    Attributes:
        device: one of DEVICES.
        num_pairs: of blocks.
        num_steps: of each block.
        alone_s: the median step without, s.
        attached_s: the median step with it, s.
        ratio: the median of the pairs' own ratios, each of two neighbouring blocks.
        ratio_interval: of that, 95 %, by resampling pairs.
        switches_per_step: clocks set per step and rank.
        num_unplanned: instructions that the plan did not expect, and steps without one; none
            should be.
        num_failures: calls of NVML that failed.
        taken: what Flyball took of a core meanwhile, a share: `governors` and `threads` of all
            ranks, with the standbys; `planner`, beyond what it takes while nobody is attached.
    """

    device: str
    num_pairs: int
    num_steps: int
    alone_s: float
    attached_s: float
    ratio: float
    ratio_interval: tuple[float, float]
    switches_per_step: float
    num_unplanned: int
    num_failures: int
    taken: dict[str, float]


def measure_training(
    gpus: FalseGpus, device: str, *, num_pairs: int, num_steps: int
) -> TrainingFigure:
    """Train on one of DEVICES for about 4 minutes, `num_pairs` at the most.

    Raises:
        BenchmarkError: DeepSpeed cannot run here, or the run failed.
    """
    missing = missing_prerequisites()
    if missing:
        raise BenchmarkError(f"DeepSpeed cannot run here; missing: {', '.join(missing)}")
    gpus.record.begin(set_latency_us=SET_LATENCY_US)
    environment = child_environment(os.environ) | gpus.variables
    try:
        with Interruption() as interruption, tempfile.TemporaryDirectory() as path:
            folder = RunFolder(Path(path))
            with start_planner(folder, environment) as planner:
                url = wait_for_planner(planner, interruption)
                registration = _register(url)
                problem = Path(path) / "problem.json"
                problem.write_text(
                    json.dumps(
                        {
                            "planner_url": url,
                            "planner_pid": planner.pid,
                            "registration": registration,
                            "num_pairs": num_pairs,
                            "min_pairs": min(MIN_PAIRS, num_pairs),
                            "budget_s": BUDGET_S,
                            "num_steps": num_steps,
                            "device": device,
                        }
                    ),
                    encoding="utf-8",
                )
                _run_ranks(problem, folder, environment, interruption)
            ranks = [
                json.loads((folder.path / f"rank-{rank}.json").read_text(encoding="utf-8"))
                for rank in range(NUM_STAGES)
            ]
    except DemoFailedError as error:
        raise BenchmarkError(f"the DeepSpeed run failed: {error}: {error.log_tail}") from None
    return _figure(ranks, device, num_steps=num_steps)


def _run_ranks(
    problem: Path, folder: RunFolder, environment: dict[str, str], interruption: Interruption
) -> None:
    with ChildProcess(
        [
            *("-m", "torch.distributed.run", "--nproc-per-node", str(NUM_STAGES)),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
            *("--local-addr", "127.0.0.1", "--log-dir", str(folder.path / "torchrun")),
            *(str(BENCHMARKS / "hooks_training.py"), str(problem), str(folder.path)),
        ],
        # The ranks' script imports from its own folder.
        environment=python_environment(environment, BENCHMARKS) | {"TMPDIR": str(folder.path)},
        log=folder.torchrun_log,
    ) as run:
        status = run.wait(interruption, timeout_s=GIVE_UP_S)
        if status != 0:
            raise DemoFailedError(f"torchrun ended with status {status}", folder.torchrun_log)


def _register(url: str) -> dict[str, Any]:
    """Make the job known with a profile; returns what `attach` is given for the same job."""
    settings: dict[str, Any] = {"blocking_power_w": (80.0,), "reconfigure": "default"}
    job = JobRegistration(
        num_stages=NUM_STAGES,
        num_microbatches=4,
        num_ranks=NUM_STAGES,
        emulated=False,
        **settings,
    )
    with PlannerClient(url) as client:
        client.put_job(JOB_ID, job)
        client.put_profile_csv(JOB_ID, write_stage_profile(_profile()))
    return {"job_id": JOB_ID, **settings}


def _profile() -> StageProfile:
    """Stage 0 has less to do than stage 1, so that its clocks are low and change often."""
    kinds = ((InstructionKind.FORWARD, 0.02, 0.5), (InstructionKind.BACKWARD, 0.04, 0.8))
    points = {
        (stage, kind): tuple(
            _point(mhz, time_s * (0.7, 1.0)[stage], scaling)
            for mhz in range(HIGHEST_MHZ, 1000, -90)
        )
        for stage in range(NUM_STAGES)
        for kind, time_s, scaling in kinds
    }
    return StageProfile(points=points, num_ranks_per_stage=(1,) * NUM_STAGES)


def _point(mhz: int, shortest_s: float, scaling: float) -> OperatingPoint:
    """So much of the time shrinks as the clock rises; power is 80 W and the clock's cube."""
    share = mhz / HIGHEST_MHZ
    time_s = shortest_s * (1 - scaling + scaling / share)
    return OperatingPoint(frequency_mhz=mhz, time_s=time_s, energy_j=time_s * (80 + 220 * share**3))


def _figure(ranks: list[list[dict[str, Any]]], device: str, *, num_steps: int) -> TrainingFigure:
    # A step is over when all ranks have the loss: any rank's clock tells how long it took.
    pairs = ranks[0]
    blocks = [pair for rank in ranks for pair in rank]
    ratios = [
        statistics.median(pair["attached_s"]) / statistics.median(pair["alone_s"]) for pair in pairs
    ]
    return TrainingFigure(
        device=device,
        num_pairs=len(pairs),
        num_steps=num_steps,
        alone_s=statistics.median(step_s for pair in pairs for step_s in pair["alone_s"]),
        attached_s=statistics.median(step_s for pair in pairs for step_s in pair["attached_s"]),
        ratio=statistics.median(ratios),
        ratio_interval=_interval(ratios),
        switches_per_step=sum(block["num_switches"] for block in blocks)
        / (len(blocks) * num_steps),
        num_unplanned=sum(block["num_unplanned"] + block["num_without_plan"] for block in blocks),
        num_failures=sum(block["num_failures"] for block in blocks),
        taken=_taken(ranks),
    )


def _taken(ranks: list[list[dict[str, Any]]]) -> dict[str, float]:
    """The means over pairs; each rank tells of its own, and of the same planner."""

    def mean(part: str, pairs: list[dict[str, Any]], block: str = "attached") -> float:
        return statistics.fmean(pair[f"{block}_taken"][part] for pair in pairs)

    return {
        "governors": sum(mean("governors", pairs) for pairs in ranks),
        "threads": sum(mean("threads", pairs) for pairs in ranks),
        "planner": mean("planner", ranks[0]) - mean("planner", ranks[0], "alone"),
    }


def _interval(ratios: list[float]) -> tuple[float, float]:
    """Of their median; pairs are drawn and not steps, since neighbouring steps are alike."""
    draw = random.Random(1788)
    medians = [statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(NUM_RESAMPLES)]
    cuts = statistics.quantiles(medians, n=1000, method="inclusive")
    tail_share = (1 - CONFIDENCE) / 2
    return cuts[round(1000 * tail_share) - 1], cuts[round(1000 * (1 - tail_share)) - 1]
