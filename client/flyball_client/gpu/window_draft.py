"""Draft of the GPU table's file for a new GPU, from the GPU's own clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from flyball_profiles.gpu_windows import GpuWindow, window_clocks_mhz
from flyball_profiles.printable_text import printable, toml_string

# EnvPipe's steps of profiling and of reconfiguration (USENIX ATC '23).
_GRANULARITY_MHZ = 90
_RECONFIGURE_GRANULARITY_MHZ = 30


def draft_window(name: str, clocks_mhz: Sequence[int], *, origin: str) -> GpuWindow:
    """Draft a window over the upper half of a GPU's clocks, in steps near EnvPipe's.

    Args:
        name: Name for `--gpu NAME`.
        clocks_mhz: SM clocks of the GPU in MHz, in any order, at least two different ones.
        origin: Origin of the clocks, for the sources.

    Raises:
        ValueError: There are fewer clocks.
    """
    rising = sorted(set(clocks_mhz))
    if len(rising) < 2:
        raise ValueError(f"a window needs two SM clocks, and the GPU lists {len(rising)}")
    step_mhz = _own_step_mhz(rising)
    own_step = f"a multiple of the GPU's own step, {step_mhz:g} MHz"
    sources = {
        "filter_max_mhz": f"Highest of {len(rising)} SM clocks, {origin}",
        "filter_min_mhz": (
            "Chosen: of the clocks in steps of the granularity below the highest, the one nearest"
            f" to half of the highest; {origin}"
        ),
        "granularity_mhz": f"Chosen: near the 90 MHz of EnvPipe (USENIX ATC '23), {own_step}",
        "reconfigure_granularity_mhz": (
            f"Chosen: near the 30 MHz of EnvPipe (USENIX ATC '23), {own_step}"
        ),
    }
    whole = GpuWindow(
        name=name,
        filter_max_mhz=rising[-1],
        filter_min_mhz=rising[0],
        granularity_mhz=_multiple(step_mhz, _GRANULARITY_MHZ),
        reconfigure_granularity_mhz=_multiple(step_mhz, _RECONFIGURE_GRANULARITY_MHZ),
        blocking_power_w=None,
        sources=sources,
    )
    # Without the highest; the lowest clock where no other is a whole step away.
    below_mhz = window_clocks_mhz(whole, rising)[1:] or (rising[0],)
    lowest_mhz = min(below_mhz, key=lambda clock_mhz: abs(2 * clock_mhz - rising[-1]))
    return replace(whole, filter_min_mhz=lowest_mhz)


def window_toml(window: GpuWindow, product: str) -> str:
    """Return the file `gpus/NAME.toml`, without a blocking power."""
    lines = [
        f"# {printable(product)}: the window of SM clocks to profile. Each figure has its source.",
        "# A window guides profiling only; the device lists its own clocks.",
        "# No blocking power: measure it, as W while a GPU waits in communication. Then",
        "# add [blocking_power_w] with its value and source, or give --blocking-power W.",
    ]
    for figure, source in window.sources.items():
        value: int = getattr(window, figure)
        lines += ["", f"[{figure}]", f"value = {value}", f"source = {toml_string(source)}"]
    return "\n".join([*lines, ""])


def _own_step_mhz(rising: Sequence[int]) -> float:
    """Return the step between the GPU's clocks; alternating steps of 7 and 8 MHz count as 7.5."""
    steps = [above - below for below, above in pairwise(rising)]
    if max(steps) - min(steps) <= 1:
        return (rising[-1] - rising[0]) / len(steps)
    return median(steps)


def _multiple(step_mhz: float, about_mhz: int) -> int:
    """Return the multiple of a step that is nearest to `about_mhz`."""
    return round(step_mhz * max(1, round(about_mhz / step_mhz)))
