"""Which transfers of a DeepSpeed engine are timed, and whose they are said to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_client.session.instruction_timings import Transfer
from flyball_integrations.deepspeed.pipeline import EnginePatch

Instruction = tuple[type, int]

# Two microbatches on a middle stage, in DeepSpeed's 1F1B; both pass through buffers 0 and 1.
_STEP: tuple[Instruction, ...] = (
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


class _Engine:
    """What the patch touches of DeepSpeed's engine; it executes whatever it is given."""

    def __init__(self, log: list[str]) -> None:
        self._INSTRUCTION_MAP = {
            kind: self._noting(kind, log) for kind in PipelineEngine._INSTRUCTION_MAP
        }

    @staticmethod
    def _noting(kind: type, log: list[str]) -> Callable[..., None]:
        def execute(engine: _Engine, buffer_id: int) -> None:
            del engine
            log.append(f"{kind.__name__} {buffer_id}")

        return execute

    def train_batch(self, instructions: Sequence[Instruction] = _STEP) -> None:
        for kind, buffer_id in instructions:
            self._INSTRUCTION_MAP[kind](self, buffer_id=buffer_id)

    def eval_batch(self) -> None:
        self._INSTRUCTION_MAP[schedule.RecvActivation](self, buffer_id=0)


class _Log:
    """Hooks and timer of transfers in one: what they are called with, in order."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def on_step_begin(self) -> None:
        self.log.append("step begins")

    def on_step_end(self) -> None:
        self.log.append("step ends")

    def on_step_failed(self) -> None:
        self.log.append("step failed")

    def on_instruction_begin(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        self.log.append(f"{kind} {microbatch} begins")

    def on_instruction_end(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        self.log.append(f"{kind} {microbatch} ends")

    def begin(self) -> None:
        self.log.append("[")

    def end(self, transfer: Transfer, kind: str, microbatch: int | None) -> None:
        self.log.append(f"] {transfer} {kind} {microbatch}")

    def tell(self) -> None:
        self.log.append("tell")

    def end_step(self) -> None:
        self.log.append("tell the rest")

    def forget(self) -> None:
        self.log.append("forget")


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def engine(log: list[str]) -> _Engine:
    made = _Engine(log)
    hooks = _Log(log)
    EnginePatch(
        made,
        hooks,
        synchronize=lambda: log.append("synchronize"),
        around_step=nullcontext,
        transfers=hooks,
    )
    return made


def test_every_transfer_of_a_step_is_timed_and_sends_know_their_microbatch(
    engine: _Engine, log: list[str]
) -> None:
    engine.train_batch()
    assert [line for line in log if line.startswith("]")] == [
        "] receive forward None",
        "] send forward 0",
        "] receive forward None",
        "] receive backward None",
        "] send forward 1",
        "] send backward 0",
        "] receive backward None",
        "] send backward 1",
    ]
    assert log[1:4] == ["[", "RecvActivation 0", "] receive forward None"]


def test_transfers_are_told_between_the_wait_for_the_device_and_the_next_computation(
    engine: _Engine, log: list[str]
) -> None:
    engine.train_batch()
    for kind in ("forward 0", "forward 1", "backward 0", "backward 1"):
        begins = log.index(f"{kind} begins")
        assert log[begins - 2 : begins] == ["synchronize", "tell"]
    assert log[-2:] == ["tell the rest", "step ends"]


def test_a_step_that_fails_forgets_its_transfers(engine: _Engine, log: list[str]) -> None:
    with pytest.raises(KeyError):
        engine.train_batch([*_STEP[:2], (int, 0)])
    assert log[-2:] == ["forget", "step failed"]


def test_an_evaluations_transfers_are_not_timed(engine: _Engine, log: list[str]) -> None:
    engine.eval_batch()
    assert log == ["RecvActivation 0"]


def test_buffers_used_again_in_the_next_step_hold_its_microbatches(
    engine: _Engine, log: list[str]
) -> None:
    engine.train_batch()
    log.clear()
    swapped = [(kind, 1 - buffer_id) for kind, buffer_id in _STEP]
    engine.train_batch(swapped)
    sends = [line for line in log if line.startswith("] send")]
    assert sends == [
        "] send forward 0",
        "] send forward 1",
        "] send backward 0",
        "] send backward 1",
    ]
