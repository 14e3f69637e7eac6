"""Import for scripts written for EnvPipe: all of DeepSpeed, with Flyball in place of EnvPipe.

    import flyball_integrations.envpipe as deepspeed

    engine, *_ = deepspeed.initialize(args, model=PipelineModule(...), ...)

`initialize` attaches Flyball to a pipeline engine if the DeepSpeed config has an `envpipe` or a
`flyball` block, or a variable for it is set; see deepspeed/config_file.py. All else is DeepSpeed's.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Mapping
from typing import Any

import deepspeed
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_client.session.rank_session import RankSession
from flyball_integrations.deepspeed.config_file import (
    ConfiguredAttachment,
    attach_configured,
    is_asked_for,
    load_config,
    read_attachment,
)

_logger = logging.getLogger(__name__)


class EnergyProfiler:
    """Replacement for EnvPipe's `engine.energy_profiler`: the planner profiles.

    Attributes:
        is_profiling: False always, so a script's profiling phase is one step on every rank;
            see `ExecutionGrid`.
    """

    is_profiling = False


class ExecutionGrid:
    """Replacement for EnvPipe's `engine.execution_grid`: the planner reconfigures."""

    def finish_reconfigure(self) -> bool:
        """Return True, so that a script's phase of reconfiguring is one step.

        Ranks with different answers would run different numbers of steps, and deadlock. The
        version of the plan in force is `engine.flyball_session.active_version`.
        """
        return True


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
    vars(engine).update(
        energy_profiler=EnergyProfiler(), execution_grid=ExecutionGrid(), flyball_session=session
    )
    return returned


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
