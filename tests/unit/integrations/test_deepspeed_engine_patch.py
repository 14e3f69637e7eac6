from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from deepspeed.runtime.pipe import schedule

from flyball_integrations.deepspeed_engine_patch import EnginePatch


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
