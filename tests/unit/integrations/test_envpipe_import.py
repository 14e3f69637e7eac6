"""The import that EnvPipe's users change: DeepSpeed, with Flyball attached where asked for."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

import importlib

import deepspeed
import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_client.session.rank_settings import value_of
from flyball_integrations import envpipe
from flyball_integrations.deepspeed.config_file import ConfiguredAttachment
from flyball_integrations.deepspeed.settings import SETTINGS

BLOCK = {"type": "envelope", "scheduling": "1f1b", "reconfig": "balanced", "gpu": "a100"}
MODEL = SimpleNamespace()


def _other_engines() -> list[type[DeepSpeedEngine]]:
    """Those that run no plan; the oldest DeepSpeed has no DualPipeV."""
    try:
        dualpipev = import_module("deepspeed.runtime.pipe.dualpipev")
    except ModuleNotFoundError:
        return [DeepSpeedEngine]
    return [DeepSpeedEngine, dualpipev.DualPipeVEngine]


class Told:
    """Stands for DeepSpeed's initialize and for attach; writes down what they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine_type = PipelineEngine
        self.rank = 0
        self.to_deepspeed: list[tuple[tuple[object, ...], dict[str, object]]] = []
        self.attached: list[ConfiguredAttachment] = []

        # DeepSpeed's own parameters, whatever they are in the version that is there.
        @functools.wraps(deepspeed.initialize)
        def initialize(*arguments: object, **keywords: object) -> tuple[object, ...]:
            self.to_deepspeed.append((arguments, keywords))
            return self._engine(), "optimizer", "loader", "scheduler"

        def attach(engine: object, configured: ConfiguredAttachment) -> str:
            self.attached.append(configured)
            return "session"

        monkeypatch.setattr(deepspeed, "initialize", initialize)
        monkeypatch.setattr(envpipe, "attach_configured", attach)
        monkeypatch.setattr("deepspeed.comm.all_reduce", lambda flags, op: None)  # one rank

    def _engine(self) -> Any:  # noqa: ANN401 - of one of DeepSpeed's types, and empty
        engine = self.engine_type.__new__(self.engine_type)
        vars(engine).update(global_rank=self.rank, device="cpu", train_batch=lambda: None)
        return engine


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    for name in ("TYPE", "SCHEDULING", "RECONFIGURE"):
        monkeypatch.delenv(f"ENVPIPE_{name}", raising=False)
    return Told(monkeypatch)


# ------------------------------------------------------------------ it is DeepSpeed


def test_all_that_deepspeed_has_is_there_and_the_same() -> None:
    for name in dir(deepspeed):
        if name not in {"initialize", "PipelineModule"} and not name.startswith("__"):
            assert getattr(envpipe, name) is getattr(deepspeed, name), name
    assert issubclass(envpipe.PipelineModule, deepspeed.PipelineModule)
    assert envpipe.__version__ == deepspeed.__version__
    assert envpipe.runtime.utils is deepspeed.runtime.utils
    assert set(dir(deepspeed)) <= set(dir(envpipe))


def test_deepspeeds_modules_cannot_be_loaded_a_second_time_through_it() -> None:
    with pytest.raises(ModuleNotFoundError, match="is not a package"):
        importlib.import_module("flyball_integrations.envpipe.pipe")


# ------------------------------------------------------------------ when it attaches


def _by_keyword(config: object) -> tuple[Any, ...]:
    return envpipe.initialize(model=MODEL, config=config)


def _by_old_keyword(config: object) -> tuple[Any, ...]:
    return envpipe.initialize(model=MODEL, config_params=config)


def _by_arguments(config: object) -> tuple[Any, ...]:
    return envpipe.initialize(SimpleNamespace(deepspeed_config=config), MODEL)


def _by_old_arguments(config: object) -> tuple[Any, ...]:
    return envpipe.initialize(
        args=SimpleNamespace(deepscale_config=config, deepspeed_config=None), model=MODEL
    )


WAYS = (_by_keyword, _by_old_keyword, _by_arguments, _by_old_arguments)


@pytest.mark.parametrize("initialize", WAYS)
@pytest.mark.parametrize("form", ["dict", "file"])
def test_a_block_attaches_however_the_config_is_given(
    told: Told, tmp_path: Path, initialize: Callable[[object], tuple[Any, ...]], form: str
) -> None:
    config: object = {"train_batch_size": 8, "envpipe": BLOCK}
    if form == "file":
        file = tmp_path / "ds_config.json"
        file.write_text(json.dumps(config))
        config = str(file)
    engine, *others = initialize(config)
    assert others == ["optimizer", "loader", "scheduler"]
    assert engine.flyball_session == "session"
    assert [configured.arguments["policy"] for configured in told.attached] == ["envelope"]


def test_a_wrong_block_is_found_out_before_deepspeed_starts(told: Told) -> None:
    with pytest.raises(ValueError, match=r"^envpipe\.type must be one of baseline, uniform"):
        envpipe.initialize(model=MODEL, config={"envpipe": {"type": "best"}})
    assert told.to_deepspeed == []


@pytest.mark.parametrize(("rank", "num_lines"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("engine_type", _other_engines())
def test_another_engine_stays_plain_and_rank_0_says_so(
    told: Told,
    caplog: pytest.LogCaptureFixture,
    engine_type: type[PipelineEngine],
    rank: int,
    num_lines: int,
) -> None:
    told.engine_type, told.rank = engine_type, rank
    with caplog.at_level(logging.INFO, logger="flyball_integrations"):
        engine, *_ = envpipe.initialize(model=MODEL, config={"envpipe": BLOCK})
    assert told.attached == []
    assert "flyball_session" not in vars(engine)
    assert len(caplog.messages) == num_lines
    assert all(f"this is a {engine_type.__name__}" in message for message in caplog.messages)


# ------------------------------------------------------------------ what EnvPipe's scripts ask


@pytest.mark.parametrize("config", [{}, {"envpipe": BLOCK}], ids=["plain", "attached"])
def test_without_a_planner_the_phases_of_a_script_are_one_step_each(
    told: Told, config: dict[str, Any]
) -> None:
    engine, *_ = envpipe.initialize(model=MODEL, config=config)
    assert engine.energy_profiler.is_profiling is False
    assert engine.execution_grid.finish_reconfigure() is True


class TwoRanks:
    """This rank and another one, whose facts a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.others = [0, 0]
        self.session = SimpleNamespace(active_version=None, history=())
        monkeypatch.setattr("deepspeed.comm.all_reduce", self._all_reduce)

    def _all_reduce(self, flags: Any, op: object) -> None:  # noqa: ANN401 - torch has no types
        assert op == deepspeed.comm.ReduceOp.MAX
        others = torch.tensor(self.others[: len(flags)], dtype=torch.int)
        torch.maximum(flags, others, out=flags)

    def wait(self, limit_s: float = 60.0, *, is_attached: bool = True) -> envpipe.PlanWait:
        engine: Any = SimpleNamespace(device="cpu", global_rank=0)
        session: Any = self.session if is_attached else None
        return envpipe.PlanWait(engine, session, limit_s)

    def run_step(self, wait: envpipe.PlanWait, step: int, version: int | None) -> None:
        self.session.history = (SimpleNamespace(step=step, plan_version=version),)
        self.session.active_version = version
        wait.end_step()


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> TwoRanks:
    return TwoRanks(monkeypatch)


def test_a_scripts_phases_end_when_all_ranks_have_a_plan(ranks: TwoRanks) -> None:
    wait = ranks.wait()
    profiler, grid = envpipe.EnergyProfiler(wait), envpipe.ExecutionGrid(wait)
    ranks.run_step(wait, 0, None)
    assert profiler.is_profiling
    ranks.others = [1, 0]  # the other rank has none yet
    ranks.run_step(wait, 1, 1)
    assert profiler.is_profiling
    assert not grid.finish_reconfigure()
    ranks.others = [0, 0]
    ranks.run_step(wait, 2, 1)
    assert not profiler.is_profiling
    assert grid.finish_reconfigure()


def test_a_wait_that_is_over_and_a_measured_step_without_a_plan_are_warned_of_once(
    ranks: TwoRanks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    late = ranks.wait()
    ranks.others = [0, 1]  # the other rank's clock says that it is late
    ranks.run_step(late, 0, None)
    assert not late.is_waiting
    assert "begin at default clocks" in caplog.text
    caplog.clear()
    ranks.others = [0, 0]
    wait = ranks.wait()
    ranks.run_step(wait, 1, 1)
    ranks.run_step(wait, 2, None)
    assert not caplog.records  # nothing is measured yet
    assert envpipe.ExecutionGrid(wait).finish_reconfigure()
    for step in (3, 4):
        ranks.run_step(wait, step, None)
    assert len(caplog.records) == 1
    assert "step 3 ran without a plan, at default clocks" in caplog.text
    # EnvPipe's scripts find their result in the log by this word.
    assert "RESULT" not in caplog.text


def test_custom_partitions_are_envpipes_bounds() -> None:
    assert envpipe.partition_bounds([0, 1, 4], num_layers=4, num_stages=2) == [0, 1, 4]
    for wrong in (None, [], [0, 4], [1, 2, 4], [0, 2, 5], [0, 0, 4], [0, 2.0, 4], [0, True, 4]):
        with pytest.raises(ValueError, match="must be 3 rising numbers of layers from 0 to 4"):
            envpipe.partition_bounds(wrong, num_layers=4, num_stages=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_a_time_to_wait_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="FLYBALL_PLAN_WAIT_S must be a number of seconds"):
        value_of(envpipe._WAIT, {"FLYBALL_PLAN_WAIT_S": text}, None, 1.0)
