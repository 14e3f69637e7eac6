"""One rank, one stage: trains in blocks, by turns alone and with Flyball attached.

`gpu_training_rank.py PROBLEM.json FIGURES.json`, as gpu_training.py starts it. Ways:

    alone         nothing is attached
    waits         the waits of `synchronize` alone, with hooks that do nothing
    synchronize   attached, timing="synchronize"
    stream        attached, timing="stream"
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
import torch.distributed
from transformers import GPT2Config

from flyball_client.gpu._base import GpuDevice
from flyball_client.gpu.registry import open_local_gpu
from flyball_client.session.rank_session import RankSession
from flyball_integrations.huggingface import build_causal_lm, next_token_loss
from flyball_integrations.shared.device_hooks import DeviceHooks
from flyball_wire.measurements import StepMeasurement

SEED = 1788
NUM_MICROBATCHES = 8
SEQUENCE_LENGTH = 1024
MODELS = {
    "gpt2": GPT2Config(),
    "gpt2-medium": GPT2Config(n_embd=1024, n_layer=24, n_head=16),
}
TINY = GPT2Config(
    vocab_size=256, n_embd=64, n_layer=2, n_head=2, bos_token_id=255, eos_token_id=255
)
TINY_LENGTH = 32
ALONE, WAITS = "alone", "waits"
# Long beside the 100 ms of an energy counter.
BLOCK_S = 1.0
LATENESS_STEPS = 10
WARM_UP_STEPS = 5
ROUNDS_AT_LEAST = 3


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Arguments of the benchmark."""

    framework: str
    model: str
    ways: list[str]
    seconds: float
    microbatch_size: int
    tiny_on_cpu: bool


class NoHooks:
    """Hooks that do nothing."""

    def _nothing(self, *args: object, **kwargs: object) -> None:
        pass

    on_step_begin = on_step_end = on_step_failed = _nothing
    on_instruction_begin = on_instruction_end = _nothing


class LatenessHooks(NoHooks):
    """Hooks that note how long after the device the host calls the end of an instruction."""

    def __init__(self, device_hooks: DeviceHooks) -> None:
        self._device_hooks = device_hooks
        self.behind_s: list[float] = []

    def on_instruction_end(self, *args: object, **kwargs: object) -> None:
        """Note it."""
        clock_s = self._device_hooks.clock_s
        if clock_s is not None:
            self.behind_s.append(time.monotonic() - clock_s())

    def lateness_us(self) -> dict[str, float]:
        """Return quantiles beside the least, since both clocks began at different moments."""
        behind_s = sorted(self.behind_s)
        if not behind_s:
            return {}
        return {
            name: 1e6 * (behind_s[round(share * (len(behind_s) - 1))] - behind_s[0])
            for name, share in (("median", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
        }


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Device that it trains on; the GPU's counter is read, and None on the CPU."""

    device: torch.device
    gpu: GpuDevice | None

    def wait(self) -> None:
        """Wait until the device has finished."""
        if self.device.type != "cpu":
            torch.cuda.synchronize(self.device)

    def energy_j(self) -> float | None:
        """Return the energy counter in J."""
        return None if self.gpu is None else self.gpu.total_energy_j()


class Training:
    """A model in one framework: its steps, and what attaches to it."""

    step: Callable[[], object]
    attach: Callable[..., RankSession]
    detach: Callable[[], None]
    patch: Callable[..., Any]


class TorchTraining(Training):
    """`torch.distributed.pipelining`, schedule 1F1B."""

    def __init__(self, options: Problem, device: torch.device) -> None:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # noqa: PLC0415

        from flyball_integrations.huggingface import stage_module  # noqa: PLC0415
        from flyball_integrations.torch import pipelining  # noqa: PLC0415
        from flyball_integrations.torch.schedule_patch import SchedulePatch  # noqa: PLC0415

        model = build_causal_lm(_config(options), seed=SEED)
        module = stage_module(model, stage=0, num_stages=1).to(device, _dtype(options))
        schedule = Schedule1F1B(
            PipelineStage(module, 0, 1, device), NUM_MICROBATCHES, loss_fn=next_token_loss
        )
        optimizer = torch.optim.AdamW(
            module.parameters(), lr=1e-4, fused=None if device.type == "cpu" else True
        )
        tokens = _tokens(options, NUM_MICROBATCHES * options.microbatch_size).to(device)

        def step() -> None:
            optimizer.zero_grad()
            schedule.step(tokens, target=tokens)
            optimizer.step()

        self.step = step
        self.attach = partial(pipelining.attach, schedule, job_id="gpu", optimizer=optimizer)
        self.detach = partial(pipelining.detach, schedule)
        self.patch = partial(SchedulePatch, schedule, optimizer=optimizer)


class DeepSpeedTraining(Training):
    """DeepSpeed's pipeline engine."""

    def __init__(self, options: Problem, device: torch.device) -> None:
        import deepspeed  # noqa: PLC0415
        from deepspeed.pipe import PipelineModule  # noqa: PLC0415

        from flyball_integrations.deepspeed import pipeline  # noqa: PLC0415
        from flyball_integrations.huggingface import deepspeed_layers  # noqa: PLC0415

        deepspeed.init_distributed()
        model = build_causal_lm(_config(options), seed=SEED)
        module = PipelineModule(
            layers=deepspeed_layers(model, num_stages=1), num_stages=1, loss_fn=next_token_loss
        )
        parameters = list(module.parameters())
        engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=torch.optim.AdamW(
                parameters, lr=1e-4, fused=None if device.type == "cpu" else True
            ),
            config={
                "train_micro_batch_size_per_gpu": options.microbatch_size,
                "gradient_accumulation_steps": NUM_MICROBATCHES,
                "bf16": {"enabled": True},
                "steps_per_print": 10**9,
            },
        )
        tokens = _tokens(options, options.microbatch_size).to(device)
        batches: Iterator[Any] = iter(lambda: (tokens, tokens), None)
        self.step = lambda: engine.train_batch(batches)
        self.attach = partial(pipeline.attach, engine, job_id="gpu")
        self.detach = partial(pipeline.detach, engine)
        self.patch = partial(pipeline.EnginePatch, engine, around_step=nullcontext)


def main(options: Problem, written: Path) -> None:
    """Train, and write the figures."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name in ("FLYBALL_PLANNER_URL", "FLYBALL_TIMING"):
        os.environ.pop(name, None)
    device = torch.device("cpu") if options.tiny_on_cpu else torch.device("cuda", 0)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        "gloo" if options.tiny_on_cpu else "nccl",
        store=torch.distributed.HashStore(),
        rank=0,
        world_size=1,
    )
    torch.manual_seed(SEED)
    made = TorchTraining if options.framework == "torch" else DeepSpeedTraining
    training = made(options, device)
    machine = Machine(
        device=device, gpu=None if device.type == "cpu" else open_local_gpu(0, os.environ)
    )
    for _ in range(WARM_UP_STEPS):
        training.step()
    machine.wait()
    began_s = time.monotonic()
    training.step()
    machine.wait()
    num_steps = max(2, round(BLOCK_S / (time.monotonic() - began_s)))
    ways = [ALONE, *options.ways]
    rounds: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    until_s = time.monotonic() + options.seconds
    order = random.Random(SEED)
    lateness_us = _lateness_us(training, machine)
    while len(rounds[ALONE]) < ROUNDS_AT_LEAST or time.monotonic() < until_s:
        for way in order.sample(ways, len(ways)):
            rounds[way].append(_block(training, way, num_steps, machine))
    figures = {
        "lateness_us": lateness_us,
        "device": (f"{machine.gpu.name}, torch {torch.__version__}" if machine.gpu else "the CPU"),
        "num_steps": num_steps,
        "microbatch_size": options.microbatch_size,
        "rounds": rounds,
    }
    written.write_text(json.dumps(figures), encoding="utf-8")
    torch.distributed.destroy_process_group()


def _block(
    training: Training,
    way: str,
    num_steps: int,
    machine: Machine,
) -> dict[str, Any]:
    with ExitStack() as opened:
        session = opened.enter_context(_attached(training, way, machine.device))
        for _ in range(2):
            training.step()
        machine.wait()
        began_j = machine.energy_j()
        began_s = time.monotonic()
        for _ in range(num_steps):
            training.step()
        launched_s = time.monotonic()
        machine.wait()
        ended_s, ended_j = time.monotonic(), machine.energy_j()
        time.sleep(0.05)  # hooks of the last step
        measured = [] if session is None else list(session.history)[-num_steps:]
        timings = () if session is None else session.last_step_timings
    times_ms = {
        kind: 1000 * fmean(each.compute_time_s for each in timings if each.kind == kind)
        for kind in {each.kind for each in timings}
    }
    return {
        "step_s": (ended_s - began_s) / num_steps,
        "launch_s": (launched_s - began_s) / num_steps,
        "step_j": None if began_j is None or ended_j is None else (ended_j - began_j) / num_steps,
        "instructions_ms": times_ms,
        "num_measured": len(measured),
        "measured_step_s": _mean(measured, "time_s"),
        "measured_step_j": _mean(measured, "energy_j"),
        "sm_clock_mhz": _mean(measured, "sm_clock_mhz"),
        "num_power_capped": sum(each.num_power_capped for each in measured),
    }


def _mean(measured: Sequence[StepMeasurement], quantity: str) -> float | None:
    values = [getattr(each, quantity) for each in measured]
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _lateness_us(training: Training, machine: Machine) -> dict[str, float]:
    device_hooks = DeviceHooks(machine.device, "stream")
    hooks = LatenessHooks(device_hooks)
    patch = training.patch(
        device_hooks.of(cast("RankSession", hooks)), synchronize=device_hooks.synchronize
    )
    try:
        for _ in range(LATENESS_STEPS):
            training.step()
        machine.wait()
    finally:
        patch.remove()
        device_hooks.close()
    return hooks.lateness_us()


@contextmanager
def _attached(training: Training, way: str, device: torch.device) -> Iterator[RankSession | None]:
    if way == ALONE:
        yield None
    elif way == WAITS:
        wait = (
            (lambda: None)
            if device.type == "cpu"
            else lambda: torch.cuda.current_stream(device).synchronize()
        )
        patch = training.patch(NoHooks(), synchronize=wait)
        try:
            yield None
        finally:
            patch.remove()
    else:
        try:
            yield training.attach(timing=way)
        finally:
            training.detach()


def _config(options: Problem) -> GPT2Config:
    return TINY if options.tiny_on_cpu else MODELS[options.model]


def _dtype(options: Problem) -> torch.dtype:
    return torch.float32 if options.tiny_on_cpu else torch.bfloat16


def _tokens(options: Problem, num: int) -> torch.Tensor:
    config, length = _config(options), TINY_LENGTH if options.tiny_on_cpu else SEQUENCE_LENGTH
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(config.vocab_size, (num, length), generator=generator)


if __name__ == "__main__":
    problem = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    main(Problem(**problem), Path(sys.argv[2]))
