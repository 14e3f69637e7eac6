"""Which of a GPU's clocks a run profiles: a window of the GPU table, or one drafted for the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flyball_client.gpu.window_draft import draft_window
from flyball_profiles.gpu_windows import (
    GpuTableError,
    GpuWindow,
    load_gpu_window,
    window_clocks_mhz,
)


def clock_grid(
    supported_mhz: Sequence[int],
    *,
    table_name: str | None,
    every_clock: bool,
    lowest_mhz: int | None = None,
    highest_mhz: int | None = None,
    step_mhz: int | None = None,
) -> tuple[int, ...]:
    """Clocks to profile, MHz, falling.

    Args:
        supported_mhz: what the GPU says, MHz.
        table_name: the GPU's name in the table; None: a window is drafted, see `draft_window`.
        every_clock: without a table's name, take all clocks in place of a drafted window.
        lowest_mhz: in the place of the window's.
        highest_mhz: in the place of the window's.
        step_mhz: in the place of the window's.

    Raises:
        GpuTableError: no such GPU, no such window, or fewer than two clocks in it.
        ValueError: the GPU has fewer than two clocks.
    """
    if table_name is not None:
        window = load_gpu_window(table_name)
    else:
        window = draft_window("this GPU", supported_mhz, origin="asked of the GPU")
        if every_clock:
            window = replace(window, filter_min_mhz=min(supported_mhz), granularity_mhz=1)
    window = _changed(window, lowest_mhz, highest_mhz, step_mhz)
    clocks_mhz = window_clocks_mhz(window, supported_mhz)
    if len(clocks_mhz) < 2:
        raise GpuTableError(
            f"only {max(clocks_mhz)} MHz lies in the window of {window.filter_min_mhz} to"
            f" {window.filter_max_mhz} MHz at a step of {window.granularity_mhz}; a profile needs"
            " two clocks"
        )
    return clocks_mhz


def _changed(
    window: GpuWindow, lowest_mhz: int | None, highest_mhz: int | None, step_mhz: int | None
) -> GpuWindow:
    return replace(
        window,
        filter_min_mhz=window.filter_min_mhz if lowest_mhz is None else lowest_mhz,
        filter_max_mhz=window.filter_max_mhz if highest_mhz is None else highest_mhz,
        granularity_mhz=window.granularity_mhz if step_mhz is None else step_mhz,
    )
