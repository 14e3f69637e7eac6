"""Steps of a plan version that did not run as planned, and what they did to its figures. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from flyball_server.jobs.step_records import StepTotals
from flyball_wire.savings import Deviation, DeviationKind, Estimate

# In the figures; the others are left out.
_COUNTED = (DeviationKind.OVERRUN, DeviationKind.CAPPED)


_LEFT_OUT = {
    DeviationKind.CLOCK_LOST: "another program set a clock",
    DeviationKind.NO_CLOCKS: "a rank set no clocks",
    DeviationKind.UNSETTLED: "first after a change of version, or run on several versions",
    DeviationKind.MISSING: "not all ranks posted them",
}


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """Figures of a version without the counted steps that deviated.

    Attributes:
        slowdown_percent, saving_percent: against undisturbed steps at the highest clocks; None:
            no baseline, or one kind has no such steps.
    """

    num_steps: int
    slowdown_percent: Estimate | None
    saving_percent: Estimate | None


@dataclass(kw_only=True)
class DeviationTally:
    """Deviations of one version's steps, by kind."""

    num_steps: dict[DeviationKind, int] = field(default_factory=dict[DeviationKind, int])
    num_events: dict[DeviationKind, int] = field(default_factory=dict[DeviationKind, int])
    #: Number of counted steps, at any clocks.
    num_counted: int = 0

    def add_counted(self, step: StepTotals) -> bool:
        """Add a step that counts in the version's figures; return whether it deviated."""
        self.num_counted += 1
        self._add(DeviationKind.OVERRUN, step.num_overruns)
        self._add(DeviationKind.CAPPED, step.num_capped)
        return bool(step.num_overruns or step.num_capped)

    def add_left_out(self, step: StepTotals) -> None:
        """Add a step that all ranks have posted and that does not count."""
        if step.num_without_clocks:
            self._add(DeviationKind.NO_CLOCKS, step.num_without_clocks)
        elif step.num_unplanned:
            self._add(DeviationKind.UNPLANNED, step.num_unplanned)
        elif step.left_plan:
            self._add(DeviationKind.CLOCK_LOST, max(step.num_lost_clocks, 1))
        else:
            self._add(DeviationKind.UNSETTLED, 1)

    def add_missing(self, num_steps: int) -> None:
        """Add steps that some rank has not posted; a negative number: it has posted them late."""
        known = self.num_steps.get(DeviationKind.MISSING, 0)
        self.num_steps[DeviationKind.MISSING] = known + num_steps
        self.num_events[DeviationKind.MISSING] = known + num_steps

    def deviations(self, undisturbed: Undisturbed) -> tuple[Deviation, ...]:
        """Return what happened, in the order of `DeviationKind`."""
        return tuple(
            Deviation(
                kind=kind,
                num_steps=self.num_steps[kind],
                num_events=self.num_events[kind],
                is_counted=kind in _COUNTED,
                text=self._text(kind, undisturbed),
            )
            for kind in DeviationKind
            if self.num_steps.get(kind)
        )

    def _add(self, kind: DeviationKind, num_events: int) -> None:
        if num_events:
            self.num_steps[kind] = self.num_steps.get(kind, 0) + 1
            self.num_events[kind] = self.num_events.get(kind, 0) + num_events

    def _text(self, kind: DeviationKind, undisturbed: Undisturbed) -> str:
        num_steps, num_events = self.num_steps[kind], self.num_events[kind]
        steps = _counted(num_steps, "step")
        rest = _undisturbed_text(undisturbed)
        of_counted = f"In {num_steps} of {_counted(self.num_counted, 'counted step')}"
        match kind:
            case DeviationKind.OVERRUN:
                return (
                    f"{of_counted} a computation took longer than its GPU's profile, which is"
                    f" emulated ({_counted(num_events, 'overrun')}). {rest}"
                )
            case DeviationKind.CAPPED:
                return (
                    f"{of_counted} power or heat held a clock below the plan's"
                    f" ({_counted(num_events, 'reading')}). {rest}"
                )
            case DeviationKind.UNPLANNED:
                return (
                    f"{steps} left out: {_counted(num_events, 'instruction')} ran that the plan"
                    " does not have, and the rest at the highest clocks."
                )
            case _:  # no version runs at default clocks
                return f"{steps} left out: {_LEFT_OUT[kind]}."


def _undisturbed_text(undisturbed: Undisturbed) -> str:
    """Return what the figures are without the steps that deviated."""
    if not undisturbed.num_steps:
        return "All steps on the plan are such steps, so the figures are not the plan's own."
    slowdown, saving = undisturbed.slowdown_percent, undisturbed.saving_percent
    figures = [
        *([] if slowdown is None else [f"{_percent(slowdown, '+.2f')} time"]),
        *([] if saving is None else [f"{_percent(saving, '.2f')} less energy"]),
    ]
    others = f"{_counted(undisturbed.num_steps, 'other step')} on the plan"
    if not figures:
        return f"The figures count them; {others} had none."
    return f"The figures count them; of {others} they are {' and '.join(figures)}."


def deviations_without_plan(
    num_at_default: int, time_s: float, energy_j: float | None, *, num_without_clocks: int
) -> tuple[Deviation, ...]:
    """Return what steps without a plan did to a job's sums.

    Args:
        num_at_default: number of them at default clocks, on ranks that all set clocks.
        time_s: time of these, s.
        energy_j: energy of these, J; None: a rank could not read it.
        num_without_clocks: number of the others.
    """
    energy = "" if energy_j is None else f", {energy_j / 1e3:.1f} kJ"
    texts = {
        DeviationKind.DEFAULT_CLOCKS: (
            num_at_default,
            f", at default clocks ({time_s:.1f} s{energy}). Such steps may serve as a baseline.",
        ),
        DeviationKind.NO_CLOCKS: (
            num_without_clocks,
            ", and a rank set no clocks: its clocks are not known, so these steps are no baseline.",
        ),
    }
    return tuple(
        Deviation(
            kind=kind,
            num_steps=num_steps,
            num_events=num_steps,
            is_counted=True,
            text=f"{_counted(num_steps, 'step')} ran without a plan{text}",
        )
        for kind, (num_steps, text) in texts.items()
        if num_steps
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _percent(estimate: Estimate, form: str) -> str:
    mean = f"{estimate.mean:{form}} %"
    if estimate.low is None or estimate.high is None:
        return mean
    return f"{mean} [{estimate.low:{form}}, {estimate.high:{form}}]"
