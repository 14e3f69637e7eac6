"""Loops without a pipeline under DDP and FSDP2, run by each rank of test_data_parallel.py."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed
from tests.integration.rank_server import Findings
from tests.integration.trainings import (
    BLOCKING_POWER_W,
    all_ranks_say,
    meet,
    numbers_of,
    points,
    printed_by,
    rank_0_says,
    samples,
    takes_profile,
)
from tests.planner.patience import wait_until
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from flyball_client.api.errors import PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import IDEAL_GPU, EmulatedGpu, LeapingClock
from flyball_client.session.instruction_timings import InstructionTiming
from flyball_client.session.rank_session import RankSession
from flyball_integrations.data_parallel import attach, detach, steps, training_step
from flyball_integrations.data_parallel.rank_waits import DDP_WAITS, FSDP_WAITS, RankWaits
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import StageProfile
from flyball_wire.plan_options import TargetChange

WorkOf = Callable[[int, int, int], float]
"""Work of a microbatch, from rank, step and microbatch."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "data_parallel_loop.py"
KINDS = ("ddp", "fsdp")
NUM_RANKS = 2
# Of a step of both ranks: SM clock in MHz, time in s, energy in J.
ROWS = (
    (1410, 1.00, 600.0),
    (1305, 1.03, 540.0),
    (1200, 1.07, 500.0),
    (1005, 1.20, 472.0),
    (900, 1.33, 480.0),
)
# Of a forward and a backward, as parts of that step.
PARTS = {InstructionKind.FORWARD: 1 / 3, InstructionKind.BACKWARD: 2 / 3}
NUM_MICROBATCHES = 4
# Up to a quarter of the steps of a detector's window may precede a slowdown, which is then found up
# to 6 % too small: still between the times of 1005 and 900 MHz, so the plan is the same.
STRAGGLER, SLOWDOWN = 1, 1.28
# After "slowdown:0.05": targets and the clocks of the steps under them.
TARGETS = {
    "ddp": (("power:470", 1200), ("least-energy", 1005), ("fastest", 1410)),
    "fsdp": (("fastest", 1410),),
}
# Of DistributedDataParallel: False within `no_sync`.
_AVERAGES = "require_backward_grad_sync"
_SIZES = ("--tiny", "--steps", "3")
_WIDTH = 8
_PATIENCE_S = 60.0
# Between steps that take no time, so that a plan can come.
_PAUSE_S = 0.01
_NUM_MEASURED = 3
_NUM_WITH_WORK = 6
_NUM_BATCHES = 8
# Time in s within a step for the exchange of the next one.
_EXCHANGE_S = 0.1


def step_profile() -> StageProfile:
    """Profile of the steps above."""
    return StageProfile(
        points={(0, InstructionKind.STEP): points(ROWS)}, num_ranks_per_stage=(NUM_RANKS,)
    )


def microbatch_profile() -> StageProfile:
    """Profile of its forwards and backwards."""
    return StageProfile(
        points={
            (0, kind): points(
                [(mhz, part * time_s, part * energy_j) for mhz, time_s, energy_j in ROWS]
            )
            for kind, part in PARTS.items()
        },
        num_ranks_per_stage=(NUM_RANKS,),
    )


class Training:
    """A model under DDP or FSDP2 from the same seed as all others, with dropout and momentum."""

    def __init__(self, kind: str) -> None:
        torch.manual_seed(7)
        norm = nn.BatchNorm1d if kind == "ddp" else nn.LayerNorm
        layers = [
            nn.Sequential(nn.Linear(_WIDTH, _WIDTH), norm(_WIDTH), nn.Dropout(0.1))
            for _ in range(3)
        ]
        model = nn.Sequential(*layers, nn.Linear(_WIDTH, _WIDTH))
        self.model: nn.Module = DistributedDataParallel(model) if kind == "ddp" else model
        if kind == "fsdp":
            mesh = init_device_mesh("cpu", (NUM_RANKS,), mesh_dim_names=("dp",))
            for layer in layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.losses: list[str] = []
        rank = torch.distributed.get_rank()
        self._samples = samples(4, _WIDTH, seed=11 + rank)

    def step(self, *, num_accumulated: int = 1, averages_each: bool = False) -> None:
        """Train one step of the optimizer."""
        for number in range(num_accumulated):
            is_last = averages_each or number + 1 == num_accumulated
            with self._without_reduction() if not is_last else nullcontext():
                self._loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step_on(self, batches: Sequence[torch.Tensor]) -> None:
        """Train one step of the optimizer on these batches."""
        for number, batch in enumerate(batches):
            is_last = number + 1 == len(batches)
            with self._without_reduction() if not is_last else nullcontext():
                loss = nn.functional.mse_loss(self.model(batch), batch)
                self.losses.append(loss.item().hex())
                loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def evaluate(self) -> None:
        """Compute a loss of an evaluation."""
        self.model.eval()
        with torch.no_grad():
            self._loss()
        self.model.train()

    def fail(self) -> None:
        """Run a step that raises after its backward."""
        self._loss().backward()
        raise ArithmeticError("this batch is bad")

    def findings(self) -> Findings:
        """Return what must not depend on Flyball."""
        parameters = (
            each.full_tensor() if isinstance(each, DTensor) else each
            for each in self.model.parameters()
        )
        numbers = numbers_of(parameters)
        return {"losses": self.losses, "parameters": numbers}

    def _loss(self) -> torch.Tensor:
        sample, label = next(self._samples)
        loss = nn.functional.mse_loss(self.model(sample), label)
        self.losses.append(loss.item().hex())
        return loss

    def _without_reduction(self) -> Any:  # noqa: ANN401 - torch's context
        if isinstance(self.model, DistributedDataParallel):
            return self.model.no_sync()
        stack = ExitStack()
        self.model.set_requires_gradient_sync(False)
        stack.callback(self.model.set_requires_gradient_sync, True)
        return stack


# ------------------------------------------------------------------ the same bits


def _trained(kind: str, step_of: Callable[[nn.Module], Any]) -> Training:
    """Steps with accumulation, an evaluation and an exception between them."""
    training = Training(kind)
    for number in range(6):
        if number == 3:
            training.evaluate()
            try:
                with step_of(training.model):
                    training.fail()
            except ArithmeticError:
                training.optimizer.zero_grad()
        with step_of(training.model):
            training.step(num_accumulated=2 if number % 2 else 1)
    return training


def trained_as_torch_does(kind: str) -> Findings:
    """Train without Flyball."""
    return _trained(kind, lambda model: nullcontext()).findings()


def trained_with_flyball(kind: str) -> Findings:
    """Train the same under Flyball, on the emulated GPU of the environment, without a planner."""
    opened: list[tuple[RankSession, list[str]]] = []

    def step_of(model: nn.Module) -> Any:  # noqa: ANN401 - a context
        if not opened:
            before = _replaced(model)
            # Nothing listens on this port.
            planner_url = "http://127.0.0.1:9"
            opened.append((attach(model, job_id=kind, planner_url=planner_url), before))
        return training_step(model)

    training = _trained(kind, step_of)
    session, before = opened[0]
    timings, history = session.last_step_timings, session.history
    metrics, while_attached = session.metrics(), _replaced(training.model)
    detach(training.model)
    return training.findings() | {
        "num_replaced": len(while_attached) - len(before),
        "is_restored": _replaced(training.model) == before,
        "steps": [one.step for one in history],
        "last_step": [[one.kind, one.microbatch, one.compute_time_s] for one in timings],
        "is_emulated": metrics["flyball/is_emulated"],
    }


def _replaced(model: nn.Module) -> list[str]:
    """Return what is set on the instances of the model's modules and parameter groups."""
    found: list[str] = []
    for name, module in model.named_modules():
        owners: list[object] = [module]
        if isinstance(module, FSDPModule):
            owners += module._get_fsdp_state()._fsdp_param_groups
        found += [
            f"{name}.{attribute}"
            for owner in owners
            for attribute in (*DDP_WAITS, *FSDP_WAITS)
            if attribute in vars(owner)
        ]
        found += [f"{name} hook"] * len(module._forward_hooks)
    return found


# ------------------------------------------------------------------ announced


class Sequences:
    """Loader of batches of sequences, whose number differs by rank and batch."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(torch.distributed.get_rank())
        for number in range(_NUM_BATCHES):
            self.position = number + 1
            yield torch.randn(num_rows_of(number), _WIDTH, generator=generator)

    def state_dict(self) -> dict[str, int]:
        """Return the number of batches that were read."""
        return {"position": self.position}


def num_rows_of(number: int) -> int:
    """Return the number of sequences of this rank's batch."""
    rank: int = torch.distributed.get_rank()
    return 2 + (5 * number + rank) % 7


def announced(kind: str, num_batches: int) -> Findings:
    """Train an epoch of batches that differ, without Flyball and with each step announced."""
    posted: list[Any] = []

    def trained(batches_of: Callable[[Training, Sequences], Iterator[list[torch.Tensor]]]) -> Any:  # noqa: ANN401
        training, loader = Training(kind), Sequences()
        positions = []
        for batches in batches_of(training, loader):
            with training_step(training.model):
                training.step_on(batches)
                time.sleep(_EXCHANGE_S)
            positions.append(loader.state_dict())
        detach(training.model)
        return training.findings() | {"positions": positions}

    def as_torch_does(training: Training, loader: Sequences) -> Iterator[list[torch.Tensor]]:
        del training
        batches = iter(loader)
        while read := list(islice(batches, num_batches)):
            yield read

    def with_flyball(training: Training, loader: Sequences) -> Iterator[list[torch.Tensor]]:
        attach(
            training.model,
            job_id=f"announced-{kind}",
            planner_url="http://127.0.0.1:9",
            announces_work=True,
        )
        lengths_of = lambda batch: [1] * len(batch)  # noqa: E731
        return iter(steps(loader, lengths=lengths_of, accumulate=num_batches))

    stock = trained(as_torch_does)
    with mock.patch.object(RankSession, "_post", lambda _, each: posted.append(each)):
        found = trained(with_flyball)
    return {"stock": stock, "flyball": found, "work": [each.work for each in posted]}


# ------------------------------------------------------------------ in virtual time


class VirtualJob:
    """A job of a real planner, in virtual time: waits last until all ranks have come."""

    def __init__(self, kind: str, job_id: str, **options: Any) -> None:  # noqa: ANN401 - attach's
        self.job_id = job_id
        self.clock = LeapingClock()
        settings = replace(
            IDEAL_GPU, noise=options.pop("noise", 0.0), seed=torch.distributed.get_rank()
        )
        self.profile = step_profile() if "num_microbatches" not in options else microbatch_profile()
        self._averages_each = options.pop("averages_each", True)
        self._num_accumulated = options.get("num_microbatches", 1)
        self.gpu = EmulatedGpu(
            self.profile,
            0,
            blocking_power_w=BLOCKING_POWER_W,
            settings=settings,
            counter_period_s=0.001,
            work=options.pop("work", None),
            clock=self.clock,
        )
        self.training = Training(kind)
        self.timings: list[InstructionTiming] = []
        self.planner = PlannerClient(os.environ["PLANNER_URL"])
        self.session = attach(
            self.training.model,
            job_id=job_id,
            planner_url=os.environ["PLANNER_URL"],
            gpu=self.gpu,
            target=options.pop("target", "slowdown:0.05"),
            blocking_power_w=BLOCKING_POWER_W,
            **options,
        )

    def close(self) -> None:
        """End the job's ranks."""
        detach(self.training.model)
        self.planner.close()

    def step(self) -> None:
        """Train one step."""
        end = RankWaits.end

        def end_together(waits: RankWaits) -> None:
            if waits.is_in_step and getattr(self.training.model, _AVERAGES, True):
                meet(self.clock)
            end(waits)

        with mock.patch.object(RankWaits, "end", end_together), training_step(self.training.model):
            self.training.step(
                num_accumulated=self._num_accumulated, averages_each=self._averages_each
            )
        self.timings += self.session.last_step_timings
        time.sleep(_PAUSE_S)

    def run_until(self, is_over: Callable[[], bool]) -> bool:
        """Train until rank 0 finds that it is over; return False where it takes too long."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not rank_0_says(is_over() if torch.distributed.get_rank() == 0 else False):
            if _is_late(deadline_s):
                return False
            self.step()
        return True

    def take_profile(self) -> None:
        """Give the job its profile, and wait for the plan."""
        self.run_until(lambda: takes_profile(self.planner, self.job_id, self.profile))
        self.await_plan()

    def await_plan(self) -> None:
        """Return once this rank has received a plan, without a step: they take no time."""
        wait_until(lambda: len(self.session.plans) > 0)

    def run_on(self, sm_clock_mhz: int) -> list[Any]:
        """Train until rank 0 runs at this clock, and some steps more; return the last of them."""
        self.run_until(
            lambda: [one.sm_clock_mhz for one in self.session.last_step_timings] == [sm_clock_mhz]
        )
        versions: list[int | None] = [None, 0]
        while len(set(versions)) > 1:  # a rank may receive the plan some steps after rank 0
            self.step()
            torch.distributed.all_gather_object(versions, self.session.history[-1].plan_version)
        for _ in range(_NUM_MEASURED):
            self.step()
        measured, (timing,) = self.session.history[-1], self.session.last_step_timings
        return [
            timing.sm_clock_mhz,
            timing.compute_time_s,
            measured.time_s,
            measured.energy_j,
            measured.num_unplanned,
            measured.num_overruns,
        ]


def planned(kind: str) -> Findings:
    """A job with its profile, under one target after another, and DDP's then with a straggler."""
    job = VirtualJob(kind, f"planned-{kind}", adaptation="frontier")
    job.take_profile()
    found: Findings = {"slowdown:0.05": job.run_on(1305)}
    for target, sm_clock_mhz in TARGETS[kind]:
        if torch.distributed.get_rank() == 0:
            job.planner.put_target(job.job_id, TargetChange(target=target))
        job.await_plan()
        found[target] = job.run_on(sm_clock_mhz)
    if kind == "ddp":  # a straggler
        if torch.distributed.get_rank() == STRAGGLER:
            job.gpu.set_slowdown(SLOWDOWN)
        found["straggler"] = job.run_on(1005)
    if torch.distributed.get_rank() == 0:
        found["stragglers"] = [
            [one.rank, one.source, one.slowdown] for one in job.planner.list_stragglers(job.job_id)
        ]
        report = job.planner.get_job(job.job_id)
        found["places"] = [[one.rank, one.stage, one.dp_rank] for one in report.ranks]
        found["registration"] = report.registration.schedule
    job.close()
    return found


def with_work() -> Findings:
    """DDP without a plan: one rank has half as much work again, and another one in each step."""
    rank = torch.distributed.get_rank()
    job = VirtualJob("ddp", "work", work=lambda step, microbatch: work_of(rank, step))
    for _ in range(_NUM_WITH_WORK):
        job.step()
    found: Findings = {
        "times_s": [one.time_s for one in job.session.history],
        "compute_s": [one.compute_time_s for one in job.timings],
        "num_overruns": job.gpu.num_overruns,
    }
    job.close()
    return found


def with_own_clocks() -> Findings:
    """DDP whose ranks announce that work, until steps have had clocks of their own."""
    rank = torch.distributed.get_rank()
    job = VirtualJob(
        "ddp", "own-clocks", work=lambda step, microbatch: work_of(rank, step), announces_work=True
    )
    job.take_profile()
    number = job.session.current_step
    deadline_s = time.monotonic() + _PATIENCE_S
    for _ in steps(count(number), lengths=lambda number: work_of(rank, number)):
        job.step()
        time.sleep(_EXCHANGE_S)
        if _has_own_clocks(job, num_steps=_NUM_WITH_WORK) or _is_late(deadline_s):
            break
    last = list(zip(job.timings, job.session.history, strict=True))[-_NUM_WITH_WORK:]
    found: Findings = {
        "work": [work_of(rank, step.step) for _, step in last],
        "ran": [[timing.sm_clock_mhz, timing.compute_time_s, step.time_s] for timing, step in last],
    }
    job.close()
    return found


def _has_own_clocks(job: VirtualJob, *, num_steps: int) -> bool:
    """Return whether on all ranks enough steps had clocks of their own, also among the last."""
    num_timings = len(job.timings) // len(job.session.history)
    are_own = [one.sm_clock_mhz == 900 for one in job.timings]
    num_own, num_lately = sum(are_own), sum(are_own[-num_steps * num_timings :])
    return all_ranks_say(num_own > num_steps * num_timings / 2 and num_lately > num_timings)


def _is_late(deadline_s: float) -> bool:
    return rank_0_says(time.monotonic() > deadline_s)


def with_microbatches(kind: str, work_of: WorkOf, *, averages_each: bool = True) -> Findings:
    """Accumulated microbatches that differ, until steps have had clocks of their own."""
    rank, number = torch.distributed.get_rank(), NUM_MICROBATCHES
    job = VirtualJob(
        kind,
        f"microbatches-{kind}-{averages_each}",
        work=lambda step, microbatch: work_of(rank, step, microbatch),
        announces_work=True,
        averages_each=averages_each,
        num_microbatches=number,
        target="fastest",
    )
    job.take_profile()
    first = job.session.current_step * number
    deadline_s = time.monotonic() + _PATIENCE_S
    loader = steps(
        count(first),
        lengths=lambda batch: work_of(rank, batch // number, batch % number),
        accumulate=number,
    )
    for batches in loader:
        assert len(list(batches)) == number
        job.step()
        time.sleep(_EXCHANGE_S)
        if _has_own_clocks(job, num_steps=_NUM_WITH_WORK) or _is_late(deadline_s):
            break
    size = 2 * number
    ran = [job.timings[at : at + size] for at in range(0, len(job.timings), size)]
    in_last = list(zip(job.session.history, ran, strict=True))[-_NUM_WITH_WORK:]
    found: Findings = {
        "ran": [
            [
                step.step,
                step.time_s,
                [[one.kind, one.microbatch, one.sm_clock_mhz, one.compute_time_s] for one in each],
            ]
            for step, each in in_last
        ],
        "num_unplanned": sum(one.num_unplanned for one in job.session.history),
        "num_overruns": job.gpu.num_overruns,
        "flyball": job.training.findings(),
    }
    num_steps = len(job.session.history)
    job.close()
    stock = Training(kind)
    for _ in range(num_steps):
        stock.step(num_accumulated=number, averages_each=averages_each)
    return found | {"stock": stock.findings()}


def work_of(rank: int, step: int) -> float:
    """Return the work of a rank's step."""
    return 1.5 if (rank + step) % 2 else 1.0


def microbatch_work_of(rank: int, step: int, microbatch: int) -> float:
    """Return the work of a microbatch: half of each rank's have more."""
    return work_of(rank, step + microbatch)


def uneven_work_of(rank: int, step: int, microbatch: int) -> float:
    """Return the work of a microbatch: the rank with less in sum has as much in the first."""
    return 1.5 if (rank + step) % 2 else (1.5, 0.5, 1.0, 1.0)[microbatch]


def profiled_online(kind: str) -> Findings:
    """A job without a profile, measured while it trains."""
    job = VirtualJob(
        kind, f"online-{kind}", profiling="online", profiling_slowdown=0.5, noise=0.002
    )
    is_measured = job.run_until(lambda: _profiling_state(job) in {"finished", "refused"})
    found: Findings = {"is_measured": is_measured, "ran": job.run_on(1305)}
    if torch.distributed.get_rank() == 0:
        status = job.planner.get_profiling(job.job_id)
        found["state"], found["problem"] = status.state, status.problem
        found["points"] = [
            [point.instruction, point.frequency_mhz, point.time_s, point.energy_j]
            for point in status.points
        ]
    job.close()
    return found


def _profiling_state(job: VirtualJob) -> str:
    try:
        return str(job.planner.get_profiling(job.job_id).state)
    except PlannerError:  # not registered yet
        return ""


def scenarios() -> Iterator[tuple[str, Findings]]:
    """All of it with DDP and with FSDP2."""
    for kind in KINDS:
        yield f"{kind} stock", trained_as_torch_does(kind)
        yield f"{kind} flyball", trained_with_flyball(kind)
        yield f"{kind} planned", planned(kind)
    yield "fsdp microbatches", with_microbatches("fsdp", microbatch_work_of)
    yield "ddp no_sync", with_microbatches("ddp", uneven_work_of, averages_each=False)
    yield "online", profiled_online("ddp")
    yield "work", with_work()
    yield "own clocks", with_own_clocks()
    yield "ddp announced", announced("ddp", 2)
    yield "fsdp announced", announced("fsdp", 1)
    for kind, options in (("ddp", ("--accumulate", "2", "--lengths")), ("fsdp", ("--fsdp",))):
        yield f"{kind} example", {"printed": printed_by(EXAMPLE, *_SIZES, *options)}
