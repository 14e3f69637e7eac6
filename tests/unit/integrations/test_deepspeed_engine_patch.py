"""Hooks and timed transfers of a DeepSpeed engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.integrations.hook_log import HookLog, TransferLog

from flyball_integrations.deepspeed.pipeline import EnginePatch
from flyball_integrations.shared.instruction_hooks import BufferMicrobatches, InstructionWrapper

Instruction = tuple[type, int]

# Two microbatches on a middle stage, in DeepSpeed's 1F1B; both pass through buffers 0 and 1.
STEP: tuple[Instruction, ...] = (
    (schedule.RecvActivation, 0),
    (schedule.ForwardPass, 0),
    (schedule.SendActivation, 0),
    (schedule.RecvActivation, 1),
    (schedule.ForwardPass, 1),
    (schedule.RecvGrad, 0),
    (schedule.SendActivation, 1),
    (schedule.BackwardPass, 0),
    (schedule.SendGrad, 0),
    (schedule.RecvGrad, 1),
    (schedule.BackwardPass, 1),
    (schedule.SendGrad, 1),
)
COMPUTATIONS = ((schedule.ForwardPass, 0), (schedule.BackwardPass, 0))


class Engine:
    """Part of DeepSpeed's engine that the patch uses; it executes the given schedule."""

    _INSTRUCTION_MAP: dict[type, Callable[..., None]] = {  # noqa: RUF012 - as DeepSpeed has it
        kind: lambda engine, buffer_id, kind=kind: engine.log.append(f"{kind.__name__} {buffer_id}")
        for kind in PipelineEngine._INSTRUCTION_MAP
    }

    def __init__(self) -> None:
        self.log: list[str] = []

    def train_batch(self, instructions: Sequence[Instruction] = STEP) -> str:
        for kind, buffer_id in instructions:
            self._INSTRUCTION_MAP[kind](self, buffer_id=buffer_id)
        return "loss"

    def eval_batch(self) -> None:
        for kind in (schedule.RecvActivation, schedule.ForwardPass):
            self._INSTRUCTION_MAP[kind](self, buffer_id=0)

    def _exec_schedule(self, pipe_schedule: str) -> None:
        self.log.append(f"run {pipe_schedule}")


def patched(**parts: Any) -> tuple[Engine, EnginePatch]:  # noqa: ANN401 - of the patch
    engine = Engine()
    hooks = HookLog(engine.log)
    parts_given: dict[str, Any] = {"around_step": nullcontext} | parts
    parts_given.setdefault("synchronize", hooks.synchronize)
    return engine, EnginePatch(engine, hooks, **parts_given)


def test_the_device_is_synchronized_before_each_hook_of_an_instruction() -> None:
    engine, _ = patched()
    assert engine.train_batch(COMPUTATIONS) == "loss"
    assert engine.log == [
        "step begins",
        *("synchronize", "forward 0 of 0", "ForwardPass 0", "synchronize", "forward 0 of 0 ends"),
        *("synchronize", "backward 0 of 0", "BackwardPass 0"),
        *("synchronize", "backward 0 of 0 ends", "step ends"),
    ]


def test_a_step_that_fails_ends_as_failed_and_an_evaluation_after_it_is_not_hooked() -> None:
    transfers = TransferLog([])
    engine, _ = patched(transfers=transfers)
    with pytest.raises(KeyError):
        engine.train_batch([*STEP[:2], (int, 0)])
    assert (engine.log[-1], transfers.log[-1]) == ("step failed", "discard")
    assert "step ends" not in engine.log
    engine.log.clear()
    transfers.log.clear()
    engine.eval_batch()
    assert (engine.log, transfers.log) == (["RecvActivation 0", "ForwardPass 0"], [])
    engine.train_batch()
    assert engine.log[-1] == "step ends"


def test_wrappers_stand_between_deepspeed_and_the_hooks_the_first_innermost() -> None:
    def wrapper(name: str) -> InstructionWrapper:
        def wrap(instructions: dict[type, Any]) -> dict[type, Any]:
            execute = instructions[schedule.ForwardPass]

            def call(engine: Engine, **kwargs: object) -> object:
                engine.log.append(name)
                return execute(engine, **kwargs)

            return {**instructions, schedule.ForwardPass: call}

        return wrap

    engine, _ = patched(wrappers=[wrapper("inner"), wrapper("outer")])
    engine.train_batch(COMPUTATIONS)
    assert engine.log[2:6] == ["forward 0 of 0", "outer", "inner", "ForwardPass 0"]


# ------------------------------------------------------------------ transfers


def transfers_of(instructions: Sequence[Instruction], num_steps: int = 1) -> list[str]:
    """Timed transfers of the last step."""
    transfers = TransferLog([])
    engine, _ = patched(transfers=transfers)
    transfers.log = engine.log
    for _ in range(num_steps):
        engine.log.clear()
        engine.train_batch(instructions)
    for kind in ("forward 0", "forward 1", "backward 0", "backward 1"):
        begins = engine.log.index(f"{kind} of 0")
        assert engine.log[begins - 2 : begins] == ["synchronize", "report"]
    assert engine.log[-2:] == ["report the rest", "step ends"]
    return [line for line in engine.log if line.startswith("]")]


def test_every_transfer_is_timed_and_a_send_has_its_microbatch() -> None:
    expected = [
        "] receive forward None",
        "] send forward 0",
        "] receive forward None",
        "] receive backward None",
        "] send forward 1",
        "] send backward 0",
        "] receive backward None",
        "] send backward 1",
    ]
    assert transfers_of(STEP) == expected
    # Buffers are used again in the next step, in whatever order.
    swapped = [(kind, 1 - buffer_id) for kind, buffer_id in STEP]
    assert transfers_of(swapped, num_steps=2) == expected


# ------------------------------------------------------------------ microbatches of buffers


@given(num_microbatches=st.integers(1, 20), num_buffers=st.integers(1, 8), data=st.data())
def test_every_microbatch_gets_its_own_backward_in_any_order_of_buffers(
    num_microbatches: int, num_buffers: int, data: st.DataObject
) -> None:
    microbatches = BufferMicrobatches()
    microbatches.of_forward(0)
    microbatches.clear()
    assert microbatches.of_backward(0) is None
    held: dict[int, int] = {}
    done: list[int] = []
    num_forwards = 0
    while len(done) < num_microbatches:
        free = [buffer for buffer in range(num_buffers) if buffer not in held]
        may_run_forward = bool(free) and num_forwards < num_microbatches
        if may_run_forward and (not held or data.draw(st.booleans())):
            buffer = data.draw(st.sampled_from(free))
            held[buffer] = microbatches.of_forward(buffer)
            assert held[buffer] == num_forwards
            num_forwards += 1
        else:
            buffer = data.draw(st.sampled_from(sorted(held)))
            assert microbatches.of_backward(buffer) == held[buffer]
            done.append(held.pop(buffer))
    assert sorted(done) == list(range(num_microbatches))
