"""Choice of the clocks to profile, their order, and the point at which to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from flyball_client.gpu.window_draft import draft_window
from flyball_client.profiling.points_file import MeasuredPoint
from flyball_profiles.gpu_windows import (
    GpuTableError,
    GpuWindow,
    load_gpu_window,
    window_clocks_mhz,
)
from flyball_profiles.stage_profile import InstructionKind

DEFAULT_NUM_RISES = 5

Measure = Callable[[InstructionKind, int], MeasuredPoint]


class Sweep:
    """Each instruction at each clock, high to low, until its energy only rises.

    Below some clock both time and energy rise, and nothing would run there: an instruction's
    sweep ends after so many rises of its energy in a row. Points whose clock was held below the
    lock are no steps of that row, since they ran at another clock.

    Args:
        kinds: to sweep, one after the other.
        clocks_mhz: in falling order.
        num_rises: in a row, to stop after; 0: never.
        known: points measured earlier, which are not measured again.
    """

    def __init__(
        self,
        kinds: Sequence[InstructionKind],
        clocks_mhz: Sequence[int],
        *,
        num_rises: int = DEFAULT_NUM_RISES,
        known: Iterable[MeasuredPoint] = (),
    ) -> None:
        self._kinds = kinds
        self._clocks_mhz = clocks_mhz
        self._num_rises = num_rises
        self._known = {(point.kind, point.frequency_mhz): point for point in known}
        self.stopped_at_mhz: dict[InstructionKind, int] = {}

    def run(self, measure: Measure) -> Iterator[MeasuredPoint]:
        """Measure what is not known yet, and yield it at once.

        `stopped_at_mhz` then names the instructions that were not swept to the end.
        """
        for kind in self._kinds:
            energies_j: list[float] = []
            for clock_mhz in self._clocks_mhz:
                point = self._known.get((kind, clock_mhz))
                if point is None:
                    point = measure(kind, clock_mhz)
                    yield point
                if point.held_by is None:
                    energies_j.append(point.energy_j)
                if self._only_rises(energies_j) and clock_mhz != self._clocks_mhz[-1]:
                    self.stopped_at_mhz[kind] = clock_mhz
                    break

    def _only_rises(self, energies_j: Sequence[float]) -> bool:
        if not self._num_rises or len(energies_j) <= self._num_rises:
            return False
        return all(after > before for before, after in pairwise(energies_j[-self._num_rises - 1 :]))


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
