"""What each rank of test_deepspeed_pipeline.py runs; the tests read its findings.

Starting four ranks takes seconds, so one run goes through all scenarios.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed
from deepspeed.runtime.pipe import p2p
from deepspeed.runtime.pipe.engine import PipelineEngine
from tests.integration.deepspeed_ranks import Findings, run_ranks
from tests.integration.deepspeed_tiny import (
    emulated_gpu,
    loss_of_step,
    parameters_of,
    samples,
    tiny_engine,
)

from flyball_integrations.deepspeed.pipeline import EnginePatch, attach, detach

NUM_MICROBATCHES = 4
_NUM_STEPS = 3
_STOCK_P2P = (p2p.send, p2p.recv)


class RecordedHooks:
    """The hooks, written down instead of acted on."""

    def __init__(self) -> None:
        self.calls: list[list[str | int | None]] = []

    def on_step_begin(self) -> None:
        self.calls.append(["step-begin"])

    def on_step_end(self) -> None:
        self.calls.append(["step-end"])

    def on_step_failed(self) -> None:
        self.calls.append(["step-failed"])

    def on_instruction_begin(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        del chunk
        self.calls.append(["begin", kind, microbatch])

    def on_instruction_end(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        del chunk
        self.calls.append(["end", kind, microbatch])


def hooks_see_what_runs() -> Findings:
    """Two training steps with an evaluation between them."""
    engine = _engine()
    hooks = RecordedHooks()
    patch = EnginePatch(engine, hooks, synchronize=lambda: None, around_step=nullcontext)
    text = samples()
    engine.train_batch(text)
    num_before_evaluation = len(hooks.calls)
    engine.eval_batch(text)
    num_after_evaluation = len(hooks.calls)
    engine.train_batch(text)
    patch.remove()
    engine.train_batch(text)
    return {
        "stage": engine.stage_id,
        "first_step": hooks.calls[:num_before_evaluation],
        "during_evaluation": hooks.calls[num_before_evaluation:num_after_evaluation],
        "second_step_and_after_removal": hooks.calls[num_after_evaluation:],
    }


def p2p_stock() -> Findings:
    """Losses, parameters and the engine's attributes after training, of DeepSpeed as it is."""
    engine = _engine()
    return _trained(engine) | {"attributes": sorted(vars(engine))}


def p2p_eager() -> Findings:
    """The same with eager P2P, and what P2P is inside a step, in an evaluation and after."""
    engine = _engine()
    seen: list[bool] = []
    engine._INSTRUCTION_MAP = {
        kind: _noting_p2p(execute, seen) for kind, execute in engine._INSTRUCTION_MAP.items()
    }
    gpu = emulated_gpu(engine)
    attach(engine, job_id="eager", gpu=gpu, p2p="eager")
    findings = _trained(engine)
    stock_in_steps, num_in_steps = any(seen), len(seen)
    engine.eval_batch(samples())
    stock_in_evaluation = all(seen[num_in_steps:])
    detach(engine)
    return findings | {
        "stock_in_steps": stock_in_steps,
        "stock_in_evaluation": stock_in_evaluation,
        "stock_afterwards": (p2p.send, p2p.recv) == _STOCK_P2P,
    }


def attached_without_planner() -> Findings:
    """A planner's address where nobody listens; the engine's attributes before and after."""
    engine = _engine()
    before = dict(vars(engine))
    gpu = emulated_gpu(engine)
    session = attach(engine, job_id="away", planner_url=os.environ["NOBODY_THERE"], gpu=gpu)
    attached_twice = ""
    try:
        attach(engine, job_id="away", gpu=gpu)
    except ValueError as error:
        attached_twice = str(error)
    replaced = sorted(name for name, value in vars(engine).items() if before.get(name) is not value)
    trained = _trained(engine)
    history = session.history
    detach(engine)
    detach(engine)
    after = vars(engine)
    return trained | {
        "replaced": replaced,
        "attached_twice": attached_twice,
        "num_measured": len(history),
        "versions": [step.plan_version for step in history],
        "steps": [step.step for step in history],
        "clock_mhz": gpu.sm_clock_mhz(),
        "attributes": sorted(after),
        "train_batch_is_the_class's": "train_batch" not in after,
        "map_is_the_class's": engine._INSTRUCTION_MAP is PipelineEngine._INSTRUCTION_MAP,
    }


SCENARIOS: tuple[Callable[[], Findings], ...] = (
    hooks_see_what_runs,
    p2p_stock,
    p2p_eager,
    attached_without_planner,
)


def scenarios() -> Iterator[tuple[str, Findings]]:
    """All of them, by name."""
    for scenario in SCENARIOS:
        yield scenario.__name__, scenario()


def _engine() -> PipelineEngine:
    return tiny_engine(
        num_stages=torch.distributed.get_world_size(), num_microbatches=NUM_MICROBATCHES
    )


def _trained(engine: PipelineEngine) -> Findings:
    data = samples()
    losses = [loss_of_step(engine, data) for _ in range(_NUM_STEPS)]
    return {"losses": losses, "parameters": parameters_of(engine)}


def _noting_p2p(execute: Callable[..., Any], seen: list[bool]) -> Callable[..., Any]:
    def noting(engine: PipelineEngine, **kwargs: object) -> object:
        seen.append((p2p.send, p2p.recv) == _STOCK_P2P)
        return execute(engine, **kwargs)

    return noting


if __name__ == "__main__":
    run_ranks(scenarios, sys.argv[1:])
