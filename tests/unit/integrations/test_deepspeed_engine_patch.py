from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from deepspeed.runtime.pipe import schedule

from flyball_integrations.deepspeed.pipeline import EnginePatch
from flyball_integrations.shared.instruction_hooks import Execute, InstructionWrapper


class _Engine:
    """What the patch touches of DeepSpeed's engine: one microbatch, one buffer."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def _forward(self, buffer_id: int) -> None:
        self.log.append(f"forward in {buffer_id}")

    def _backward(self, buffer_id: int) -> None:
        self.log.append(f"backward in {buffer_id}")

    _INSTRUCTION_MAP: dict[type, Callable[..., None]] = {  # noqa: RUF012 - as DeepSpeed has it
        schedule.ForwardPass: _forward,
        schedule.BackwardPass: _backward,
    }

    def train_batch(self, failing: bool = False) -> str:
        self._INSTRUCTION_MAP[schedule.ForwardPass](self, buffer_id=0)
        if failing:
            raise StopIteration
        self._INSTRUCTION_MAP[schedule.BackwardPass](self, buffer_id=0)
        return "loss"

    def _exec_schedule(self, pipe_schedule: str) -> None:
        self.log.append(f"run {pipe_schedule}")

    def eval_batch(self) -> None:
        self._INSTRUCTION_MAP[schedule.ForwardPass](self, buffer_id=0)


class _Hooks:
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


def _patched() -> tuple[_Engine, EnginePatch, list[str]]:
    log: list[str] = []
    engine = _Engine(log)
    patch = EnginePatch(
        engine,
        _Hooks(log),
        synchronize=lambda: log.append("synchronize"),
        around_step=nullcontext,
    )
    return engine, patch, log


def test_the_device_is_waited_for_before_each_hook_of_an_instruction() -> None:
    engine, _, log = _patched()

    assert engine.train_batch() == "loss"
    assert log == [
        "step begins",
        *("synchronize", "forward 0 begins", "forward in 0", "synchronize", "forward 0 ends"),
        *("synchronize", "backward 0 begins", "backward in 0", "synchronize", "backward 0 ends"),
        "step ends",
    ]


def test_a_step_that_fails_raises_and_is_said_to_have_failed() -> None:
    engine, _, log = _patched()

    with pytest.raises(StopIteration):
        engine.train_batch(failing=True)
    assert log[0] == "step begins"
    assert "step ends" not in log
    assert log[-1] == "step failed"
    engine.train_batch()
    assert log.count("step failed") == 1


def test_after_a_failed_step_an_evaluation_is_not_hooked() -> None:
    engine, _, log = _patched()
    with pytest.raises(StopIteration):
        engine.train_batch(failing=True)
    log.clear()

    engine.eval_batch()

    assert log == ["forward in 0"]


def test_what_stands_around_a_step_is_left_also_when_it_fails() -> None:
    log: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        log.append("enter")
        try:
            yield
        finally:
            log.append("leave")

    engine = _Engine([])
    EnginePatch(engine, _Hooks([]), synchronize=lambda: None, around_step=around)
    engine.train_batch()
    with pytest.raises(StopIteration):
        engine.train_batch(failing=True)

    assert log == ["enter", "leave"] * 2


def test_removing_brings_back_the_classes_own_attributes() -> None:
    engine, patch, log = _patched()
    assert engine._INSTRUCTION_MAP is not _Engine._INSTRUCTION_MAP

    patch.remove()
    patch.remove()

    assert list(vars(engine)) == ["log"]
    engine.train_batch()
    assert log == ["forward in 0", "backward in 0"]


def test_removing_brings_back_what_someone_else_had_set_on_the_engine() -> None:
    engine = _Engine([])
    theirs = {**_Engine._INSTRUCTION_MAP}
    vars(engine)["_INSTRUCTION_MAP"] = theirs
    patch = EnginePatch(engine, _Hooks([]), synchronize=lambda: None, around_step=nullcontext)

    patch.remove()

    assert engine._INSTRUCTION_MAP is theirs


def test_the_classes_map_is_never_changed() -> None:
    before = dict(_Engine._INSTRUCTION_MAP)
    engine, _, _ = _patched()
    engine.train_batch()

    assert before == _Engine._INSTRUCTION_MAP


def test_what_stands_around_the_hooks_begins_before_them_and_ends_after() -> None:
    log: list[str] = []

    @contextmanager
    def around(name: str) -> Iterator[None]:
        log.append(f"enter {name}")
        yield
        log.append(f"leave {name}")

    engine = _Engine(log)
    EnginePatch(
        engine,
        _Hooks(log),
        synchronize=lambda: None,
        around_step=lambda: around("step"),
        around_hooks=lambda: around("hooks"),
    )
    engine.train_batch()
    assert log[:3] == ["enter hooks", "step begins", "enter step"]
    assert log[-3:] == ["leave step", "step ends", "leave hooks"]


def test_wrappers_stand_between_deepspeed_and_the_hooks_the_first_innermost() -> None:
    log: list[str] = []

    def wrapper(name: str) -> InstructionWrapper:
        def wrapped(execute: Execute) -> Execute:
            def call(*args: object, **kwargs: object) -> object:
                log.append(name)
                return execute(*args, **kwargs)

            return call

        return lambda instructions: {
            **instructions,
            schedule.ForwardPass: wrapped(instructions[schedule.ForwardPass]),
        }

    engine = _Engine(log)
    EnginePatch(
        engine,
        _Hooks(log),
        synchronize=lambda: None,
        around_step=nullcontext,
        wrappers=[wrapper("inner"), wrapper("outer")],
    )
    engine.train_batch()
    assert log[1:6] == ["forward 0 begins", "outer", "inner", "forward in 0", "forward 0 ends"]


def test_another_schedule_is_run_in_the_place_of_deepspeeds_until_it_is_removed() -> None:
    log: list[str] = []
    engine = _Engine(log)
    patch = EnginePatch(
        engine,
        _Hooks([]),
        synchronize=lambda: None,
        around_step=nullcontext,
        schedule_for=lambda stock: f"other than {stock}",
    )
    engine._exec_schedule("1f1b")
    patch.remove()
    engine._exec_schedule("1f1b")
    assert log == ["run other than 1f1b", "run 1f1b"]
    assert list(vars(engine)) == ["log"]
