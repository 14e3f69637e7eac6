"""GPU tables: SM clocks to profile, power draw of a waiting GPU, times of clock changes.

One TOML file per GPU in `gpus/`, each figure with its source; a new GPU is a new file, here or in
a folder of one's own. The window guides profiling only; the clocks of a device are always read
from the device.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from flyball_profiles.clock_transitions import (
    TRANSITIONS,
    ClockTransitions,
    TransitionsError,
    transitions_of_table,
)
from flyball_profiles.limited_file import read_text
from flyball_profiles.printable_text import toml_string

GPU_FOLDER_VARIABLE = "FLYBALL_GPU_FOLDER"
"""Variable that names a folder with the GPU files of one's own."""
MEASURE_BLOCKING_POWER = "flyball profile blocking-power"
"""Command that measures the blocking power of a GPU."""

_SHIPPED = resources.files("flyball_profiles") / "gpus"
_SUFFIX = ".toml"
_CLOCK_FIGURES = (
    "filter_max_mhz",
    "filter_min_mhz",
    "granularity_mhz",
    "reconfigure_granularity_mhz",
)
_BLOCKING_POWER, _IN_NODE = "blocking_power_w", "gpus_in_node"
_HIGHEST_CLOCK_MHZ = 100_000
_HIGHEST_POWER_W = 100_000
_MOST_IN_NODE = 1024


class GpuTableError(ValueError):
    """A GPU is not in the table, or its file cannot be used; the text names the fix."""


@dataclass(frozen=True, kw_only=True)
class GpuWindow:
    """The profiling window of one GPU type.

    Attributes:
        name: the table's name for the GPU, as in `--gpu a100`.
        filter_max_mhz: highest SM clock to profile, MHz.
        filter_min_mhz: lowest SM clock to profile, MHz, below the highest.
        granularity_mhz: least distance of two profiled clocks, MHz, positive.
        reconfigure_granularity_mhz: step by which reconfiguration moves a clock, MHz, positive.
        blocking_power_w: draw while waiting in P2P communication, W; None: not published; it is
            then measured or given, never guessed.
        gpus_in_node: number of GPUs that a node of these usually has, 1 to 1024; None: nodes
            differ, or it is not known.
        sources: figure -> its origin, for every figure that is not None; those of clock changes
            as `transitions.up_ms`.
        transitions: times of clock changes; None: not known.

    Raises:
        GpuTableError: a figure is out of its bounds or has no source.
    """

    name: str
    filter_max_mhz: int
    filter_min_mhz: int
    granularity_mhz: int
    reconfigure_granularity_mhz: int
    blocking_power_w: float | None
    sources: Mapping[str, str]
    transitions: ClockTransitions | None = None
    gpus_in_node: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
        for figure in _CLOCK_FIGURES:
            value = getattr(self, figure)
            if not 1 <= value <= _HIGHEST_CLOCK_MHZ:
                raise GpuTableError(f"{figure} must be from 1 to {_HIGHEST_CLOCK_MHZ}, not {value}")
        if self.filter_min_mhz >= self.filter_max_mhz:
            raise GpuTableError(
                f"filter_min_mhz ({self.filter_min_mhz}) must be below"
                f" filter_max_mhz ({self.filter_max_mhz})"
            )
        power_w = self.blocking_power_w
        if power_w is not None and not (math.isfinite(power_w) and 0 < power_w <= _HIGHEST_POWER_W):
            raise GpuTableError(
                f"{_BLOCKING_POWER} must be above 0 and at most {_HIGHEST_POWER_W}, not {power_w}"
            )
        if self.gpus_in_node is not None and not 1 <= self.gpus_in_node <= _MOST_IN_NODE:
            raise GpuTableError(
                f"{_IN_NODE} must be from 1 to {_MOST_IN_NODE}, not {self.gpus_in_node}"
            )
        optional = [
            figure for figure in (_BLOCKING_POWER, _IN_NODE) if getattr(self, figure) is not None
        ]
        for figure in (*_CLOCK_FIGURES, *optional):
            if not self.sources.get(figure, "").strip():
                raise GpuTableError(f"{figure}.source must name the origin of the figure")


def gpu_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of one's own GPU files; None: there is none."""
    text = environment.get(GPU_FOLDER_VARIABLE, "").strip()
    return Path(text) if text else None


def gpu_names(*, folder: Path | None = None) -> tuple[str, ...]:
    """Return the GPUs in the table, sorted.

    Args:
        folder: folder of one's own files, in addition to the shipped table.

    Raises:
        GpuTableError: the folder cannot be read.
    """
    return tuple(sorted(_files(folder)))


def with_blocking_power(text: str, power_w: float, source: str) -> str:
    """Return a GPU file's text with this blocking power, W, at its end.

    Raises:
        GpuTableError: the file has one already, or cannot be used.
    """
    if _parsed("gpu", text, "the GPU file").blocking_power_w is not None:
        raise GpuTableError(f"the GPU file has {_BLOCKING_POWER} already; remove it there")
    figure = f"value = {power_w:.2f}\nsource = {toml_string(source)}\n"
    return f"{text.rstrip()}\n\n[{_BLOCKING_POWER}]\n{figure}"


def with_transitions(text: str, table: str) -> str:
    """Return a GPU file's text with this TOML table `[transitions]` at its end.

    Raises:
        GpuTableError: the file has one already, or either cannot be used.
    """
    if _parsed("gpu", text, "the GPU file").transitions is not None:
        raise GpuTableError(f"the GPU file has {TRANSITIONS} already; remove them there")
    filled = f"{text.rstrip()}\n\n{table}"
    _parsed("gpu", filled, "the GPU file with its clock changes")
    return filled


def gpu_file_text(text: str, environment: Mapping[str, str]) -> str:
    """Return the text of the file that a command's `--gpu` would read.

    Raises:
        GpuTableError: as `gpu_window_of`.
    """
    window = gpu_window_of(text, environment)
    if text.endswith(_SUFFIX):
        return read_text(Path(text))
    return _files(gpu_folder(environment))[window.name].read_text(encoding="utf-8")


def load_gpu_window(name: str, *, folder: Path | None = None) -> GpuWindow:
    """Return the window of one GPU type, by its name in any case.

    Args:
        name: one of `gpu_names`, or its part before a hyphen where no other GPU begins so.
        folder: folder of one's own files, which are preferred to the shipped ones.

    Raises:
        GpuTableError: no such GPU (its variants, or the known ones, are listed), or its file is
            malformed (file and key are named), or the folder cannot be read.
    """
    files = _files(folder)
    wanted = name.strip().lower()
    if wanted not in files:
        alike = sorted(known for known in files if wanted and known.startswith(wanted))
        # Without a hyphen another GPU is meant: l4 is no l40s.
        if not any(known.startswith(f"{wanted}-") for known in alike):
            raise GpuTableError(f"unknown GPU {name!a}; known: {', '.join(sorted(files))}")
        if len(alike) > 1:
            raise GpuTableError(f"GPU {name!a} may be {', '.join(alike)}; name one of them")
        (wanted,) = alike
    file = files[wanted]
    if isinstance(file, Path):
        return load_gpu_file(file, name=wanted)
    return _parsed(wanted, file.read_text(encoding="utf-8"), file.name)


def load_gpu_file(file: Path, *, name: str | None = None) -> GpuWindow:
    """Return the window in a file of one's own.

    Args:
        file: TOML file.
        name: name of the GPU; None: the file's.

    Raises:
        GpuTableError: it cannot be read, or is malformed (file and key are named).
    """
    try:
        text = read_text(file)
    except OSError as error:
        raise GpuTableError(f"{file}: {error.strerror or error}") from None
    except ValueError:
        raise GpuTableError(f"{file}: not UTF-8 text") from None
    return _parsed(name or file.name.removesuffix(_SUFFIX).lower(), text, str(file))


def gpu_window_of(text: str, environment: Mapping[str, str]) -> GpuWindow:
    """Return the window that a command's `--gpu` names: a GPU of the table, or a file.

    Raises:
        GpuTableError: as `load_gpu_window` and `load_gpu_file`.
    """
    if text.endswith(_SUFFIX):
        return load_gpu_file(Path(text))
    return load_gpu_window(text, folder=gpu_folder(environment))


def _files(folder: Path | None) -> dict[str, Traversable]:
    """Return the file of each GPU, by its name."""
    own: list[Path] = []
    if folder is not None:
        try:
            own = list(folder.iterdir())
        except OSError as error:
            raise GpuTableError(
                f"{GPU_FOLDER_VARIABLE}: {folder}: {error.strerror or error}"
            ) from None
    return {
        file.name.removesuffix(_SUFFIX).lower(): file
        for file in (*_SHIPPED.iterdir(), *own)
        if file.name.endswith(_SUFFIX)
    }


def _parsed(name: str, text: str, file: str) -> GpuWindow:
    try:
        return _window(name, tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise GpuTableError(f"{file}: not TOML: {error}") from None
    except (GpuTableError, TransitionsError) as error:
        raise GpuTableError(f"{file}: {error}") from None


def read_transitions(path: Path) -> ClockTransitions:
    """Read times of clock changes from the table `[transitions]` of a GPU file or other TOML file.

    Raises:
        TransitionsError: the file cannot be read, or is malformed; one line with file and key.
    """
    try:
        document = tomllib.loads(read_text(path))
        return transitions_of_table(document.get(TRANSITIONS))[0]
    except OSError as error:
        raise TransitionsError(f"{path}: {error.strerror or error}") from None
    except TransitionsError as error:
        raise TransitionsError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise TransitionsError(f"{path}: not TOML: {error}") from None


def window_clocks_mhz(window: GpuWindow, supported_clocks_mhz: Iterable[int]) -> tuple[int, ...]:
    """Return the profiling grid: the SM clocks of a device to profile.

    From the highest supported clock in the window down, each the highest that is at least
    `granularity_mhz` below the clock before.

    Args:
        window: the GPU type's window.
        supported_clocks_mhz: of the device, MHz, in any order.

    Returns:
        Clocks in falling order, at least one.

    Raises:
        GpuTableError: the device has no clock in the window.
    """
    grid: list[int] = []
    for clock_mhz in sorted(set(supported_clocks_mhz), reverse=True):
        if not window.filter_min_mhz <= clock_mhz <= window.filter_max_mhz:
            continue
        if not grid or clock_mhz <= grid[-1] - window.granularity_mhz:
            grid.append(clock_mhz)
    if not grid:
        raise GpuTableError(
            f"the device supports no SM clock from {window.filter_min_mhz} to"
            f" {window.filter_max_mhz} MHz, the window of {window.name}; is it another GPU?"
        )
    return tuple(grid)


def _window(name: str, table: Mapping[str, object]) -> GpuWindow:
    unknown = sorted(set(table) - {*_CLOCK_FIGURES, _BLOCKING_POWER, _IN_NODE, TRANSITIONS})
    if unknown:
        # A misspelt blocking power must not pass for an unknown one.
        raise GpuTableError(f"unknown key {unknown[0]}")
    values: dict[str, Any] = {_BLOCKING_POWER: None, _IN_NODE: None}
    sources: dict[str, str] = {}
    for figure in (*_CLOCK_FIGURES, *sorted(table.keys() & {_BLOCKING_POWER, _IN_NODE})):
        if figure not in table:
            raise GpuTableError(f"the key {figure} is missing")
        entry = table[figure]
        if not isinstance(entry, dict):
            raise GpuTableError(f"{figure} must be a table with value and source")
        fields = cast("Mapping[str, object]", entry)
        value, sources[figure] = fields.get("value"), str(fields.get("source") or "")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise GpuTableError(f"{figure}.value must be a number")
        if figure != _BLOCKING_POWER and not isinstance(value, int):
            unit = "GPUs" if figure == _IN_NODE else "MHz"
            raise GpuTableError(f"{figure}.value must be a whole number of {unit}, not {value}")
        values[figure] = value
    if TRANSITIONS in table:
        values[TRANSITIONS], origins = transitions_of_table(table[TRANSITIONS])
        sources |= {f"{TRANSITIONS}.{figure}": origin for figure, origin in origins.items()}
    return GpuWindow(name=name, sources=sources, **values)
