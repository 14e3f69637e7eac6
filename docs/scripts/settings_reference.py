"""The parts of docs/commands.md that come from settings, options of `attach` and the GPU table."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from docs.scripts.command_reference import parser
from docs.scripts.tables import attributes_of, code, listed, table
from pydantic.fields import FieldInfo

from flyball_client.gpu.registry import read_clock_settings
from flyball_client.gpu.zeusd.settings import ZeusdSettings
from flyball_client.session.rank_settings import RankSettings
from flyball_integrations.deepspeed.settings import SETTINGS
from flyball_integrations.shared.attach_options import ATTACHED_OPTIONS, RankOptions
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.gpu_windows import gpu_names, load_gpu_window
from flyball_server.settings import Settings
from flyball_wire.messages import JobSpec

# ` (`FLYBALL_TOKEN`)` in the description of an attribute.
_VARIABLE_BEHIND = re.compile(r" \(`((?:FLYBALL|ZEUSD|LOCAL)_[A-Z_]+)`\)")
# Of this machine, not of the planner.
_MADE_DEFAULTS = {
    "database": "`planner.sqlite` in the user's state folder",
    "planning_processes": "half of the cores, at least 2",
}


def settings_part(what: str) -> str:
    """Return a table: of the `planner`, `client`, `attach` or `deepspeed`, or the `gpus`."""
    tables = {
        "planner": _planner,
        "client": _client,
        "attach": _attach,
        "deepspeed": _deepspeed,
        "gpus": _gpus,
    }
    return tables[what]()


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
    return _MADE_DEFAULTS.get(name) or _shown(field.default)


def _shown(default: object) -> str:
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


def _client() -> str:
    """Return the variables that the attributes of these classes name in parentheses."""
    rows = [
        (code(variable), _shown(getattr(read, name)), text)
        for read in (RankSettings.read({}), read_clock_settings({}), ZeusdSettings.read({}))
        for name, texts in attributes_of(type(read).__doc__ or "").items()
        for variable, text in _by_variable(texts)
    ]
    return table(("variable", "default", "meaning"), rows)


def _by_variable(text: str) -> Iterator[tuple[str, str]]:
    """Yield each variable that stands behind its description, with that and the shared end."""
    *parts, end = _VARIABLE_BEHIND.split(text)
    for described, variable in zip(parts[::2], parts[1::2], strict=True):
        noun = described.removeprefix(", else ")
        yield variable, _of_a_variable(f"{noun[:1].upper()}{noun[1:]}{end}")


def _of_a_variable(text: str) -> str:
    """Return the description in the words of a variable, which is text or not set."""
    text = text.rstrip(".")
    for value, variable in (("None: not set, or", "not set:"), ("None:", "not set:")):
        text = text.replace(value, variable)
    return text.replace("True:", "1:").replace("False:", "0:")


def _gpus() -> str:
    rows = []
    for name in gpu_names():
        gpu = load_gpu_window(name)
        power_w = "" if gpu.blocking_power_w is None else f"{gpu.blocking_power_w:g}"
        window = f"{gpu.filter_min_mhz} to {gpu.filter_max_mhz}"
        in_node = "" if gpu.gpus_in_node is None else f"{gpu.gpus_in_node}"
        rows.append((code(name), window, power_w, in_node, *_delays(gpu.transitions)))
    head = ("GPU", "window, MHz", "blocking power, W", "GPUs in a node", "up, ms", "down, ms")
    return table(head, rows)


def _delays(times: ClockTransitions | None) -> tuple[str, str]:
    if times is None:
        return "", ""
    up = (times.up_p5_s, times.up_p50_s, times.up_p95_s)
    down = (times.down_p5_s, times.down_p50_s, times.down_p95_s)
    return _milliseconds(up), _milliseconds(down)


def _milliseconds(percentiles_s: tuple[float, ...]) -> str:
    return ", ".join(f"{value_s * 1e3:.1f}" for value_s in percentiles_s)


def _attach() -> str:
    texts = attributes_of(RankOptions.__doc__ or "") | {
        declared.keyword: declared.description for declared in ATTACHED_OPTIONS.values()
    }
    texts["transitions"] = f"{texts['transitions']} It may be the path of a TOML file"
    defaults: Mapping[str, Any] = {
        field.name: field.default
        for field in dataclasses.fields(JobSpec)
        if field.default is not dataclasses.MISSING
    }
    names = [
        *RankOptions.__annotations__,
        *(declared.keyword for declared in ATTACHED_OPTIONS.values()),
    ]
    rows = [
        (
            code(name),
            code(defaults[name]) if defaults.get(name) is not None else "",
            texts[name].replace("null:", "None:").rstrip("."),
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
            setting.option.must_be,
        )
        for setting in SETTINGS
    ]
    return table(("variable", "key in `flyball`", "EnvPipe's variable, key", "value"), rows)


def _envpipe(name: Any) -> str:  # noqa: ANN401 - an EnvPipeName or None
    if name is None:
        return ""
    return ", ".join(code(each) for each in (name.variable, name.key) if each)
