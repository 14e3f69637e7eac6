"""Attach where the machine lacks something, run by each rank of test_lacking_machine.py."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import deepspeed
from tests.integration import deepspeed_scenarios
from tests.integration.deepspeed_scenarios import Training as DeepSpeedTraining
from tests.integration.rank_server import Findings
from tests.integration.torch_hook_scenarios import Training as TorchTraining
from tests.integration.trainings import logged_warnings
from tests.unit.client.recording_gpu import RecordingGpu

from flyball_client.gpu._base import GpuAddress
from flyball_client.session.rank_session import RankSession
from flyball_integrations import envpipe as in_envpipe
from flyball_integrations.deepspeed import pipeline as in_deepspeed
from flyball_integrations.torch import pipelining as in_torch
from flyball_lab.demo.training_loop import leave_out_deepspeed_helper

NOBODY_LISTENS = "http://127.0.0.1:9"


class AddressedGpu(RecordingGpu):
    """A GPU whose clock another process would set."""

    address = GpuAddress(control="nvml", uuid=RecordingGpu.uuid)  # type: ignore[assignment] # none

    def total_energy_j(self) -> float:
        """Return a counter that moves."""
        return 100.0 * time.monotonic()


@contextmanager
def _no_descriptors() -> Iterator[None]:
    next_fd = os.dup(0)
    os.close(next_fd)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_fd, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _refused(*_: object, **__: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def _no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


Lack = tuple[Callable[[], AbstractContextManager[object]], Callable[[], dict[str, Any]]]
# In force while Flyball is attached, and the options of `attach`.
LACKS: dict[str, Lack] = {
    "NVML": (nullcontext, dict),
    "memfd": (lambda: patch("os.memfd_create", _refused), lambda: {"gpu": AddressedGpu()}),
    "eventfd": (lambda: patch("os.eventfd", _refused), lambda: {"gpu": AddressedGpu()}),
    "descriptors": (_no_descriptors, lambda: {"gpu": AddressedGpu()}),
    "threads": (
        lambda: patch.object(threading.Thread, "start", _no_thread),
        lambda: {"gpu": RecordingGpu(), "planner_url": NOBODY_LISTENS, "blocking_power_w": 5},
    ),
}


@dataclass(frozen=True)
class Framework:
    """A training in one framework, and how Flyball comes into it and out of it."""

    attach: Callable[..., RankSession]
    detach: Callable[[], None]
    train_a_step: Callable[[], object]


def _in_torch() -> Framework:
    training = TorchTraining("1F1B")
    return Framework(
        partial(in_torch.attach, training.schedule),
        partial(in_torch.detach, training.schedule),
        training.step,
    )


def _in_envpipe() -> Framework:
    """EnvPipe's import in a script of DeepSpeed's: `deepspeed.initialize` attaches."""
    engines: list[DeepSpeedTraining] = []

    def initialize(*, job_id: str, strict: bool = False) -> RankSession:
        engines.clear()
        variables = {"FLYBALL_JOB_ID": job_id, "FLYBALL_STRICT": str(int(strict))}
        # As the changed import in a script does.
        with (
            patch.dict(os.environ, variables),
            patch.object(deepspeed_scenarios, "deepspeed", in_envpipe),
        ):
            engines.append(DeepSpeedTraining(num_stages=2, num_microbatches=4))
        session: RankSession = engines[0].engine.flyball_session
        return session

    return Framework(
        initialize,
        lambda: in_deepspeed.detach(engines[0].engine),
        lambda: engines[0].step() if engines else None,
    )


def scenarios() -> Iterator[tuple[str, Findings]]:
    """Train two steps on each such machine; then attach strictly."""
    leave_out_deepspeed_helper()
    deepspeed.init_distributed("gloo")
    # A config names no GPU, with which the others are tried.
    for make, lacks in ((_in_torch, LACKS), (_in_envpipe, {"NVML": LACKS["NVML"]})):
        framework = make()
        framework.train_a_step()  # opens what the framework itself needs
        for lack, (lacking, options) in lacks.items():
            with lacking():
                found = _trained(framework, options())
                strict = _refusal(framework, options())
            yield f"{make.__name__} without {lack}", found | {"strict": strict}


def _trained(framework: Framework, options: dict[str, Any]) -> Findings:
    with logged_warnings() as lines:
        session = framework.attach(job_id="gpt", **options)
        for _ in range(2):
            framework.train_a_step()
        found = {
            "times_s": [step.time_s for step in session.history],
            "energies_j": [step.energy_j for step in session.history],
            "num_switches": session.clock_report.num_switches,
        }
        framework.detach()
    return found | {"lines": lines}


def _refusal(framework: Framework, options: dict[str, Any]) -> str:
    """Return the error of a strict attach."""
    try:
        framework.attach(job_id="gpt", strict=True, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    framework.detach()
    return "none"
