"""1F1B written by hand over torch.distributed, with Flyball's hooks called by hand; on the CPU.

torchrun --nproc-per-node 2 examples/hand_written_loop.py --tiny
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch import nn

from example_options import example_parser, parse_options, positive_number, share
from flyball_client import (
    EmulatedGpu,
    EmulatedGpuSettings,
    EmulatedNode,
    GpuDevice,
    JobRegistrar,
    JobRegistration,
    PlannerClient,
    PlannerError,
    RankSession,
    RankSettings,
)
from flyball_integrations.shared.start_exchange import exchange_start
from flyball_profiles.examples import load_example_profile

BLOCKING_POWER_W = 80.0
ROWS = 8
STEPS_BETWEEN_POLLS = 10


def open_gpu(options: argparse.Namespace) -> GpuDevice | None:
    """Return the emulated GPU of this rank: that of FLYBALL_GPU, else of the example profile.

    On a GPU `RankSettings.read(os.environ).open_gpu(os.environ)` alone is enough.
    """
    stage = dist.get_rank()
    if os.environ.get("FLYBALL_GPU"):
        return RankSettings.read(os.environ).open_gpu(
            os.environ, stage=stage, blocking_power_w=BLOCKING_POWER_W
        )
    profile = load_example_profile()
    return EmulatedGpu(
        profile,
        stage % profile.num_stages,
        blocking_power_w=BLOCKING_POWER_W,
        settings=EmulatedGpuSettings(seed=stage),
        node=EmulatedNode.of_machine(),
        time_scale=options.time_scale,
    )


def open_session(
    opened: ExitStack, options: argparse.Namespace
) -> tuple[RankSession, PlannerClient | None]:
    """Return this rank's session, started; rank 0 registers the job too, in the background."""
    rank = dist.get_rank()
    gpu = open_gpu(options)
    planner = RankSettings.read(os.environ).open_planner()
    start = exchange_start(options.job, rank)
    opened.callback(start.close)
    session = RankSession(
        gpu=gpu,
        job_id=options.job,
        rank=rank,
        stage=rank,
        planner=planner,
        start_id=start.start_id,
    )
    if planner is not None:
        opened.callback(planner.close)
        is_given = options.profiling == "given"
        registration = JobRegistration(
            num_stages=options.stages,
            num_microbatches=options.microbatches,
            schedule="1f1b",
            blocking_power_w=(BLOCKING_POWER_W,) if is_given else None,
            profiling=options.profiling,
            profiling_slowdown=options.profiling_slowdown,
            emulated=gpu is not None and gpu.is_emulated,
        )
        if rank == 0:
            registrar = JobRegistrar(
                planner,
                job_id=options.job,
                registration=registration,
                start_id=start.start_id.result(),
            )
            opened.callback(registrar.close)
    return opened.enter_context(session), planner


class ProfilingProgress:
    """Progress of profiling, printed where it has changed.

    Args:
        planner: of the job.
        job_id: the job.
    """

    def __init__(self, planner: PlannerClient, job_id: str) -> None:
        self._planner = planner
        self._job_id = job_id
        self._printed = ""

    def poll(self) -> None:
        """Ask the planner and print a change; call between two steps."""
        line = self._line()
        if line != self._printed:
            print(line, flush=True)
        self._printed = line

    def _line(self) -> str:
        try:
            view = self._planner.get_profiling(self._job_id)
        except PlannerError as error:
            return f"profiling: {error}"
        line = f"profiling {view.state}: {view.num_steps} steps"
        if view.points:
            num_probed = sum(point.num_probes > 0 for point in view.points)
            line += f", {num_probed} of {len(view.points)} points probed, the others interpolated"
        if view.largest_slowdown is not None:
            line += f", at most {view.largest_slowdown:.1%} slower"
        if view.problem is not None:
            line += f"; {view.problem}"
        return f"{line} ({'emulated' if view.emulated else 'measured'})"


class Stage:
    """One stage of the pipeline, which is one rank.

    Args:
        layer: of the model; its input and output are [ROWS, width].
        session: whose hooks are called.
    """

    def __init__(self, layer: nn.Module, session: RankSession, *, width: int) -> None:
        self._layer = layer
        self._session = session
        self._width = width
        self._rank = dist.get_rank()
        self._num_behind = dist.get_world_size() - self._rank - 1
        self._optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        self._sends: list[tuple[dist.Work, torch.Tensor]] = []

    def train_step(self, microbatches: list[torch.Tensor]) -> float:
        """All microbatches forward and backward, then the optimizer; the last stage's loss."""
        self._session.on_step_begin()
        try:
            loss = self._run_1f1b(microbatches)
            self._optimizer.step()
            self._optimizer.zero_grad()
            dist.barrier()  # so that the energy of waiting for the slowest is the step's
        except BaseException:
            self._session.on_step_failed()
            raise
        self._session.on_step_end()
        return loss

    def _run_1f1b(self, microbatches: list[torch.Tensor]) -> float:
        num_microbatches = len(microbatches)
        num_warmup = min(self._num_behind, num_microbatches)
        # Microbatch -> its input, and its output or, on the last stage, its loss.
        held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        loss = 0.0
        for number in range(num_microbatches + num_warmup):
            if number < num_microbatches:
                held[number] = self._forward(number, microbatches)
                loss += held[number][1].item() if self._num_behind == 0 else 0.0
            if number >= num_warmup:
                self._backward(number - num_warmup, *held.pop(number - num_warmup))
        for send, _ in self._sends:
            send.wait()
        self._sends.clear()
        return loss

    def _forward(
        self, microbatch: int, microbatches: list[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        target = microbatches[microbatch]
        given = target if self._rank == 0 else self._receive(self._rank - 1).requires_grad_()
        with self._instruction("forward", microbatch):
            output = self._layer(given)
            if self._num_behind == 0:
                output = nn.functional.mse_loss(output, target) / len(microbatches)
        if self._num_behind > 0:
            self._send(output.detach(), self._rank + 1)
        return given, output

    def _backward(self, microbatch: int, given: torch.Tensor, output: torch.Tensor) -> None:
        gradient = self._receive(self._rank + 1) if self._num_behind > 0 else None
        with self._instruction("backward", microbatch):
            output.backward(gradient)
        if given.grad is not None:
            self._send(given.grad, self._rank - 1)

    @contextmanager
    def _instruction(self, kind: str, microbatch: int) -> Iterator[None]:
        """Around one computation, and nothing but it: no transfer, no optimizer."""
        # On a GPU: those of flyball_integrations.shared.device_hooks.DeviceHooks.
        self._session.on_instruction_begin(kind, microbatch=microbatch)
        yield
        self._session.on_instruction_end(kind, microbatch=microbatch)

    def _receive(self, source: int) -> torch.Tensor:
        tensor = torch.empty(ROWS, self._width)
        dist.recv(tensor, source)
        return tensor

    def _send(self, tensor: torch.Tensor, destination: int) -> None:
        # Both are kept until the step is over: the memory is still being read.
        self._sends.append((dist.isend(tensor, destination), tensor))


def build_layer(stage: int, *, width: int) -> nn.Module:
    """The layer of one stage, the same wherever it is built."""
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


def samples(num_microbatches: int, *, width: int) -> Iterator[list[torch.Tensor]]:
    """The microbatches of each step, [ROWS, width]; the model learns to repeat them."""
    generator = torch.Generator().manual_seed(1788)
    while True:
        yield [torch.randn(ROWS, width, generator=generator) for _ in range(num_microbatches)]


def loop_parser() -> argparse.ArgumentParser:
    """Return a parser of the examples' common arguments: job name, profiling, emulated speed."""
    parser = example_parser(__doc__)
    parser.add_argument(
        "--job",
        metavar="NAME",
        default="hand-written",
        help="at the planner; default: hand-written",
    )
    parser.add_argument(
        "--profiling",
        choices=("given", "online"),
        default="given",
        help="given: a profile is sent to the planner; online: this training measures it;"
        " default: given",
    )
    parser.add_argument(
        "--profiling-slowdown",
        type=share,
        default=0.1,
        help="how much slower an iteration may be while it is measured, above 0 and at most 1;"
        " default: 0.1",
    )
    parser.add_argument(
        "--time-scale",
        type=positive_number,
        default=1.0,
        help="wall seconds per emulated second, above 0; default: 1",
    )
    return parser


def main() -> None:
    """Train for the wanted steps; the last rank prints the losses."""
    parser = loop_parser()
    options = parse_options(parser)
    width = 64 if options.tiny else 1024
    dist.init_process_group("gloo")
    if options.stages != dist.get_world_size():
        parser.error(f"--stages must be {dist.get_world_size()}: every rank is one stage here")
    with ExitStack() as opened:
        session, planner = open_session(opened, options)
        stage = Stage(build_layer(dist.get_rank(), width=width), session, width=width)
        data = samples(options.microbatches, width=width)
        progress = None
        if planner is not None and dist.get_rank() == 0 and options.profiling == "online":
            progress = ProfilingProgress(planner, options.job)
        for step, microbatches in zip(range(options.steps), data, strict=False):
            loss = stage.train_step(microbatches)
            if dist.get_rank() == options.stages - 1:
                print(f"step {step}: loss {loss:.9f}", flush=True)
            if progress is not None and step % STEPS_BETWEEN_POLLS == 0:
                progress.poll()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
