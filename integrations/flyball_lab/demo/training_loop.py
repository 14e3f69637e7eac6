"""The demo's training script: DeepSpeed as a user would write it, and one line for Flyball.

The line is `attach(...)`; the rest beside DeepSpeed is for the demo: an emulated GPU, a record
of its clocks, and an end that all ranks agree on.
"""

from __future__ import annotations

import deepspeed
import torch
import torch.distributed
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_client.gpu.emulated import EmulatedGpu
from flyball_integrations.deepspeed.pipeline import attach, detach
from flyball_lab.demo.clock_witness import ClockWitness
from flyball_lab.demo.deepspeed_helper import leave_out_deepspeed_helper
from flyball_lab.demo.language_model import (
    language_model_layers,
    next_token_loss,
    synthetic_text,
)
from flyball_lab.demo.options import (
    JOB_ID,
    DemoOptions,
    demo_blocking_power_w,
    demo_profile,
)
from flyball_lab.demo.run_folder import RunFolder, TrainedStep

_SEED = 1788  # the year of Watt's governor


def train(folder: RunFolder, options: DemoOptions, *, planner_url: str) -> None:
    """Train on default clocks until a plan is in force, then `num_steps` steps and one on it."""
    engine = _pipeline_engine(options)
    gpu = EmulatedGpu(
        demo_profile(),
        engine.stage_id,
        blocking_power_w=demo_blocking_power_w(),
        time_scale=options.time_scale,
        product="A100",
    )
    witness = ClockWitness(gpu)
    session = attach(
        engine,
        job_id=JOB_ID,
        planner_url=planner_url,
        gpu=gpu,
        observer=witness,
        p2p="eager",
        blocking_power_w=[demo_blocking_power_w()],
    )
    text = synthetic_text(_SEED)
    num_planned_steps = 0
    for step in range(options.max_steps):
        witness.begin_step()
        loss = engine.train_batch(text)
        version = session.active_version
        num_planned_steps += version is not None
        if engine.global_rank == 0:
            folder.add_trained_step(TrainedStep(step=step, plan_version=version, loss=float(loss)))
        # One step more than is measured: the first on the plan is a warm-up.
        if _rank_0_says(num_planned_steps > options.num_steps):
            break
    witness.write(folder.rank_clocks(engine.global_rank))
    detach(engine)
    gpu.close()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _pipeline_engine(options: DemoOptions) -> PipelineEngine:
    torch.set_num_threads(1)
    torch.manual_seed(_SEED)
    leave_out_deepspeed_helper()
    deepspeed.init_distributed("gloo")
    model = PipelineModule(
        layers=language_model_layers(),
        num_stages=torch.distributed.get_world_size(),
        loss_fn=next_token_loss,
        partition_method="uniform",
    )
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": options.num_microbatches,
            "gradient_clipping": 1.0,
            "steps_per_print": 10**9,
        },
    )
    return engine


def _rank_0_says(decision: bool) -> bool:
    """Rank 0's decision, on every rank: all must leave the training loop together."""
    said = torch.tensor([int(decision)])
    torch.distributed.broadcast(said, src=0)
    return bool(said.item())
