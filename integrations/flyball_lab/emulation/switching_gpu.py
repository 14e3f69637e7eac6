"""An emulated GPU whose clock may change while an instruction runs."""

from __future__ import annotations

from flyball_client.gpu.emulated import EmulatedGpu
from flyball_profiles.stage_profile import OperatingPoint


class SwitchingGpu(EmulatedGpu):
    """An EmulatedGpu that takes up a late clock at once, not from the next instruction on.

    A rank asks for an instruction's clock as the instruction begins. With a switch latency the
    first part of it still runs at the clock before, the rest at its own: the same share of the
    work as of either clock's time and energy. For virtual time, where no computation outlasts
    its instruction.
    """

    def on_instruction_end(self, kind: str, chunk: int = 0) -> None:
        """The computation has ended; returns when all of its parts are over.

        Raises:
            ValueError: no such instruction is running.
        """
        if self._running is not None and self._running[:2] == (kind, chunk):
            self._running = self._with_late_clocks(*self._running)
        super().on_instruction_end(kind, chunk)

    def _with_late_clocks(
        self, kind: str, chunk: int, part_began_s: float, point: OperatingPoint
    ) -> tuple[str, int, float, OperatingPoint]:
        """The instruction as if it had run at its last clock throughout: it ends when it ends."""
        share_left = 1.0
        while self._requests and self._requests[0][0] < part_began_s + share_left * point.time_s:
            in_force_s, self._in_force_mhz = self._requests.popleft()
            changed_s = max(part_began_s, in_force_s)
            share_left -= (changed_s - part_began_s) / point.time_s
            point = self._variation.apply(self._points[kind, chunk, self._in_force_mhz])
            self._meter.begin(point, changed_s)
            part_began_s = changed_s
        return kind, chunk, part_began_s - (1 - share_left) * point.time_s, point
