"""Costs of an attached session: memory after millions of hooks, and time of DeepSpeed's steps.

`python hooks_training.py memory PROBLEM.json RESULT.json` calls the hooks; torchrun starts
`hooks_training.py train PROBLEM.json FOLDER` as one rank of a real pipeline of two stages, which
trains by turns with Flyball attached and without, in the same processes: what else the machine does
meets both alike. Each rank writes FOLDER/rank-R.json.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmark_report import Interval
from flyball_client.api.planner_client import PlannerClient
from flyball_lab.demo.options import child_environment, missing_prerequisites
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_wire.messages import JobRegistration
from hooks_series import HIGHEST_MHZ, CallRecord, planned_session
from measured_process import BenchmarkError, cpu_time_ns, run_process, run_script
from served_planner import served_planner

# ---------------------------------------------------------------------- memory

NUM_HOOKS, NUM_WARM_UP_HOOKS, HOOKS_GIVE_UP_S = 10_000_000, 1_000_000, 300.0
_MANY_MICROBATCHES, _HOOKS_PER_STEP = 5_000, 20_000
# Every so many instructions another clock: a request, a wake-up and a call of NVML.
_RUN_LENGTH, _CLOCKS_MHZ = 10, (1410, 1200, 1005)
# Shorter than the warm-up, so that what a session keeps on purpose is full by then.
_HISTORY_LENGTH = 4


def measure_memory(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return what ten million hooks leave in the rank, its governor and the standby.

    Args:
        variables: environment of the false GPUs.

    Raises:
        BenchmarkError: it failed, or the governor was replaced meanwhile.
    """
    problem = {"num_hooks": NUM_HOOKS, "num_warm_up_hooks": NUM_WARM_UP_HOOKS}
    script = Path(__file__).name
    found, _ = run_script(
        script, "memory", problem=problem, give_up_s=HOOKS_GIVE_UP_S, environment=variables
    )
    if not found["same_governor"]:
        raise BenchmarkError("the governor was replaced while its memory was measured")
    processes = [
        {
            "name": name,
            **before,
            "growth_mib": found["after"][name]["own_mib"] - before["own_mib"],
            "new_descriptors": found["after"][name]["num_descriptors"] - before["num_descriptors"],
        }
        for name, before in found["before"].items()
    ]
    hook_us = 1e6 * found["took_s"] / NUM_HOOKS
    return {**found, "num_hooks": NUM_HOOKS, "hook_us": hook_us, "processes": processes}


def _memory(num_hooks: int, num_warm_up_hooks: int) -> dict[str, Any]:
    """Warm up, look, call the hooks, look again."""
    instructions = tuple(
        (kind, microbatch, _CLOCKS_MHZ[microbatch // _RUN_LENGTH % len(_CLOCKS_MHZ)])
        for microbatch in range(_MANY_MICROBATCHES)
        for kind in ("forward", "backward")
    )
    with planned_session(instructions, history_length=_HISTORY_LENGTH) as opened:
        session, governor, planner = opened

        def run(num_hooks: int) -> None:
            for _ in range(-(-num_hooks // _HOOKS_PER_STEP)):
                session.on_step_begin()
                for kind, microbatch, _ in instructions:
                    session.on_instruction_begin(kind, microbatch=microbatch)
                    session.on_instruction_end(kind, microbatch=microbatch)
                session.on_step_end()
                # The planner of this benchmark lives in the same process, and keeps them all.
                planner.measurements.clear()

        run(num_warm_up_hooks)
        pids = {"rank": os.getpid(), "governor": governor.pids[0], "standby": governor.pids[1]}
        before = {name: _held(pid) for name, pid in pids.items()}
        began_s = time.perf_counter()
        run(num_hooks)
        return {
            "took_s": time.perf_counter() - began_s,
            "before": before,
            "after": {name: _held(pid) for name, pid in pids.items()},
            "num_switches": session.clock_report.num_switches,
            "num_unplanned": session.history[-1].num_unplanned,
            "same_governor": pids["governor"] == governor.pids[0],
        }


def _held(pid: int) -> dict[str, float]:
    """Return the memory that is the process's own, MiB, and its open descriptors."""
    gc.collect()
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kib = {name: int(value) for name, value, *_ in (line.split() for line in lines)}
    return {
        "own_mib": (kib["Private_Clean:"] + kib["Private_Dirty:"]) / 1024,
        "num_descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


# ---------------------------------------------------------------------- DeepSpeed's steps

# What the ranks compute on: the machine's own cores, which Flyball's processes and the planner then
# share with them; or a device that leaves the cores free, as a GPU does: their computations are
# slept through.
PROCESSOR, EMULATED = "the processor", "an emulated device"
DEVICES = (PROCESSOR, EMULATED)
NUM_STAGES, NUM_MICROBATCHES, NUM_STEPS = 2, 4, 10
# As NVML needs on a V100.
SET_LATENCY_US = 5000
# On a busy machine there are fewer pairs, and a wider interval.
NUM_PAIRS, MIN_PAIRS, BUDGET_S, GIVE_UP_S = 24, 6, 240.0, 900.0
SEED = 1788
JOB_ID = "hooks"
_SETTINGS: dict[str, Any] = {"blocking_power_w": (80.0,), "reconfigure": "default"}


@dataclass(frozen=True, kw_only=True)
class TrainingFigure:
    """Step times with Flyball attached, a plan in force, beside those without.

    Attributes:
        device: one of DEVICES.
        num_pairs: of blocks of `num_steps` each.
        alone_s, attached_s: the median step without and with it, s.
        ratio: the median of the pairs' own ratios, each of two neighbouring blocks.
        ratio_interval: of that, 95 %, by resampling pairs.
        switches_per_step: clocks set per step and rank.
        num_unplanned: instructions that the plan did not expect, and steps without one.
        taken: what Flyball took of a core meanwhile, a share: `governors` and `threads` of all
            ranks, with the standbys; `planner`, beyond what it takes while nobody is attached.
    """

    device: str
    num_pairs: int
    num_steps: int
    alone_s: float
    attached_s: float
    ratio: float
    ratio_interval: Interval
    switches_per_step: float
    num_unplanned: int
    taken: dict[str, float]


def measure_training(
    variables: Mapping[str, str], record: CallRecord, device: str
) -> TrainingFigure:
    """Train on one of DEVICES for about 4 minutes.

    Raises:
        BenchmarkError: DeepSpeed cannot run here, or the run failed.
    """
    if missing := missing_prerequisites():
        raise BenchmarkError(f"DeepSpeed cannot run here; missing: {', '.join(missing)}")
    record.begin(set_latency_us=SET_LATENCY_US)
    with tempfile.TemporaryDirectory() as path, served_planner(Path(path)) as planner:
        with PlannerClient(planner.url) as client:
            client.put_job(JOB_ID, _registration())
            client.put_profile_csv(JOB_ID, write_stage_profile(_profile()))
        problem = Path(path) / "problem.json"
        problem.write_text(
            json.dumps({"url": planner.url, "planner_pid": planner.process.pid, "device": device}),
            encoding="utf-8",
        )
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(NUM_STAGES)),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
            *("--local-addr", "127.0.0.1", "--log-dir", str(Path(path) / "torchrun")),
            *(__file__, "train", str(problem), path),
        ]
        environment = child_environment({}) | {**variables, "TMPDIR": path}
        run_process(command, give_up_s=GIVE_UP_S, environment=environment)
        ranks = [
            json.loads((Path(path) / f"rank-{rank}.json").read_text(encoding="utf-8"))
            for rank in range(NUM_STAGES)
        ]
    return _figure(ranks, device)


def _registration() -> JobRegistration:
    return JobRegistration(
        num_stages=NUM_STAGES,
        num_microbatches=NUM_MICROBATCHES,
        num_ranks=NUM_STAGES,
        emulated=False,
        **_SETTINGS,
    )


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


def _figure(ranks: list[list[dict[str, Any]]], device: str) -> TrainingFigure:
    # A step is over when all ranks have the loss: any rank's clock tells how long it took.
    pairs = ranks[0]
    blocks = [pair for rank in ranks for pair in rank]
    ratios = [
        statistics.median(pair["attached_s"]) / statistics.median(pair["alone_s"]) for pair in pairs
    ]

    def taken(part: str, pairs: list[dict[str, Any]], block: str = "attached") -> float:
        return statistics.fmean(pair[f"{block}_taken"][part] for pair in pairs)

    return TrainingFigure(
        device=device,
        num_pairs=len(pairs),
        num_steps=NUM_STEPS,
        alone_s=statistics.median(step_s for pair in pairs for step_s in pair["alone_s"]),
        attached_s=statistics.median(step_s for pair in pairs for step_s in pair["attached_s"]),
        ratio=statistics.median(ratios),
        # Pairs are drawn and not steps, since neighbouring steps are alike.
        ratio_interval=Interval.of(ratios, statistics.median),
        switches_per_step=statistics.fmean(block["num_switches"] for block in blocks) / NUM_STEPS,
        num_unplanned=sum(block["num_unplanned"] for block in blocks),
        # Each rank tells of its own processes, and of the same planner.
        taken={
            "governors": sum(taken("governors", pairs) for pairs in ranks),
            "threads": sum(taken("threads", pairs) for pairs in ranks),
            "planner": taken("planner", pairs) - taken("planner", pairs, "alone"),
        },
    )


# ---------------------------------------------------------------------- a rank of it

NUM_BLOCKS, NUM_HEADS, MICROBATCH_SIZE = 4, 4, 4
# Width and sequence length of the model that each device computes. The emulated device's own
# computations are so small that the wait for them is what counts.
_SHAPES = {PROCESSOR: (256, 128), EMULATED: (32, 16)}
# Of one block and microbatch on the emulated device; a step then lasts as long as the other's.
EMULATED_FORWARD_S, EMULATED_BACKWARD_S = 0.010, 0.020
# For the governor, its standby and the plan to be there; and for those before to be gone.
ATTACHED_WARM_UP_S, ALONE_WARM_UP_S, MAX_WARM_UP_STEPS = 1.5, 0.5, 400


class _Training:
    """A rank of the pipeline; its steps end with the loss's broadcast to all ranks."""

    def __init__(self, problem: dict[str, Any]) -> None:
        import torch.distributed  # noqa: PLC0415 - in the ranks alone

        self.distributed = torch.distributed
        self.problem = problem
        self.engine = _engine(problem["device"])
        self.samples = _samples(problem["device"])

    def steps(self, num_steps: int) -> list[float]:
        """Train; return how long each step took, s."""
        taken_s: list[float] = []
        for _ in range(num_steps):
            began_s = time.perf_counter()
            self.engine.train_batch(self.samples)
            taken_s.append(time.perf_counter() - began_s)
        return taken_s

    def all_say(self, decision: bool) -> bool:
        """Return whether all ranks decide so."""
        import torch  # noqa: PLC0415 - as above

        said = torch.tensor([int(decision)])
        self.distributed.all_reduce(said, op=self.distributed.ReduceOp.MIN)
        return bool(said.item())

    def warm_up(self, is_planned: Callable[[], bool], lasting_s: float) -> None:
        """Train until all ranks are on a plan, and some time has gone by."""
        began_s = time.monotonic()
        for _ in range(MAX_WARM_UP_STEPS):
            self.steps(1)
            if self.all_say(is_planned() and time.monotonic() - began_s > lasting_s):
                return
        raise SystemExit(f"no plan in force after {MAX_WARM_UP_STEPS} steps")

    def counted(self, block: str, governor_pids: Sequence[int]) -> dict[str, Any]:
        """Return times of a block's steps, s, and use of a core by Flyball's parts meanwhile."""
        before_ns, began_ns = self._taken_ns(governor_pids), time.monotonic_ns()
        steps_s = self.steps(NUM_STEPS)
        lasted_ns, after_ns = time.monotonic_ns() - began_ns, self._taken_ns(governor_pids)
        taken = {part: (after_ns[part] - before_ns[part]) / lasted_ns for part in after_ns}
        return {f"{block}_s": steps_s, f"{block}_taken": taken}

    def _taken_ns(self, governor_pids: Sequence[int]) -> dict[str, int]:
        own = [thread.ident for thread in threading.enumerate() if "flyball-" in thread.name]
        clocks = [time.pthread_getcpuclockid(ident) for ident in own if ident]
        return {
            "governors": sum(map(cpu_time_ns, governor_pids)),
            "threads": sum(map(time.clock_gettime_ns, clocks)),
            "planner": cpu_time_ns(self.problem["planner_pid"]),
        }

    def alone_block(self) -> dict[str, Any]:
        """Train a block without Flyball."""
        self.warm_up(lambda: True, ALONE_WARM_UP_S)
        return self.counted("alone", ())

    def attached_block(self) -> dict[str, Any]:
        """Train a block on a plan."""
        from flyball_client.governor.process_governor import ProcessGovernor  # noqa: PLC0415
        from flyball_integrations.deepspeed.pipeline import attach, detach  # noqa: PLC0415

        url = self.problem["url"]
        session = attach(self.engine, planner_url=url, job_id=JOB_ID, **_SETTINGS)
        self.warm_up(
            lambda: session.active_version is not None and session.clock_report.num_switches > 0,
            ATTACHED_WARM_UP_S,
        )
        switches_before = session.clock_report.num_switches
        # On NVML it is that one; its processes are nobody's business but here.
        governor = cast("ProcessGovernor", session._governor)
        figures = self.counted("attached", governor.pids)
        measured = session.history[-NUM_STEPS:]
        figures["num_switches"] = session.clock_report.num_switches - switches_before
        figures["num_unplanned"] = sum(
            step.num_unplanned + (step.plan_version is None) for step in measured
        )
        detach(self.engine)
        return figures


def _train(problem: dict[str, Any], folder: Path) -> None:
    """Train in pairs of blocks; in every other pair the attached one comes first."""
    training = _Training(problem)
    training.steps(3)
    pairs: list[dict[str, Any]] = []
    until_s = time.monotonic() + BUDGET_S
    while len(pairs) < NUM_PAIRS:
        if training.all_say(time.monotonic() > until_s) and len(pairs) >= MIN_PAIRS:
            break
        blocks = [training.alone_block, training.attached_block]
        if len(pairs) % 2:
            blocks.reverse()
        pairs.append({**blocks[0](), **blocks[1]()})
    rank = training.distributed.get_rank()
    (folder / f"rank-{rank}.json").write_text(json.dumps(pairs), encoding="utf-8")
    training.distributed.barrier()
    training.distributed.destroy_process_group()


def _engine(device: str) -> Any:  # noqa: ANN401 - DeepSpeed has no types here
    import deepspeed  # noqa: PLC0415 - as above
    import torch  # noqa: PLC0415
    from deepspeed.pipe import PipelineModule  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    from flyball_lab.demo.training_loop import leave_out_deepspeed_helper  # noqa: PLC0415

    class Computation(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
        """Emulated computation on a device as the host sees it: a wait until it is over."""

        @staticmethod
        def forward(ctx: Any, hidden: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - torch's own
            del ctx
            time.sleep(EMULATED_FORWARD_S)
            return hidden.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - likewise
            del ctx
            time.sleep(EMULATED_BACKWARD_S)
            return gradient

    class EmulatedBlock(nn.TransformerEncoderLayer):  # type: ignore[misc]  # likewise
        """A block so small that its computation is the one that is waited for."""

        def forward(self, *inputs: Any, **options: Any) -> torch.Tensor:  # noqa: ANN401
            hidden: torch.Tensor = Computation.apply(super().forward(*inputs, **options))
            return hidden

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    leave_out_deepspeed_helper()
    deepspeed.init_distributed("gloo")
    width, _ = _SHAPES[device]
    block = EmulatedBlock if device == EMULATED else nn.TransformerEncoderLayer
    model = PipelineModule(
        layers=[
            block(width, NUM_HEADS, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(NUM_BLOCKS)
        ],
        num_stages=NUM_STAGES,
        loss_fn=nn.functional.mse_loss,
        partition_method="uniform",
    )
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
        config={
            "train_micro_batch_size_per_gpu": MICROBATCH_SIZE,
            "gradient_accumulation_steps": NUM_MICROBATCHES,
            "steps_per_print": 10**9,
        },
    )
    return engine


def _samples(device: str) -> Iterator[Any]:
    import torch  # noqa: PLC0415 - as above

    generator = torch.Generator().manual_seed(SEED)
    width, length = _SHAPES[device]
    while True:
        sample = torch.randn(MICROBATCH_SIZE, length, width, generator=generator)
        yield sample, sample.roll(1, dims=1)


def main(what: str, problem_file: str, result: str) -> None:
    """Call hooks, or train as one rank."""
    problem = json.loads(Path(problem_file).read_text(encoding="utf-8"))
    if what == "train":
        _train(problem, Path(result))
    else:
        Path(result).write_text(json.dumps(_memory(**problem)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
