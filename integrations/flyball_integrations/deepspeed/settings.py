"""Settings in a DeepSpeed config and its environment: names, values, sources."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast

from flyball_client.session.rank_settings import LEASE, STRICT, TIMING, WITHOUT_PLANNER
from flyball_integrations.shared.attach_options import ANNOUNCES_WORK, ATTACHED_OPTIONS
from flyball_profiles.gpu_windows import (
    GPU_FOLDER_VARIABLE,
    GpuTableError,
    gpu_folder,
    gpu_names,
)
from flyball_wire.messages import JobSpec
from flyball_wire.options import Option, OptionError, options_of
from flyball_wire.plan_options import Policy, Reconfigure

SCHEDULES = ("1f1b", "envpipe")
P2P = ("stock", "eager", "pulled")


@dataclass(frozen=True)
class EnvPipeName:
    """EnvPipe's name of a setting: its block's key, its values and ours, its variable."""

    key: str
    values: Mapping[str, str]
    variable: str | None = None


@dataclass(frozen=True)
class Setting:
    """One argument of `attach`, and key of the `flyball` block."""

    option: Option
    envpipe: EnvPipeName | None = None

    @property
    def key(self) -> str:
        """Key in the `flyball` block, and keyword of `attach`."""
        return self.option.keyword

    @property
    def variable(self) -> str:
        """Variable of the environment."""
        return f"FLYBALL_{self.key.upper()}"

    def is_set_in(self, environ: Mapping[str, str]) -> bool:
        """Return whether a variable sets it, Flyball's or EnvPipe's."""
        envpipe = self.envpipe and self.envpipe.variable
        return bool(environ.get(self.variable) or (envpipe and environ.get(envpipe)))

    def value(
        self,
        arguments: Mapping[str, Any],
        environ: Mapping[str, str],
        flyball: Mapping[str, object],
        envpipe: Mapping[str, object],
    ) -> object | None:
        """Return the value of the first source that has one; None: no source has.

        Args:
            arguments: Arguments of `attach`, returned unchecked.
            environ: Environment; an empty variable counts as not set.
            flyball: The `flyball` block; null counts as not set.
            envpipe: The `envpipe` block; null counts as not set.

        Raises:
            ValueError: The source's value is not valid.
        """
        if arguments.get(self.key) is not None:
            return cast("object", arguments[self.key])
        name = self.envpipe or EnvPipeName("", {})
        theirs = replace(self.option, kind=str, choices=tuple(name.values))
        sources = (
            (self.variable, environ.get(self.variable) or None, self.option),
            (name.variable, environ.get(name.variable or "") or None, theirs),
            (f"flyball.{self.key}", flyball.get(self.key), self.option),
            (f"envpipe.{name.key}", envpipe.get(name.key), theirs),
        )
        for where, given, option in sources:
            if given is not None:
                try:
                    value = option.read_setting(given)
                except OptionError as error:
                    raise ValueError(f"{where} {error.message}") from None
                return name.values[value] if option is theirs else value
        return None


def _is_gpu_type(given: str) -> bool:
    try:
        return given in gpu_names(folder=gpu_folder(os.environ))
    except GpuTableError:
        return given in gpu_names()


def _is_job_id(given: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9._+-]{1,128}", given) is not None


_ENVPIPES: Mapping[str, EnvPipeName] = MappingProxyType(
    {
        "policy": EnvPipeName(
            "type",
            {str(name): str(name) for name in (Policy.BASELINE, Policy.UNIFORM, Policy.ENVELOPE)},
            "ENVPIPE_TYPE",
        ),
        "schedule": EnvPipeName(
            "scheduling", {"1f1b": "1f1b", "ours": "envpipe"}, "ENVPIPE_SCHEDULING"
        ),
        "reconfigure": EnvPipeName(
            "reconfig", {str(name): str(name) for name in Reconfigure}, "ENVPIPE_RECONFIGURE"
        ),
        # EnvPipe's GPUs have the same names in the table.
        "gpu": EnvPipeName("gpu", {name: name for name in gpu_names()}),
    }
)


def settings_of(options: Mapping[str, Option]) -> tuple[Setting, ...]:
    """Return the settings of these planning options, and those of DeepSpeed and a rank."""
    gpus = f"one of {', '.join(gpu_names())}, or a name in the folder {GPU_FOLDER_VARIABLE}"
    special: dict[str, dict[str, Any]] = {
        "gpu": {"form": gpus, "check": _is_gpu_type},
        "transitions": {"kind": str, "form": "the path of a TOML file"},
    }
    planning = (replace(option, **special.get(name, {})) for name, option in options.items())
    declared = (
        Option(
            "",
            name="job_id",
            form="1 to 128 of letters, digits, '.', '_', '+' and '-'",
            check=_is_job_id,
        ),
        Option(name="planner_url", form="like http://HOST:PORT"),
        Option(name="schedule", choices=SCHEDULES),
        *planning,
        options_of(JobSpec)["extra_forwards"],
        Option(name="p2p", choices=P2P),
        WITHOUT_PLANNER,
        LEASE,
        STRICT,
        TIMING,
        ANNOUNCES_WORK,
    )
    return tuple(Setting(option, _ENVPIPES.get(option.name)) for option in declared)


SETTINGS = settings_of(ATTACHED_OPTIONS)
