"""Result types of a job's measured savings and of its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from flyball_profiles.stage_profile import EnergyScope
from flyball_wire.closed_loop import ComparedPlan, PlannedDelays
from flyball_wire.energy_factors import EnergyFactors
from flyball_wire.orders import OrderAdvice


class BaselineOrigin(StrEnum):
    """Origin of a measured baseline.

    `interleaved`: measured between the plan's steps. `apart`: measured in the nearest steps of the
    job at default or highest clocks; drift in between counts as saving. `itself`: the version runs
    at the highest clocks only. `none`: not measured.
    """

    NONE = "none"
    INTERLEAVED = "interleaved"
    APART = "apart"
    ITSELF = "itself"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean of measured steps with its 95 % confidence interval, in the unit of the field.

    Attributes:
        low: lower bound of the interval; null: too few measured steps.
        high: upper bound of the interval; null: too few measured steps.
        num_steps: number of measured steps; in a comparison, on the smaller side.
    """

    mean: float
    low: float | None
    high: float | None
    num_steps: int

    @property
    def includes_zero(self) -> bool:
        """Return whether zero lies in the interval: no measurable change."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high


class HeadlineTone(StrEnum):
    """Tone of a headline: energy saved, saved at the cost of time, lost, or no sure change."""

    GAIN = "gain"
    TRADE = "trade"
    LOSS = "loss"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """Saving of a job in one line, on steps with a plan, and its cost in time.

    Attributes:
        text: saving and time, measured ones with their 95 % intervals, such as
            `25.1 % less energy (24.9 to 25.3) at 9.1 % more time (8.9 to 9.3)`. A change whose
            interval includes zero is no measurable change.
        time_text: the part of `text` about time, without its interval.
        is_measured: true: measured, on the newest version with counted steps; false: predicted.
        caveats: limits of the comparison, a sentence each, such as a baseline measured at another
            time or on other GPUs.
    """

    text: str
    time_text: str
    tone: HeadlineTone
    is_measured: bool
    caveats: tuple[str, ...] = ()


class DeviationKind(StrEnum):
    """Reason why steps did not run as planned."""

    OVERRUN = "overrun"
    CAPPED = "capped"
    UNPLANNED = "unplanned"
    CLOCK_LOST = "clock-lost"
    NO_CLOCKS = "no-clocks"
    UNSETTLED = "unsettled"
    MISSING = "missing"
    DEFAULT_CLOCKS = "default-clocks"


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """Steps that did not run as planned for one reason, and their effect on the figures.

    Attributes:
        kind: `overrun`: an emulated computation took longer than its profile; `capped`: power or
            heat held a clock down; `unplanned`: instructions were not in the plan; `clock-lost`:
            another program set a clock; `no-clocks`: a rank set no clocks; `unsettled`: the first
            step after a change of version, or a step on several versions; `missing`: not posted by
            all ranks; `default-clocks`: no plan was in force.
        num_steps: number of these steps.
        num_events: number of overruns, readings or instructions in these steps; for other kinds
            the number of steps.
        is_counted: true if the job's figures include these steps.
        text: explanation in a sentence or two.
    """

    kind: DeviationKind
    num_steps: int
    num_events: int
    is_counted: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class MeasuredSavings:
    """Measured effect of one plan version against a measured baseline.

    Attributes:
        time_s: measured iteration time on the plan in s; null: not measured.
        energy_j: measured energy of an iteration on the plan in J; null: not measured.
        baseline_time_s: measured iteration time at the highest clocks in s; null: not measured.
        baseline_energy_j: measured energy of an iteration at the highest clocks in J; null: not
            measured.
        baseline: origin of the baseline.
        slowdown_percent: slowdown against that baseline in %; null: no baseline.
        saving_percent: energy saved against that baseline in %; null: no baseline.
        saved_j: energy saved in `num_steps` steps in J; null: no baseline.
        num_steps: number of counted steps, measured on the plan by all ranks.
        num_left_out: number of other steps of the version: not run as planned, of several
            versions, not posted by all ranks, or directly after a change of version.
        deviations: steps that did not run as planned, by reason, including those left out.
        caveats: limits of the comparison with the baseline, a sentence each.
    """

    version: int
    time_s: Estimate | None = None
    energy_j: Estimate | None = None
    baseline_time_s: Estimate | None = None
    baseline_energy_j: Estimate | None = None
    baseline: BaselineOrigin = BaselineOrigin.NONE
    slowdown_percent: Estimate | None = None
    saving_percent: Estimate | None = None
    saved_j: Estimate | None = None
    num_steps: int = 0
    num_left_out: int = 0
    deviations: tuple[Deviation, ...] = ()
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VersionSavings(MeasuredSavings):
    """Measured and predicted effect of one plan version.

    Attributes:
        policy: policy of the plan.
        target: target of the plan.
        predicted_time_s: predicted iteration time in s.
        predicted_energy_j: predicted energy of an iteration in J.
        predicted_saving_percent: predicted saving in %.
        compared: predicted plans without a clock change, as in PredictedIteration.
    """

    policy: str
    target: str
    predicted_time_s: float
    predicted_energy_j: float
    predicted_saving_percent: float
    compared: tuple[ComparedPlan, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """Measurements of a job so far.

    Attributes:
        emulated: true if some of its GPUs are emulated; all measurements are then emulated.
        num_ranks: number of ranks in a complete step.
        num_steps: number of steps measured by all ranks, at any clocks.
        time_s: measured time of all these steps in s.
        energy_j: measured energy of all these steps in J; null: a rank could not read it.
        saved_j: energy saved by all versions with a measured baseline in J; null: none has one. The
            bounds are sums over the versions, which share baselines.
        num_profiling_steps: number of steps of online profiling; null: not profiled online.
        profiling_time_s: measured time added by online profiling in s; null: not profiled online.
        profiling_energy_j: measured energy added by online profiling in J; null: not profiled
            online, or not readable.
        versions: savings of each plan version that was run, in ascending order, without versions
            for profiling.
        num_unknown_steps: number of further steps, in which a rank ran a plan version that is not
            in the planner's database, since that was restored to an older state.
        deviations: steps without a plan.
        notes: remarks for people: ranks that set no clocks, energies that are not comparable.
        energy_scope: what the energy counters of all ranks count; null: not known, or several.
        headline: saving in one line; null: nothing is measured and nothing predicted.
        saved_of_j: energy that the steps of `saved_j` would have taken at the highest clocks, J;
            null: `saved_j` is.
        factors: price and emissions of energy, by the planner's settings.
        delays: times beside the instructions; null: none are given, and none measured.
        order_advice: order that would save more, from the job's next start on; null: none found.
    """

    job_id: str
    emulated: bool
    num_ranks: int
    num_steps: int
    time_s: float
    energy_j: float | None
    saved_j: Estimate | None
    profiling_time_s: float | None
    profiling_energy_j: float | None
    versions: tuple[VersionSavings, ...]
    num_profiling_steps: int | None = None
    num_unknown_steps: int = 0
    deviations: tuple[Deviation, ...] = ()
    notes: tuple[str, ...] = ()
    energy_scope: EnergyScope | None = None
    headline: Headline | None = None
    saved_of_j: float | None = None
    factors: EnergyFactors = field(default_factory=EnergyFactors)
    delays: PlannedDelays | None = None
    order_advice: OrderAdvice | None = None
