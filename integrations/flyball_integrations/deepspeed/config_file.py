"""Flyball in a DeepSpeed config: its `flyball` block, EnvPipe's `envpipe` block, the variables.

    engine, *_ = deepspeed.initialize(model=PipelineModule(...), config=config)
    session = attach_from_config(engine, config)

Each setting is taken from the first of these that has it: an argument, its FLYBALL variable,
its ENVPIPE variable, the `flyball` block, the `envpipe` block; else `attach` has a default.
DeepSpeed accepts a config with both blocks and ignores them.
"""

from __future__ import annotations

import base64
import errno
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import hjson  # type: ignore[import-untyped]  # comes with DeepSpeed; no stubs
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_client.gpu._base import GpuDevice, InstructionObserver
from flyball_client.session.rank_session import RankSession
from flyball_integrations.deepspeed.pipeline import attach
from flyball_integrations.deepspeed.settings import SETTINGS
from flyball_profiles.gpu_windows import (
    MEASURE_BLOCKING_POWER,
    GpuTableError,
    gpu_folder,
    load_gpu_window,
)
from flyball_profiles.limited_file import read_text
from flyball_wire.options import Option, OptionError

_logger = logging.getLogger(__name__)

_BLOCKS = ("flyball", "envpipe")
_THRESHOLD_SCALE = "reconfigure_threshold_scale"
_SCALE = Option(name=_THRESHOLD_SCALE, kind=float, is_above=True)
_LONGEST_SHOWN = 200
_DEFAULT_JOB_ID = "deepspeed"


@dataclass(frozen=True, kw_only=True)
class ConfiguredAttachment:
    """Attachment that results from a config and its environment.

    Attributes:
        arguments: arguments of `attach` as far as they are given, and always `job_id`, by default
            from the launcher's name of the run.
        notes: warnings to log once, a line each.
    """

    arguments: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def attach_from_config(
    engine: PipelineEngine,
    config: Mapping[str, Any] | str | os.PathLike[str],
    *,
    token: str | None = None,
    gpu: GpuDevice | None = None,
    observer: InstructionObserver | None = None,
    **arguments: Any,  # noqa: ANN401 - whatever `attach` takes
) -> RankSession:
    """Attach with the settings of config and environment; call it once on every rank.

    Args:
        engine: DeepSpeed's `PipelineEngine`.
        config: what `deepspeed.initialize` had: a dict or the path of a JSON file.
        token: as for `attach`; no setting of a block, since DeepSpeed prints its config.
        gpu: as for `attach`.
        observer: as for `attach`.
        arguments: others of `attach`; they win over variables and blocks.

    Raises:
        ValueError: the config, a block or a variable cannot be used; the text names key or
            variable and what it may be. And as `attach` does.
        GpuError, OSError: with `strict`, clocks of this rank's GPU cannot be set.
    """
    configured = read_attachment(config, os.environ, arguments)
    return attach_configured(engine, configured, token=token, gpu=gpu, observer=observer)


def attach_configured(
    engine: PipelineEngine,
    configured: ConfiguredAttachment,
    **others: Any,  # noqa: ANN401 - whatever `attach` takes
) -> RankSession:
    """Attach with settings that were read before; rank 0 logs their warnings."""
    if engine.global_rank == 0:
        for note in configured.notes:
            _logger.warning("%s", note)
    return attach(engine, **configured.arguments, **others)


def is_asked_for(
    config: Mapping[str, Any] | str | os.PathLike[str], environ: Mapping[str, str]
) -> bool:
    """Return whether the config has a block for Flyball, or the environment a variable for it.

    Raises:
        ValueError: the config cannot be read.
    """
    known = load_config(config)
    return any(known.get(block) is not None for block in _BLOCKS) or any(
        setting.is_set_in(environ) for setting in SETTINGS
    )


def read_attachment(
    config: Mapping[str, Any] | str | os.PathLike[str],
    environ: Mapping[str, str],
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> ConfiguredAttachment:
    """Return the arguments of `attach`; only the source that wins for a setting is checked.

    Args:
        config: a dict, or as DeepSpeed takes it: a path or base64.
        environ: the environment; an empty variable counts as not set.
        arguments: of `attach`, taken as they are; None: not given.

    Raises:
        ValueError: as for `attach_from_config`.
        TypeError: `attach` has no such argument.
    """
    known = load_config(config)
    keys = [setting.key for setting in SETTINGS]
    envpipes_keys = [setting.envpipe.key for setting in SETTINGS if setting.envpipe is not None]
    flyball = _block(known, "flyball", keys)
    envpipe = _block(known, "envpipe", [*envpipes_keys, _THRESHOLD_SCALE])
    for name in arguments:
        if name not in keys:
            raise TypeError(f"attach has no argument {name!r} that a config can set")
    found = {
        setting.key: setting.value(arguments, environ, flyball, envpipe) for setting in SETTINGS
    }
    values = {key: value for key, value in found.items() if value is not None}
    values.setdefault("job_id", _launchers_name(environ))
    if values.get("schedule", "1f1b") != "1f1b":
        # The only one that carries other orders over every backend.
        values.setdefault("p2p", "pulled")
    notes: list[str] = []
    scale = envpipe.get(_THRESHOLD_SCALE)
    if scale is not None:
        try:
            _SCALE.read_setting(scale)
        except OptionError as error:
            raise ValueError(f"envpipe.{_THRESHOLD_SCALE} {error.message}") from None
        notes.append(
            f"envpipe.{_THRESHOLD_SCALE} has no effect: the planner finds the critical path from"
            " the profile, or from receive times with a scale of its own"
        )
    return ConfiguredAttachment(arguments=values, notes=(*notes, *_missing(values)))


def load_config(config: Mapping[str, Any] | str | os.PathLike[str]) -> Mapping[str, Any]:
    """Return the config as DeepSpeed reads it: a dict, a path of (H)JSON, or base64 of it.

    Raises:
        ValueError: it cannot be read; one line with file and reason.
    """
    if isinstance(config, Mapping):
        return config
    source = os.fspath(config)
    where = source if len(source) <= _LONGEST_SHOWN else f"{source[:_LONGEST_SHOWN]}..."
    try:
        known = hjson.loads(_text_of(source))
    except OSError as error:
        raise ValueError(f"{where}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{where}: not UTF-8 text") from None
    except ValueError as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{where}: {reason}") from None
    if not isinstance(known, dict):
        raise ValueError(f"{where}: a DeepSpeed config must be an object")
    return cast("dict[str, Any]", known)


# ------------------------------------------------------------------ blocks, names, notes


def _block(config: Mapping[str, Any], name: str, keys: list[str]) -> Mapping[str, object]:
    block = config.get(name)
    if block is None:
        return {}
    if not isinstance(block, Mapping):
        raise ValueError(f"{name} must be an object with keys of {', '.join(keys)}, not {block!r}")
    for key in block:
        if key not in keys:
            raise ValueError(f"{name}.{key} is unknown; known: {', '.join(keys)}")
    return cast("Mapping[str, object]", block)


def _launchers_name(environ: Mapping[str, str]) -> str:
    """Return a name that is equal on all ranks of a run, and after a restart of its ranks."""
    name = _DEFAULT_JOB_ID
    if environ.get("TORCHELASTIC_RUN_ID", "none") not in {"", "none"}:  # none: torchrun's default
        name = f"torchrun-{environ['TORCHELASTIC_RUN_ID']}"
    elif environ.get("SLURM_JOB_ID"):
        name = f"slurm-{environ['SLURM_JOB_ID']}"
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)[:128]


def _missing(values: Mapping[str, Any]) -> list[str]:
    """Return what will keep the clocks at their default, and what to set."""
    if "planner_url" not in values:
        return [
            "no planner is set, so no clocks are set: give its address in flyball.planner_url or"
            " FLYBALL_PLANNER_URL"
        ]
    notes = []
    if values["job_id"] == _DEFAULT_JOB_ID:
        notes.append(
            f"the planner knows this job as {_DEFAULT_JOB_ID!r}; give it a name of its own in"
            " flyball.job_id or FLYBALL_JOB_ID before a second one uses this planner"
        )
    gpu_type = values.get("gpu_type")
    is_known = "blocking_power_w" in values or values.get("profiling") == "online"
    if gpu_type is not None and not is_known:
        try:
            window = load_gpu_window(gpu_type, folder=gpu_folder(os.environ))
            is_known = window.blocking_power_w is not None
        except GpuTableError:  # an argument; the planner's table may have more
            is_known = True
    if not is_known:
        notes.append(
            f"the blocking power of {gpu_type or 'the GPU'} is not known, and without it the"
            f" planner refuses the job: measure it with {MEASURE_BLOCKING_POWER} and give it, in"
            " W, in flyball.blocking_power_w or FLYBALL_BLOCKING_POWER_W, or have it measured in"
            " training with flyball.profiling online"
        )
    return notes


def _text_of(source: str) -> str:
    """Return the text of the file, or of base64, in which DeepSpeed's own tools pass configs."""
    try:
        return read_text(Path(source))
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ENAMETOOLONG}:
            raise
    try:
        return base64.b64decode(source, altchars=b"-_", validate=True).decode("utf-8")
    except ValueError:  # with it binascii.Error and UnicodeDecodeError
        raise ValueError("no such file, and no DeepSpeed config in base64") from None
