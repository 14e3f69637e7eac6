"""The import that EnvPipe's users change: DeepSpeed, with Flyball attached where asked for."""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

import deepspeed
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe.engine import PipelineEngine

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


def test_a_name_that_deepspeed_does_not_have_is_refused_as_by_deepspeed() -> None:
    with pytest.raises(AttributeError, match="module 'deepspeed' has no attribute 'initialise'"):
        envpipe.initialise  # noqa: B018 - its absence is the test


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


def test_deepspeed_is_given_the_very_arguments(told: Told) -> None:
    config = {"train_batch_size": 8, "envpipe": BLOCK, "flyball": {"effort": "low"}}
    parsed = argparse.Namespace(local_rank=0)
    envpipe.initialize(parsed, MODEL, config=config, dist_init_required=False)
    (arguments, keywords), *more = told.to_deepspeed
    assert more == []
    assert len(arguments) == 2
    assert arguments[0] is parsed
    assert arguments[1] is MODEL
    assert keywords["config"] is config
    assert keywords == {"config": config, "dist_init_required": False}
    assert list(config) == ["train_batch_size", "envpipe", "flyball"]


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
