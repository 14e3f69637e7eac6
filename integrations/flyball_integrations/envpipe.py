"""Import for scripts written for EnvPipe: all of DeepSpeed, with Flyball in place of EnvPipe.

    import flyball_integrations.envpipe as deepspeed
    from flyball_integrations.envpipe import PipelineModule

    engine, *_ = deepspeed.initialize(args, model=PipelineModule(...), ...)

`initialize` attaches Flyball to a pipeline engine if the DeepSpeed config has an `envpipe` or a
`flyball` block, or a variable for it is set; see deepspeed/config_file.py. `PipelineModule` has
EnvPipe's `custom_partitions`. All else is DeepSpeed's.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import deepspeed
import torch
from deepspeed import comm
from deepspeed.runtime.pipe import module
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_client.session.rank_session import RankSession
from flyball_client.session.rank_settings import value_of
from flyball_integrations.deepspeed.config_file import (
    ConfiguredAttachment,
    attach_configured,
    is_asked_for,
    load_config,
    read_attachment,
)
from flyball_wire.options import Option

_logger = logging.getLogger(__name__)

_WAIT_VARIABLE = "FLYBALL_PLAN_WAIT_S"
_WAIT = Option(name="plan_wait_s", kind=float)
_DEFAULT_WAIT_S = 120.0
_CUSTOM = "custom"


class PipelineModule(module.PipelineModule):  # type: ignore[misc]  # DeepSpeed has no types
    """DeepSpeed's `PipelineModule` with EnvPipe's `partition_method="custom"`.

    Args:
        arguments: DeepSpeed's.
        custom_partitions: with `partition_method="custom"`: number of the first layer of each
            stage, from 0, and the number of layers at the end.
        keywords: DeepSpeed's.

    Raises:
        ValueError: partitions are missing, or do not fit layers and stages.
    """

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401 - DeepSpeed's
        custom_partitions: Sequence[int] | None = None,
        **keywords: Any,  # noqa: ANN401 - likewise
    ) -> None:
        # DeepSpeed's constructor partitions.
        object.__setattr__(self, "_custom_partitions", custom_partitions)
        super().__init__(*arguments, **keywords)

    def _partition_layers(self, method: str = "uniform") -> None:
        if method.lower() != _CUSTOM:
            super()._partition_layers(method=method)
            return
        self.parts = partition_bounds(
            self._custom_partitions, num_layers=len(self._layer_specs), num_stages=self.num_stages
        )
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


def partition_bounds(
    partitions: Sequence[int] | None, *, num_layers: int, num_stages: int
) -> list[int]:
    """Return EnvPipe's custom partitions.

    Raises:
        ValueError: they are missing, or do not fit layers and stages.
    """
    bounds = [] if partitions is None else list(partitions)
    is_right = (
        len(bounds) == num_stages + 1
        and all(type(bound) is int for bound in bounds)
        and bounds[0] == 0
        and bounds[-1] == num_layers
        and all(first < last for first, last in pairwise(bounds))
    )
    if not is_right:
        raise ValueError(
            f"custom_partitions must be {num_stages + 1} rising numbers of layers from 0 to"
            f" {num_layers} for {num_stages} stages, not {partitions}"
        )
    return bounds


class EnergyProfiler:
    """Replacement for EnvPipe's `engine.energy_profiler`: the planner profiles."""

    def __init__(self, wait: PlanWait) -> None:
        self._wait = wait

    @property
    def is_profiling(self) -> bool:
        """True until all ranks have a plan in force, or the wait is over; equal on all ranks."""
        return self._wait.is_waiting


class ExecutionGrid:
    """Replacement for EnvPipe's `engine.execution_grid`: the planner reconfigures."""

    def __init__(self, wait: PlanWait) -> None:
        self._wait = wait

    def finish_reconfigure(self) -> bool:
        """Return whether all ranks have a plan in force, or the wait is over.

        Steps after a True are what the script measures.
        """
        if not self._wait.is_waiting:
            self._wait.is_measured = True
        return not self._wait.is_waiting


class PlanWait:
    """A script's phases before its measurement, which end when all ranks have a plan in force.

    All ranks decide together at the end of each step, so that they leave these phases after the
    same step.

    Args:
        engine: the pipeline engine.
        session: the rank's session; None: not attached.
        limit_s: time after which the script measures without a plan, s; 0: at once.

    Attributes:
        is_waiting: true until the phases end.
        is_measured: true once `finish_reconfigure` has returned True.
    """

    def __init__(self, engine: PipelineEngine, session: RankSession | None, limit_s: float) -> None:
        self._engine = engine
        self._session = session
        self._until_s = time.monotonic() + limit_s
        self._has_warned = False
        self.is_measured = False
        # A rank that is not attached, or has no planner, never has a plan.
        self.is_waiting = not self._any_rank(session is None or limit_s == 0)[0]

    def end_step(self) -> None:
        """Decide whether the phases go on, or warn of a measured step without a plan."""
        session = self._session
        if session is None:
            return
        if self.is_waiting:
            lacks_plan, is_late = self._any_rank(
                session.active_version is None, time.monotonic() > self._until_s
            )
            self.is_waiting = lacks_plan and not is_late
            if is_late and lacks_plan:
                self._warn(
                    "no plan is in force on all ranks: the steps that the script measures begin at"
                    f" default clocks (has the job a profile? {_WAIT_VARIABLE} is the time to"
                    " wait, s)"
                )
        elif self.is_measured and not self._has_warned:
            last = session.history[-1:]
            if last and last[0].plan_version is None:
                self._warn(
                    f"step {last[0].step} ran without a plan, at default clocks, and the script"
                    " measures it too; flyball report lists such steps separately"
                )

    def _any_rank(self, *facts: bool) -> list[bool]:
        """Return, for each fact, whether it is true on any rank."""
        flags = torch.tensor(facts, dtype=torch.int, device=self._engine.device)
        comm.all_reduce(flags, op=comm.ReduceOp.MAX)
        return [bool(flag) for flag in flags.tolist()]

    def _warn(self, text: str) -> None:
        self._has_warned = True
        if self._engine.global_rank == 0:
            _logger.warning("%s", text)


def initialize(*arguments: Any, **keywords: Any) -> tuple[Any, ...]:  # noqa: ANN401 - DeepSpeed's
    """Call `deepspeed.initialize`, and attach Flyball to the engine where that is configured.

    A pipeline engine gets the attributes that EnvPipe's scripts use, `energy_profiler` and
    `execution_grid`, and `flyball_session`: the rank's session, or None where not attached.

    Raises:
        ValueError: a block or a variable cannot be used; raised before DeepSpeed starts. And
            as `attach` does.
        GpuError, OSError: with `strict`, clocks of this rank's GPU cannot be set.
    """
    configured = _configured(
        inspect.signature(deepspeed.initialize).bind(*arguments, **keywords).arguments
    )
    limit_s = value_of(_WAIT, os.environ, None, _DEFAULT_WAIT_S)
    returned: tuple[Any, ...] = deepspeed.initialize(*arguments, **keywords)
    engine = returned[0]
    # Not a subclass: DualPipeV's engine runs other instructions.
    if type(engine) is not PipelineEngine:
        if configured is not None and engine.global_rank == 0:
            _logger.warning(
                "Flyball is not attached: it governs the pipeline engine of a PipelineModule,"
                " and this is a %s",
                type(engine).__name__,
            )
        return returned
    session: RankSession | None = None
    if configured is not None:
        session = attach_configured(engine, configured)
    has_planner = configured is not None and "planner_url" in configured.arguments
    wait = PlanWait(engine, session, limit_s if has_planner else 0.0)
    vars(engine).update(
        energy_profiler=EnergyProfiler(wait),
        execution_grid=ExecutionGrid(wait),
        flyball_session=session,
        train_batch=_then(engine.train_batch, wait),
    )
    return returned


def _then(train_batch: Any, wait: PlanWait) -> Any:  # noqa: ANN401 - DeepSpeed's
    """Return DeepSpeed's method with the script's phases after each step."""

    def with_phases(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401 - likewise
        loss = train_batch(*arguments, **keywords)
        wait.end_step()
        return loss

    return with_phases


def _configured(given: Mapping[str, Any]) -> ConfiguredAttachment | None:
    """Return the arguments of `attach`; None: Flyball is not configured."""
    sources = [given.get("config"), given.get("config_params")]
    for name in ("deepspeed_config", "deepscale_config"):
        sources.append(getattr(given.get("args"), name, None))
    config = next((source for source in sources if source is not None), None)
    if config is None:  # DeepSpeed refuses it
        return None
    known = load_config(config)
    return read_attachment(known, os.environ) if is_asked_for(known, os.environ) else None


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever DeepSpeed has
    if name == "__path__":
        # With it, `import flyball_integrations.envpipe.pipe` would load a second DeepSpeed.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(deepspeed, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(deepspeed)})
