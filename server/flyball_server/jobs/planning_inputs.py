"""Inputs of a job's plans that measurements give."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flyball_wire.closed_loop import StragglerReason
from flyball_wire.targets import parse_target

KEPT_HIGHEST = "one plan would make steps longer, so the highest clocks are kept"


@dataclass(frozen=True, kw_only=True)
class RankSlowdown:
    """Measured slowdown factor of a rank against its profile.

    Attributes:
        slowdown: slowdown factor of its instructions; below 1: faster than profiled.
        reason: cause of the slowdown.
        since_unix_s: time of detection.
    """

    rank: int
    slowdown: float
    reason: StragglerReason = StragglerReason.SLOW
    since_unix_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StageSlowdown:
    """Drift of all ranks of a stage from its profile, for one kind of instruction.

    Attributes:
        kind: kind of instruction, such as `forward`.
        slowdown: slowdown factor, as in RankSlowdown.
    """

    stage: int
    kind: str
    slowdown: float


@dataclass(frozen=True, kw_only=True)
class MeasuredDelays:
    """Parts of an iteration beside its instructions, from the steps of one plan version.

    Attributes:
        version: plan version of these steps.
        num_steps: their number.
        tail_s: part of an iteration outside its instructions, s; 0: none is certain.
        transfer_s: time of a transfer between each pair of neighbouring stages, s; empty: none is
            certain.
        up_s, down_s: median delay of a change to a higher and to a lower clock, s; None: not
            certain.
        jitter: standard deviation of a single instruction's time as a share of it, root mean
            square; 0: none is certain.
        num_before: number of earlier delays that the job was planned with.
        work: how much a microbatch's instructions scatter together, as a share; 0: not surely. With
            more than 0 one plan does not fit all steps, for as long as the job keeps its profile.
        step_plans_saving_percent: energy that clocks for each step would have saved in these steps,
            predicted, %; None: not computed.
    """

    version: int
    num_steps: int
    tail_s: float = 0.0
    transfer_s: tuple[float, ...] = ()
    up_s: float | None = None
    down_s: float | None = None
    jitter: float = 0.0
    num_before: int = 0
    work: float = 0.0
    step_plans_saving_percent: float | None = None

    @property
    def work_note(self) -> str | None:
        """Line that says that one plan does not fit all steps; None: it does."""
        if not self.work:
            return None
        note = (
            f"steps differ in their work (a microbatch's times vary by {100 * self.work:.0f} %):"
            f" {KEPT_HIGHEST}; announce the work of each step to give it clocks of its own"
        )
        if self.step_plans_saving_percent is None:
            return note
        return (
            f"{note}, predicted to save {self.step_plans_saving_percent:.0f} % of these steps'"
            " energy"
        )


@dataclass(frozen=True, kw_only=True)
class WorkModel:
    """Work that a job announces, and how much longer it makes each instruction.

    Measured in the timed steps of one plan version; relative to the times of the plan that these
    steps ran, slowdown factors included. While nothing is measured, steps whose work is lengths run
    at the highest clocks.
    """

    #: Plan version of the measured steps; 0: none were measured yet.
    version: int = 0
    #: Number of measured microbatches.
    num_microbatches: int = 0
    #: Stage, kind and chunk of each instruction that has coefficients.
    places: tuple[tuple[int, str, int], ...] = ()
    #: By place, `WorkCoefficients`, rounded; empty: all work is factors, or none was measured.
    coefficients: tuple[tuple[float, float, float], ...] = ()
    #: Mean over the measured microbatches: sum of lengths, sum of their squares.
    mean_work: tuple[float, float] = (0.0, 0.0)
    #: Means of the squared sum of lengths S, of S times the sum of squares Q, and of Q squared.
    mean_products: tuple[float, float, float] = (0.0, 0.0, 0.0)
    #: Least and largest sum of a measured microbatch's lengths; 0 where all work is factors.
    lengths_range: tuple[float, float] = (0.0, 0.0)
    #: Standard deviation of times from the predicted ones that a microbatch's instructions share,
    #: and of each for itself, as shares.
    shared_error: float = 0.0
    own_error: float = 0.0
    #: `StepReserve`: of the step, and of each instruction.
    reserve: tuple[float, float] = (0.0, 0.0)
    #: Number of GPUs of a node whose calls may come before a GPU's own, beside those counted in the
    #: plan's times of clock changes.
    num_queued: int = 0
    #: True if nothing is known of the GPUs' clock changes, which then count as the slowest known.
    has_unknown_changes: bool = False
    #: Reason why steps get no plans of their own, in one line; None: they get them.
    problem: str | None = None
    #: Number of earlier models that the job was planned with.
    num_before: int = 0
    #: How often its factors were scaled since times had drifted.
    num_drifts: int = 0

    @property
    def error(self) -> float:
        """Return the standard deviation of an instruction's time from the predicted one."""
        return math.hypot(self.shared_error, self.own_error)

    @property
    def note(self) -> str | None:
        """Line that says why announced work is not used; None: it is."""
        if self.problem is None:
            if self.num_microbatches:
                return None
            return (
                "announced work is being measured: steps run at the highest clocks until their"
                " times are known"
            )
        return f"announced work is not used, and steps get no plans of their own: {self.problem}"


@dataclass(frozen=True, kw_only=True)
class StepPower:
    """Correction of steps' deadlines that keeps a target `power:` on average over blocks of steps.

    The plan keeps the target for the work of an average step.
    """

    #: Target of the measured steps, as planned.
    target: str
    #: A step's deadline over that which follows from the plan.
    factor: float = 1.0
    #: Ratio of deadlines to times at the highest clocks before the newest change, and mean power
    #: over the target with it; None: no change yet.
    before: tuple[float, float] | None = None
    #: Number of changes for this target.
    num_changes: int = 0
    #: Mean power in W at the least-energy clocks, where that misses the target; None: it does not.
    least_power_w: float | None = None

    @property
    def note(self) -> str | None:
        """Line that says that the target is missed; None: it is not known to be."""
        if self.least_power_w is None:
            return None
        return (
            f"target {self.target} is not met: steps draw {self.least_power_w:g} W on average at"
            " their least-energy clocks"
        )


def deadline_factor(step_power: StepPower | None, target: str) -> float:
    """Return the factor of steps' deadlines: 1 for other targets, and while none was measured."""
    return step_power.factor if step_power and parse_target(target).kind == "power" else 1.0


@dataclass(frozen=True, kw_only=True)
class ChangedConditions:
    """Conditions of GPUs that the job's profile was not measured under.

    Attributes:
        text: what changed, and on which ranks.
        since_unix_s: time at which that was read first.
    """

    text: str
    since_unix_s: float


@dataclass(frozen=True, kw_only=True)
class LastingInputs:
    """Inputs of a plan beside specification and profile that neither time nor a slow GPU changes.

    Attributes:
        delays: measured delays; None: not measured, or too small to matter.
        work: announced work; None: the job announces none.
        step_power: correction of steps' deadlines for a target `power:`; None: none was measured.
        gpus_at_once: largest number of GPUs that one stage has in one node; None: not all ranks
            have registered, or it has no effect.
        gpus_in_node: largest number of GPUs that the job has in one node; None: likewise.
        changed: conditions under which the profile does not hold; None: none are known.
    """

    delays: MeasuredDelays | None = None
    work: WorkModel | None = None
    step_power: StepPower | None = None
    gpus_at_once: int | None = None
    gpus_in_node: int | None = None
    changed: ChangedConditions | None = None

    @property
    def step_work(self) -> WorkModel | None:
        """Return the work that steps' plans are made from; None: they get none of their own.

        They get none where the profile does not hold.
        """
        is_usable = self.work is not None and self.work.problem is None and self.changed is None
        return self.work if is_usable else None

    @property
    def work_note(self) -> str | None:
        """Line on steps that differ, or on announced work that is not used; None: neither."""
        of_steps = None if self.delays is None else self.delays.work_note
        if self.work is None:
            return of_steps
        is_kept = self.step_work is None and of_steps is not None
        return f"{self.work.note}; {KEPT_HIGHEST}" if is_kept else self.work.note


@dataclass(frozen=True, kw_only=True)
class PlanningInputs(LastingInputs):
    """Inputs of a plan beside specification and profile.

    Attributes:
        target: target of the timetable; None: the specification's.
        rank_slowdowns: announced and detected slowdowns, the larger one of each rank.
        stage_slowdowns: drift of stages.
    """

    target: str | None = None
    rank_slowdowns: tuple[RankSlowdown, ...] = ()
    stage_slowdowns: tuple[StageSlowdown, ...] = ()
