"""Hooks that write down what they are called with."""

from __future__ import annotations


class HookLog:
    """Hooks of a rank, synchronization and timer of transfers in one log."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.log: list[str] = [] if log is None else log

    def on_step_begin(self) -> None:
        self.log.append("step begins")

    def on_step_end(self) -> None:
        self.log.append("step ends")

    def on_step_failed(self) -> None:
        self.log.append("step failed")

    def on_instruction_begin(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        self.log.append(f"{kind} {microbatch} of {chunk}")

    def on_instruction_end(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        self.log.append(f"{kind} {microbatch} of {chunk} ends")

    def synchronize(self) -> None:
        self.log.append("synchronize")


class TransferLog:
    """A TransferTimer that writes into the same log."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def begin(self) -> None:
        self.log.append("[")

    def end(self, transfer: str, kind: str, microbatch: int | None) -> None:
        self.log.append(f"] {transfer} {kind} {microbatch}")

    def tell(self) -> None:
        self.log.append("tell")

    def end_step(self) -> None:
        self.log.append("tell the rest")

    def forget(self) -> None:
        self.log.append("forget")
