"""The parts of docs/commands.md that come from settings and from options of `attach`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from docs.scripts.command_reference import parser
from docs.scripts.tables import attributes_of, code, inherited_attributes, listed, table
from pydantic.fields import FieldInfo

from flyball_integrations.deepspeed.settings import SETTINGS
from flyball_integrations.shared.attach_options import PlanningOptions, RankOptions
from flyball_server.settings import Settings
from flyball_wire.messages import JobSpec

# Of this machine, not of the planner.
_MADE_DEFAULTS = {
    "database": "`planner.sqlite` in the user's state folder",
    "planning_processes": "half of the cores, at least 2",
}


def settings_part(what: str) -> str:
    """Return the table of the settings of the `planner`, of `attach` or of `deepspeed`."""
    return {"planner": _planner, "attach": _attach, "deepspeed": _deepspeed}[what]()


def _planner() -> str:
    options = set(parser("serve")._option_string_actions)
    texts = attributes_of(Settings.__doc__ or "")
    rows = []
    for name, field in Settings.model_fields.items():
        option = f"--{name.replace('_', '-')}"
        rows.append(
            (
                code(f"FLYBALL_{name.upper()}"),
                code(option) if option in options else "",
                _default(name, field),
                _with_limits(texts[name], field),
            )
        )
    return table(("variable", "option of `flyball serve`", "default", "meaning"), rows)


def _default(name: str, field: FieldInfo) -> str:
    if made := _MADE_DEFAULTS.get(name):
        return made
    default = field.default
    if default is None or default == ():
        return "none"
    if isinstance(default, bool):
        return code(int(default))
    return code(f"{default:g}" if isinstance(default, float) else default)


def _with_limits(text: str, field: FieldInfo) -> str:
    choices = [each for each in get_args(field.annotation) if isinstance(each, str)]
    if field.annotation is bool:
        choices = ["1", "0"]
    limits = listed(list(map(code, choices))) if choices else _limits(field)
    # A setting is a variable here, and has no None.
    text = text.replace("None:", "not set:").replace("`max_wait_s`", "`FLYBALL_MAX_WAIT_S`")
    return f"{text.rstrip('.')} ({limits})" if limits else text.rstrip(".")


def _limits(field: FieldInfo) -> str:
    found = {
        key: getattr(each, key)
        for each in field.metadata
        for key in ("ge", "gt", "le")
        if hasattr(each, key)
    }
    if "ge" in found and "le" in found:
        return f"{found['ge']:.0f} to {found['le']:.0f}"
    words = {"ge": "at least", "gt": "above", "le": "at most"}
    return ", ".join(f"{words[key]} {limit:.0f}" for key, limit in found.items())


def _attach() -> str:
    texts = inherited_attributes(JobSpec)
    for options in (PlanningOptions, RankOptions):
        texts |= attributes_of(options.__doc__ or "")
    defaults: Mapping[str, Any] = {
        field.name: field.default
        for field in dataclasses.fields(JobSpec)
        if field.default is not dataclasses.MISSING
    }
    names = [*RankOptions.__annotations__, *PlanningOptions.__annotations__]
    rows = [
        (
            code(name),
            code(defaults[name]) if defaults.get(name) is not None else "",
            texts[name].replace("Null:", "None:").rstrip("."),
        )
        for name in names
    ]
    return table(("option", "default", "meaning"), rows)


def _deepspeed() -> str:
    rows = [
        (
            code(setting.variable),
            code(setting.key),
            _envpipe(setting.envpipe),
            setting.must_be,
        )
        for setting in SETTINGS
    ]
    return table(("variable", "key in `flyball`", "EnvPipe's variable, key", "value"), rows)


def _envpipe(name: Any) -> str:  # noqa: ANN401 - an EnvPipeName or None
    if name is None:
        return ""
    return ", ".join(code(each) for each in (name.variable, name.key) if each)
