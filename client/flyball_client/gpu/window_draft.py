"""Drafts the GPU table's file for a GPU that it does not have yet, from the GPU's own clocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from flyball_profiles.gpu_windows import GpuWindow, window_clocks_mhz

# What EnvPipe profiles all its GPUs at and reconfigures them by (USENIX ATC '23).
_GRANULARITY_MHZ = 90
_RECONFIGURE_GRANULARITY_MHZ = 30


def draft_window(name: str, clocks_mhz: Sequence[int], *, origin: str) -> GpuWindow:
    """A window over the upper half of a GPU's clocks, in steps near EnvPipe's.

    Args:
        name: for `--gpu NAME`.
        clocks_mhz: that the GPU lists, MHz, in any order, at least two different ones.
        origin: who said so, for the sources.

    Raises:
        ValueError: there are fewer clocks.
    """
    rising = sorted(set(clocks_mhz))
    if len(rising) < 2:
        raise ValueError(f"a window needs two SM clocks, and the GPU lists {len(rising)}")
    step_mhz = _own_step_mhz(rising)
    granularity_mhz = _multiple(step_mhz, _GRANULARITY_MHZ)
    reconfigure_mhz = _multiple(step_mhz, _RECONFIGURE_GRANULARITY_MHZ)
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
        granularity_mhz=granularity_mhz,
        reconfigure_granularity_mhz=reconfigure_mhz,
        blocking_power_w=None,
        sources=sources,
    )
    # Without the highest; where no other is a whole step away, the lowest clock ends the window.
    below_mhz = window_clocks_mhz(whole, rising)[1:] or (rising[0],)
    return GpuWindow(
        name=name,
        filter_max_mhz=rising[-1],
        filter_min_mhz=min(below_mhz, key=lambda clock_mhz: abs(2 * clock_mhz - rising[-1])),
        granularity_mhz=granularity_mhz,
        reconfigure_granularity_mhz=reconfigure_mhz,
        blocking_power_w=None,
        sources=sources,
    )


def window_toml(window: GpuWindow, product: str) -> str:
    """The file `gpus/NAME.toml`, without a blocking power.

    Args:
        window: what to write.
        product: the GPU's name, for the first line.
    """
    lines = [
        f"# {_printable(product)}: the window of SM clocks to profile. Each figure has its source.",
        "# A window guides profiling only; the device is asked for its clocks.",
        "# No blocking power: it must be measured, as W while a GPU waits in communication. Then",
        "# add [blocking_power_w] with its value and source, or give --blocking-power W.",
    ]
    for figure in (
        "filter_max_mhz",
        "filter_min_mhz",
        "granularity_mhz",
        "reconfigure_granularity_mhz",
    ):
        value: int = getattr(window, figure)
        lines += ["", f"[{figure}]", f"value = {value}", f"source = {_quoted(window, figure)}"]
    return "\n".join([*lines, ""])


def _quoted(window: GpuWindow, figure: str) -> str:
    # JSON's strings of printable characters are TOML's too.
    return json.dumps(_printable(window.sources[figure]), ensure_ascii=False)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)


def _own_step_mhz(rising: Sequence[int]) -> float:
    """By which the GPU's clocks rise; some rise by 7 and 8 MHz in turn, which is 7.5."""
    steps = [above - below for below, above in pairwise(rising)]
    if max(steps) - min(steps) <= 1:
        return (rising[-1] - rising[0]) / len(steps)
    return median(steps)


def _multiple(step_mhz: float, about_mhz: int) -> int:
    """The multiple of a step that is nearest to about so many MHz."""
    return round(step_mhz * max(1, round(about_mhz / step_mhz)))
