"""One rank of a real DeepSpeed pipeline, by turns with Flyball attached and without; by torchrun.

`hooks_training.py PROBLEM.json FOLDER`, with the environment of `FalseGpus.variables`; each rank
writes FOLDER/rank-R.json. The problem: `planner_url`, `registration` (what `attach` is given),
`num_pairs` at most, `min_pairs`, `budget_s` after which no pair begins, `num_steps`, `device`: what
computes, `hooks_deepspeed.PROCESSOR` or `EMULATED`, `planner_pid`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import deepspeed
import torch
import torch.distributed
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import nn

from flyball_client.governor.process_governor import ProcessGovernor
from flyball_client.session.rank_session import RankSession
from flyball_integrations.deepspeed.pipeline import attach, detach
from flyball_lab.demo.training_loop import leave_out_deepspeed_helper
from hooks_cpu import cpu_time_ns, own_threads_time_ns
from hooks_deepspeed import EMULATED

NUM_BLOCKS, NUM_HEADS, MICROBATCH_SIZE = 4, 4, 4
# Of the model that the processor computes, and of one whose computations are slept through.
WIDTH, SEQUENCE_LENGTH = 256, 128
EMULATED_WIDTH, EMULATED_SEQUENCE_LENGTH = 32, 16
# Of one block and microbatch on the emulated device; a step then lasts as long as the other's.
EMULATED_FORWARD_S, EMULATED_BACKWARD_S = 0.010, 0.020
NUM_MICROBATCHES = 4
SEED = 1788
# For the governor, its standby and the plan to be there; and for those before to be gone.
ATTACHED_WARM_UP_S, ALONE_WARM_UP_S = 1.5, 0.5
MAX_WARM_UP_STEPS = 400

Samples = Iterator[tuple[torch.Tensor, torch.Tensor]]


def main(problem_file: Path, folder: Path) -> None:
    """Train in pairs of blocks; in every other pair the attached one comes first."""
    problem: dict[str, Any] = json.loads(problem_file.read_text(encoding="utf-8"))
    is_emulated = problem["device"] == EMULATED
    engine, samples = _engine(is_emulated), _samples(is_emulated)
    _train(engine, samples, 3)
    pairs: list[dict[str, Any]] = []
    until_s = time.monotonic() + problem["budget_s"]
    for number in range(problem["num_pairs"]):
        if _all_say(time.monotonic() > until_s) and number >= problem["min_pairs"]:
            break
        pair: dict[str, Any] = {}
        for is_attached in (True, False) if number % 2 else (False, True):
            block = _attached_block if is_attached else _alone_block
            pair |= block(engine, samples, problem)
        pairs.append(pair)
    rank = torch.distributed.get_rank()
    (folder / f"rank-{rank}.json").write_text(json.dumps(pairs), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _alone_block(
    engine: PipelineEngine, samples: Samples, problem: dict[str, Any]
) -> dict[str, Any]:
    _warm_up(engine, samples, None)
    steps_s, taken = _train_counted(engine, samples, problem, ())
    return {"alone_s": steps_s, "alone_taken": taken}


def _attached_block(
    engine: PipelineEngine, samples: Samples, problem: dict[str, Any]
) -> dict[str, Any]:
    session = attach(engine, planner_url=problem["planner_url"], **problem["registration"])
    _warm_up(engine, samples, session)
    switches_before = session.clock_report.num_switches
    # On NVML it is that one; its processes are nobody's business but here.
    governor = cast("ProcessGovernor", session._governor)
    steps_s, taken = _train_counted(engine, samples, problem, governor.pids)
    report = session.clock_report
    measured = session.history[-problem["num_steps"] :]
    detach(engine)
    return {
        "attached_s": steps_s,
        "attached_taken": taken,
        "num_switches": report.num_switches - switches_before,
        "num_failures": report.num_failures,
        "num_unplanned": sum(step.num_unplanned for step in measured),
        "num_without_plan": sum(step.plan_version is None for step in measured),
    }


def _warm_up(engine: PipelineEngine, samples: Samples, session: RankSession | None) -> None:
    """Until all ranks are on a plan where there is a session, and some time has gone by."""
    began_s = time.monotonic()
    lasting_s = ALONE_WARM_UP_S if session is None else ATTACHED_WARM_UP_S
    for _ in range(MAX_WARM_UP_STEPS):
        _train(engine, samples, 1)
        is_planned = session is None or (
            session.active_version is not None and session.clock_report.num_switches > 0
        )
        if _all_say(is_planned and time.monotonic() - began_s > lasting_s):
            return
    raise SystemExit(f"no plan in force after {MAX_WARM_UP_STEPS} steps")


def _train(engine: PipelineEngine, samples: Samples, num_steps: int) -> list[float]:
    """Return how long each step took, s."""
    taken_s: list[float] = []
    for _ in range(num_steps):
        began_s = time.perf_counter()
        # Ends with the loss's broadcast to all ranks.
        engine.train_batch(samples)
        taken_s.append(time.perf_counter() - began_s)
    return taken_s


def _train_counted(
    engine: PipelineEngine, samples: Samples, problem: dict[str, Any], governor_pids: Sequence[int]
) -> tuple[list[float], dict[str, float]]:
    """Time of each step, s, and use of a core by Flyball's parts meanwhile, a share."""
    before_ns, began_ns = _taken_ns(problem, governor_pids), time.monotonic_ns()
    steps_s = _train(engine, samples, problem["num_steps"])
    lasted_ns, after_ns = time.monotonic_ns() - began_ns, _taken_ns(problem, governor_pids)
    return steps_s, {part: (after_ns[part] - before_ns[part]) / lasted_ns for part in after_ns}


def _taken_ns(problem: dict[str, Any], governor_pids: Sequence[int]) -> dict[str, int]:
    return {
        "governors": sum(map(cpu_time_ns, governor_pids)),
        "threads": own_threads_time_ns("flyball-"),
        "planner": cpu_time_ns(problem["planner_pid"]),
    }


def _all_say(decision: bool) -> bool:
    said = torch.tensor([int(decision)])
    torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MIN)
    return bool(said.item())


class _Computation(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """Emulated computation on a device as the host sees it: a wait until it is over."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - torch's own
        del ctx
        time.sleep(EMULATED_FORWARD_S)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - torch's own
        del ctx
        time.sleep(EMULATED_BACKWARD_S)
        return gradient


class _EmulatedBlock(nn.TransformerEncoderLayer):  # type: ignore[misc]  # likewise
    """A block so small that its computation is the one that is waited for."""

    def forward(self, *inputs: Any, **options: Any) -> torch.Tensor:  # noqa: ANN401 - torch's own
        hidden: torch.Tensor = _Computation.apply(super().forward(*inputs, **options))
        return hidden


def _engine(is_emulated: bool) -> PipelineEngine:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    leave_out_deepspeed_helper()
    deepspeed.init_distributed("gloo")
    width = EMULATED_WIDTH if is_emulated else WIDTH
    block = _EmulatedBlock if is_emulated else nn.TransformerEncoderLayer
    model = PipelineModule(
        layers=[
            block(width, NUM_HEADS, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(NUM_BLOCKS)
        ],
        num_stages=torch.distributed.get_world_size(),
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


def _samples(is_emulated: bool) -> Samples:
    generator = torch.Generator().manual_seed(SEED)
    length = EMULATED_SEQUENCE_LENGTH if is_emulated else SEQUENCE_LENGTH
    shape = (MICROBATCH_SIZE, length, EMULATED_WIDTH if is_emulated else WIDTH)
    while True:
        sample = torch.randn(*shape, generator=generator)
        yield sample, sample.roll(1, dims=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
