"""Readings of a GPU's energy counter that do not hold up the hooks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from flyball_client.gpu._base import GpuDevice

_logger = logging.getLogger(__name__)

EnergyCallback = Callable[[float | None], None]
"""Called with the energy counter in J; None: it cannot be read."""


class EnergyReader:
    """Reader of one GPU's energy counter, by a thread where the GPU is a real one.

    A driver may take many milliseconds for a reading (docs/measured-on-gpus.md). One reading
    serves all requests that came before its end, as those of a step's end and the next one's
    begin. After an error the counter is not read again, with one line in the log.

    Args:
        gpu: GPU; None: there is none.
        rank_name: Job and rank, for the log.
    """

    def __init__(self, gpu: GpuDevice | None, *, rank_name: str) -> None:
        self._gpu = gpu
        self._rank_name = rank_name
        # One without an address is computed in this process: its counter is read at once.
        self._is_immediate = gpu is None or gpu.address is None
        self._changed = threading.Condition()
        self._requests: list[EnergyCallback] = []
        self._is_calling = self._is_closed = False
        self._thread: threading.Thread | None = None

    def request(self, then: EnergyCallback) -> None:
        """Read the counter, and call this function with it; requests are served in order."""
        if self._is_immediate:
            then(self._read())
            return
        with self._changed:
            if self._is_closed:
                return
            self._requests.append(then)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="flyball-energy-reader", daemon=True
                )
                self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until all requests are served, at most this long."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._requests and not self._is_calling, timeout=timeout_s
            )

    def close(self, timeout_s: float) -> None:
        """Wait as `wait` does, and end the thread; later requests are not served."""
        self.wait(timeout_s)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._requests or self._is_closed)
                if self._is_closed:
                    return
            energy_j = self._read()
            with self._changed:
                requests, self._requests = self._requests, []
                self._is_calling = True
            for then in requests:
                try:
                    then(energy_j)
                except Exception:
                    _logger.exception("%s: a step's energy is lost", self._rank_name)
            with self._changed:
                self._is_calling = False
                self._changed.notify_all()

    def _read(self) -> float | None:
        if self._gpu is None:
            return None
        try:
            return self._gpu.total_energy_j()
        except Exception as error:
            self._gpu = None
            _logger.warning("%s: energy is not measured: %s", self._rank_name, error)
            return None
