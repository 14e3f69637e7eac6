"""Which clocks are profiled, in which order, and where it is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from flyball_client.profiling.measured_point import MeasuredPoint
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
