"""Predicted figures of an iteration that plans and jobs have in common."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_wire.closed_loop import ComparedPlan


@dataclass(frozen=True, kw_only=True)
class SavingSources:
    """Energy of one iteration that a plan saves against the baseline, by source.

    Attributes:
        imbalance_j: stages that wait for the heaviest one run slower, J.
        bubbles_j: stages that wait while the pipeline fills and drains run slower, J.
        iteration_time_j: a longer iteration, in which all stages run slower and wait longer; of a
            shorter one what less waiting saves, J.
    """

    imbalance_j: float
    bubbles_j: float
    iteration_time_j: float


@dataclass(frozen=True, kw_only=True)
class PredictedFigures:
    """Predicted figures of an iteration, of the same names in a plan's document and a job's page.

    The baseline is the same schedule with every instruction at its highest profiled frequency.

    Attributes:
        energy_j: energy of one iteration, J.
        lower_bound_j: lower bound of the energy, J: no plan within the target needs less; for a
            power budget, no plan with this iteration time. With a reserve the bound is on plans
            that keep it and are no faster. null: unknown.
        compared: plans for the same target without a clock change: `constant`, the best clock of
            each stage, and `global`, the best clock of all; only beside a plan of `frontier` for at
            most 64 stages, and only those that meet the target.
        saving_sources: saving by source; null: unknown.
        late_changes_j: energy that late clock changes cost, J: beyond that of the plan found for
            the target as if they came at once, or, where no such plan was sought, beyond that of
            the same clocks in the same iteration time.
        stragglers_s: part of the baseline's iteration time that stragglers add, s.
    """

    energy_j: float
    lower_bound_j: float | None = None
    compared: tuple[ComparedPlan, ...] = ()
    saving_sources: SavingSources | None = None
    late_changes_j: float = 0.0
    stragglers_s: float = 0.0
