"""Orders of instructions that a job's framework can run, and the one that saves most."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_wire.strictness import Sent


@dataclass(frozen=True, kw_only=True)
class OtherOrder(Sent):
    """An order that a job's framework can run from the job's next start on.

    Attributes:
        schedule: name of the schedule.
        line: line that sets it, for people; `{extra_forwards}` in it stands for those of the
            advised order, with commas between them.
    """

    schedule: str
    line: str


@dataclass(frozen=True, kw_only=True)
class OrderAdvice:
    """An order with which a job would need less energy at the same target, as predicted.

    Attributes:
        schedule: name of its schedule.
        instead_of: name of the schedule that the job runs.
        saving_percent: energy that its plan saves against that of the job's own order, %.
        most_held: largest number of microbatches that a stage holds activations of.
        most_held_now: the same of the job's own order.
        line: line that sets it at the job's next start.
    """

    schedule: str
    instead_of: str
    saving_percent: float
    most_held: float
    most_held_now: float
    line: str

    @property
    def text(self) -> str:
        """Line for people."""
        return (
            f"schedule {self.schedule} would need {self.saving_percent:.1f} % less energy than"
            f" {self.instead_of} at the same target (predicted), with activations of"
            f" {self.most_held:g} microbatches on a stage in place of {self.most_held_now:g};"
            f" to run it from the next start on: {self.line}"
        )
