"""One rank of a training whose steps are announced, by turns with the same steps unannounced.

torchrun starts `announced_rank.py CASE PLANNER_URL FOLDER` for `announced_steps.py`.
"""

from __future__ import annotations

import json
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from announced_cases import (
    BLOCKING_POWER_W,
    CASES,
    NUM_PAIRS,
    NUM_STEPS,
    SEED,
    WAYS,
    Case,
    num_planned,
)
from flyball_client.gpu.emulated import IDEAL_GPU, EmulatedGpu
from flyball_client.session.rank_session import RankSession
from flyball_integrations import data_parallel
from flyball_integrations.shared.attach_options import AttachOptions
from served_planner import put_profile_of_job

JOB_ID = "announced"
WARM_UP_STEPS = 400
WIDTH = 8


class Training(ABC):
    """A rank on an emulated GPU, whose steps take what their sequences need.

    Args:
        case: the training.
        stage: of this rank.
        pipeline: of this rank.
    """

    def __init__(self, case: Case, stage: int, pipeline: int) -> None:
        self._case, self._pipeline = case, pipeline
        # Of the step that a step repeats.
        self._repeated: dict[int, int] = {}
        self.gpu = EmulatedGpu(
            case.profile(),
            stage,
            blocking_power_w=BLOCKING_POWER_W,
            settings=IDEAL_GPU,
            work=self._factor,
        )

    def options(self, url: str) -> AttachOptions:
        """Return the options of every framework's `attach`."""
        return {
            "planner_url": url,
            "gpu": self.gpu,
            "blocking_power_w": (BLOCKING_POWER_W,),
            # Of the emulated GPU, whose clocks change at once.
            "transition_ms": 0.0,
            "announces_work": True,
        }

    @property
    @abstractmethod
    def session(self) -> RankSession:
        """Session of the rank."""

    @abstractmethod
    def train_step(self) -> None:
        """Train the next step."""

    @abstractmethod
    def close(self) -> None:
        """Detach."""

    def run(self, steps: Sequence[int], *, announces: bool) -> None:
        """Train steps that repeat these; the first of them must have been announced before."""
        for number, like in enumerate(steps):
            self._repeated[self.session.current_step] = like
            if announces and number + 1 < len(steps):
                self.announce(steps[number + 1])
            self.train_step()

    def announce(self, like: int) -> None:
        """Announce the step after the next one."""
        work = self._case.lengths(like, self._pipeline)
        self.session.announce_step(work, step=self.session.current_step + 1)

    def _factor(self, step: int, microbatch: int) -> float:
        return self._case.factor(self._repeated.get(step, step), self._pipeline, microbatch)


class DataParallel(Training):
    """DDP, or FSDP2 where ranks meet in each microbatch."""

    def __init__(self, case: Case, url: str) -> None:
        super().__init__(case, 0, torch.distributed.get_rank())
        self._model: nn.Module = nn.Linear(WIDTH, WIDTH)
        if case.meets_often:
            # Each sharded layer takes some 40 ms of a step on two cores, more than it computes.
            fully_shard(self._model, mesh=init_device_mesh("cpu", (case.num_ranks,)))
        else:
            self._model = DistributedDataParallel(self._model)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._batch = torch.zeros(4, WIDTH)
        self._session = data_parallel.attach(
            self._model,
            job_id=JOB_ID,
            num_microbatches=case.num_microbatches if case.meets_often else None,
            **self.options(url),
        )

    @property
    def session(self) -> RankSession:
        """Session of the rank."""
        return self._session

    def train_step(self) -> None:
        """Train the next step."""
        with data_parallel.training_step(self._model):
            for _ in range(self._case.num_microbatches):
                self._model(self._batch).sum().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()

    def close(self) -> None:
        """Detach."""
        data_parallel.detach(self._model)


class Pipeline(Training):
    """DeepSpeed's pipelines."""

    def __init__(self, case: Case, url: str) -> None:
        import deepspeed  # noqa: PLC0415 - takes seconds
        from deepspeed.pipe import PipelineModule  # noqa: PLC0415

        from flyball_integrations.deepspeed import pipeline  # noqa: PLC0415
        from flyball_lab.demo.training_loop import leave_out_deepspeed_helper  # noqa: PLC0415

        leave_out_deepspeed_helper()
        deepspeed.init_distributed("gloo")
        model = PipelineModule(
            layers=[nn.Linear(WIDTH, WIDTH) for _ in range(2 * case.num_stages)],
            num_stages=case.num_stages,
            loss_fn=nn.functional.mse_loss,
            partition_method="uniform",
        )
        self._engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
            config={
                "train_micro_batch_size_per_gpu": 4,
                "gradient_accumulation_steps": case.num_microbatches,
                "steps_per_print": 10**9,
            },
        )
        self._batches = iter(lambda: (torch.zeros(4, WIDTH), torch.zeros(4, WIDTH)), None)
        super().__init__(case, self._engine.stage_id, self._engine.grid.get_data_parallel_rank())
        self._session = pipeline.attach(
            self._engine,
            job_id=JOB_ID,
            p2p="eager",
            **self.options(url),
        )
        self._detach = pipeline.detach

    @property
    def session(self) -> RankSession:
        """Session of the rank."""
        return self._session

    def train_step(self) -> None:
        """Train the next step."""
        self._engine.train_batch(self._batches)

    def close(self) -> None:
        """Detach."""
        self._detach(self._engine)


def warm_up(training: Training) -> int:
    """Train until all ranks have plans for their steps; return the next step's number."""
    for first in range(0, WARM_UP_STEPS, NUM_STEPS):
        training.run(range(first, first + NUM_STEPS), announces=True)
        said = torch.tensor([int(num_planned(training.session) >= NUM_STEPS)])
        torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MIN)
        if said.item():
            return first + NUM_STEPS
    raise SystemExit("no step had a plan of its own")


def block(training: Training, first: int, *, announces: bool) -> dict[str, Any]:
    """Train a block; return its time and this rank's energy."""
    # Steps in front, during the last of which the block's first one is announced.
    training.run([first], announces=False)
    if announces:
        training.announce(first)
    training.run([first], announces=False)
    gpu, planned_before = training.gpu, num_planned(training.session)
    began_s, began_j = gpu.emulated_time_s(), gpu.exact_energy_j()
    training.run(range(first, first + NUM_STEPS), announces=announces)
    return {
        "time_s": gpu.emulated_time_s() - began_s,
        "energy_j": gpu.exact_energy_j() - began_j,
        "num_planned": num_planned(training.session) - planned_before,
        "version": training.session.active_version,
    }


def main() -> None:
    """Train, and write what was measured."""
    name, url, folder = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    case, rank = CASES[name], torch.distributed.get_rank()
    training = (Pipeline if case.num_stages > 1 else DataParallel)(case, url)
    if rank == 0:
        put_profile_of_job(url, JOB_ID, case.profile())
    first, draw = warm_up(training), random.Random(SEED)
    pairs: list[dict[str, Any]] = []
    for _ in range(NUM_PAIRS):
        ways = list(WAYS)
        draw.shuffle(ways)
        pairs.append(
            {"first_step": first}
            | {way: block(training, first, announces=way == WAYS[0]) for way in ways}
        )
        first += NUM_STEPS
    training.close()
    (Path(folder) / f"rank-{rank}.json").write_text(json.dumps(pairs), encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
