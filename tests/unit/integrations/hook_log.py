"""Hooks that write down what they are called with."""

from __future__ import annotations

from flyball_client.session.instruction_timings import Transfer
from flyball_integrations.shared.transfer_timers import TransferTimer


class HookLog:
    """Hooks of a rank, synchronization and timer of transfers in one log."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.log: list[str] = [] if log is None else log

    def add(self, line: str) -> None:
        """Write a line."""
        self.log.append(line)

    def on_step_begin(self) -> None:
        self.add("step begins")

    def on_step_end(self) -> None:
        self.add("step ends")

    def on_step_failed(self) -> None:
        self.add("step failed")

    def on_instruction_begin(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        self.add(f"{kind} {microbatch} of {chunk}")

    def on_instruction_end(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        self.add(f"{kind} {microbatch} of {chunk} ends")

    def synchronize(self) -> None:
        self.add("synchronize")


class TransferLog(TransferTimer):
    """A timer of transfers that writes into a log."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(lambda *_, **__: None, clock_s=lambda: 0.0)
        self.log = log

    def begin(self) -> None:
        self.log.append("[")

    def end(self, transfer: Transfer, kind: str, microbatch: int | None, *, chunk: int = 0) -> None:
        assert chunk == 0
        self.log.append(f"] {transfer} {kind} {microbatch}")

    def report(self) -> None:
        self.log.append("report")

    def end_step(self) -> None:
        self.log.append("report the rest")

    def discard(self) -> None:
        self.log.append("discard")
