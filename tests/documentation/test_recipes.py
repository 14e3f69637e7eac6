"""Recipes of docs/frameworks.md, run as they are with stand-ins for the framework's own modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.documentation.blocks import ROOT, blocks_of

PAGE = ROOT / "docs" / "frameworks.md"


def recipe(first_line: str) -> str:
    """Return the page's one Python block that begins with this line."""
    found = [
        block.text
        for block in blocks_of(PAGE)
        if block.language == "python" and block.text.startswith(f"{first_line}\n")
    ]
    assert len(found) == 1, first_line
    return found[0]


class Flyball:
    """Stands in for an integration of Flyball; calls are noted in their order."""

    def __init__(self, calls: list[object]) -> None:
        self._calls = calls

    def attach(self, *args: object, **options: object) -> None:
        self._calls.append(("attach", *args, options))

    def detach(self, *args: object) -> None:
        self._calls.append(("detach", *args))

    @contextmanager
    def training_step(self, *_: object) -> Iterator[None]:
        self._calls.append("step begins")
        yield
        self._calls.append("step ends")


def put_modules(monkeypatch: pytest.MonkeyPatch, **modules: object) -> None:
    """Let `import a.b` find a stand-in; `a__b` is its keyword."""
    for keyword, module in modules.items():
        name = keyword.replace("__", ".")
        parent, _, last = name.rpartition(".")
        monkeypatch.setitem(sys.modules, name, module)
        if parent:
            monkeypatch.setattr(import_module(parent), last, module, raising=False)


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_megatrons_pretrain_attaches_once_with_the_first_chunks_config(
    monkeypatch: pytest.MonkeyPatch, num_chunks: int
) -> None:
    calls = list[object]()

    def pretrain(datasets: Any, model: Any, kind: str, forward_step: str) -> None:  # noqa: ANN401
        assert (kind, forward_step, datasets.is_distributed) == ("gpt", "forward", True)
        for chunk in range(num_chunks):
            assert model(pre_process=chunk == 0).config == f"config of {chunk == 0}"
        for _ in range(num_chunks):
            assert datasets(7) == "data of 7"
        assert training.train_step("batch") == "loss of batch"

    def train_step(batch: str) -> str:
        calls.append("trains")
        return f"loss of {batch}"

    def model_provider(builder: str, *, pre_process: bool) -> SimpleNamespace:
        assert builder == "builder"
        return SimpleNamespace(config=f"config of {pre_process}")

    training = SimpleNamespace(train_step=train_step, pretrain=pretrain)
    put_modules(
        monkeypatch,
        flyball_integrations__megatron=Flyball(calls),
        pretrain_gpt=SimpleNamespace(
            model_provider=model_provider,
            gpt_builder="builder",
            train_valid_test_datasets_provider=lambda size: f"data of {size}",
            forward_step="forward",
        ),
        megatron=ModuleType("megatron"),
        megatron__core=ModuleType("megatron.core"),
        megatron__core__enums=SimpleNamespace(ModelType=SimpleNamespace(encoder_or_decoder="gpt")),
        megatron__core__num_microbatches_calculator=SimpleNamespace(get_num_microbatches=lambda: 8),
        megatron__training=SimpleNamespace(training=training),
    )
    exec(recipe("# pretrain_gpt_flyball.py, in a clone of Megatron-LM"), {})  # noqa: S102
    options = {"job_id": "llama", "num_microbatches": 8, "profiling": "online"}
    assert calls == [
        ("attach", "config of True", options),
        *("step begins", "trains", "step ends"),
        ("detach",),
    ]


def test_torchtitans_trainer_trains_between_attach_and_detach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    calls = list[object]()

    class Trainer:
        pp_schedule, optimizers = "schedule", "optimizers"

        def __init__(self, config: str) -> None:
            assert config == "config"

        def train(self) -> None:
            calls.append("trains")

        def close(self) -> None:
            calls.append("closes")

    put_modules(
        monkeypatch,
        flyball_integrations__torch=Flyball(calls),
        torchtitan=ModuleType("torchtitan"),
        torchtitan__config=SimpleNamespace(
            ConfigManager=lambda: SimpleNamespace(parse_args=lambda: "config")
        ),
        torchtitan__tools=ModuleType("torchtitan.tools"),
        torchtitan__tools__logging=SimpleNamespace(init_logger=lambda: None),
        torchtitan__train=SimpleNamespace(Trainer=Trainer),
    )
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: calls.append("ends"))
    exec(recipe("# train_flyball.py"), {})  # noqa: S102 - our own page
    options = {"job_id": "llama3", "optimizer": "optimizers", "profiling": "online"}
    assert calls == [
        ("attach", "schedule", options),
        "trains",
        ("detach", "schedule"),
        *("closes", "ends"),
    ]


def test_megatron_bridges_callbacks_attach_and_enclose_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = list[object]()

    def pretrain(config: str, forward_step: str, callbacks: list[Any]) -> None:
        assert (config, forward_step) == ("config", "forward")
        (callback,) = callbacks
        state = SimpleNamespace(train_state=SimpleNamespace(step=40))
        context = SimpleNamespace(model=["first chunk", "second chunk"], state=state)
        callback.on_train_start(context)
        for _ in range(2):
            callback.on_train_step_start(context)
            calls.append("trains")
            callback.on_train_step_end(context)
        callback.on_train_end(context)

    put_modules(
        monkeypatch,
        flyball_integrations__megatron=Flyball(calls),
        megatron=ModuleType("megatron"),
        megatron__bridge=ModuleType("megatron.bridge"),
        megatron__bridge__training=ModuleType("megatron.bridge.training"),
        megatron__bridge__training__callbacks=SimpleNamespace(Callback=object),
        megatron__bridge__training__gpt_step=SimpleNamespace(forward_step="forward"),
        megatron__bridge__training__pretrain=SimpleNamespace(pretrain=pretrain),
        megatron__core=ModuleType("megatron.core"),
        megatron__core__num_microbatches_calculator=SimpleNamespace(get_num_microbatches=lambda: 8),
        megatron__core__utils=SimpleNamespace(get_model_config=lambda chunk: f"of {chunk}"),
    )
    exec(recipe("# pretrain_bridge_flyball.py"), {"config": "config"})  # noqa: S102 - our own page
    options = {
        "job_id": "llama",
        "num_microbatches": 8,
        "initial_step": 40,
        "profiling": "online",
    }
    step = ["step begins", "trains", "step ends"]
    assert calls == [("attach", "of first chunk", options), *step, *step, ("detach",)]


def test_lightnings_callback_encloses_the_batches_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    made = Flyball(calls)
    strategy = SimpleNamespace(model="wrapped")

    class Trainer:
        def __init__(self, accumulate_grad_batches: int, callbacks: list[Any]) -> None:
            self.accumulate_grad_batches = accumulate_grad_batches
            (self.callback,) = callbacks
            self.strategy, self.global_step = strategy, 8

        def fit(self, module: str, loader: list[int]) -> None:
            self.callback.on_train_start(self, module)
            for number, batch in enumerate(loader):
                self.is_last_batch = number + 1 == len(loader)
                self.callback.on_train_batch_start(self, module, batch, number)
                calls.append(batch)
                self.callback.on_train_batch_end(self, module, None, batch, number)
            self.callback.on_train_end(self, module)

    def steps(loader: list[int], **options: Any) -> list[int]:  # noqa: ANN401
        lengths = options.pop("lengths")
        calls.append(("steps", lengths({"lengths": [3, 4]}), options))
        return loader

    monkeypatch.setattr(Flyball, "steps", staticmethod(steps), raising=False)
    put_modules(
        monkeypatch,
        flyball_integrations__data_parallel=made,
        lightning=ModuleType("lightning"),
        lightning__pytorch=SimpleNamespace(Callback=object, Trainer=Trainer),
    )
    exec(  # noqa: S102 - the page's own
        recipe("# train_lightning_flyball.py"), {"loader": [0, 1, 2, 3, 4, 5], "module": "module"}
    )
    given, attached, *steps_run, last = calls
    assert given == ("steps", [3, 4], {"accumulate": 4, "gives_lists": False})
    assert attached == (
        "attach",
        "wrapped",
        {"job_id": "my-job", "initial_step": 8, "profiling": "online", "announces_work": True},
    )
    assert steps_run == ["step begins", 0, 1, 2, 3, "step ends", "step begins", 4, 5, "step ends"]
    assert last == ("detach", "wrapped")
